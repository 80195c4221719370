"""Sketches of payloads, and who copied whom (docs/protocol.md section 5, COPY).

A sketch holds the positions and signs of an update's values, hashed to 32 bits, in at most `SKETCH_VALUES` values of
evenly spaced chunks: everything in a model of a million parameters. In a larger model the compared chunks are public,
so a copier could change just those; what it then re-posts is a round old and has to pass the proof of computation.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import InvalidMessage
from protocol.layout import CHUNK
from protocol.spec import GauntletSpec
from protocol.types import DIGEST_BYTES, Digest, PeerId, hotkey
from sparseloco.update import Update

SKETCH_VALUES = 1 << 14

_SCREEN_BITS = 20
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Sketch:
    """What is remembered of a payload: `payload` is the sha256 of its records, `values` the hashed positions."""

    peer: PeerId
    round: int
    payload: Digest
    values: frozenset[int]

    @cached_property
    def coarse(self) -> npt.NDArray[np.uint32]:
        """The values with fewer bits, in any order."""
        return np.fromiter(self.values, dtype=np.uint32, count=len(self.values)) >> np.uint32(32 - _SCREEN_BITS)

    def overlap(self, other: "Sketch") -> float:
        """Share of this sketch's values that `other` has too, 0 to 1."""
        return len(self.values & other.values) / len(self.values) if self.values else 0.0

    def to_body(self) -> dict[str, Any]:
        packed = b"".join(value.to_bytes(4, "little") for value in sorted(self.values))
        return {
            "peer": self.peer.hex(),
            "round": self.round,
            "payload": self.payload.hex(),
            "values": b64encode(packed).decode(),
        }


def sketch_from_body(body: Mapping[str, Any]) -> Sketch:
    """Inverse of `Sketch.to_body`. Raises InvalidMessage for anything else."""
    try:
        peer, payload = bytes.fromhex(body["peer"]), bytes.fromhex(body["payload"])
        packed, round = b64decode(body["values"], validate=True), body["round"]
    except (KeyError, TypeError, ValueError):
        raise InvalidMessage("book: a sketch has a missing or wrong field") from None
    if len(peer) != 32 or len(payload) != DIGEST_BYTES or len(packed) % 4 or type(round) is not int:
        raise InvalidMessage("book: a sketch has a field of the wrong size")
    values = frozenset(int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4))
    return Sketch(PeerId(peer), round, Digest(payload), values)


def sketch(peer: PeerId, round: int, update: Update) -> Sketch:
    """Sketch of a valid update."""
    positions: list[int] = update.positions.tolist()
    if len(positions) > SKETCH_VALUES:
        chunks = sorted({position // (2 * CHUNK) for position in positions})
        per_chunk = -(-len(positions) // len(chunks))
        step = -(-len(chunks) * per_chunk // SKETCH_VALUES)
        compared = set(chunks[::step])
        positions = [position for position in positions if position // (2 * CHUNK) in compared]
    values = frozenset(((position + 1) * _MULTIPLIER & _MASK) >> 32 for position in positions)
    return Sketch(peer, round, update.digest, values)


@dataclass(frozen=True, slots=True)
class Copies:
    """Peers whose payload is a copy, each with what it copies in our words. `reposted`: those that copy a payload of
    an earlier round; the other ones copy, or were copied by, a payload of this round."""

    details: Mapping[PeerId, str]
    reposted: frozenset[PeerId]


def find_copies(
    current: Mapping[PeerId, Sketch], history: Iterable[Sketch], void_rounds: Collection[int], spec: GauntletSpec
) -> Copies:
    """Copies among this round's payloads and those of the last `copy_rounds` rounds.

    An earlier payload has an owner, so only who posts it again is at fault. Two of this round were both sealed until
    D, so both are. What a peer sent in a void round went back into its error feedback and mostly comes again: it is
    compared with the peer's own payload for equality only.
    """
    past = sorted(history, key=lambda sketch: (sketch.round, sketch.peer))
    details: dict[PeerId, str] = {}
    for peer, mine in current.items():
        for old in _near(mine, past, spec.copy_overlap):
            if not mine.round - spec.copy_rounds <= old.round < mine.round or peer in details:
                continue
            own_void = old.peer == peer and old.round in void_rounds
            if mine.payload == old.payload:
                details[peer] = f"equals the payload of {hotkey(old.peer)} in round {old.round}"
            elif not own_void and (share := mine.overlap(old)) > spec.copy_overlap:
                details[peer] = f"overlaps {share:.2f} with the payload of {hotkey(old.peer)} in round {old.round}"
    reposted = frozenset(details)
    # A re-poster is left out here: after a void round the owner's new payload rightly resembles the one re-posted.
    left = [current[peer] for peer in sorted(set(current) - reposted)]
    for index, one in enumerate(left):
        for two in _near(one, left[index + 1 :], spec.copy_overlap):
            share = 1.0 if one.payload == two.payload else one.overlap(two)
            if share > spec.copy_overlap:
                for mine, other in ((one, two), (two, one)):
                    told = f"overlaps {share:.2f} with the payload of {hotkey(other.peer)} in this round"
                    details.setdefault(mine.peer, told)
    return Copies(details, reposted)


def _near(mine: Sketch, others: Sequence[Sketch], limit: float) -> list[Sketch]:
    """Those of `others`, in order, that equal `mine` or may overlap it by more than `limit`.

    Comparing sets took two minutes for 256 peers and their history, this takes twenty seconds. Coarser hashes can only
    add to an overlap, so nothing that a peer chooses hides a copy.
    """
    table = np.zeros(1 << _SCREEN_BITS, dtype=np.bool_)
    table[mine.coarse] = True
    enough = limit * len(mine.values)
    return [old for old in others if mine.payload == old.payload or np.count_nonzero(table.take(old.coarse)) > enough]
