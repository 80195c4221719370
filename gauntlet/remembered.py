"""Payloads by name: those of earlier rounds, and which peers sent (nearly) the same."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from murmur.protocol.spec import PROGRESS_ROUNDS
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


def guides(contributing: Iterable[PeerId], trusted: Collection[PeerId], twins: Collection[PeerId]) -> list[PeerId]:
    """Return the peers whose updates show the run's direction: the trusted ones (gauntlet/book.py) among a round's
    contributors, sorted. Not all trusted peers: hotkeys are cheap, while places among the contributors depend on the
    rating."""
    return sorted(peer for peer in contributing if peer in trusted and peer not in twins)


def looked_at(
    remembered: Iterable[Remembered], round: int, trusted: Collection[PeerId], guides: Collection[PeerId]
) -> tuple[Remembered, ...]:
    """Return the earlier payloads on which progress in `round` depends: of the round before all `trusted` peers'
    payloads, of the rounds before that the guides'."""
    return tuple(
        past
        for past in remembered
        if round - PROGRESS_ROUNDS <= past.round < round
        and past.peer in (trusted if past.round == round - 1 else guides)
    )
