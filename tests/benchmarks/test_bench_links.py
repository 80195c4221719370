"""The scaled round has the large one's proportions, so that what is measured of it says something of that."""

from pathlib import Path

import pytest

from benchmarks.bench_links import MODEL, Scaled, beside_transfers, planned, small, the_plan
from murmur.owner.folder import to_toml
from murmur.plan import presets
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import Plan
from murmur.protocol.spec import RunSpec

RATES = Rates(threads=2, compute=Rate(3e10), call=Rate(1e6))


@pytest.mark.parametrize("miners", [2, 3])
def test_links_are_to_the_small_round_what_the_large_ones_are_to_it(miners: int, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(to_toml(small(miners, 20, 0)))
    spec, large = presets.read(str(path)).first, Plan(presets.read(MODEL).first, 8, 0, has_data=True)
    computed = Plan(spec, 1, 0, RATES, on_gpu=False).compute_seconds
    scaled = Scaled(large, miners, spec.object_bytes, computed / large.compute_seconds)
    clock = {**spec.clock.model_dump(), "block_seconds": scaled.block_seconds}
    spec = RunSpec.model_validate(spec.model_dump() | {"clock": clock})
    links = scaled.links()
    plans = {role: the_plan(spec, RATES, links, role) for role in ("miner", "validator")}

    def seconds(plan: Plan, *names: str) -> float:
        both = (*plan.timeline("miner"), *plan.timeline("validator"))
        return sum(next(one.seconds for one in both if one.phase.name == name) for name in names)

    ours = [seconds(plans["miner"], "upload ahead", "publish"), seconds(plans["miner"], "download")]
    ours += [seconds(plans["validator"], "gather"), seconds(plans["validator"], "copies")]
    theirs = [
        seconds(large, *names) for names in (("upload ahead", "publish"), ("download",), ("gather",), ("copies",))
    ]
    assert ours == pytest.approx([one * scaled.times for one in theirs], rel=0.02)
    assert plans["miner"].utilization == pytest.approx(large.utilization)
    assert not [missed for role, plan in plans.items() for missed in plan.missed if missed.deadline.role == role]
    both = [planned(plan) for plan in (plans["miner"], large)]
    assert both[0]["beside_transfers"] == pytest.approx(both[1]["beside_transfers"], abs=0.01)
    assert both[0]["beside_transfers"] == beside_transfers(both[0]["phases"])
    # What a request or a save takes does not shrink with the round, and is hidden beside the upload.
    assert both[0]["margin_seconds"] > 0.5 * both[1]["margin_seconds"] * scaled.times
