"""What a round's words come to, and where the run stands: functions of finalised chain state, the same on every node
(docs/protocol.md section 6, docs/decisions/0058-one-word-each.md).

After D each validator says one word: the pair that it holds, (theta digest, link of the last agreed selection), and the
peers whose submissions it holds, that pass, and that its book finds eligible. Whoever is named by more than half of the
counted stake is selected; where those are more than may contribute, the chain's own incentive orders them.

A word stays: what a hotkey has once named in a final block counts until X, whatever it writes over it, and the first
pair that it names binds it. So nobody's doubt stands between a peer that most have read and its place.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from gauntlet.commitment import commitment
from protocol.assignment import Draw
from protocol.assignment import mirror_order as drawn_mirrors
from protocol.messages import first_link, link_of
from protocol.run import Run
from protocol.types import DIGEST_BYTES, MAX_UIDS, Digest, Peer, PeerId, Selection, Uid, Word

SEAT_ROUNDS = 4
"""A validator counts while its last word is at most so many rounds old: the void rounds that the death of half of the
stake costs, and how long a majority may be away before a minority goes on without it."""

MEMORY_ROUNDS = 64
"""Where the run stands is settled by more than half of the stake that spoke in so many rounds: whoever is gone for
longer may be gone for good."""

COPIES = 2
"""So many validators copy each payload that is named, unasked: beside its owner's bucket one of them may be gone, as
after a crash. That all of them are hostile is met by who holds it and hears that it is wanted, not by their number
(docs/decisions/0043-mirrors-by-draw.md)."""

NEWCOMERS_SHARE = 8
"""One of so many places goes to those without incentive, if there are so many: else nobody new would get in."""

Pair = tuple[Digest, Digest]
"""(theta digest, previous link): the state at the start of a round, as a word names it."""


@dataclass(frozen=True, slots=True)
class Post:
    """A word of `peer` that stood on chain from this block on."""

    block: int
    peer: PeerId
    word: Word


@dataclass(frozen=True)
class Log:
    """A round as final states show it. `commit`: all registered hotkeys as of D, whose hash is `commit_hash`. `posts`:
    words for the round in the order of their blocks, also such as were written over since."""

    commit: Sequence[Peer]
    commit_hash: Digest
    posts: tuple[Post, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What a round's words come to.

    pair: what more than half of the counted stake names, None where there is none. selection: None when the round is
    void. block: the one in whose state it was decided.
    """

    pair: Pair | None
    selection: Selection | None
    block: int

    @property
    def link(self) -> Digest | None:
        """What the next round's words have to name to go on from here; None where nothing was agreed by anybody."""
        if self.selection is not None:
            return link_of(self.selection)
        return self.pair[1] if self.pair is not None else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round means for where the run stands, as of X. strong: whether its pair is named by more than half of the
    stake that spoke in the last MEMORY_ROUNDS rounds, too."""

    agreed: Agreed
    strong: bool


@dataclass(frozen=True, slots=True)
class Tip:
    """Where the run stands at the start of `round`: at a link, with a theta that words name, or that nobody has named
    yet since it follows from the last selection (None)."""

    round: int
    link: Digest
    theta: Digest | None = None


# --- who counts --------------------------------------------------------------------------------------------------


def electorate(run: Run, round: int, peers: Iterable[Peer]) -> dict[PeerId, int]:
    """Stake in rao of the validators that count in `round`. `peers` as of D.

    Those with a permit that have spoken for one of the last SEAT_ROUNDS rounds; when nobody has, those that ever did.
    To announce oneself by D of round 0 is to speak for the round before it: else whoever says the first word would be
    the only one to count. A permit alone is no seat: the owner of the chain's subnet always has one, and a miner with
    enough stake.

    It follows from one state, so a joiner needs no history, and it is fixed by D: nobody enters after seeing how a
    round goes. A validator that comes later says its word and counts from the next round on.
    """
    said = _spoken(run, round, peers)
    return {peer.id: peer.stake for peer, at in said if at >= round - SEAT_ROUNDS} or {p.id: p.stake for p, _ in said}


def remembered(run: Run, round: int, peers: Iterable[Peer]) -> dict[PeerId, int]:
    """Stake in rao of the validators that settle where the run stands. `peers` as of D of `round`."""
    return {peer.id: peer.stake for peer, at in _spoken(run, round, peers) if at >= round - MEMORY_ROUNDS}


def votes(run: Run, round: int, peers: Iterable[Peer]) -> Mapping[PeerId, int]:
    """What the word of each validator counts in `round`: by stake, by heads where nobody has any. `peers` as of D."""
    return _weights(electorate(run, round, peers))


def mirrors(run: Run, block: int, peers: Iterable[Peer]) -> tuple[PeerId, ...]:
    """Who is asked for copies of others' objects: the validators that count in the round of `block`, and those that
    have spoken for it by now; the most stake first. `peers` as of `block`."""
    peers, round = tuple(peers), max(0, run.clock.round_at(block))
    stakes = electorate(run, round, peers) | electorate(run, round + 1, peers)
    return tuple(sorted(stakes, key=lambda peer: (-stakes[peer], peer)))


def last_wrote(peers: Iterable[Peer]) -> int:
    """The newest block in which any validator, or anybody that has ever spoken, has written its slot; 0 where none has.
    `peers` as of any block."""
    slots = (peer.slot for peer in peers if peer.slot is not None and (peer.validates or _is_word(peer)))
    return max((slot.block for slot in slots), default=0)


def _is_word(peer: Peer) -> bool:
    return peer.slot is not None and isinstance(peer.slot.statement, Word)


def mirror_order(
    run: Run, round: int, commit_hash: Digest, peers: Iterable[Peer], named: Collection[PeerId]
) -> dict[PeerId, tuple[PeerId, ...]]:
    """Of each of the `named` peers, the validators that count, in the order in which they copy its payload: the first
    COPIES of them unasked. `commit_hash` and `peers` as of D."""
    stakes = sorted(electorate(run, round, peers).items())
    return {peer: drawn_mirrors(run.id, commit_hash, round, peer, stakes) for peer in named}


def _spoken(run: Run, round: int, peers: Iterable[Peer]) -> list[tuple[Peer, int]]:
    """Validators with the round for which they spoke last, before `round`."""
    said = ((peer, _spoke_for(run, peer)) for peer in peers if peer.validates)
    return [(peer, at) for peer, at in said if at is not None and at < round]


def _spoke_for(run: Run, peer: Peer) -> int | None:
    """The round for which a word stands in the peer's slot, None without one; -1 for an announcement. Written later
    than its window is fine here: a new pointer rewrites the slot and the old word with it."""
    word = peer.slot.statement if peer.slot is not None else None
    if peer.slot is None or not isinstance(word, Word):
        return None
    if peer.slot.block > run.clock.commit_by(word.round):
        return word.round
    return -1 if word == abstention(0) else None


def _weights(stakes: Mapping[PeerId, int]) -> Mapping[PeerId, int]:
    """Who counts how much: by stake, by heads where nobody has any."""
    return stakes if any(stakes.values()) else dict.fromkeys(stakes, 1)


# --- words -------------------------------------------------------------------------------------------------------


def word_for(round: int, uids: Collection[Uid], pair: Pair) -> Word:
    """A validator's word: the state that it holds, and whom it names. ValueError for a uid that has no bit."""
    if any(not 0 <= uid < MAX_UIDS for uid in uids):
        raise ValueError(f"a uid of {sorted(uids)} has no bit among {MAX_UIDS}")
    return Word(round, sum(1 << uid for uid in set(uids)), *pair)


def abstention(round: int) -> Word:
    """The word of who is not where the run stands: it keeps its seat, and lends nobody a majority. For round 0, and by
    its block D, it announces a validator."""
    return Word(round, 0, Digest(bytes(DIGEST_BYTES)), Digest(bytes(DIGEST_BYTES)))


def named(word: Word) -> tuple[Uid, ...]:
    """The uids whose bits are set."""
    return tuple(Uid(uid) for uid in range(MAX_UIDS) if word.bitmap >> uid & 1)


def posts_in(run: Run, round: int, peers: Iterable[Peer]) -> list[Post]:
    """The words for `round` that stand in these slots, written in (D, X]. `peers` as of any block."""
    first, last = run.clock.commit_by(round), run.clock.words_by(round)
    return [
        Post(peer.slot.block, peer.id, peer.slot.statement)
        for peer in peers
        if peer.slot is not None
        and first < peer.slot.block <= last
        and isinstance(peer.slot.statement, Word)
        and peer.slot.statement.round == round
    ]


def said(log: Log, peer: PeerId) -> Word | None:
    """All that the peer's words for the round come to: the first pair that it named, and whom it named with that."""
    tally = _Tally({peer: 1}, log.posts)
    if peer not in tally.spoke:
        return None
    pair, round = tally.pairs.get(peer), log.posts[0].word.round
    return abstention(round) if pair is None else Word(round, tally.names[peer], *pair)


def pairs_named(run: Run, round: int, log: Log) -> dict[Pair, int]:
    """Every pair that words of the round name, with the counted stake behind it (heads, where nobody has any), the most
    first; ties go to the lowest digests."""
    tally = _Tally(votes(run, round, log.commit), log.posts)
    stakes = {pair: sum(tally.stakes[peer] for peer in tally.behind(pair)) for pair in set(tally.pairs.values())}
    return {pair: stakes[pair] for pair in sorted(stakes, key=lambda pair: (-stakes[pair], pair))}


class _Tally:
    """What words come to, one after the other. `stakes`: of those that count."""

    def __init__(self, stakes: Mapping[PeerId, int], posts: Iterable[Post] = ()) -> None:
        self.stakes = stakes
        self.spoke: set[PeerId] = set()
        self.pairs: dict[PeerId, Pair] = {}
        """The first pair that each named: it binds."""
        self.names: dict[PeerId, int] = {}
        """Bits of whom each has named with that pair."""
        for post in posts:
            self.add(post)

    def add(self, post: Post) -> None:
        peer, word = post.peer, post.word
        if peer not in self.stakes:
            return
        self.spoke.add(peer)
        if word.pair is not None and self.pairs.setdefault(peer, word.pair) == word.pair:
            self.names[peer] = self.names.get(peer, 0) | word.bitmap

    @property
    def pair(self) -> Pair | None:
        """What more than half of the stake names."""
        return next((pair for pair in set(self.pairs.values()) if self._is_most(self.behind(pair))), None)

    def behind(self, pair: Pair) -> set[PeerId]:
        """Who names this pair."""
        return {peer for peer, theirs in self.pairs.items() if theirs == pair}

    def supported(self, pair: Pair, uids: Iterable[Uid]) -> set[Uid]:
        """Those of these that more than half of the stake names with this pair."""
        behind = self.behind(pair)
        return {uid for uid in uids if self._is_most({peer for peer in behind if self.names[peer] >> uid & 1})}

    def _is_most(self, peers: Collection[PeerId]) -> bool:
        return 2 * sum(self.stakes[peer] for peer in peers) > sum(self.stakes.values())


# --- what they come to -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """Who goes first where more are named than may contribute, among those that committed by D: by the chain's
    incentive, in which the validators' weights are clipped at their stake-weighted median already, so that nobody has
    to say it again; a share of the places for those without any. `peers` and `commit_hash` as of D."""

    run: Run
    round: int
    commit_hash: Digest
    peers: Sequence[Peer]

    @cached_property
    def committed(self) -> dict[Uid, tuple[PeerId, Digest]]:
        """(hotkey, envelope) of every uid that had committed by D."""
        last = self.run.clock.commit_by(self.round)
        promises = ((peer, commitment(peer, self.round, last)) for peer in self.peers)
        return {peer.uid: (peer.id, promise.envelope) for peer, promise in promises if promise is not None}

    @cached_property
    def _ordered(self) -> list[Peer]:
        return sorted(
            (peer for peer in self.peers if peer.uid in self.committed),
            key=lambda peer: (-peer.incentive, Draw("order", self.commit_hash, peer.id).words(8), peer.id),
        )

    def first(self, uids: Collection[Uid]) -> list[Uid]:
        """Of these, those that contribute: at most G."""
        places = self.run.spec_at(self.round).gauntlet.contributors
        earning = [peer.uid for peer in self._ordered if peer.uid in uids and peer.incentive]
        new = [peer.uid for peer in self._ordered if peer.uid in uids and not peer.incentive]
        kept = max(places // NEWCOMERS_SHARE, places - len(earning))
        return [*earning[: places - min(kept, len(new))], *new[:kept]]


def order_of(run: Run, round: int, log: Log) -> Order:
    return Order(run, round, log.commit_hash, log.commit)


def agreed(run: Run, round: int, log: Log, final: int, height: int) -> Agreed | None:
    """What is agreed in `round`, by the words of `log`, which reaches up to block `final`; None while that is open.

    Decided in the first state at which a pair is named by more than half of the counted stake, and either every
    validator that counts has spoken, or the first G of the order that committed are all named by more than half: then
    nothing that is said later can change it. Else at X. Void only where no pair has more than half by X, or nobody is
    named by more than half; or where the owner has declared it void as seen from `height` on, a final block.
    """
    order, tally = order_of(run, round, log), _Tally(votes(run, round, log.commit))
    last = run.clock.words_by(round)
    for block, posts in groupby(log.posts, key=lambda post: post.block):
        if block > final:
            break
        for post in posts:
            tally.add(post)
        if (pair := tally.pair) is not None:
            supported = tally.supported(pair, order.committed)
            everybody = tally.spoke >= tally.stakes.keys()
            if supported and (everybody or supported.issuperset(order.first(order.committed))):
                return _decided(order, pair, supported, block, height)
    if final < last:
        return None
    pair = tally.pair
    return _decided(order, pair, tally.supported(pair, order.committed) if pair is not None else (), last, height)


def named_by_most(run: Run, round: int, log: Log) -> tuple[tuple[PeerId, Digest], ...] | None:
    """(hotkey, envelope) of whom more than half of the counted stake names in the words of `log`, at most G of them;
    None while no pair is named by so many. Decides nothing: more may be said."""
    order, tally = order_of(run, round, log), _Tally(votes(run, round, log.commit), log.posts)
    pair = tally.pair
    if pair is None:
        return None
    return _contributing(order, tally.supported(pair, order.committed))


def _contributing(order: Order, supported: Collection[Uid]) -> tuple[tuple[PeerId, Digest], ...]:
    return tuple(sorted(order.committed[uid] for uid in order.first(supported)))


def _decided(order: Order, pair: Pair | None, supported: Collection[Uid], block: int, height: int) -> Agreed:
    run, round = order.run, order.round
    if pair is None or not supported or run.voided(round, height):
        return Agreed(pair, None, block)
    return Agreed(pair, Selection(round, *pair, run.head_at(round), _contributing(order, supported)), block)


def outcome(run: Run, round: int, log: Log, height: int) -> Outcome:
    """What the round means for where the run stands. `log` reaches up to X; `height` as for `agreed`."""
    found = agreed(run, round, log, run.clock.words_by(round), height)
    assert found is not None
    pair = _Tally(votes(run, round, log.commit), log.posts).pair
    all_told = _Tally(_weights(remembered(run, round, log.commit)), log.posts).pair
    return Outcome(replace(found, pair=pair), pair is not None and pair == all_told)


def start(run: Run) -> Tip:
    """Where a run begins: at theta_0, which the spec names."""
    return Tip(0, first_link(run.id))


def moved(tip: Tip, round: int, found: Outcome) -> Tip:
    """Where the run stands after `round`, from where it stood before: at a pair that most of all who spoke lately name,
    moved on by what was agreed from there. A minority that is alone for longer than SEAT_ROUNDS may go on from where
    the run stands; the others' return decides. In no other round does anything change."""
    pair, selection = found.agreed.pair, found.agreed.selection
    goes_on = pair is not None and pair[1] == tip.link and tip.theta in (None, pair[0])
    if pair is None or not (found.strong or goes_on):
        return Tip(round + 1, tip.link, tip.theta)
    return Tip(round + 1, pair[1], pair[0]) if selection is None else Tip(round + 1, link_of(selection))
