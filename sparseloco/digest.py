"""Digests of the consensus state: theta's Merkle root, and the proof of being in sync (docs/protocol.md section 5)."""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from murmur.protocol import merkle
from murmur.protocol.assignment import Draw
from murmur.protocol.layout import Layout
from murmur.protocol.types import Digest, PeerId
from sparseloco.floats import tensor_of
from sparseloco.outer import OuterState

SYNC_POSITIONS = 4096


def theta_digest(
    theta: Mapping[str, Tensor], layout: Layout, state: OuterState, velocity: Mapping[str, Tensor] | None = None
) -> Digest:
    """Return the Merkle root over the consensus state: fp32 tensors on the CPU, which are not copied, and the outer
    state.

    A leaf is a section of 16 MiB of one tensor's values, fp32 little-endian, row-major (-0.0 and every other bit kept).
    Each tensor begins a new section, tensors in layout order. Then come the leaves of `velocity`, the outer step's
    momentum, if the run has one. The last leaf is `state.encode()`. Hashed in as many threads as torch computes with.
    """
    values = (tensor_of(group, t, torch.float32) for group in (theta, velocity) if group is not None for t in layout)
    parts = [part for tensor in values for part in merkle.sections(_bytes(tensor))]
    threads = min(torch.get_num_threads(), max(1, len(parts)))
    return merkle.root([*merkle.leaves(parts, threads), merkle.leaf(state.encode())])


def sync_values(theta: Mapping[str, Tensor], layout: Layout, block_hash: Digest) -> bytes:
    """Return theta at 4,096 positions as fp32 little-endian.

    Positions are drawn independently (one may come twice) from Draw("sync", block_hash), below the number of parameters
    (at least 1); they count through the tensors in layout order, row-major in each.
    """
    draw = Draw("sync", block_hash)
    positions = np.array(draw.many_below(layout.num_parameters, SYNC_POSITIONS), dtype=np.int64)
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
    """Return sha256(`sync_values` | the hotkey's 32 bytes)."""
    return Digest(sha256(values + peer).digest())


def _bytes(values: Tensor) -> memoryview:
    """Return a tensor's values as bytes in memory order, row-major."""
    rows = values.detach().cpu().contiguous().numpy().astype("<f4", copy=False)
    data: memoryview = rows.reshape(-1).view(np.uint8).data
    return data
