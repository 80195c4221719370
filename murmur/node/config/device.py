"""The device that a node trains on: the one that its operator asked for, or the best available."""

import platform

import torch

from murmur.protocol.errors import ConfigError


def choose_device(wish: str) -> torch.device:
    """Return the device to train on. Raises ConfigError if it is missing."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; install a CUDA build of torch and a driver, or use cpu")
    return torch.device("cuda" if wish != "cpu" and torch.cuda.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """Return the device's name for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"
