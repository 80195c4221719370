"""How many miners' rounds a validator can repeat, in a run with traces (murmur/rounds/verify.py): in the time between
the end of its own judging and the next commit deadline. By arithmetic; no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gauntlet.repetition import SPARE_STEPS
from murmur.plan.requirements import Plan
from murmur.training.memory import largest


@dataclass(frozen=True, slots=True)
class Verification:
    """A validator's repetitions in one round.

    free_seconds: from the end of its judging to the next commit deadline, but for the steps' time that is kept free.
    one_seconds: one miner's whole round. fitting: how many of these fit, second executions too. drawn: miners whose
    steps it draws.
    """

    free_seconds: float
    one_seconds: float
    fitting: int
    drawn: int

    @property
    def repeats(self) -> int:
        """How many drawn miners' rounds it repeats, if none fails."""
        return min(self.fitting, self.drawn)


def verification(plan: Plan) -> Verification | None:
    """Return what a validator on this machine repeats; None in a run without traces."""
    spec = plan.spec
    if not spec.trace.places:
        return None
    one = next(timed for timed in plan.timeline("validator") if timed.phase.name == "repeat steps")
    kept = SPARE_STEPS * plan.compute_seconds / spec.inner.steps
    free = max(0.0, plan.round_seconds - one.begins - kept)
    return Verification(free, one.seconds, int(free // one.seconds), spec.gauntlet.verifications)


def repeats_nobody(plan: Plan) -> Iterator[str]:
    """Yield why a validator as planned could repeat no miner's round, and what would help; nothing when it can."""
    found = verification(plan)
    if found is None:
        return
    so = "it could audit nobody, and would pay miners for being there, not for their work"
    if plan.on_gpu and not plan.micro_sequences:
        yield f"a validator has no memory to repeat a miner's steps, which takes what training takes: {so}"
    elif not found.fitting:
        yield (
            f"a validator has {found.free_seconds:.0f} s from the end of its judging to the next commit deadline, but "
            f"to repeat one miner's {plan.spec.inner.steps} steps takes {found.one_seconds:.0f} s: {so}. Use "
            f"{_enough(plan)}; or give the run a longer round (--fit finds one) or fewer inner.steps"
        )


def _enough(plan: Plan) -> str:
    """Return the machine that repeats one miner's round in time."""
    most = plan.spec.inner.sequences
    if not plan.on_gpu:
        return "a faster machine"
    small = largest(lambda gpus: not _fitting(replace(plan, gpus=gpus)), most)
    return f"{small + 1} such GPUs, or faster ones" if small < most else "faster GPUs"


def _fitting(plan: Plan) -> int:
    found = verification(plan)
    return 0 if found is None else found.fitting
