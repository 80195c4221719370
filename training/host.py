"""Host memory that all ranks of a machine see: fp32 copies of the model, a round's tokens, a payload's records.

One process keeps them as its own memory; several map the same. So theta, error feedback and the optimizer's state
exist once on a machine, each rank works on its rows of them, and the first rank reads them whole.
"""

import mmap
import os
import sys
from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from protocol.errors import ConfigError
from protocol.layout import Layout

_ALIGNMENT = 64


class Area:
    """Zeroed memory of one name, to be mapped by other processes under `path`; None: this process's own."""

    def __init__(self, num_bytes: int, path: str | None = None, *, shared: bool = False) -> None:
        """path: map what another process made. shared: make one that others can map."""
        self.num_bytes = num_bytes
        self.path = path
        self._file: int | None = None
        if path is None and not shared:
            # calloc: pages take memory when they are first written to, as in a shared area.
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
        """A tensor over the area's bytes from `offset` on."""
        return self._bytes[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def close_file(self) -> None:
        """Nobody else will map it any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _make(num_bytes: int) -> tuple[int, str]:
    """(descriptor, path by which processes of the same user open it) of memory without a name. Pages take memory when
    they are first written to."""
    if sys.platform != "linux":
        raise ConfigError("several ranks share memory through /proc, which only Linux has: start one without torchrun")
    file = os.memfd_create("murmur")
    os.ftruncate(file, max(1, num_bytes))
    return file, f"/proc/{os.getpid()}/fd/{file}"


def model_bytes(layout: Layout) -> int:
    """Bytes of an area that `model_tensors` fills."""
    return sum(_padded(tensor.numel * 4) for tensor in layout)


def model_tensors(area: Area, layout: Layout) -> dict[str, Tensor]:
    """The layout's tensors, fp32, one after the other in an area of `model_bytes`."""
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
