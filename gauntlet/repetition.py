"""What a validator found when it repeated a miner's inner steps (gauntlet/verification.py), and what that says of the
miner's work."""

from dataclasses import dataclass
from statistics import median

TYPICAL_MOVE, LARGEST_MOVE = 0.2, 0.35
TYPICAL_GRADIENT, LARGEST_GRADIENT = 0.12, 0.25
"""How far an honest execution's steps may be from ours: the median over the steps and the largest, relative distances
of the weights' moves and of the clipped gradients. Muon makes every direction of a matrix equally large, so its moves
differ more than its gradients (benchmarks/results/verified_2vcpu_2026-11-30.md)."""
LIMITS = (TYPICAL_MOVE, LARGEST_MOVE, TYPICAL_GRADIENT, LARGEST_GRADIENT)
NOTHING_ALIKE = 2.0
"""Most that a distance counts."""
SPARE_STEPS = 2.0
"""Steps' time before the commit deadline at which a repetition ends."""
MOST_ROUNDS = 16
"""Rounds within which a repetition has to end: what it says is old then. It may wait for another one first."""
WORK_KEEPS = 0.75
"""A repetition moves the work that a hotkey is known to do by a quarter of the way."""
UNCONFIRMED_KEEPS = 0.5
"""What a failure leaves that there was no time to look at twice: it may be ours."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """What was found of the steps of `round`, which has `steps`. `declared`: how many the trace shows. `moves`,
    `gradients`: relative distances of each of them. `confirmed`: unless they failed, and were looked at once only."""

    round: int
    steps: int
    declared: int
    moves: tuple[float, ...]
    gradients: tuple[float, ...]
    confirmed: bool = True

    @property
    def distances(self) -> tuple[float, float, float, float]:
        """Median and largest of the moves, then of the gradients, of one step or more: what LIMITS bound."""
        return median(self.moves), max(self.moves), median(self.gradients), max(self.gradients)

    @property
    def passed(self) -> bool:
        """Whether they are what an honest execution shows. One of no steps has not been looked at: it shows nothing."""
        return bool(self.moves) and all(far <= limit for far, limit in zip(self.distances, LIMITS, strict=True))

    @property
    def failed(self) -> bool:
        """Whether it shows steps that were not made. A miner that declares no step shows no work, and has not lied."""
        return bool(self.declared) and not self.passed


def work_after(work: float, found: Repetition) -> float:
    """Return the share of a round's work that a hotkey is known to do, after one more repetition: nothing after one
    that failed twice."""
    if found.failed:
        return 0.0 if found.confirmed else UNCONFIRMED_KEEPS * work
    return WORK_KEEPS * work + (1.0 - WORK_KEEPS) * min(1.0, found.declared / found.steps)
