"""Requirements of the consensus arithmetic: IEEE fp32 with denormals, finite inputs, constants rounded once.

Every rule of this package is stated in integers, or in fp32 operations that are rounded one by one (no fused
multiply-add). So a result has the same bits for any thread count, vector width and device.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from murmur.protocol.errors import ConfigError
from murmur.protocol.layout import TensorLayout

FLUSHES = (
    "this process flushes denormal numbers to zero, so its parameters would differ from every other node's; call "
    "torch.set_flush_denormal(False) and remove the library that sets it"
)

_GRAIN = 1 << 15
"""Elements that torch gives to one thread before it uses another."""


class NonFinite(ValueError):
    """A NaN or an infinity among the values to compress. They are never sent: the inner phase diverged."""


def fp32(value: float) -> Tensor:
    """Return a 0-D fp32 tensor: `value` rounded to nearest once, so that no operation rounds it differently."""
    return torch.tensor(value, dtype=torch.float32)


def require_denormals() -> None:
    """Raise ConfigError if this process (any of torch's threads) flushes denormals to zero.

    The flag is per thread and set by libraries that were built with -ffast-math as well as by
    `torch.set_flush_denormal`. Replicas that differ in it diverge silently.
    """
    tiny = torch.full((_GRAIN * torch.get_num_threads(),), 2.0**-140, dtype=torch.float32)
    if not bool((tiny * 0.5).view(torch.int32).ne(0).all()):
        raise ConfigError(FLUSHES)


def tensor_of(tensors: Mapping[str, Tensor], tensor: TensorLayout, *dtypes: torch.dtype) -> Tensor:
    """Return the tensor that the layout names, detached. Raises ValueError if it is missing or its shape or dtype is
    not the one that the layout and the method need."""
    if tensor.name not in tensors:
        raise ValueError(f"tensor {tensor.name!r} of the layout is missing")
    found = tensors[tensor.name].detach()
    if tuple(found.shape) != tensor.shape or found.dtype not in dtypes:
        raise ValueError(
            f"tensor {tensor.name!r} is {found.dtype} {tuple(found.shape)}, the layout needs "
            f"{' or '.join(str(dtype) for dtype in dtypes)} {tensor.shape}"
        )
    return found


def destination(out: Mapping[str, Tensor], tensor: TensorLayout) -> Tensor:
    """Return the fp32 tensor of `out` to which a result is written. Raises ValueError as `tensor_of`, and if it is not
    contiguous."""
    found = tensor_of(out, tensor, torch.float32)
    if not found.is_contiguous():
        raise ValueError(f"tensor {tensor.name!r} to write to is not contiguous")
    return found
