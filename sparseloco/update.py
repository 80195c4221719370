"""A peer's compressed pseudo-gradient: valid records and their derived values.

An `Update` is made by the decoder (wire.parse) or by compress, never from unchecked bytes; nothing downstream validates
again. It keeps the records as bytes (1.3 bytes a kept value) and decodes a tensor on request.
"""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.protocol.layout import CHUNK, Layout, Region, TensorLayout
from murmur.protocol.types import Digest
from sparseloco import records as wire_records
from sparseloco.quantize import level_values
from sparseloco.topk import slabs, write_blocks

Records = bytes | memoryview
"""Bytes that must not change while they are in use; a view saves a copy of opened or memory-mapped bytes."""
LEVELS = 256
"""Number of level codes."""


@dataclass(frozen=True, slots=True)
class Norms:
    """L2 norms of an update's decoded values, or bounds on them: per tensor in layout order, and of the whole."""

    tensors: tuple[float, ...]
    whole: float


@dataclass(frozen=True)
class Update:
    """Delta_hat of one peer: canonical `records` (without the theta digest) of every chunk of `layout`, in order."""

    layout: Layout
    records: Records
    counts: npt.NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    """Number of values of each tensor with each level code, [tensors, 256], if the decoder has counted them."""

    @cached_property
    def digest(self) -> Digest:
        """sha256 of the records: equal payloads have equal digests."""
        return Digest(sha256(self.records).digest())

    def chunks(self, tensor: TensorLayout, region: Region) -> wire_records.Chunks:
        """Return the decoded chunks of a region (or slab of one), row-major over the region."""
        view = wire_records.window(self._array, tensor, region)
        return wire_records.decode(view.reshape(-1, region.record_bytes), region)

    def tensor(self, which: int | str) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return, for each region of a tensor, given by name or place in the layout: (indices int64 [chunks, k'],
        values fp32 [chunks, k']). Indices count within the block, row-major."""
        tensor = self._tensor_layout(which)
        decoded = (self.chunks(tensor, region) for region in tensor.regions)
        return tuple((chunks.indices, chunks.codes.values()) for chunks in decoded)

    def dense(self, which: int | str) -> Tensor:
        """Return a tensor of the decoded pseudo-gradient in full, fp32, zero where nothing was sent."""
        tensor = self._tensor_layout(which)
        full = torch.zeros(tensor.shape, dtype=torch.float32)
        for region in slabs(tensor):
            chunks = self.chunks(tensor, region)
            block = torch.zeros(region.down * region.across, region.n)
            write_blocks(full, tensor, region, block.scatter_(1, chunks.indices, chunks.codes.values()))
        return full

    @cached_property
    def norms(self) -> Norms:
        """Norms of the decoded values (docs/protocol.md section 7): values are counted per level code in integers, then
        count * level^2 is summed in ascending code order in float64. Same bits on any machine, and for ranks that add
        up their counts."""
        return norms_of(self.histograms)

    @cached_property
    def histograms(self) -> npt.NDArray[np.int64]:
        """Number of values of each tensor with each level code, [tensors, 256]."""
        if self.counts is not None:
            return self.counts
        counted = [self._histogram(tensor) for tensor in self.layout]
        return np.array(counted, dtype=np.int64).reshape(-1, LEVELS)

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """Ascending (chunk * 4096 + index) * 2 + sign of every value: 8 bytes each, for studies and small models."""
        parts = [np.empty(0, dtype=np.int64)]
        for tensor in self.layout:
            for region in tensor.regions:
                numbers = np.arange(region.down)[:, None] * region.chunk_stride + np.arange(region.across)
                numbers += tensor.first_chunk + region.first
                chunks = self.chunks(tensor, region)
                place = numbers.reshape(-1, 1) * CHUNK + chunks.indices.numpy()
                parts.append((place * 2 + chunks.codes.signs.numpy()).ravel())
        return np.sort(np.concatenate(parts))

    @property
    def _array(self) -> wire_records.Bytes:
        return np.frombuffer(self.records, dtype=np.uint8)

    def _tensor_layout(self, which: int | str) -> TensorLayout:
        if isinstance(which, int):
            return self.layout.tensors[which]
        return next(tensor for tensor in self.layout if tensor.name == which)

    def _histogram(self, tensor: TensorLayout) -> npt.NDArray[np.int64]:
        """Return the number of the tensor's values with each level code, int64 [256]."""
        counts = np.zeros(LEVELS, dtype=np.int64)
        for region in slabs(tensor):
            levels = self.chunks(tensor, region).codes.levels().numpy()
            counts += np.bincount(levels.ravel(), minlength=LEVELS)
        return counts


_SQUARES = level_values(torch.arange(LEVELS)).double().square().numpy()
"""Exact: a level has 4 significant bits."""


def norms_of(histograms: npt.NDArray[np.int64]) -> Norms:
    """Return the norms that follow from level counts [tensors, 256]."""
    counts = np.concatenate((histograms, histograms.sum(axis=0, keepdims=True)))
    # cumsum adds one after the other, sum does not.
    *tensors, whole = np.sqrt(np.cumsum(counts * _SQUARES, axis=1)[:, -1]).tolist()
    return Norms(tuple(tensors), whole)


def overlap(first: Update, second: Update, *, signed: bool = False) -> float:
    """Return the share of the values' positions (with `signed`: and signs) that two updates of one layout have in
    common, 0 to 1. 0 for a layout without chunks."""
    if first.layout != second.layout:
        raise ValueError("updates of different layouts cannot be compared")
    shift = 0 if signed else 1
    left, right = first.positions >> shift, second.positions >> shift
    common = np.intersect1d(left, right, assume_unique=True).size
    return common / left.size if left.size else 0.0
