"""Forged updates, made without training. Every one is a valid update: the records are canonical, only their content is
false."""

from collections.abc import Mapping

import torch
from torch import Tensor

from murmur.protocol.layout import Layout
from sparseloco import ops
from sparseloco.update import Update

Dense = Mapping[str, Tensor]


def dense(update: Update) -> dict[str, Tensor]:
    """Return all tensors of an update in full, fp32."""
    return {tensor.name: update.dense(tensor.name) for tensor in update.layout}


def packed(values: Dense, layout: Layout) -> Update:
    """Return the update that keeps the largest of `values`, in each chunk as many as the layout keeps."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in values.items()}
    return ops.compress(values, zeros, None, layout, beta=0.0)[0]


def scaled(update: Update, factor: float) -> Update:
    """Return the update with all values times `factor`, as far as the levels reach."""
    return packed({name: tensor * factor for name, tensor in dense(update).items()}, update.layout)


def with_norm(values: Dense, norm: float, layout: Layout) -> Update:
    """Return `packed` values scaled to a norm; zeros stay zeros."""
    found = packed(values, layout)
    return scaled(found, norm / found.norms.whole) if found.norms.whole else found


def noise(norm: float, layout: Layout, random: torch.Generator) -> Update:
    """Return random positions, signs and sizes at a norm."""
    return with_norm({t.name: torch.randn(t.shape, generator=random) for t in layout}, norm, layout)


def perturbed(update: Update, share: float, random: torch.Generator) -> Update:
    """Return `update` with that share of its values moved to random places, at the same norm."""
    values = dense(update)
    for name, tensor in values.items():
        kept = tensor.flatten().nonzero()[:, 0]
        moved = kept[torch.rand(len(kept), generator=random) < share]
        flat = tensor.flatten()
        sizes = flat[moved].clone()
        flat[moved] = 0.0
        places = torch.randperm(flat.numel(), generator=random)[: len(moved)]
        flat[places] = sizes
        values[name] = flat.view(tensor.shape)
    return with_norm(values, update.norms.whole, update.layout)


def halves(values: Dense, layout: Layout, count: int, random: torch.Generator) -> list[Update]:
    """Return `count` updates, each of a random half of the 2k largest values of every chunk."""
    wide = Layout.of({t.name: t.shape for t in layout}, min(4096, 2 * layout.k))
    largest = dense(packed(values, wide))
    return [
        packed({n: t * (torch.rand(t.shape, generator=random) < 0.5) for n, t in largest.items()}, layout)
        for _ in range(count)
    ]


def ranks(values: Dense, layout: Layout, count: int) -> list[Update]:
    """Return `count` updates without a common value: each takes every `count`-th rank by size of every tensor."""
    wide = Layout.of({t.name: t.shape for t in layout}, min(4096, count * layout.k))
    largest = dense(packed(values, wide))
    place = {name: t.flatten().abs().argsort(descending=True).argsort().view(t.shape) for name, t in largest.items()}
    return [packed({n: t * (place[n] % count == i) for n, t in largest.items()}, layout) for i in range(count)]
