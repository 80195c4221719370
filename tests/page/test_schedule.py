"""The learning-rate chart: the schedule that the miners train by, thinned out, with all its turns."""

import pytest

from murmur.page.schedule import POINTS, schedule
from murmur.protocol.spec import InnerSpec
from murmur.training.schedule import lr_at


def inner(**changes: object) -> InnerSpec:
    table = {"steps": 7, "sequences": 1, "peak_lr": 3e-4, "final_lr": 3e-5, "warmup_steps": 700, "decay_steps": 70_000}
    return InnerSpec.model_validate(table | changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"flat_from": 700, "flat_steps": 7000}, {"decay": "sqrt", "start_step": 14_000}, {"warmup_steps": 0}],
)
def test_every_point_is_the_rate_of_its_round_and_none_is_missed_by_much(changes: dict[str, object]) -> None:
    spec = inner(**changes)
    told = schedule(spec, 100)
    assert told["here"] == 100
    assert len(told["rounds"]) <= POINTS
    assert told["rounds"] == sorted(set(told["rounds"]))
    points = dict(zip(told["rounds"], told["rates"], strict=True))
    assert points[told["rounds"][-1]] == spec.final_lr
    for round, rate in points.items():
        assert rate == lr_at(round * spec.steps, spec)
    for low, high in zip(told["rounds"], told["rounds"][1:], strict=False):
        for round in range(low, high):
            line = points[low] + (round - low) / (high - low) * (points[high] - points[low])
            assert abs(line - lr_at(round * spec.steps, spec)) < 0.05 * spec.peak_lr


def test_a_run_beyond_its_schedule_is_still_on_the_chart() -> None:
    told = schedule(inner(decay_steps=70, warmup_steps=7), 500)
    assert told["rounds"][0] == 0
    assert told["rounds"][-1] >= 500


def test_one_round_is_a_chart_too() -> None:
    told = schedule(inner(decay_steps=1, warmup_steps=0, steps=500), 0)
    assert told["rounds"] == [0, 1]
