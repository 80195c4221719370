"""Validators of a hostile minority: all that an honest one does, and then a lie in place of what it would say, and a
server that answers as it likes in place of a mirror.

They agree on one lie a round, drawn from the run and the round, so that a minority says the same with all its stake.
"""

import random
from dataclasses import replace
from typing import ClassVar

from protocol.messages import first_link
from protocol.types import Attestation, Commitment, Digest, Record
from rounds.validator import Validator
from rounds.vote import Vote

EVERY_SLOT = (1 << 8) - 1
LIES = (
    "honest",
    "silent",
    "invented theta",
    "invented link",
    "theta_0",
    "no slots",
    "every slot",
    "one peer",
    "everybody",
    "strangers",
)

SERVERS = ("honest", "dead", "stalls", "lies")
"""What the mirrors, checkpoints and links of all hostile validators do in a round."""


def lie(run: Digest, round: int) -> str:
    """What all hostile validators do in this round."""
    return random.Random(f"{run.hex()} {round}").choice(LIES)


def serves(run: Digest, round: int) -> str:
    """What the servers of all hostile validators do in this round."""
    return random.Random(f"servers {run.hex()} {round}").choice(SERVERS)


def told(statement: Record | Attestation, run: Digest, start: Digest | None) -> Record | Attestation | None:
    """What is said in place of a statement; None for nothing. start: the digest of theta_0, where it is known."""
    kind = lie(run, statement.round)
    is_record = isinstance(statement, Record)
    if kind == "silent":
        return None
    if kind == "invented theta":
        return replace(statement, theta=Digest(random.Random(f"{run.hex()} {statement.round}").randbytes(32)))
    if kind == "invented link":
        return replace(statement, previous=Digest(random.Random(f"{run.hex()} {statement.round}").randbytes(32)))
    if kind == "theta_0" and start is not None:
        return replace(statement, theta=start, previous=first_link(run))
    if kind in ("no slots", "every slot") and not is_record:
        return replace(statement, bitmap=0 if kind == "no slots" else EVERY_SLOT)
    if kind == "one peer" and is_record:
        return replace(statement, bitmap=statement.bitmap & -statement.bitmap)
    if kind == "everybody" and is_record:
        return replace(statement, bitmap=(1 << 12) - 1)
    if kind == "strangers" and is_record:
        return replace(statement, bitmap=1 << 200)
    return statement


class HostileVote(Vote):
    """Says something else than it knows."""

    starts: ClassVar[dict[Digest, Digest]] = {}
    """theta_0 by run: that is what everybody stands at while nothing has been agreed on."""

    def post(self, round: int, statement: Record | Attestation | Commitment) -> int | None:
        assert not isinstance(statement, Commitment)
        run = self.node.run.id
        if statement.previous == first_link(run):
            self.starts.setdefault(run, statement.theta)
        said = told(statement, run, self.starts.get(run))
        return None if said is None else super().post(round, said)


class HostileValidator(Validator):
    """A validator whose word is worth nothing."""

    voting = HostileVote
