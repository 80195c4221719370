"""Digests of the consensus state: theta's Merkle root, and the proof of being in sync (docs/protocol.md section 5)."""

from collections.abc import Iterator, Mapping
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


def sync_values(theta: Mapping[str, Tensor], layout: Layout, block_hash: Digest) -> bytes:
    """Theta at 4,096 positions as fp32 little-endian.

    Positions are drawn independently (one may come twice) from Draw("sync", block_hash), below the number of
    parameters (at least 1); they count through the tensors in layout order, row-major in each.
    """
    draw = Draw("sync", block_hash)
    positions = np.array([draw.below(layout.num_parameters) for _ in range(SYNC_POSITIONS)], dtype=np.int64)
    values = np.empty(SYNC_POSITIONS, dtype="<f4")
    start = 0
    for tensor in layout:
        inside = (positions >= start) & (positions < start + tensor.numel)
        if inside.any():
            flat = tensor_of(theta, tensor, torch.float32).reshape(-1)
            values[inside] = flat[torch.from_numpy(positions[inside] - start).to(flat.device)].cpu().numpy()
        start += tensor.numel
    return values.tobytes()


def sync_proof(values: bytes, peer: PeerId) -> Digest:
    """sha256(`sync_values` | the hotkey's 32 bytes)."""
    return Digest(sha256(values + peer).digest())


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
