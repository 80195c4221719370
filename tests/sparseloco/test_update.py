from math import sqrt

import numpy as np
import pytest
import torch

from murmur.protocol.layout import Layout
from sparseloco.reference import compress
from sparseloco.update import Update, overlap
from tests.sparseloco.samples import KINDS, RAGGED, update_of


@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_summed_per_level_in_ascending_order(kind):
    update = update_of(kind)
    flat = {name: np.abs(update.dense(name).numpy().ravel().astype(np.float64)) for name in RAGGED}

    def norm(values):
        total = 0.0
        for level, count in zip(*np.unique(values, return_counts=True), strict=True):
            total += float(count) * float(level) ** 2
        return sqrt(total)

    assert update.norms.tensors == tuple(norm(flat[name]) for name in sorted(RAGGED))
    assert update.norms.whole == norm(np.concatenate(list(flat.values())))


def test_the_order_of_the_sum_shows_in_a_norm_over_many_levels():
    layout = Layout.of({"t": (60 * 4096,)}, 8)
    scales = np.float32(2.0) ** np.linspace(-28, 2, 60, dtype=np.float32)
    values = torch.from_numpy(np.repeat(scales, 4096) * np.float32(1.2))
    update, _ = compress({"t": values}, {"t": torch.zeros_like(values)}, None, layout, 0.95)
    levels, counts = np.unique(np.abs(update.dense("t").numpy().astype(np.float64)), return_counts=True)
    terms = [float(count) * float(level) ** 2 for level, count in zip(levels, counts, strict=True)]
    assert update.norms.whole == sqrt(sum_of(terms))
    assert sqrt(sum_of(terms)) != sqrt(sum_of(terms[::-1]))


def sum_of(terms):
    """Plain left-to-right sum: Python's own compensates from 3.12 on."""
    total = 0.0
    for term in terms:
        total += term
    return total


def test_a_tensor_is_found_by_name_and_by_place_and_is_ordered_by_index():
    update = update_of()
    for place, tensor in enumerate(update.layout):
        parts = update.tensor(tensor.name)
        assert len(parts) == len(tensor.regions) == len(update.tensor(place))
        for region, (indices, values) in zip(tensor.regions, parts, strict=True):
            assert indices.shape == values.shape == (region.down * region.across, region.k)
            assert bool((indices[:, 1:] > indices[:, :-1]).all())


def test_equal_payloads_have_equal_digests():
    assert update_of(seed=1).digest == update_of(seed=1).digest
    assert update_of(seed=1).digest != update_of(seed=2).digest


def test_overlap_counts_common_positions_and_signs_as_sets_do():
    first, second = update_of("sparse", 1), update_of("sparse", 2)

    def places(update, *, signed):
        found = set()
        for tensor in update.layout:
            parts = zip(tensor.regions, update.tensor(tensor.name), strict=True)
            for number, (_, (indices, values)) in enumerate(parts):
                for chunk, (row, numbers) in enumerate(zip(indices.tolist(), values.tolist(), strict=True)):
                    for index, value in zip(row, numbers, strict=True):
                        found.add((tensor.name, number, chunk, index, signed and value < 0))
        return found

    for signed in (False, True):
        left, right = places(first, signed=signed), places(second, signed=signed)
        assert overlap(first, second, signed=signed) == len(left & right) / len(left)
    assert 0 < overlap(first, second, signed=True) < overlap(first, second) < 1


def test_an_update_overlaps_with_itself_wholly_and_its_negative_only_without_signs():
    shapes = {"t": (128, 128)}
    update = update_of("constant", shapes=shapes)
    records = bytearray(update.records)
    for start in range(0, len(records), 82):
        records[start + 64 : start + 80] = bytes(byte ^ 0b0101_0101 for byte in records[start + 64 : start + 80])
    negative = Update(update.layout, bytes(records))
    assert overlap(update, update) == overlap(update, update, signed=True) == 1.0
    assert overlap(update, negative) == 1.0
    assert overlap(update, negative, signed=True) == 0.0


def test_updates_of_different_layouts_are_not_compared():
    with pytest.raises(ValueError, match="different layouts"):
        overlap(update_of(), update_of(k=63))


def test_an_empty_layout_overlaps_with_nothing():
    empty = Update(Layout.of({}, 64), b"")
    assert overlap(empty, empty) == 0.0
    assert (empty.norms.tensors, empty.norms.whole) == ((), 0.0)
