"""An exponential average without a start value: the first value counts in full (bias corrected by its weight)."""

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Average:
    """`weight` is the sum of the weights so far, 0 (no value yet) to below 1; `value` is 0 while there is none."""

    value: float = 0.0
    weight: float = 0.0

    def push(self, value: float, decay: float) -> "Average":
        """Return the average with one more value; the weight of earlier ones falls by the factor `decay`, 0 <= decay <
        1."""
        kept = decay * self.weight
        weight = kept + (1 - decay)
        return Average((kept * self.value + (1 - decay) * value) / weight, weight)

    def error(self, decay: float) -> float:
        """Return the standard error of the average, in standard deviations of one value; 1 while there is none."""
        settled = (1 - decay) / (1 + decay)
        return sqrt(settled * (2 - self.weight) / self.weight) if self.weight else 1.0


NOTHING = Average()
"""The average of no values."""


def error(count: int, decay: float) -> float:
    """Return the standard error of an average of `count` independent values, in standard deviations of one. It is 1 for
    the first, and falls to sqrt((1 - decay) / (1 + decay)) for very many."""
    settled = (1 - decay) / (1 + decay)
    return sqrt(settled * (1 + decay**count) / (1 - decay**count)) if count else 1.0
