"""The learning rate over a run's rounds, as its spec plans it."""

from math import ceil
from typing import Any

from murmur.protocol.spec import InnerSpec
from murmur.training.schedule import lr_at

POINTS = 200
AFTER = 1.05
"""Length of the plot as a multiple of the schedule's: after its end the rate is flat."""


def schedule(inner: InnerSpec, done: int) -> dict[str, Any]:
    """Return at most POINTS points `rounds`, counted without void ones, and the `rates` of their first inner steps;
    `here`: the number of rounds `done`."""
    stands = inner.flat_steps if inner.flat_from < inner.decay_steps else 0
    last = max(1, ceil(AFTER * (inner.start_step + inner.decay_steps + stands) / inner.steps), done)
    turns = (inner.start_step, inner.start_step + inner.warmup_steps, inner.start_step + inner.decay_steps + stands)
    steps = POINTS - len(turns) - 1
    even = {round(last * at / steps) for at in range(steps + 1)}
    rounds = sorted(even | {turn // inner.steps for turn in turns if turn // inner.steps <= last})
    return {"rounds": rounds, "rates": [lr_at(at * inner.steps, inner) for at in rounds], "here": done}
