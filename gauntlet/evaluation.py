"""Inputs and results of an evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass

from murmur.protocol.types import LossScore, Page, PeerId


@dataclass(frozen=True, slots=True)
class Samples:
    """Sequences to evaluate, each as a Page of one context's tokens, ascending: of every picked peer's own pages, and
    one set of pages that are unassigned this round."""

    assigned: Mapping[PeerId, tuple[Page, ...]]
    unassigned: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A peer's scores, and its gap against `references` reference peers. If a loss with its update was not finite the
    scores are NaN, and the gap is the lowest."""

    score: LossScore
    gap: float
    references: int
