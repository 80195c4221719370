"""Payloads by name: those of earlier rounds, and which peers sent (nearly) the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from murmur.protocol.types import Digest, PeerId

Twins = Mapping[PeerId, frozenset[PeerId]]
"""Peers of one round whose payloads are (nearly) the same, both ways; a peer without twins is not listed."""

NO_TWINS: Twins = {}


@dataclass(frozen=True, order=True, slots=True)
class Remembered:
    """A payload of an earlier round with which later ones are compared: `payload` is the sha256 of its records."""

    round: int
    peer: PeerId
    payload: Digest


def compared(remembered: Iterable[Remembered], round: int, copy_rounds: int) -> tuple[Remembered, ...]:
    """Return the payloads of earlier rounds with which those of `round` are compared for copies."""
    return tuple(past for past in remembered if past.round >= round - copy_rounds)
