"""Scenes for the tests of agreement: equal validators, miners, what they say, and many rounds on one chain."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gauntlet.agreement import Agreed, Log, Outcome, Post, abstention, agreed, moved, outcome, posts_in, start, vote_for
from murmur.protocol.messages import first_link
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Slot, StateRef, Uid, Vote
from tests.gauntlet.world import COMMIT_HASH, POINTER, RUN, THETA, digest, peer_id

CLOCK = RUN.clock
ROUND = 5
LINK = first_link(RUN.id)
D, X = CLOCK.commit_deadline(ROUND), CLOCK.vote_deadline(ROUND)
OURS, POISON, FORK = (THETA, LINK), (digest("another theta"), LINK), (THETA, digest("fork"))
NOTHING = Digest(bytes(32))


def miner(uid: int, incentive: int = 0, round: int = ROUND) -> Peer:
    slot = Slot(CLOCK.commit_deadline(round) - 1, POINTER, Commitment(round, digest(f"e{uid}")))
    return Peer(peer_id(uid), Uid(uid), 0, False, slot=slot, incentive=incentive)


MINERS = tuple(miner(uid) for uid in range(4))
NO_COMMITMENT = Peer(peer_id(8), Uid(8), 0, False, slot=Slot(D, POINTER, Commitment(ROUND - 1, digest("old"))))
LATE = Peer(peer_id(9), Uid(9), 0, False, slot=Slot(D + 1, POINTER, Commitment(ROUND, digest("late"))))
ANNOUNCED = Slot(7, POINTER, abstention(0))
"""Of a validator that was there before the run began."""


def voted_before(round: int = ROUND - 1) -> Slot:
    return Slot(CLOCK.vote_deadline(round), POINTER, vote_for(round, (), OURS))


def validator(number: int, stake: int, slot: Slot | None = None) -> Peer:
    return Peer(peer_id(100 + number), Uid(100 + number), stake, True, slot=slot or voted_before())


A, B, C = EQUAL = tuple(validator(number, 1) for number in range(1, 4))


def say(who: Peer, block: int, *uids: int, state_ref: StateRef | None = OURS) -> Post:
    """`who` names these from this block on; a state of None abstains."""
    return Post(
        block, who.id, abstention(ROUND) if state_ref is None else vote_for(ROUND, list(map(Uid, uids)), state_ref)
    )


def log_of(*posts: Post, validators: Sequence[Peer] = EQUAL, miners: Sequence[Peer] | None = None) -> Log:
    peers = (*((*MINERS, NO_COMMITMENT, LATE) if miners is None else miners), *validators)
    return Log(peers, COMMIT_HASH, tuple(sorted(posts, key=lambda post: (post.block, post.peer))))


def decide(log: Log, final: int = X, run: Run = RUN, height: int = X) -> Agreed | None:
    return agreed(run, ROUND, log, final, height)


def uids(found: Agreed | None, log: Log) -> set[int]:
    """Who is selected."""
    at = {peer.id: peer.uid for peer in log.commit}
    return {at[peer] for peer, _ in found.selection.contributing} if found and found.selection else set()


def selected(*posts: Post, **given) -> set[int]:
    """Who is selected at the vote deadline."""
    log = log_of(*posts, **given)
    return uids(decide(log), log)


class Chain:
    """Slots and who holds them, as of any block. Nobody comes or goes."""

    def __init__(self, run: Run, peers: Iterable[Peer]) -> None:
        self.run, self.peers = run, list(peers)
        self.slots = {peer.id: [(-1, peer.slot)] for peer in self.peers}
        """Of each hotkey what it wrote, with the block, the first first."""
        self.stakes: dict[int, dict[PeerId, int]] = {}
        """From the start of a round on."""

    def write(self, peer: PeerId, block: int, statement: Commitment | Vote) -> None:
        assert block > self.slots[peer][-1][0], "one hotkey's writes come one after the other"
        self.slots[peer].append((block, Slot(block, POINTER, statement)))

    def at(self, block: int) -> list[Peer]:
        round = self.run.clock.round_at(block)
        stakes = next((self.stakes[r] for r in range(round, -1, -1) if r in self.stakes), {})
        found = []
        for peer in self.peers:
            written = self.slots[peer.id]
            slot = written[bisect_right(written, block, key=lambda item: item[0]) - 1][1]
            found.append(replace(peer, slot=slot, stake=stakes.get(peer.id, peer.stake)))
        return found

    def log(self, round: int) -> Log:
        """The round's log, from the states of all its blocks."""
        first, last = self.run.clock.commit_deadline(round), self.run.clock.vote_deadline(round)
        blocks = {block for written in self.slots.values() for block, _ in written if first < block <= last}
        posts = {post for block in blocks for post in posts_in(self.run, round, self.at(block))}
        return Log(self.at(first), commit_hash(round), tuple(sorted(posts, key=lambda post: (post.block, post.peer))))


def commit_hash(round: int) -> Digest:
    return digest(f"D {round}")


class History:
    """Rounds after one another: who says what, and where the run stands after each."""

    def __init__(self, stakes: Mapping[str, int]) -> None:
        self.ids = {name: PeerId(digest(name)) for name in stakes}
        here = [
            Peer(self.ids[name], Uid(100 + place), stake, True, slot=ANNOUNCED)
            for place, (name, stake) in enumerate(stakes.items())
        ]
        self.chain = Chain(RUN, [replace(miner(0), slot=None), *here])
        self.round, self.tip = 0, start(RUN)

    @property
    def state_ref(self) -> StateRef:
        """What an honest node that is where the run stands names."""
        return StateRef(self.tip.theta or digest(f"what follows from {self.tip.link.hex()}"), self.tip.link)

    def play(self, says: Mapping[str, StateRef | None]) -> Outcome:
        """One round in which these name their states and miner 0, or abstain, and the others are away."""
        clock, round = RUN.clock, self.round
        self.chain.write(peer_id(0), clock.commit_deadline(round), Commitment(round, digest(f"envelope {round}")))
        for name, state_ref in says.items():
            vote = abstention(round) if state_ref is None else vote_for(round, [Uid(0)], state_ref)
            self.chain.write(self.ids[name], clock.vote_deadline(round), vote)
        found = outcome(RUN, round, self.chain.log(round), clock.vote_deadline(round))
        self.tip, self.round = moved(self.tip, round, found), round + 1
        return found

    def goes_on(self, says: Mapping[str, StateRef | None]) -> bool:
        """Whether the run moves on in a round in which they say this."""
        link = self.tip.link
        self.play(says)
        return self.tip.link != link
