"""Payloads by name: those of earlier rounds, and who sent (nearly) the same as whom."""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.types import Digest, PeerId

Twins = Mapping[PeerId, frozenset[PeerId]]
"""Peers of one round whose payloads are (nearly) the same, both ways; a peer without twins is not listed."""

NO_TWINS: Twins = {}


@dataclass(frozen=True, order=True, slots=True)
class Remembered:
    """A payload of an earlier round with which later ones are compared: `payload` is the sha256 of its records."""

    round: int
    peer: PeerId
    payload: Digest
