"""Learning rate at known points, against a schedule without the window, and as published."""

from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from murmur.plan import presets
from murmur.protocol.spec import InnerSpec
from murmur.training.schedule import lr_at

SPEC = InnerSpec(steps=30, sequences=192, peak_lr=1.2e-4, final_lr=1.2e-5, warmup_steps=1500, decay_steps=80_000)
SHORT = {"steps": 2, "sequences": 1, "peak_lr": 1e-3, "final_lr": 1e-4, "warmup_steps": 5, "decay_steps": 30}
DECAYS = st.sampled_from(["cosine", "sqrt"])


def short(**fields: Any) -> InnerSpec:
    return InnerSpec.model_validate(SHORT | fields)


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        (0, 1.2e-4 / 1500),
        (749, 0.6e-4),
        (1499, 1.2e-4),
        (1500, 1.2e-4),
        ((1500 + 80_000) // 2, (1.2e-4 + 1.2e-5) / 2),
        (80_000, 1.2e-5),
        (10**9, 1.2e-5),
    ],
)
def test_the_rate_at_known_steps(step: int, lr: float) -> None:
    assert lr_at(step, SPEC) == pytest.approx(lr, rel=1e-12)


@given(st.integers(0, 100_000))
def test_the_rate_rises_through_warm_up_and_never_again(step: int) -> None:
    here, after = lr_at(step, SPEC), lr_at(step + 1, SPEC)
    assert (after > here) if step + 1 < 1500 else (after <= here)
    assert 0 < here <= 1.2e-4


def test_without_warm_up_or_decay_the_rate_is_defined_everywhere() -> None:
    spec = SPEC.model_copy(update={"warmup_steps": 0, "decay_steps": 1})
    assert lr_at(0, spec) == pytest.approx(1.2e-4)
    assert lr_at(1, spec) == 1.2e-5
    late = SPEC.model_copy(update={"warmup_steps": 10, "decay_steps": 5})
    assert lr_at(9, late) == pytest.approx(1.2e-4)
    assert lr_at(10, late) == 1.2e-5


@given(st.integers(0, 40), st.integers(0, 20), DECAYS)
def test_a_flat_window_inserts_its_rate_so_many_times_and_changes_no_other(start: int, length: int, decay: str) -> None:
    plain = [lr_at(step, short(decay=decay)) for step in range(50)]
    expected = plain[: start + 1] + length * [plain[start]] + plain[start + 1 :]
    spec = short(decay=decay, flat_from=start, flat_steps=length)
    assert [lr_at(step, spec) for step in range(50 + length)] == expected


@given(st.integers(0, 1000), st.integers(0, 60), DECAYS)
def test_a_schedule_can_begin_anywhere_and_waits_until_then(start: int, step: int, decay: str) -> None:
    fields = {"decay": decay, "flat_from": 12, "flat_steps": 7}
    later = short(**fields, start_step=start)
    assert lr_at(start + step, later) == lr_at(step, short(**fields))
    assert lr_at(max(0, start - step), later) == lr_at(0, short(**fields))


@given(st.integers(5, 29))
def test_the_square_root_decay_is_the_published_one(step: int) -> None:
    expected = 1e-4 + 9e-4 * (1 - sqrt((step - 5) / 25))
    assert lr_at(step, short(decay="sqrt")) == pytest.approx(expected, rel=1e-12)


def test_the_cosine_with_a_window_is_what_torchs_schedulers_do_when_they_are_not_stepped() -> None:
    spec = short(flat_from=17, flat_steps=9)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=25, eta_min=1e-4)
    for step in range(5, 39):
        assert lr_at(step, spec) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if not 17 <= step < 26:
            cosine.step()


# --- the presets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "lr", "alpha"),
    [
        (749, 0.6e-4, 1.0),
        (1499, 1.2e-4, 1.0),
        (1500 + 70_000, (1.2e-4 + 1.2e-5) / 2, 1.0),  # half of the cosine
        (109_999, None, 1.0),
        (110_010, None, 0.65),  # the first round after 110,000 inner steps
        (141_500 + 13_499, 1.2e-5, 0.65),
        (182_999, 1.2e-5, 0.65),
        (183_199, 3.6e-5, 0.65),  # annealing, warmed up again
        (183_200 + 8_250, 1.8e-5, 0.65),
        (199_700, 0.0, 0.65),
    ],
)
def test_covenants_preset_and_its_amendments_are_the_published_schedule(
    step: int, lr: float | None, alpha: float
) -> None:
    spec = presets.read("covenant-72b").spec_at(step // 30)
    assert spec.outer.alpha == alpha
    if lr is not None:
        assert lr_at(step, spec.inner) == pytest.approx(lr, rel=1e-4)


def test_covenants_rate_is_held_for_13500_inner_steps_around_80000_and_then_goes_on() -> None:
    inner = presets.read("covenant-72b").first.inner
    falls = {step: lr_at(step, inner) - lr_at(step + 1, inner) for step in range(70_000, 110_000)}
    assert [step for step, fall in falls.items() if fall == 0] == list(range(82_200, 82_200 + 13_500))
    assert falls[82_199] == pytest.approx(falls[82_200 + 13_500], rel=1e-4)


def test_intellects_preset_is_warm_up_stable_decay_over_90400_steps() -> None:
    inner = presets.read("intellect-10b").first.inner
    assert lr_at(499, inner) == pytest.approx(3.75e-5)
    assert {lr_at(step, inner) for step in range(999, 75_701, 100)} == {7.5e-5}
    assert 0 < lr_at(75_701, inner) < 7.5e-5
    assert lr_at(75_700 + 14_700 // 4, inner) == pytest.approx(7.5e-5 / 2)
    assert lr_at(90_399, inner) > 0 == lr_at(90_400, inner)
