"""An exponential average without a start value: the first value counts in full (bias corrected by its weight)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Average:
    """`weight` is the sum of the weights so far, 0 (nothing yet) to below 1; `value` is 0 while there is none."""

    value: float = 0.0
    weight: float = 0.0

    def push(self, value: float, decay: float) -> "Average":
        """The average with one more value; earlier ones lose the factor `decay`, 0 <= decay < 1."""
        kept = decay * self.weight
        weight = kept + (1 - decay)
        return Average((kept * self.value + (1 - decay) * value) / weight, weight)


NOTHING = Average()
"""The average of no values."""
