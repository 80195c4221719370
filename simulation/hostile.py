"""Who wants to harm the run: validators with a minority of the stake that do all that an honest one does, and then say
something else; and miners without any that show each validator another face.

Hostile validators agree on one lie a round, drawn from the run and the round, so that they say the same with all their
stake. Their servers answer as they like.
"""

import random
from dataclasses import replace
from typing import ClassVar

from gauntlet.agreement import abstention
from node.node import Node
from protocol.errors import ChainError
from protocol.messages import first_link
from protocol.types import Digest, Word
from rounds.validator import Validator
from rounds.words import Words

EVERYBODY = (1 << 12) - 1
LIES = (
    "honest",
    "silent",
    "abstains",
    "invented theta",
    "invented link",
    "theta_0",
    "an old pair",
    "nobody",
    "one peer",
    "everybody",
    "strangers",
    "takes back",
    "contradicts",
    "says it late",
)
"""`takes back`: an honest word, written over with nobody named shortly before X. `contradicts`: written over with another
pair. `says it late`: in the last blocks before X only."""

SERVERS = ("honest", "dead", "stalls", "lies")
"""What the mirrors, checkpoints and links of all hostile validators do in a round."""


def lie(run: Digest, round: int) -> str:
    """What all hostile validators do in this round."""
    return random.Random(f"{run.hex()} {round}").choice(LIES)


def serves(run: Digest, round: int) -> str:
    """What the servers of all hostile validators do in this round."""
    return random.Random(f"servers {run.hex()} {round}").choice(SERVERS)


def told(word: Word, run: Digest, start: Digest | None, old: tuple[Digest, Digest] | None) -> list[Word]:
    """What is said in place of a word, one after the other. start: the digest of theta_0, old: a pair of an earlier
    round, where they are known."""
    kind, draw = lie(run, word.round), random.Random(f"{run.hex()} {word.round}")
    invented = Digest(draw.randbytes(32))
    other = {
        "silent": [],
        "abstains": [abstention(word.round)],
        "invented theta": [replace(word, theta=invented)],
        "invented link": [replace(word, previous=invented)],
        "nobody": [replace(word, bitmap=0)],
        "one peer": [replace(word, bitmap=word.bitmap & -word.bitmap)],
        "everybody": [replace(word, bitmap=EVERYBODY)],
        "strangers": [replace(word, bitmap=1 << 200)],
        "takes back": [word, replace(word, bitmap=0)],
        "contradicts": [word, replace(word, theta=invented)],
    }
    if start is not None:
        other["theta_0"] = [replace(word, theta=start, previous=first_link(run))]
    if old is not None:
        other["an old pair"] = [replace(word, theta=old[0], previous=old[1])]
    return other.get(kind, [word])


class HostileWords(Words):
    """Says something else than it knows."""

    starts: ClassVar[dict[Digest, Digest]] = {}
    """theta_0 by run: that is what everybody stands at while nothing has been agreed on."""
    pairs: ClassVar[dict[Digest, list[tuple[Digest, Digest]]]] = {}
    """By run, the pairs that were ever held."""

    def send(self, round: int, word: Word) -> int | None:
        node = self.node
        run = node.run.id
        known = self.pairs.setdefault(run, [])
        if word.pair is not None:
            if word.previous == first_link(run):
                self.starts.setdefault(run, word.theta)
            known.append(word.pair)
        old = random.Random(f"old {run.hex()} {round}").choice(known) if known else None
        words = told(word, run, self.starts.get(run), old)
        if lie(run, round) == "says it late":
            self._wait(node, round)
        block = super().send(round, words[0]) if words else None
        for later in words[1:]:
            self._wait(node, round)
            block = super().send(round, later)
        return block

    def _wait(self, node: Node, round: int) -> None:
        """Until the last moment at which a word still counts."""
        last = node.clock.words_by(round) - node.run.first.clock.finality_blocks - 2
        try:
            node.wait_for(last, "the last moment")
        except ChainError:
            return


class HostileValidator(Validator):
    """A validator whose word is worth nothing."""

    speaking = HostileWords
