"""The baseline of bench_codec.py: SparseLoCo with torch operators, as public code writes it. FROZEN: it is what speed
is measured against, so it is never made faster or slower.

Per tensor: error feedback, blocks, `topk` of each block, gather, the public 2-bit quantiser (mean and 6 sigma of a
tensor's kept values in 4 bins), 12-bit indices and 2-bit codes packed into bytes, decoding, scatter, error update.
Aggregation: unpack, decode, norms, clip to the median norm, scatter, mean, update. Sizes are multiples of 64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64
BINS = 4
SIGMAS = 6.0


@dataclass
class Sent:
    """One tensor's message: packed indices, packed codes, the 4 values of the codes, and what is needed to unpack."""

    indices: Tensor
    codes: Tensor
    lookup: Tensor
    shape: tuple[int, int]


def to_blocks(x: Tensor) -> Tensor:
    """[blocks, elements]: 64 x 64 blocks of a matrix, 4096 elements (or all) of a vector."""
    if x.dim() == 1:
        return x.view(-1, min(x.numel(), BLOCK * BLOCK))
    rows, columns = x.shape
    grid = x.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).permute(0, 2, 1, 3)
    return grid.reshape(-1, BLOCK * BLOCK)


def from_blocks(blocks: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) == 1:
        return blocks.view(shape)
    rows, columns = shape
    grid = blocks.view(rows // BLOCK, columns // BLOCK, BLOCK, BLOCK).permute(0, 2, 1, 3)
    return grid.reshape(rows, columns)


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 codes 0 .. 3 and the value of each: mean of what fell into its bin."""
    mean = values.mean()
    scale = (SIGMAS * (values - mean).std() / BINS).clamp(min=1e-12)
    codes = ((values - mean) / scale + BINS // 2).round().clamp(0, BINS - 1).to(torch.uint8)
    flat = codes.flatten().long()
    sums = torch.zeros(BINS).scatter_add_(0, flat, values.flatten())
    counts = torch.zeros(BINS).scatter_add_(0, flat, torch.ones_like(values).flatten())
    return codes, sums / counts.clamp(min=1)


def pack12(indices: Tensor) -> Tensor:
    pairs = indices.flatten().to(torch.int32).view(-1, 2)
    first, second = pairs[:, 0], pairs[:, 1]
    packed = torch.stack((first & 0xFF, (first >> 8) | ((second & 0xF) << 4), second >> 4), dim=1)
    return packed.to(torch.uint8).flatten()


def unpack12(packed: Tensor) -> Tensor:
    triples = packed.view(-1, 3).to(torch.int32)
    first = triples[:, 0] | ((triples[:, 1] & 0xF) << 8)
    second = (triples[:, 1] >> 4) | (triples[:, 2] << 4)
    return torch.stack((first, second), dim=1).flatten().long()


def pack2(codes: Tensor) -> Tensor:
    fours = codes.flatten().view(-1, 4)
    return fours[:, 0] | (fours[:, 1] << 2) | (fours[:, 2] << 4) | (fours[:, 3] << 6)


def unpack2(packed: Tensor) -> Tensor:
    return torch.stack([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1).flatten().long()


@torch.no_grad()
def compress(
    theta: dict[str, Tensor], theta_r: dict[str, Tensor], error: dict[str, Tensor], beta: float, k: int
) -> dict[str, Sent]:
    """Messages by tensor; `error` is updated in place."""
    sent = {}
    for name, start in theta.items():
        e = error[name]
        e.mul_(beta).add_(start - theta_r[name])
        blocks = to_blocks(e)
        kept = max(4, blocks.shape[1] * k // (BLOCK * BLOCK))
        indices = blocks.abs().topk(kept, dim=1).indices
        values = blocks.gather(1, indices)
        codes, lookup = quantise(values)
        decoded = torch.zeros_like(blocks).scatter_(1, indices, lookup[codes.long()])
        e.sub_(from_blocks(decoded, e.shape))
        sent[name] = Sent(pack12(indices), pack2(codes), lookup, (blocks.shape[0], kept))
    return sent


@torch.no_grad()
def aggregate(theta: dict[str, Tensor], payloads: list[dict[str, Sent]], alpha: float) -> None:
    """theta is updated in place by the mean of the payloads, each clipped to the median norm."""
    for name, values in theta.items():
        decoded = []
        for payload in payloads:
            sent = payload[name]
            indices = unpack12(sent.indices).view(sent.shape)
            decoded.append((indices, sent.lookup[unpack2(sent.codes)].view(sent.shape)))
        norms = torch.stack([kept.norm() for _, kept in decoded])
        scales = (norms.median() / norms.clamp(min=1e-12)).clamp(max=1.0)
        total = torch.zeros_like(to_blocks(values))
        for (indices, kept), scale in zip(decoded, scales, strict=True):
            total.scatter_add_(1, indices, kept * scale)
        values.sub_(from_blocks(total, values.shape), alpha=alpha / len(payloads))
