"""Restrain a payload to the norms that the run applies (docs/protocol.md section 2): the excess stays with its peer.

The outer step cuts a larger update anyway, and one far larger is refused (NORM). So sending more only loses learned
values. Levels are lowered by whole codes, 8 of which halve a level: places and signs of the values stay, and the
records stay canonical. An update within the norms is left as it is, byte for byte.
"""

from bisect import bisect_left

import numpy as np
import numpy.typing as npt
import torch

from murmur.protocol.layout import TensorLayout
from sparseloco import records
from sparseloco.quantize import Codes
from sparseloco.topk import slabs
from sparseloco.update import LEVELS, Norms, Update, norms_of

Counts = npt.NDArray[np.int64]


def restrained(update: Update, most: Norms) -> Update:
    """Return the update with norms of at most `most`, per tensor and of the whole; itself if it has them already.

    Each tensor's levels are lowered by as few codes as its own norm needs, then all by as few more as the whole needs.
    """
    counts = update.histograms
    steps = np.array([_fewest(counts[index : index + 1], limit) for index, limit in enumerate(most.tensors)], np.int64)
    steps += _fewest(_lowered(counts, steps), most.whole)
    if not steps.any():
        return update
    packed = np.frombuffer(update.records, dtype=np.uint8).copy()
    for tensor, step in zip(update.layout, steps.tolist(), strict=True):
        if step:
            _lower(packed, tensor, step)
    return Update(update.layout, packed.tobytes())


def _fewest(counts: Counts, limit: float) -> int:
    """Return the fewest codes to lower by for a norm of at most `limit`. Lowering by all makes zeros, which pass
    any."""
    return bisect_left(range(LEVELS - 1), True, key=lambda step: norms_of(_lowered(counts, step)).whole <= limit)


def _lowered(counts: Counts, steps: Counts | int) -> Counts:
    """Return level counts [tensors, 256] after each tensor's codes fall by its `steps`, those below 0 to 0."""
    codes = np.maximum(np.arange(LEVELS) - np.reshape(steps, (-1, 1)), 0)
    found = np.zeros_like(counts)
    np.add.at(found, (np.arange(len(counts))[:, None], np.broadcast_to(codes, counts.shape)), counts)
    return found


def _lower(packed: records.Bytes, tensor: TensorLayout, step: int) -> None:
    """Lower a tensor's level codes by `step` in all records of a layout."""
    for region in slabs(tensor):
        view = records.window(packed, tensor, region)
        flat = view.reshape(-1, region.record_bytes)
        levels = flat[:, -2:].astype(np.int64)
        new = np.maximum(levels - step, 0).astype(np.uint8)
        vanishing = ((levels > 0) & (new == 0)).any(axis=1)
        chunks = records.decode(flat[vanishing], region)
        flat[:, -2:] = new
        if vanishing.any():
            # A zero level has no sign, and of two equal levels only the lower one is used.
            lo, hi = (torch.from_numpy(new[vanishing, side]) for side in (0, 1))
            magnitudes = chunks.codes.magnitudes * (lo != hi)[:, None]
            levelled = Codes(chunks.codes.signs, magnitudes, lo, hi)
            codes = Codes(chunks.codes.signs * (levelled.levels() > 0), magnitudes, lo, hi)
            flat[vanishing] = records.encode(records.Chunks(chunks.indices, codes), region)
        view[:] = flat.reshape(view.shape)
