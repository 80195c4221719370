"""The rounds at which a run's learning rates change course. Arithmetic from the spec."""

from dataclasses import dataclass

from murmur.protocol.run import Run
from murmur.protocol.spec import InnerSpec
from murmur.training.schedule import lr_at


@dataclass(frozen=True, slots=True)
class Milestone:
    """A change from `inner_step` on, the first of `round`: the inner and the outer learning rate there, and what
    begins."""

    round: int
    inner_step: int
    lr: float
    alpha: float
    begins: str


def milestones(run: Run) -> list[Milestone]:
    """Return where the learning rates of a run change course, in order, when no round is void."""
    begins = [0, *(amendment.from_round for amendment in run.amendments)]
    found: list[Milestone] = []
    for first, last in zip(begins, [*begins[1:], None], strict=True):
        spec = run.spec_at(first)
        inner = spec.inner
        course = {first * inner.steps: ["amended" if first else "outset"]}
        for own, what in _course(inner):
            course.setdefault(inner.start_step + own, []).append(what)
        for step, whats in sorted(course.items()):
            round = step // inner.steps
            if first <= round and (last is None or round < last):
                found.append(Milestone(round, step, lr_at(step, inner), spec.outer.alpha, ", ".join(whats)))
    return found


def _course(inner: InnerSpec) -> list[tuple[int, str]]:
    """Return (inner steps from the schedule's start, what begins there), with the flat window counted in."""
    pause = inner.flat_steps
    late = [pause if inner.flat_from <= own else 0 for own in (inner.warmup_steps, inner.decay_steps)]
    course = [(0, "warm-up")] if inner.warmup_steps else []
    course += [(inner.warmup_steps + late[0], f"{inner.decay} decay"), (inner.decay_steps + late[1], "flat")]
    if pause:
        course.append((inner.flat_from, f"flat for {pause:,} steps"))
        if inner.warmup_steps < inner.flat_from < inner.decay_steps:
            course.append((inner.flat_from + pause, f"{inner.decay} decay goes on"))
    return course
