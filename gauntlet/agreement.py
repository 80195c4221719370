"""Decide rounds and the run's tip from votes: functions of finalised chain state, the same on every node
(docs/protocol.md section 6, docs/decisions/0058-one-word-each.md).

After the commit deadline each validator posts one vote. It names the state that the validator holds, (theta digest,
link of the last agreed selection). It also names the peers whose submissions it holds, that pass, and that its book
finds eligible. Peers named by more than half of the counted stake are selected; if they are more than may contribute,
the chain's own incentive orders them.

A vote stays valid: a name in a final block counts until the vote deadline, even if the slot is overwritten. The first
state that a validator names binds it. So one validator's doubt cannot cost a peer its place if most have read it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from gauntlet.commitment import commitment
from murmur.protocol.assignment import Draw
from murmur.protocol.assignment import mirror_order as drawn_mirrors
from murmur.protocol.messages import first_link, link_of
from murmur.protocol.run import Run
from murmur.protocol.types import DIGEST_BYTES, MAX_UIDS, Digest, Peer, PeerId, Selection, StateRef, Uid, Vote

SEAT_ROUNDS = 4
"""A validator counts while its last vote is at most this many rounds old. If half of the stake dies, this many rounds
are void. If a majority is away for longer, a minority continues without it."""

MEMORY_ROUNDS = 64
"""The run's tip is settled by more than half of the stake that voted in this many rounds: a validator that is gone for
longer may be gone for good."""

COPIES = 2
"""This many validators copy each named payload unasked: in addition to its owner's bucket, one of the two may be lost,
as in a crash. If all of them are hostile, other holders that see the payload listed as wanted copy it; a larger number
would not help (docs/decisions/0043-mirrors-by-draw.md)."""

NEWCOMERS_SHARE = 8
"""One in this many places goes to peers without incentive, if there are enough of them: otherwise no newcomer would get
in."""


@dataclass(frozen=True, slots=True)
class Post:
    """A vote of `peer` in its slot from this block on."""

    block: int
    peer: PeerId
    vote: Vote


@dataclass(frozen=True)
class Log:
    """A round as final states show it. `commit`: all registered hotkeys as of the commit deadline, whose hash is
    `commit_hash`. `posts`: votes for the round in the order of their blocks, with those that were overwritten since."""

    commit: Sequence[Peer]
    commit_hash: Digest
    posts: tuple[Post, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The decision of a round.

    state: named by more than half of the counted stake, None if there is none. selection: None if the round is void.
    block: the one in whose state it was decided.
    """

    state_ref: StateRef | None
    selection: Selection | None
    block: int

    @property
    def link(self) -> Digest | None:
        """The link that the next round's votes have to name to build on this round; None if nothing was agreed."""
        if self.selection is not None:
            return link_of(self.selection)
        return self.state_ref.link if self.state_ref is not None else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A round's effect on the run's tip, as of the vote deadline. strong: whether more than half of the stake that
    voted in the last MEMORY_ROUNDS rounds names its state, too."""

    agreed: Agreed
    strong: bool


@dataclass(frozen=True, slots=True)
class Tip:
    """The run's state at the start of `round`: a link, and the theta that votes name. theta is None while no vote has
    named it, since it follows from the last selection."""

    round: int
    link: Digest
    theta: Digest | None = None


# --- who counts --------------------------------------------------------------------------------------------------


def electorate(run: Run, round: int, peers: Iterable[Peer]) -> dict[PeerId, int]:
    """Return the stake in rao of the validators that count in `round`. `peers` as of the commit deadline.

    They hold a permit and have voted for one of the last SEAT_ROUNDS rounds; if none has, those that ever did. An
    announcement by the commit deadline of round 0 counts as a vote for the round before it: otherwise the first
    validator to post a vote would be the only one that counts. A permit alone gives no seat: the owner of the chain's
    subnet always has one, and so has a miner with enough stake.

    It follows from one state, so a joiner needs no history. It is fixed by the commit deadline: no validator enters
    after it sees how a round goes. One that comes later posts its vote and counts from the next round on.
    """
    voters = _voters(run, round, peers)
    recent = {peer.id: peer.stake for peer, at in voters if at >= round - SEAT_ROUNDS}
    return recent or {peer.id: peer.stake for peer, _ in voters}


def remembered(run: Run, round: int, peers: Iterable[Peer]) -> dict[PeerId, int]:
    """Return the stake in rao of the validators that settle the run's tip. `peers` as of the commit deadline of
    `round`."""
    return {peer.id: peer.stake for peer, at in _voters(run, round, peers) if at >= round - MEMORY_ROUNDS}


def vote_weights(run: Run, round: int, peers: Iterable[Peer]) -> Mapping[PeerId, int]:
    """Return the weight of each validator's vote in `round`: its stake, or 1 each if none has stake. `peers` as of
    the commit deadline."""
    return _weights(electorate(run, round, peers))


def mirrors(run: Run, block: int, peers: Iterable[Peer]) -> tuple[PeerId, ...]:
    """Return the validators that are asked for copies of others' objects: those that count in the round of `block`, and
    those that have voted for it by now; the most stake first. `peers` as of `block`."""
    peers, round = tuple(peers), max(0, run.clock.round_at(block))
    stakes = electorate(run, round, peers) | electorate(run, round + 1, peers)
    return tuple(sorted(stakes, key=lambda peer: (-stakes[peer], peer)))


def last_wrote(peers: Iterable[Peer]) -> int:
    """Return the newest block in which a validator, or a peer whose slot has a vote, has written its slot; 0 if none
    has. `peers` as of any block."""
    slots = (peer.slot for peer in peers if peer.slot is not None and (peer.validates or _is_vote(peer)))
    return max((slot.block for slot in slots), default=0)


def _is_vote(peer: Peer) -> bool:
    return peer.slot is not None and isinstance(peer.slot.statement, Vote)


def mirror_order(
    run: Run, round: int, commit_hash: Digest, peers: Iterable[Peer], named: Collection[PeerId]
) -> dict[PeerId, tuple[PeerId, ...]]:
    """Return, for each of the `named` peers, the counting validators in the order in which they copy its payload: the
    first COPIES of them unasked. `commit_hash` and `peers` as of the commit deadline."""
    stakes = sorted(electorate(run, round, peers).items())
    return {peer: drawn_mirrors(run.id, commit_hash, round, peer, stakes) for peer in named}


def answering(run: Run, round: int, commit_hash: Digest, peers: Iterable[Peer]) -> PeerId | None:
    """Return the validator that copies in this round what hotkeys list as wanted that do not count; None if no
    validator counts. Drawn as the first that copies a payload, of no hotkey. `peers` as in `mirror_order`."""
    nobody = PeerId(bytes(DIGEST_BYTES))
    return next(iter(mirror_order(run, round, commit_hash, peers, [nobody])[nobody]), None)


def _voters(run: Run, round: int, peers: Iterable[Peer]) -> list[tuple[Peer, int]]:
    """Return the validators with the round for which they voted last, before `round`."""
    voters = ((peer, _last_voted_in(run, peer)) for peer in peers if peer.validates)
    return [(peer, at) for peer, at in voters if at is not None and at < round]


def _last_voted_in(run: Run, peer: Peer) -> int | None:
    """Return the round of the vote in the peer's slot, None without one; -1 for an announcement. A slot written after
    its window is fine here: a new pointer rewrites the slot together with the old vote."""
    vote = peer.slot.statement if peer.slot is not None else None
    if peer.slot is None or not isinstance(vote, Vote):
        return None
    if peer.slot.block > run.clock.commit_deadline(vote.round):
        return vote.round
    return -1 if vote == abstention(0) else None


def _weights(stakes: Mapping[PeerId, int]) -> Mapping[PeerId, int]:
    """Return each validator's weight: its stake, or 1 each if none has stake."""
    return stakes if any(stakes.values()) else dict.fromkeys(stakes, 1)


# --- votes -------------------------------------------------------------------------------------------------------


def vote_for(round: int, uids: Collection[Uid], state_ref: StateRef) -> Vote:
    """Return a validator's vote: the state that it holds, and the peers that it names. Raises ValueError for a uid that
    has no bit."""
    if any(not 0 <= uid < MAX_UIDS for uid in uids):
        raise ValueError(f"a uid of {sorted(uids)} has no bit among {MAX_UIDS}")
    return Vote(round, sum(1 << uid for uid in set(uids)), *state_ref)


def abstention(round: int) -> Vote:
    """Return the vote of a validator that is not at the tip: it keeps its seat, and supports no state. For round 0, and
    by its commit deadline, it announces a validator."""
    return Vote(round, 0, Digest(bytes(DIGEST_BYTES)), Digest(bytes(DIGEST_BYTES)))


def named(vote: Vote) -> tuple[Uid, ...]:
    """Return the uids whose bits are set."""
    return tuple(Uid(uid) for uid in range(MAX_UIDS) if vote.bitmap >> uid & 1)


def posts_in(run: Run, round: int, peers: Iterable[Peer]) -> list[Post]:
    """Return the votes for `round` in these slots, written after the commit deadline and by the vote deadline. `peers`
    as of any block."""
    first, last = run.clock.commit_deadline(round), run.clock.vote_deadline(round)
    return [
        Post(peer.slot.block, peer.id, peer.slot.statement)
        for peer in peers
        if peer.slot is not None
        and first < peer.slot.block <= last
        and isinstance(peer.slot.statement, Vote)
        and peer.slot.statement.round == round
    ]


def vote_by(log: Log, peer: PeerId) -> Vote | None:
    """Return the sum of the peer's votes for the round: the first state that it named, and all peers that it named with
    that."""
    tally = _Tally({peer: 1}, log.posts)
    if peer not in tally.voted:
        return None
    state_ref, round = tally.refs.get(peer), log.posts[0].vote.round
    return abstention(round) if state_ref is None else Vote(round, tally.names[peer], *state_ref)


def refs_named(run: Run, round: int, log: Log) -> dict[StateRef, int]:
    """Return every state that votes of the round name, with the counted stake behind it (heads, if none has stake), the
    most first; ties go to the lowest digests."""
    tally = _Tally(vote_weights(run, round, log.commit), log.posts)
    stakes = {ref: sum(tally.stakes[peer] for peer in tally.behind(ref)) for ref in dict.fromkeys(tally.refs.values())}
    return {ref: stakes[ref] for ref in sorted(stakes, key=lambda ref: (-stakes[ref], ref))}


class _Tally:
    """Counts votes, one after the other. `stakes`: of the validators that count."""

    def __init__(self, stakes: Mapping[PeerId, int], posts: Iterable[Post] = ()) -> None:
        self.stakes = stakes
        self.voted: set[PeerId] = set()
        self.refs: dict[PeerId, StateRef] = {}
        """The first state that each validator named: it binds."""
        self.names: dict[PeerId, int] = {}
        """Bits of the peers that each has named with that state."""
        for post in posts:
            self.add(post)

    def add(self, post: Post) -> None:
        peer, vote = post.peer, post.vote
        if peer not in self.stakes:
            return
        self.voted.add(peer)
        if vote.state_ref is not None and self.refs.setdefault(peer, vote.state_ref) == vote.state_ref:
            self.names[peer] = self.names.get(peer, 0) | vote.bitmap

    @property
    def state_ref(self) -> StateRef | None:
        """The state that more than half of the stake names."""
        return next((state_ref for state_ref in self.refs.values() if self._is_most(self.behind(state_ref))), None)

    def behind(self, state_ref: StateRef) -> set[PeerId]:
        """Return the validators that name this state."""
        return {peer for peer, theirs in self.refs.items() if theirs == state_ref}

    def supported(self, state_ref: StateRef, uids: Iterable[Uid]) -> set[Uid]:
        """Return the uids among these that more than half of the stake names with this state."""
        behind = self.behind(state_ref)
        return {uid for uid in uids if self._is_most({peer for peer in behind if self.names[peer] >> uid & 1})}

    def _is_most(self, peers: Collection[PeerId]) -> bool:
        return 2 * sum(self.stakes[peer] for peer in peers) > sum(self.stakes.values())


# --- decisions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """The order of peers if more are named than may contribute, among those that committed by the commit deadline. The
    chain's incentive decides: the chain computes it from the validators' weights, clipped at their stake-weighted
    median, so no validator has to state it again. A share of the places is for peers without any. `peers` and
    `commit_hash` as of the commit deadline."""

    run: Run
    round: int
    commit_hash: Digest
    peers: Sequence[Peer]

    @cached_property
    def committed(self) -> dict[Uid, tuple[PeerId, Digest]]:
        """(hotkey, envelope) of every uid that had committed by the commit deadline."""
        last = self.run.clock.commit_deadline(self.round)
        promises = ((peer, commitment(peer, self.round, last)) for peer in self.peers)
        return {peer.uid: (peer.id, promise.envelope) for peer, promise in promises if promise is not None}

    @cached_property
    def _ordered(self) -> list[Peer]:
        return sorted(
            (peer for peer in self.peers if peer.uid in self.committed),
            key=lambda peer: (-peer.incentive, Draw("order", self.commit_hash, peer.id).words(8), peer.id),
        )

    def first(self, uids: Collection[Uid]) -> list[Uid]:
        """Return those of these uids that contribute: at most G."""
        places = self.run.spec_at(self.round).gauntlet.contributors
        earning = [peer.uid for peer in self._ordered if peer.uid in uids and peer.incentive]
        new = [peer.uid for peer in self._ordered if peer.uid in uids and not peer.incentive]
        kept = max(places // NEWCOMERS_SHARE, places - len(earning))
        return [*earning[: places - min(kept, len(new))], *new[:kept]]


def order_of(run: Run, round: int, log: Log) -> Order:
    return Order(run, round, log.commit_hash, log.commit)


def agreed(run: Run, round: int, log: Log, final: int, height: int) -> Agreed | None:
    """Return the decision of `round`, by the votes of `log`, which reaches up to block `final`; None while it is open.

    A round is decided early in the first state that meets two conditions. First, more than half of the counted stake
    names a state. Second, every counting validator has voted, or more than half names each of the first G of the order
    that committed. Then no later vote can change the result. Otherwise the round is decided at the vote deadline. It is
    void only if no state has more than half by the vote deadline, or no peer is named by more than half. It is also
    void if the owner has declared it void as seen from `height` on, a final block.
    """
    order, tally = order_of(run, round, log), _Tally(vote_weights(run, round, log.commit))
    last = run.clock.vote_deadline(round)
    for block, posts in groupby(log.posts, key=lambda post: post.block):
        if block > final:
            break
        for post in posts:
            tally.add(post)
        if (state_ref := tally.state_ref) is not None:
            supported = tally.supported(state_ref, order.committed)
            everybody = tally.voted >= tally.stakes.keys()
            if supported and (everybody or supported.issuperset(order.first(order.committed))):
                return _decided(order, state_ref, supported, block, height)
    if final < last:
        return None
    state_ref = tally.state_ref
    supported = tally.supported(state_ref, order.committed) if state_ref is not None else set()
    return _decided(order, state_ref, supported, last, height)


def named_by_most(run: Run, round: int, log: Log) -> tuple[tuple[PeerId, Digest], ...] | None:
    """Return (hotkey, envelope) of the peers that more than half of the counted stake names in the votes of `log`, at
    most G; None while no state has that much stake. Decides nothing: more votes may come."""
    order, tally = order_of(run, round, log), _Tally(vote_weights(run, round, log.commit), log.posts)
    state_ref = tally.state_ref
    if state_ref is None:
        return None
    return _contributing(order, tally.supported(state_ref, order.committed))


def _contributing(order: Order, supported: Collection[Uid]) -> tuple[tuple[PeerId, Digest], ...]:
    return tuple(sorted(order.committed[uid] for uid in order.first(supported)))


def _decided(order: Order, state_ref: StateRef | None, supported: Collection[Uid], block: int, height: int) -> Agreed:
    run, round = order.run, order.round
    if state_ref is None or not supported or run.voided(round, height):
        return Agreed(state_ref, None, block)
    return Agreed(state_ref, Selection(round, *state_ref, run.head_at(round), _contributing(order, supported)), block)


def outcome(run: Run, round: int, log: Log, height: int) -> Outcome:
    """Return the round's effect on the run's tip. `log` reaches up to the vote deadline; `height` as for `agreed`."""
    found = agreed(run, round, log, run.clock.vote_deadline(round), height)
    assert found is not None
    state_ref = _Tally(vote_weights(run, round, log.commit), log.posts).state_ref
    all_told = _Tally(_weights(remembered(run, round, log.commit)), log.posts).state_ref
    return Outcome(replace(found, state_ref=state_ref), state_ref is not None and state_ref == all_told)


def start(run: Run) -> Tip:
    """Return the tip at which a run begins: theta_0, which the spec names."""
    return Tip(0, first_link(run.id))


def moved(tip: Tip, round: int, found: Outcome) -> Tip:
    """Return the tip after `round`, given the tip before. If the round is strong, or its state is the tip's, the tip
    becomes that state, or the round's selection if it has one. A minority that is alone for longer than SEAT_ROUNDS may
    continue from the tip; the others' return decides. No other round changes the tip."""
    state_ref, selection = found.agreed.state_ref, found.agreed.selection
    goes_on = state_ref is not None and state_ref.link == tip.link and tip.theta in (None, state_ref.theta)
    if state_ref is None or not (found.strong or goes_on):
        return Tip(round + 1, tip.link, tip.theta)
    return Tip(round + 1, state_ref.link, state_ref.theta) if selection is None else Tip(round + 1, link_of(selection))
