"""Digests of the consensus state: theta's Merkle root, and the proof of being in sync (docs/protocol.md section 5)."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol import merkle
from protocol.assignment import Draw
from protocol.layout import Layout, TensorLayout
from protocol.types import Digest, PeerId
from sparseloco.floats import tensor_of
from sparseloco.outer import OuterState
from sparseloco.topk import blocks, slabs

SYNC_POSITIONS = 4096


def theta_digest(theta: Mapping[str, Tensor], layout: Layout, state: OuterState) -> Digest:
    """Merkle root over the consensus state. A leaf is one chunk: its fp32 values, little-endian, row-major within the
    block (-0.0 and every other bit kept), chunks in layout order; the last leaf is `state.encode()`."""
    leaves = [leaf for tensor in layout for leaf in _leaves(tensor_of(theta, tensor, torch.float32), tensor)]
    return merkle.root([*leaves, merkle.leaf(state.encode())])


def sync_proof(theta: Mapping[str, Tensor], layout: Layout, block_hash: Digest, peer: PeerId) -> Digest:
    """sha256(theta at 4,096 positions as fp32 little-endian | the hotkey's 32 bytes).

    Positions are drawn independently (one may come twice) from Draw("sync", block_hash), below the number of
    parameters (at least 1); they count through the tensors in layout order, row-major in each.
    """
    positions = _sync_positions(layout.num_parameters, block_hash)
    values = np.empty(SYNC_POSITIONS, dtype="<f4")
    start = 0
    for tensor in layout:
        inside = (positions >= start) & (positions < start + tensor.numel)
        if inside.any():
            flat = tensor_of(theta, tensor, torch.float32).reshape(-1)
            values[inside] = flat[torch.from_numpy(positions[inside] - start).to(flat.device)].cpu().numpy()
        start += tensor.numel
    return Digest(sha256(values.tobytes() + peer).digest())


@lru_cache(maxsize=4)
def _sync_positions(num_parameters: int, block_hash: Digest) -> npt.NDArray[np.int64]:
    """A validator needs them once for every peer of a round; drawing them takes longer than all the rest."""
    draw = Draw("sync", block_hash)
    positions = np.array([draw.below(num_parameters) for _ in range(SYNC_POSITIONS)], dtype=np.int64)
    positions.flags.writeable = False
    return positions


def _leaves(values: Tensor, tensor: TensorLayout) -> list[Digest]:
    leaves: list[Digest] = [Digest(b"")] * tensor.num_chunks
    for number, data in _chunk_bytes(values, tensor):
        leaves[number] = merkle.leaf(data)
    return leaves


def _chunk_bytes(values: Tensor, tensor: TensorLayout) -> Iterator[tuple[int, bytes]]:
    """(chunk number within the tensor, its bytes), region by region."""
    for region in slabs(tensor):
        rows: npt.NDArray[np.float32] = blocks(values, tensor, region).cpu().numpy().astype("<f4", copy=False)
        for row, data in enumerate(rows):
            down, across = divmod(row, region.across)
            yield region.first + down * region.chunk_stride + across, data.tobytes()
