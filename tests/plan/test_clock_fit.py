"""The shortest clock for given machines: a block less, and somebody is late."""

from dataclasses import replace

import pytest

from murmur.plan import presets
from murmur.plan.clock_fit import as_toml, fit
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import Plan, link
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec, parse_table

GB = 10**9
ON = {
    "150m": Plan(presets.read("150m").first, 1, 24 * GB, Rates(compute=Rate(60e12))),
    "1b": Plan(presets.read("1b").first, 1, 80 * GB, Rates(compute=Rate(400e12))),
    "8b": Plan(presets.read("8b").first, 2, 80 * GB, Rates(compute=Rate(400e12))),
    "intellect-10b": Plan(presets.read("intellect-10b").first, 8, 80 * GB, Rates(compute=Rate(380e12))),
    "covenant-72b": Plan(presets.read("covenant-72b").first, 8, 192 * GB, Rates(up=link(880.0), down=link(4000.0))),
    "covenant-72b-110": Plan(
        presets.read("covenant-72b-110").first, 8, 192 * GB, Rates(up=link(110.0), down=link(500.0))
    ),
}
"""Presets on the hardware that they are for."""


@pytest.mark.parametrize("name", ON)
def test_a_presets_clock_is_the_shortest_for_its_hardware_and_nobody_is_late(name: str) -> None:
    plan = ON[name]
    found = fit(plan)
    assert found.spec.clock == plan.spec.clock
    assert found.spec.gauntlet == plan.spec.gauntlet
    assert found.spec.checkpoint_rounds == plan.spec.checkpoint_rounds
    assert found.missed == ()
    assert found.uplink_share <= 1


LEAST = {"covenant-72b": 0.87, "covenant-72b-110": 0.65, "8b": 0.75, "intellect-10b": 0.85, "1b": 0.85, "150m": 0.85}


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_a_presets_gpus_compute_most_of_the_time(name: str, least: float) -> None:
    assert ON[name].utilization >= least


def test_in_a_round_that_is_a_block_shorter_somebody_is_late() -> None:
    found = fit(ON["covenant-72b"])
    clock = found.spec.clock.model_dump()
    clock |= {field: clock[field] - 1 for field in ("round_blocks", "commit", "reveal", "words")}
    shorter = replace(found, spec=RunSpec(**found.spec.model_dump() | {"clock": clock}))
    assert shorter.missed or shorter.openings["uploaded"] >= shorter.openings["commit"]


def test_a_slower_machine_gets_a_longer_round_and_a_larger_margin_one_too() -> None:
    plan = ON["intellect-10b"]
    slow = fit(replace(plan, rates=replace(plan.rates, compute=Rate(265e12))))
    wide = fit(replace(plan, margin=0.1))
    assert slow.spec.clock.round_blocks > wide.spec.clock.round_blocks > fit(plan).spec.clock.round_blocks
    assert slow.missed == wide.missed == ()


def test_what_is_printed_is_a_spec_with_that_clock() -> None:
    found = fit(ON["8b"])
    table = parse_table(as_toml(found), "fit")
    spec = found.spec.model_dump()
    clock = spec["clock"] | table["clock"]
    again = RunSpec(**spec | {"clock": clock, "checkpoint_rounds": table["checkpoint_rounds"]})
    assert again.clock == found.spec.clock


def test_what_no_round_is_long_enough_for_is_refused() -> None:
    plan = ON["8b"]
    with pytest.raises(ConfigError, match="no round of up to"):
        fit(replace(plan, rates=replace(plan.rates, compute=Rate(1e9))))
