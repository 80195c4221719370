"""The agreed selection of a round: a predicate over finalised chain state, the same on every node (docs/protocol.md
section 6).

A slot's leader posts a record in its slot's blocks; from the first slot on and by X every validator posts an
attestation, which approves slots. The first slot whose record is valid, and which more than half of the counted stake
approves, is agreed, else the round is void. Theta is computed, never voted on: the caller brings the state that it
holds, and a record that starts from another one is invalid in its eyes. Nothing a node saw in buckets enters here
(docs/decisions/0021-approve-not-veto.md).

How a node uses this, round after round, once X of the round is final:

1. `contradicted`: where more than half of the counted stake starts from one other pair, the node tries to replay
   towards that pair, from its own state or a checkpoint. Where it can't (links or bytes that nobody gives it, or a
   theta that does not come out), it keeps its own state. The round is void for it then: `agreed` finds no majority for
   its pair where another one has it.
2. `agreed` with the node's own pair; it fetches and applies what is agreed. Bytes that it can't have for a whole round
   are treated like a claim that can't be followed: it tries `claimed_start` of the newest decided round, one after the
   other, and where none can be followed it keeps its state and takes the rounds between as void.
3. For the next round it states its own pair. A validator that was away and is still catching up says nothing: its word
   would count against rounds that it can follow.

So a pair that a majority can't reproduce never binds it: once it states its own, more than half of the counted stake
does, and whoever followed a minority meanwhile comes back by 1. Who skipped a round that it only could not fetch is
contradicted in the next one, and follows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gauntlet.commitment import commitment
from protocol.assignment import leaders
from protocol.assignment import mirror_order as drawn_mirrors
from protocol.messages import encode_statement, first_link, record_link
from protocol.run import Run
from protocol.types import MAX_UIDS, Attestation, Digest, Peer, PeerId, Record, Selection, Uid

STATEMENT_ROUNDS = 4
"""A validator counts while its last statement, which stands in its slot, is at most so many rounds old: the void rounds
that the death of half of the stake costs, and how long a majority may be away before a minority goes on without it
(docs/decisions/0021-approve-not-veto.md)."""

LAST_WORDS_ROUNDS = 64
"""So long a validator's last words speak against a claim that does not come after them: whoever said them may be gone
for good, and the others may have gone on from an earlier state."""

COPIES = 2
"""So many validators copy each payload that is named, unasked: beside its owner's bucket one of them may be gone, as
after a crash. That all of them are hostile is met by who holds it and hears that it is wanted, not by their number
(docs/decisions/0043-mirrors-by-draw.md)."""

Claim = tuple[Digest, Digest]
"""(theta digest, previous link) at the start of a round, as a statement names them."""


@dataclass(frozen=True, slots=True)
class Views:
    """All registered hotkeys with their slots at the heights that decide: at D, at the last block of every leader slot
    in order, and at X."""

    commit: Sequence[Peer]
    slots: Sequence[Sequence[Peer]]
    attest: Sequence[Peer]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What a round's chain state says.

    `selection`: None when the round is void; `slot`, `author` and `record` (its statement as posted) belong to the
    agreed record. `link` is `previous` of the next round's record. `void`: why each slot's record is not valid, None
    for the agreed one and for those after it.
    """

    selection: Selection | None
    slot: int | None
    author: PeerId | None
    record: bytes | None
    link: Digest
    void: tuple[str | None, ...]


def electorate(run: Run, round: int, peers: Iterable[Peer]) -> dict[PeerId, int]:
    """Stake in rao of the validators that lead and count in `round`. `peers` as of D.

    Those with a permit that have spoken for one of the last STATEMENT_ROUNDS rounds; when nobody has, those that ever
    did. To announce oneself before the run's first leader slot is to speak for the round before the first: else whoever
    says the first word would be the only one to count. A permit alone is no seat: the owner of the chain's subnet
    always has one, and a miner with enough stake (docs/decisions/0031-who-has-spoken.md).

    It follows from one snapshot, so a joiner needs no history, and it is fixed by D: nobody enters after seeing how a
    vote goes. A validator that comes later posts an attestation and counts from the next round on.
    """
    said = {peer: at for peer in peers if peer.validates and (at := _spoke_for(run, peer)) is not None and at < round}
    lately = [peer for peer, at in said.items() if at >= round - STATEMENT_ROUNDS]
    return {peer.id: peer.stake for peer in lately or said}


def votes(run: Run, round: int, peers: Iterable[Peer]) -> Mapping[PeerId, int]:
    """What the word of each validator counts in `round`: by stake, by heads where nobody has any. `peers` as of D."""
    return _weights(electorate(run, round, peers))


def mirrors(run: Run, block: int, peers: Iterable[Peer]) -> tuple[PeerId, ...]:
    """Who is asked for copies of others' objects: the validators that count in the round of `block`, and those that
    have spoken for it by now; the most stake first. `peers` as of `block`."""
    peers, round = tuple(peers), max(0, run.clock.round_at(block))
    stakes = electorate(run, round, peers) | electorate(run, round + 1, peers)
    return tuple(sorted(stakes, key=lambda peer: (-stakes[peer], peer)))


def announcement(run: Run, theta: Digest) -> Attestation:
    """A validator's first word, posted by block D of round 0: it is there, for this run, and holds its theta_0."""
    return attestation_for(0, (), theta, first_link(run.id))


def _spoke_for(run: Run, peer: Peer) -> int | None:
    """The round for which a word of the peer stands in its slot, None without one; -1 for its announcement. Written
    later than its window is fine here: a new pointer rewrites the slot and the old statement with it."""
    statement = peer.slot.statement if peer.slot is not None else None
    if peer.slot is None or not isinstance(statement, Record | Attestation):
        return None
    if peer.slot.block >= run.clock.slot(statement.round, 0)[0]:
        return statement.round
    announced = isinstance(statement, Attestation) and statement == announcement(run, statement.theta)
    return -1 if announced else None


def leader_order(run: Run, round: int, commit_hash: Digest, peers: Iterable[Peer]) -> tuple[PeerId, ...]:
    """Who leads slot 0, 1, ..; may be shorter than the number of slots. `commit_hash` and `peers` as of D."""
    stakes = sorted(electorate(run, round, peers).items())
    return leaders(run.id, commit_hash, round, stakes, run.clock.leader_slots)


def mirror_order(
    run: Run, round: int, commit_hash: Digest, peers: Iterable[Peer], named: Collection[PeerId]
) -> dict[PeerId, tuple[PeerId, ...]]:
    """Of each of the `named` peers, the validators that count, in the order in which they copy its payload: the first
    COPIES of them unasked. `commit_hash` and `peers` as of D."""
    stakes = sorted(electorate(run, round, peers).items())
    return {peer: drawn_mirrors(run.id, commit_hash, round, peer, stakes) for peer in named}


def posted_records(
    run: Run, round: int, order: Sequence[PeerId], slots: Sequence[Sequence[Peer]]
) -> list[Record | None]:
    """The record that stands in every slot read so far: its leader's, for this round, written inside the slot's
    blocks, as of the slot's last block. Of two in one slot the later one has overwritten the other."""
    records: list[Record | None] = []
    for index, view in enumerate(slots):
        leader = order[index] if index < len(order) else None
        first, last = run.clock.slot(round, index)
        author = next((peer for peer in view if peer.id == leader), None)
        statement = None if author is None else _statement(run, round, author)
        in_slot = author is not None and author.slot is not None and first <= author.slot.block <= last
        records.append(statement if in_slot and isinstance(statement, Record) else None)
    return records


def agreed(
    run: Run, round: int, theta: Digest, previous: Digest, commit_hash: Digest, views: Views, height: int
) -> Agreed:
    """The agreed selection of `round` for whoever holds the state with this `theta` digest at its start.

    `previous` is the link that the last agreed record left (protocol.messages.first_link before the first one).
    `commit_hash` is the hash of D. `height` is the finalised block from which the caller looks: from a stated height
    on the owner may have declared the record void. An empty view stands for a slot that has not passed yet, and
    `views.attest` may be of an earlier block than X: what is agreed then is provisional.

    A validator's word is counted for one pair only, so at most one pair (theta, previous) has an agreed record in a
    round, and none where another pair is claimed by more than half (`contradicted`).
    """
    clock, limit = run.clock, run.spec_at(round).gauntlet.contributors
    if len(views.slots) != clock.leader_slots:
        raise ValueError(f"{len(views.slots)} slot views for {clock.leader_slots} leader slots")
    stakes = votes(run, round, views.commit)
    order = leader_order(run, round, commit_hash, views.commit)
    committed, ours = _committed(run, round, views.commit), (theta, previous)
    void: list[str | None] = [None] * clock.leader_slots
    for index, record in enumerate(posted_records(run, round, order, views.slots)):
        if index >= len(order):
            void[index] = "no validator leads this slot"
        elif record is None:
            void[index] = "no record of its leader for this round in the slot's blocks"
        else:
            author = order[index]
            approving = _approving(run, round, index, author, ours, views.attest)
            backing, total = sum(stakes.get(peer, 0) for peer in approving), sum(stakes.values())
            fault = _fault(record, ours, limit, committed)
            if fault is None and 2 * backing <= total:
                fault = f"approved by {backing} of {total} of the counted stake, which is not more than half"
            if fault is None and run.voided(round, height):
                fault = "declared void by the run's owner"
            if fault is None:
                selection = _selection(record, committed)
                posted = encode_statement(record)
                link = record_link(posted, selection.contributing, run.head_at(round))
                return Agreed(selection, index, author, posted, link, tuple(void))
            void[index] = fault
    return Agreed(None, None, None, None, previous, tuple(void))


def proposals(
    run: Run, round: int, theta: Digest, previous: Digest, commit_hash: Digest, views: Views
) -> list[Selection | None]:
    """What every slot's record would make agreed if it were approved and those before it were not; None where there is
    no record, or one that is void whatever the others say. Whoever approves looks at all of them, as the first slot
    that is approved by enough wins, and at a slot only once its last block is final: until then its leader may still
    overwrite it."""
    order = leader_order(run, round, commit_hash, views.commit)
    committed, limit = _committed(run, round, views.commit), run.spec_at(round).gauntlet.contributors
    return [
        None if record is None or _fault(record, (theta, previous), limit, committed) else _selection(record, committed)
        for record in posted_records(run, round, order, views.slots)
    ]


def claims(run: Run, round: int, commit: Iterable[Peer], attest: Iterable[Peer]) -> dict[Claim, int]:
    """Every pair that a validator claims for the start of `round`, with the counted stake behind it (heads, where
    nobody has stake), the most first. `commit` as of D, `attest` as of X.

    Claims of validators with a permit that do not count yet have 0 and come last, by their stake; ties go to the lowest
    digests.
    """
    stakes = votes(run, round, commit)
    counted: dict[Claim, int] = {}
    staked: dict[Claim, int] = {}
    for peer in attest:
        statement = _statement(run, round, peer)
        if statement is not None and (peer.id in stakes or peer.validates):
            claim = statement.theta, statement.previous
            counted[claim] = counted.get(claim, 0) + stakes.get(peer.id, 0)
            staked[claim] = staked.get(claim, 0) + peer.stake
    return {claim: counted[claim] for claim in sorted(counted, key=lambda c: (-counted[c], -staked[c], c))}


def claimed_start(run: Run, round: int, commit: Iterable[Peer], attest: Iterable[Peer]) -> tuple[Claim, ...]:
    """What a joiner tries to reproduce, in this order, until one works: any claim may be false, and those that made the
    true one are the ones that will refuse its work if it holds another state. Views as for `claims`."""
    return tuple(claims(run, round, commit, attest))


def last_words(run: Run, since: int, peers: Iterable[Peer]) -> list[tuple[Claim, int]]:
    """The pair that each validator named last that has spoken for round `since` or a later one, and what its word
    counts: by stake, by heads where nobody has any. `peers` as of some block. since: -1 for all that ever spoke."""
    said = {
        peer.id: (peer.stake, (peer.slot.statement.theta, peer.slot.statement.previous))
        for peer in peers
        if peer.validates
        and (at := _spoke_for(run, peer)) is not None
        and at >= since
        and peer.slot is not None
        and isinstance(peer.slot.statement, Record | Attestation)
    }
    weights = _weights({peer: stake for peer, (stake, _) in said.items()})
    return [(pair, weights[peer]) for peer, (_, pair) in said.items()]


def contradicted(run: Run, round: int, ours: Claim, views: Views) -> Claim | None:
    """The pair other than `ours` that more than half of the counted stake claims for the start of `round`, if any: then
    nothing is agreed for ours in this round, and the node checks itself by replay towards that pair. What it can't
    reproduce it does not follow: it keeps its own state and goes on stating `ours`. `views` with X."""
    total = sum(votes(run, round, views.commit).values())
    found = claims(run, round, views.commit, views.attest)
    return next((claim for claim, stake in found.items() if claim != ours and 2 * stake > total), None)


def _committed(run: Run, round: int, peers: Iterable[Peer]) -> dict[Uid, tuple[PeerId, Digest]]:
    """(hotkey, envelope) of every uid that had committed by D. `peers` as of D."""
    last = run.clock.commit_by(round)
    promises = ((peer, commitment(peer, round, last)) for peer in peers)
    return {peer.uid: (peer.id, promise.envelope) for peer, promise in promises if promise is not None}


def _selection(record: Record, committed: Mapping[Uid, tuple[PeerId, Digest]]) -> Selection:
    pairs = tuple(sorted(committed[uid] for uid in selected(record)))
    return Selection(record.round, record.theta, record.previous, pairs)


def selected(record: Record) -> tuple[Uid, ...]:
    """The uids whose bits are set."""
    return tuple(Uid(uid) for uid in range(MAX_UIDS) if record.bitmap >> uid & 1)


def record_for(round: int, uids: Collection[Uid], theta: Digest, previous: Digest) -> Record:
    """A leader's record: these uids contribute. Raises ValueError for none, or for one that has no bit."""
    return Record(round, _bitmap(uids, MAX_UIDS, "uid") or _refuse_empty(), theta, previous)


def attestation_for(round: int, approved: Collection[int], theta: Digest, previous: Digest) -> Attestation:
    """A validator's word: the state it holds at the start of the round, and the slots whose records it approves."""
    return Attestation(round, _bitmap(approved, MAX_UIDS, "slot"), theta, previous)


def _bitmap(numbers: Collection[int], size: int, what: str) -> int:
    bitmap = 0
    for number in numbers:
        if not 0 <= number < size:
            raise ValueError(f"{what} {number} has no bit in a bitmap of {size}")
        bitmap |= 1 << number
    return bitmap


def _refuse_empty() -> int:
    raise ValueError("a record that selects nobody is void: do not post it")


def _statement(run: Run, round: int, peer: Peer) -> Record | Attestation | None:
    """The statement for `round` in the peer's slot, when it was written in its window: a record in the leader slots'
    blocks, an attestation from the first of them on and by X."""
    slot, clock = peer.slot, run.clock
    if slot is None or not isinstance(slot.statement, Record | Attestation) or slot.statement.round != round:
        return None
    first, slots_end = clock.slot(round, 0)[0], clock.slot(round, clock.leader_slots - 1)[1]
    last = slots_end if isinstance(slot.statement, Record) else clock.attest_by(round)
    return slot.statement if first <= slot.block <= last else None


def _weights(stakes: Mapping[PeerId, int]) -> Mapping[PeerId, int]:
    """Who counts how much: by stake, by heads where nobody has any."""
    return stakes if any(stakes.values()) else dict.fromkeys(stakes, 1)


def _approving(
    run: Run, round: int, index: int, author: PeerId, ours: Claim, attest: Iterable[Peer]
) -> frozenset[PeerId]:
    """Everybody whose last word for `round`, as of X, approves slot `index`; and its author, unless that one's last
    word starts from another pair: nobody's word counts for two.

    An attestation approves only slots that were over when it was written: until then a leader can overwrite its record
    with one that nobody has looked at.
    """
    approving = {author}
    closed = run.clock.slot(round, index)[1]
    for peer in attest:
        statement, slot = _statement(run, round, peer), peer.slot
        if statement is None or slot is None:
            continue
        if (statement.theta, statement.previous) != ours:
            approving.discard(peer.id)
        elif isinstance(statement, Attestation) and slot.block > closed and statement.bitmap >> index & 1:
            approving.add(peer.id)
    return frozenset(approving)


def _fault(
    record: Record,
    ours: Claim,
    limit: int,
    committed: Mapping[Uid, tuple[PeerId, Digest]],
) -> str | None:
    """Why a record is void whatever the others say, None when it is not."""
    uids = selected(record)
    if record.previous != ours[1]:
        return "its previous link is not the last agreed record's"
    if record.theta != ours[0]:
        return "its theta digest is not that of the state which the agreed records give"
    if not uids:
        return "it selects nobody"
    if len(uids) > limit:
        return f"it selects {len(uids)} peers, at most {limit} contribute"
    if strangers := [uid for uid in uids if uid not in committed]:
        return f"it selects uid {strangers[0]}, which had not committed by block D"
    return None
