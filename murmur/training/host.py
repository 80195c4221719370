"""Host memory shared by all ranks of a machine: fp32 copies of the model, a round's tokens, a payload's records.

One process keeps them as its own memory; several map the same memory. So theta, error feedback and the optimizer's
state exist once per machine. Each rank works on its rows, and the first rank reads them whole.
"""

import mmap
import os
import sys
from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from murmur.protocol.errors import ConfigError
from murmur.protocol.layout import Layout

_ALIGNMENT = 64


class Area:
    """Zeroed memory with a name, which other processes map under `path`; None: this process's own."""

    def __init__(self, num_bytes: int, path: str | None = None, *, shared: bool = False) -> None:
        """`path`: map another process's area. `shared`: make an area that others can map."""
        self.num_bytes = num_bytes
        self.path = path
        self._file: int | None = None
        if path is None and not shared:
            # calloc: pages take memory on the first write, as in a shared area.
            self._bytes = torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
            return
        if path is None:
            self._file, self.path = _make(num_bytes)
        file = self._file if self._file is not None else os.open(str(path), os.O_RDWR)
        try:
            # The mapping outlives the descriptor; the tensors keep the mapping.
            self._bytes = torch.frombuffer(mmap.mmap(file, max(1, num_bytes)), dtype=torch.uint8)
        finally:
            if self._file is None:
                os.close(file)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Tensor:
        """Return a tensor over the area's bytes from `offset` on."""
        return self._bytes[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def close_file(self) -> None:
        """Close the descriptor: no other process will map the area any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _make(num_bytes: int) -> tuple[int, str]:
    """Make memory without a name; return the descriptor and the path by which processes of the same user open it. Pages
    take memory on the first write."""
    if sys.platform != "linux":
        raise ConfigError(
            "several ranks share memory through /proc, which only Linux has: start one without `murmur torchrun`"
        )
    file = os.memfd_create("murmur")
    os.ftruncate(file, max(1, num_bytes))
    return file, f"/proc/{os.getpid()}/fd/{file}"


def model_bytes(layout: Layout) -> int:
    """Return the bytes of an area that `model_tensors` fills."""
    return sum(_padded(tensor.numel * 4) for tensor in layout)


def model_tensors(area: Area, layout: Layout) -> dict[str, Tensor]:
    """Return the layout's tensors, fp32, one after the other in an area of `model_bytes`."""
    tensors: dict[str, Tensor] = {}
    offset = 0
    for tensor in layout:
        tensors[tensor.name] = area.tensor(tensor.shape, torch.float32, offset)
        offset += _padded(tensor.numel * 4)
    return tensors


def copy(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy every tensor of `into` from `values`."""
    for name, tensor in into.items():
        tensor.copy_(values[name])


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
