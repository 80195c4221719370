"""What a peer may send is within the run's norms, and nothing that it may not send is lost."""

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.protocol.layout import Layout
from murmur.protocol.types import DIGEST_BYTES
from sparseloco import ops, wire
from sparseloco.outer import OuterState, bounds, most
from sparseloco.quantize import level_codes, level_values
from sparseloco.restraint import restrained
from sparseloco.update import Norms
from tests.random_cases import share
from tests.sparseloco.samples import KINDS, RAGGED, same_bits, update_of

LAYOUT = Layout.of(RAGGED, 64)
ABOUT = 1 + 1e-12
FREE = Norms((inf,) * len(RAGGED), inf)


def lowered(value: torch.Tensor, step: int) -> torch.Tensor:
    """Dense values whose level codes are `step` lower, by way of the codes."""
    codes = level_codes(value.abs()).int()
    return level_values((codes - step).clamp(min=0)) * torch.where(codes > step, value.sign(), 1.0)


def norm_of(*values: torch.Tensor) -> float:
    return float(torch.cat([value.double().flatten() for value in values]).norm())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_within_the_norms_is_left_as_it_is(kind):
    update = update_of(kind)
    assert restrained(update, update.norms) is update
    assert restrained(update, FREE) is update


@settings(max_examples=share(15), deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    shares=st.lists(st.sampled_from([0.0213, 0.311, 0.917, 1.0, inf]), min_size=len(RAGGED), max_size=len(RAGGED)),
    whole=st.sampled_from([1.03e-9, 0.0517, 0.513, 1.0]),
)
def test_a_restrained_update_is_canonical_within_the_norms_and_no_smaller_than_need_be(kind, shares, whole):
    update = update_of(kind)
    limits = Norms(
        tuple(share * norm if norm else inf for share, norm in zip(shares, update.norms.tensors, strict=True)),
        whole * update.norms.whole,
    )
    sent = restrained(update, limits)
    assert wire.parse(bytes(DIGEST_BYTES) + sent.records, LAYOUT) == sent
    norms = sent.norms
    assert all(norm <= limit for norm, limit in zip(norms.tensors, limits.tensors, strict=True))
    assert norms.whole <= limits.whole
    found = [
        next(value for step in range(256) if norm_of(value := lowered(update.dense(index), step)) <= limit * ABOUT)
        for index, limit in enumerate(limits.tensors)
    ]
    while norm_of(*found) > limits.whole * ABOUT:
        found = [lowered(value, 1) for value in found]
    assert same_bits({name: sent.dense(name) for name in RAGGED}, dict(zip(RAGGED, found, strict=True)))


def test_places_and_signs_stay():
    update = update_of("heavy-tailed")
    sent = restrained(update, Norms(FREE.tensors, 0.4 * update.norms.whole))
    assert np.array_equal(sent.positions, update.positions)


@pytest.mark.parametrize("codec", ["reference", "native"])
def test_what_is_not_sent_stays_in_the_error_feedback(codec):
    update, error = update_of("heavy-tailed"), {name: torch.rand(shape) * 1e-4 for name, shape in RAGGED.items()}
    norms = update.norms.tensors
    limits = Norms(tuple(0.3 * n if name == "corner" else inf for name, n in zip(RAGGED, norms, strict=True)), inf)
    sent = restrained(update, limits)
    before = {name: value.clone() for name, value in error.items()}
    ops.use(codec)
    try:
        ops.restore_to_error_feedback(error, update, sent)
    finally:
        ops.use("auto")
    expected = before | {"corner": before["corner"] + (update.dense("corner") - sent.dense("corner"))}
    assert same_bits(error, expected)
    whole = before["corner"] + update.dense("corner")
    torch.testing.assert_close(error["corner"] + sent.dense("corner"), whole, rtol=3e-7, atol=0)
    assert not same_bits(error, before)


def test_the_outer_step_applies_a_restrained_update_whole():
    update = update_of("heavy-tailed")
    norms = update.norms
    state = OuterState(5, tuple(norm / 20 for norm in norms.tensors), norms.whole / 20)
    sent = restrained(update, most(state))
    assert 0.8 * 3 / 20 < sent.norms.whole / norms.whole < 3 / 20
    moved = [index for index, norm in enumerate(norms.tensors) if norm]
    for candidate, applied in ((update, 0.03), (sent, 1.0)):
        (factors,), _ = bounds([candidate.norms], state)
        assert [factors[index] for index in moved] == pytest.approx([applied] * len(moved), rel=0.3)
    assert set(bounds([sent.norms], state)[0][0]) <= {0.0, 1.0}


def test_nothing_is_bounded_before_there_is_an_average():
    state = OuterState.initial(LAYOUT)
    assert most(state) == FREE
    assert most(OuterState(1, (2.0, *state.averages[1:]), 0.0)) == Norms((6.0, *FREE.tensors[1:]), inf)
