"""Where the learning rates turn, against the rates themselves."""

import pytest

from murmur.plan import presets
from murmur.plan.rate_milestones import milestones
from murmur.training.schedule import lr_at


@pytest.mark.parametrize("name", presets.names())
def test_milestones_are_in_order_and_between_them_the_rates_turn_nowhere(name: str) -> None:
    """Signs of the rate's slope change at milestones only."""
    run = presets.read(name)
    found = milestones(run)
    steps = [at.inner_step for at in found]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    length = run.first.inner.steps
    for at, after in zip(found, [*steps[1:], steps[-1] + 1000], strict=True):
        inside = sorted({at.inner_step, *range(at.inner_step, after, max(1, (after - at.inner_step) // 50))})
        specs = [run.spec_at(step // length) for step in inside]
        rates = [lr_at(step, spec.inner) for step, spec in zip(inside, specs, strict=True)]
        assert (at.lr, at.alpha) == (rates[0], specs[0].outer.alpha)
        assert {spec.outer.alpha for spec in specs} == {at.alpha}
        assert rates == sorted(rates) or rates == sorted(rates, reverse=True)
