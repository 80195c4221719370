"""Training speed: one reading per interval with loss, tokens per second, MFU and memory. For people only.

MFU (PaLM, arXiv 2204.02311): the FLOPs that the model needs, without recomputation, as a share of the manufacturer's
bf16 peak for dense products.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.training.sizes import flops_per_token

INTERVAL_SECONDS = 60.0

PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}
"""Dense bf16 FLOP/s, with fp32 sums, by a part of the device's name; the first match counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Averages over the inner steps since the last reading. `step`: the newest, from 0 within the round. `loss`: mean,
    nats per token. `mfu`: 0 to 1, None where the device's peak is not known. `memory_bytes`: peak of a GPU's tensors,
    or, on the CPU, of this process since its start."""

    step: int
    loss: float
    tokens_per_second: float
    mfu: float | None
    memory_bytes: int

    def __str__(self) -> str:
        mfu = "" if self.mfu is None else f", MFU {self.mfu:.1%}"
        return (
            f"step {self.step}: loss {self.loss:.4f}, {self.tokens_per_second:,.0f} tokens/s{mfu}, "
            f"{self.memory_bytes / 1e9:.2f} GB"
        )


class Meter:
    """An OnStep (murmur/training/inner.py) for one inner round: calls `report` every `interval_seconds` or more, at the
    end of a step, and after the last one."""

    def __init__(
        self,
        model: ModelSpec,
        inner: InnerSpec,
        report: Callable[[Reading], None],
        *,
        device: torch.device,
        gpus: int = 1,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it just before the round begins: time counts from here. gpus: how many share the work."""
        self._report, self._device, self._clock = report, device, clock
        self._interval_seconds = interval_seconds
        self._last_step = inner.steps - 1
        self._step_tokens = inner.sequences * model.context
        self._token_flops = flops_per_token(model)
        peak = peak_flops(device)
        self._peak_flops = None if peak is None else peak * gpus
        self._losses: list[float] = []
        self._since = clock()

    def __call__(self, step: int, loss: float) -> None:
        self._losses.append(loss)
        now = self._clock()
        seconds = now - self._since
        if seconds < self._interval_seconds and step < self._last_step:
            return
        rate = len(self._losses) * self._step_tokens / max(seconds, 1e-9)
        mfu = None if self._peak_flops is None else rate * self._token_flops / self._peak_flops
        mean = sum(self._losses) / len(self._losses)
        self._report(Reading(step, mean, rate, mfu, memory_bytes(self._device)))
        self._losses, self._since = [], now


def peak_flops(device: torch.device) -> float | None:
    """Return the manufacturer's bf16 FLOP/s of one device; None for a CPU and for a GPU that is not in the table."""
    if device.type != "cuda":
        return None
    return peak_flops_of(torch.cuda.get_device_name(device))


def peak_flops_of(name: str) -> float | None:
    """Return the peak FLOP/s by the device's name in CUDA."""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


def memory_bytes(device: torch.device) -> int:
    """Return the peak bytes in use: on CUDA by tensors since the last call, elsewhere by this process since its
    start."""
    if device.type == "cuda":
        num_bytes = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return num_bytes
    # KiB, except on macOS: bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
