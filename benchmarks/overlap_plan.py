"""What benchmarks/bench_overlap.py's overlap would buy a run, by the phases and rates of `murmur plan`."""

from dataclasses import replace
from math import ceil
from typing import Any

from murmur.plan import presets
from murmur.plan.phases import DEADLINES, opening
from murmur.plan.requirements import Plan

B200 = 192 * 10**9
VALIDATORS = 64
"""More are not tried."""


def bought(preset: str) -> dict[str, Any]:
    """The preset on 8 B200 with the links that its clock is for, as it is and overlapped; seconds.

    Overlapped, inner steps begin when compression ends. Meanwhile the payload goes up and is committed, validators
    read it and say their words, and theta is there when it is loaded: `arrival`, as a share of the inner steps.
    A round then lasts as long as what the GPUs do one after the other, or what a validator does, whichever is longer:
    the next round's payloads wait for one that still judges this one's, up to its deadline.
    """
    spec = presets.read(preset).first
    plan = Plan(spec, 8, B200)
    miner = {timed.phase.name: timed for timed in plan.timeline("miner")}
    judged = next(deadline for deadline in DEADLINES if deadline.phase == "held-out loss")
    ready = next(timed.ends for timed in plan.timeline("validator") if timed.phase.name == judged.phase)
    arrives = miner["commit"].ends - miner["compress"].ends + miner["load weights"].ends
    busy = ("swap", "load weights", "inner steps", "compress", "load weights")  # loaded twice: the guess, and theta
    on_gpus = sum(miner[name].seconds for name in busy)
    judging = ready - (judged.by(spec.clock) - plan.round_seconds)
    block = spec.clock.block_seconds
    blocks = ceil(max(on_gpus, arrives, judging) / block)
    shares = {count: replace(plan, validators=count).uplink_share for count in range(1, VALIDATORS)}
    enough = (count for count, share in shares.items() if share * plan.round_seconds <= blocks * block)
    return {
        "preset": preset,
        "round": plan.round_seconds,
        "utilization": round(plan.utilization, 3),
        "settled": round(miner["load weights"].ends),
        "arrives": round(arrives),
        "arrival": round(arrives / plan.compute_seconds, 2),
        "on_gpus": round(on_gpus),
        "judging": round(judging),
        "overlapped_round": blocks * block,
        "overlapped_utilization": round(plan.compute_seconds / (blocks * block), 3),
        "validators_needed": next(enough, None),
        "half_reveal_window": round(judged.by(spec.clock) - plan.round_seconds - opening(spec.clock, "commit")),
    }
