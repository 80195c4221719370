"""Where a node trains: the device that its operator wished for, or the best there is."""

import platform

import torch

from protocol.errors import ConfigError


def choose_device(wish: str) -> torch.device:
    """The device to train on. Raises ConfigError for one that is not there."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; install a CUDA build of torch and a driver, or use cpu")
    return torch.device("cuda" if wish != "cpu" and torch.cuda.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """The device for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"
