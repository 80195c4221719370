"""Attackers of the run: validators with a minority of the stake that do all the work of an honest one and then lie in
their votes; miners without stake that show each validator another face; and those that withhold their work until the
last moment.

Hostile validators agree on one lie per round, drawn from the run and the round, so that they lie with all their stake.
Their servers answer as they like.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from gauntlet.agreement import abstention
from gauntlet.book import ScoreBook, eligible
from murmur.lab.simulation.chain import Blocks
from murmur.lab.simulation.modelled_replica import Contrary, ModelledReplica, NoText
from murmur.lab.simulation.store import Call
from murmur.node.node import Node
from murmur.protocol.errors import ChainError, ObjectMissing, StorageError
from murmur.protocol.messages import first_link
from murmur.protocol.run import Run
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, Page, PeerId, Vote
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator
from murmur.rounds.votes import Votes

Attack = Literal["votes", "faces", "withholds"]
"""What a hostile member does, honest in all else: it lies in its votes, shows each validator another face, or shows its
work as late as that counts."""
EVERYBODY = (1 << 12) - 1
LIES = (
    "honest",
    "silent",
    "abstains",
    "invented theta",
    "invented link",
    "theta_0",
    "an old state",
    "nobody",
    "one peer",
    "everybody",
    "strangers",
    "takes back",
    "contradicts",
    "says it late",
)
"""`takes back`: an honest vote, overwritten with one that names no peer. `contradicts`: overwritten with another state.
`says it late`: only in the last blocks before the vote deadline."""
AT_ONCE = 0.5
"""Share of the rounds in which a second vote follows the first at once instead of shortly before the vote deadline."""

SERVERS = ("honest", "dead", "stalls", "lies")
"""Behaviour of all hostile validators' servers in a round: mirrors, checkpoints and links."""


def lie(run: Digest, round: int) -> str:
    """Return the lie of all hostile validators in this round."""
    return random.Random(f"{run.hex()} {round}").choice(LIES)


def serves(run: Digest, round: int) -> str:
    """Return the behaviour of all hostile validators' servers in this round."""
    return random.Random(f"servers {run.hex()} {round}").choice(SERVERS)


def told(vote: Vote, run: Digest, start: Digest | None, old: tuple[Digest, Digest] | None) -> list[Vote]:
    """Return the votes sent in place of an honest one, in order. start: the digest of theta_0; old: a state of an
    earlier round; each None while unknown."""
    kind, draw = lie(run, vote.round), random.Random(f"{run.hex()} {vote.round}")
    invented = Digest(draw.randbytes(32))
    other = {
        "silent": [],
        "abstains": [abstention(vote.round)],
        "invented theta": [replace(vote, theta=invented)],
        "invented link": [replace(vote, previous=invented)],
        "nobody": [replace(vote, bitmap=0)],
        "one peer": [replace(vote, bitmap=vote.bitmap & -vote.bitmap)],
        "everybody": [replace(vote, bitmap=EVERYBODY)],
        "strangers": [replace(vote, bitmap=1 << 200)],
        "takes back": [vote, replace(vote, bitmap=0)],
        "contradicts": [vote, replace(vote, theta=invented)],
    }
    if start is not None:
        other["theta_0"] = [replace(vote, theta=start, previous=first_link(run))]
    if old is not None:
        other["an old state"] = [replace(vote, theta=old[0], previous=old[1])]
    return other.get(kind, [vote])


class HostileVotes(Votes):
    """Sends other votes than the honest ones."""

    starts: ClassVar[dict[Digest, Digest]] = {}
    """theta_0 by run: the state of all nodes while nothing has been agreed."""
    refs: ClassVar[dict[Digest, list[tuple[Digest, Digest]]]] = {}
    """By run, the states that were ever held."""

    def send(self, round: int, vote: Vote) -> int | None:
        node = self.node
        run = node.run.id
        known = self.refs.setdefault(run, [])
        if vote.state_ref is not None:
            if vote.previous == first_link(run):
                self.starts.setdefault(run, vote.theta)
            known.append(vote.state_ref)
        old = random.Random(f"old {run.hex()} {round}").choice(known) if known else None
        votes = told(vote, run, self.starts.get(run), old)
        if lie(run, round) == "says it late":
            self._wait(node, round)
        block = super().send(round, votes[0]) if votes else None
        at_once = random.Random(f"at once {run.hex()} {round}").random() < AT_ONCE
        for later in votes[1:]:
            if not at_once:
                self._wait(node, round)
            block = super().send(round, later)
        return block

    def _wait(self, node: Node, round: int) -> None:
        """Wait until the last moment at which a vote still counts."""
        last = node.clock.vote_deadline(round) - node.run.first.clock.finality_blocks - 2
        try:
            node.wait_for(last, "the last moment")
        except ChainError:
            return


class HostileValidator(Validator):
    """A validator whose votes are lies."""

    voting = HostileVotes


@dataclass
class Faces:
    """Miners that work honestly for one validator only, so that the validators' books diverge and each finds another's
    miners ineligible.

    Each shows its key only to that validator while it works honestly. To the others it shows only updates that raise
    the loss, until all of them find it worthless.
    """

    friends: Mapping[str, str]
    """By such a miner, the validator that sees its honest work."""
    validators: Mapping[str, Validator | None]
    """The honest validators' programs; None for one that is down."""
    hotkeys: Mapping[str, PeerId]
    rules: GauntletSpec
    _harms: dict[tuple[str, int], bool] = field(default_factory=dict)

    @classmethod
    def drawn(cls, seed: int, miners: Sequence[str], validators: Sequence[str]) -> dict[str, str]:
        """Draw the friends, about as many miners for each validator."""
        order = random.Random(f"faces {seed}").sample(validators, len(validators))
        return {miner: order[place % len(order)] for place, miner in enumerate(miners)}

    def harms(self, miner: str, round: int) -> bool:
        """Whether the miner raises the loss in this round: as long as another validator than its friend still rates
        it."""
        at = miner, round
        if at not in self._harms:
            others = [self.validators[name] for name in self.validators if name != self.friends[miner]]
            books = [program.scores.book for program in others if program is not None]
            self._harms[at] = not all(self._worthless(book, miner) for book in books)
        return self._harms[at]

    def _worthless(self, book: ScoreBook, miner: str) -> bool:
        record = book.peers.get(self.hotkeys[miner])
        return record is not None and record.evaluations > 0 and not eligible(record, self.rules)

    def answer(self, call: Call) -> None:
        """Called before its server answers: raises ObjectMissing for readers that may not see the key."""
        if call.verb != "get" or call.bucket not in self.friends or "/reveal/" not in call.key:
            return
        if call.reader in self.validators:
            is_friend = call.reader == self.friends[call.bucket]
            if is_friend == self.harms(call.bucket, int(call.key.rsplit("/", 1)[1])):
                raise ObjectMissing("get: there is no such object or bucket")


class TwoFacedMiner(Miner):
    """One of these miners."""

    def __init__(self, node: Node, shards: NoText, faces: Faces, name: str) -> None:
        super().__init__(node, shards)
        self.faces, self.name = faces, name

    def train(self, round: int, pages: Sequence[Page]) -> None:
        modelled = self.node.state.replica
        assert isinstance(modelled, ModelledReplica)
        honest = modelled.problem
        modelled.problem = Contrary(honest) if self.faces.harms(self.name, round) else honest
        try:
            super().train(round, pages)
        finally:
            modelled.problem = honest


WITHHOLDS = ("late", "stall", "unserved")
"""How a miner withholds its work, until a moment at which validators still count it. `late`: it shows its key in the
last block. `stall`: validators that read its payload wait until shortly before, miners for as long as they ask.
`unserved`: miners get neither payload nor key at once. In both they fetch what they lack from validators' copies."""
STALL_BLOCKS = 2
"""Blocks before the reveal deadline in which a stalled payload comes."""
FOR_EVER = 1 << 40


@dataclass
class Withheld:
    """Miners that do all of their work, and show it as late as it counts, so that whoever waits for it misses its own
    deadline. They serve one another. Each draws anew in every round how it withholds."""

    run: Run
    blocks: Blocks
    miners: Collection[str]
    validators: Collection[str]

    def drawn(self, miner: str, round: int) -> str:
        """Return how this miner withholds in this round."""
        return random.Random(f"withheld {self.run.id.hex()} {miner} {round}").choice(WITHHOLDS)

    def answer(self, call: Call) -> None:
        """Called before a server answers. Raises StorageError or ObjectMissing for readers that get nothing."""
        of = next((kind for kind in ("payload", "reveal") if f"/{kind}/" in call.key), None)
        if call.verb != "get" or call.bucket not in self.miners or call.reader in self.miners or of is None:
            return
        round = int(call.key.rsplit("/", 1)[1])
        kind, is_miner = self.drawn(call.bucket, round), call.reader not in self.validators
        if kind == "unserved" and is_miner:
            raise ObjectMissing("get: there is no such object or bucket")
        if kind == "stall" and of == "payload":
            shown = FOR_EVER if is_miner else self.run.clock.reveal_deadline(round) - STALL_BLOCKS
            if not self.blocks.wait(shown, final=True, until=self.blocks.clock.now + call.timeout_seconds):
                raise StorageError("get: out of time")


class WithholdingMiner(Miner):
    """One of these miners. It knows its own key, and expects itself."""

    def __init__(self, node: Node, shards: NoText, withheld: Withheld, name: str) -> None:
        super().__init__(node, shards)
        self.withheld, self.name = withheld, name

    def show(self, round: int, reveal: bytes) -> None:
        if self.withheld.drawn(self.name, round) != "late":
            super().show(round, reveal)
            return
        show = super().show

        def later() -> None:
            try:
                self.node.wait_for(self.node.clock.reveal_deadline(round) - 1, "the last moment")
                show(round, reveal)
            except (ChainError, StorageError):
                return

        self.node.time.start(later, "late key")
