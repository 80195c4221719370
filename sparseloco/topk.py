"""Blocks of a tensor, and the exact Top-k of each (SparseLoCo, Algorithm 1; docs/protocol.md section 2).

A region's blocks are gathered into one [chunks, n] tensor so that every step runs over all of them at once. Large
regions are processed in slabs of at most `SLAB_CHUNKS` chunks, which bounds the memory of every pass in this package.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from murmur.protocol.layout import CHUNK, Region, TensorLayout
from sparseloco.floats import NonFinite

SLAB_CHUNKS = 512
"""Chunks handled at once: 2 Mi elements, about 16 MiB for each 64-bit temporary of the Top-k."""

_MAGNITUDE = 0x7FFF_FFFF
_INFINITY = 0x7F80_0000
_INDEX_BITS = CHUNK.bit_length() - 1


def slabs(tensor: TensorLayout) -> Iterator[Region]:
    """Yield the tensor's regions, cut into smaller regions of at most SLAB_CHUNKS chunks that tile them."""
    for region in tensor.regions:
        across_step = min(region.across, SLAB_CHUNKS)
        down_step = max(1, SLAB_CHUNKS // region.across)
        for down in range(0, region.down, down_step):
            for across in range(0, region.across, across_step):
                yield replace(
                    region,
                    row=region.row + down * region.height,
                    column=region.column + across * region.width,
                    down=min(down_step, region.down - down),
                    across=min(across_step, region.across - across),
                    offset=region.offset + down * region.stride + across * region.record_bytes,
                    first=region.first + down * region.chunk_stride + across,
                )


def blocks(values: Tensor, tensor: TensorLayout, region: Region) -> Tensor:
    """Return the region's blocks of a tensor of the layout's shape: a new [chunks, n] tensor, chunks row-major over the
    region, each block row-major."""
    area = _area(values.reshape(tensor.rows, tensor.columns), region)
    return area.permute(0, 2, 1, 3).reshape(region.down * region.across, region.n).clone()


def elements(indices: Tensor, tensor: TensorLayout, region: Region) -> Tensor:
    """Return the elements of the tensor, counted row-major, of values of a region's chunks; int64 [chunks, k'] like
    `indices`, which count within the block."""
    chunk = torch.arange(indices.shape[0]).unsqueeze(1)
    row = region.row + chunk // region.across * region.height + indices // region.width
    column = region.column + chunk % region.across * region.width + indices % region.width
    return row * tensor.columns + column


def write_blocks(values: Tensor, tensor: TensorLayout, region: Region, new: Tensor) -> None:
    """Inverse of `blocks`: overwrite the region of a contiguous tensor in place with [chunks, n] values."""
    area = _area(values.view(tensor.rows, tensor.columns), region)
    grid = new.reshape(region.down, region.across, region.height, region.width)
    area.copy_(grid.permute(0, 2, 1, 3))


def _area(matrix: Tensor, region: Region) -> Tensor:
    """Return a view [down, height, across, width] of the region."""
    rows = matrix[region.row : region.row + region.down * region.height]
    area = rows[:, region.column : region.column + region.across * region.width]
    return area.view(region.down, region.height, region.across, region.width)


def top_k(chunks: Tensor, k: int) -> Tensor:
    """Return the indices (int64 [chunks, k], ascending) of the k largest magnitudes in each row of fp32 [chunks, n], n
    <= 4096.

    Exact; among equal magnitudes the lowest index wins. Raises NonFinite if a row has a NaN or an infinity.
    """
    n = chunks.shape[1]
    magnitude = chunks.view(torch.int32) & _MAGNITUDE
    if bool((magnitude >= _INFINITY).any()):
        raise NonFinite("the values to compress hold a NaN or an infinity")
    if k == n:
        return torch.arange(n, device=chunks.device).expand(chunks.shape[0], n)
    # fp32 magnitudes order like their bits. With the reversed index below them all keys of a row differ, so that the
    # unspecified order of torch.topk among equals has no effect.
    reversed_index = torch.arange(n - 1, -1, -1, device=chunks.device)
    keys = (magnitude.to(torch.int64) << _INDEX_BITS) | reversed_index
    chosen = torch.topk(keys, k, dim=1, sorted=False).indices
    return chosen.sort(dim=1).values
