"""How many miners' rounds a validator can repeat, in a run with traces (murmur/rounds/verify.py): in the time between
the end of its own judging and the next commit deadline. What is not finished by then goes on in the next round. By
arithmetic; no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from gauntlet.repetition import MOST_ROUNDS, SPARE_STEPS
from murmur.plan.requirements import Plan
from murmur.training.memory import largest

LONGEST = MOST_ROUNDS // 2
"""Rounds that a repetition may take: it may wait as long for the one before."""


@dataclass(frozen=True, slots=True)
class Verification:
    """A validator's repetitions.

    free_seconds: of a round, from the end of its judging to the next commit deadline, but for the steps' time that is
    kept free. one_seconds: one miner's whole round. drawn: miners whose steps it draws in a round.
    """

    free_seconds: float
    one_seconds: float
    drawn: int

    @property
    def rounds(self) -> float:
        """Rounds that one repetition takes."""
        return self.one_seconds / self.free_seconds if self.free_seconds else inf

    @property
    def repeats(self) -> float:
        """Miners' rounds that it repeats in a round on average, if none fails."""
        return min(float(self.drawn), 1.0 / self.rounds)

    @property
    def looks_twice(self) -> bool:
        """Whether there is time for the second execution that a failure takes, while theta is here."""
        return self.rounds <= 1 / 2


def verification(plan: Plan) -> Verification | None:
    """Return what a validator on this machine repeats; None in a run without traces."""
    spec = plan.spec
    if not spec.trace.places:
        return None
    one = next(timed for timed in plan.timeline("validator") if timed.phase.name == "repeat steps")
    kept = SPARE_STEPS * plan.compute_seconds / spec.inner.steps
    free = max(0.0, plan.round_seconds - one.begins - kept)
    return Verification(free, one.seconds, spec.gauntlet.verifications)


def repeats_nobody(plan: Plan) -> Iterator[str]:
    """Yield why a validator as planned could repeat no miner's round, and what would help; nothing when it can."""
    found = verification(plan)
    if found is None:
        return
    so = "it could audit nobody, and would pay miners for being there, not for their work"
    if plan.on_gpu and not plan.micro_sequences:
        yield f"a validator has no memory to repeat a miner's steps, which takes what training takes: {so}"
    elif found.rounds > LONGEST:
        yield (
            f"a validator has {found.free_seconds:.0f} s of each round from the end of its judging to the next commit "
            f"deadline, but to repeat one miner's {plan.spec.inner.steps} steps takes {found.one_seconds:.0f} s, more "
            f"than {LONGEST} times that: {so}. Use {_enough(plan)}; or give the run a longer round (--fit finds "
            "one) or fewer inner.steps"
        )


def _enough(plan: Plan) -> str:
    """Return the machine that repeats one miner's round in time."""
    most = plan.spec.inner.sequences
    if not plan.on_gpu:
        return "a faster machine"
    small = largest(lambda gpus: not can_repeat(replace(plan, gpus=gpus)), most)
    return f"{small + 1} such GPUs, or faster ones" if small < most else "faster GPUs"


def can_repeat(plan: Plan) -> bool:
    """Whether there is time for what the run's spec wants repeated."""
    found = verification(plan)
    return found is None or found.rounds <= LONGEST
