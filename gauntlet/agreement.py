"""The agreed selection of a round: a predicate over finalised chain state, the same on every node (docs/protocol.md
section 6).

A slot's leader posts a record in its slot's blocks; after the last slot and by X every validator may post an
attestation, which votes for a theta and vetoes slots. The first slot whose record is valid is agreed, else the round
is void. Nothing a node saw in buckets enters here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gauntlet.checks import commitment
from protocol.assignment import leaders
from protocol.messages import encode_statement, record_link
from protocol.run import Run
from protocol.types import MAX_UIDS, Attestation, Commitment, Digest, Peer, PeerId, Record, Selection, Uid

STATEMENT_ROUNDS = 8
"""A validator counts while its last statement, which stands in its slot, is at most so many rounds old."""


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

    Those with a permit whose slot holds a statement for one of the last 8 rounds; at the start, and when nobody made
    one for 8 rounds, those with a permit and a pointer that do not mine. It follows from one snapshot, so a joiner
    needs no history, and it is fixed by D: nobody enters after seeing how a vote goes. A validator that comes later
    posts an attestation and counts from the next round on.
    """
    permitted = [peer for peer in peers if peer.validates and peer.slot is not None]
    spoken = [peer for peer in permitted if _spoke_lately(run, round, peer)]
    starting = [
        peer
        for peer in permitted
        if peer.slot is not None and peer.slot.pointer is not None and not isinstance(peer.slot.statement, Commitment)
    ]
    return {peer.id: peer.stake for peer in spoken or starting}


def _spoke_lately(run: Run, round: int, peer: Peer) -> bool:
    # Written later than its window is fine here: a new pointer rewrites the slot and the old statement with it.
    slot = peer.slot
    if slot is None or not isinstance(slot.statement, Record | Attestation):
        return False
    said = slot.statement.round
    return max(0, round - STATEMENT_ROUNDS) <= said < round and slot.block >= run.clock.slot(said, 0)[0]


def leader_order(run: Run, round: int, commit_hash: Digest, peers: Iterable[Peer]) -> tuple[PeerId, ...]:
    """Who leads slot 0, 1, ..; may be shorter than the number of slots. `commit_hash` and `peers` as of D."""
    stakes = sorted(electorate(run, round, peers).items())
    return leaders(run.id, commit_hash, round, stakes, run.clock.leader_slots)


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


def agreed(run: Run, round: int, previous: Digest, commit_hash: Digest, views: Views, height: int) -> Agreed:
    """The agreed selection of `round`.

    `previous` is the link that the last agreed record left (protocol.messages.first_link before the first one).
    `commit_hash` is the hash of D. `height` is the finalised block from which the caller looks: from a stated height
    on the owner may have declared the record void. An empty view stands for a slot that has not passed yet: what is
    agreed then is provisional.
    """
    clock, limit = run.clock, run.spec_at(round).gauntlet.contributors
    if len(views.slots) != clock.leader_slots:
        raise ValueError(f"{len(views.slots)} slot views for {clock.leader_slots} leader slots")
    stakes = electorate(run, round, views.commit)
    order = leader_order(run, round, commit_hash, views.commit)
    records = posted_records(run, round, order, views.slots)
    attestations = {
        peer.id: statement
        for peer in views.attest
        if isinstance(statement := _statement(run, round, peer), Attestation)
    }
    votes = {order[i]: record.theta for i, record in enumerate(records) if record is not None}
    votes |= {peer: attestation.theta for peer, attestation in attestations.items() if peer in stakes}
    theta = _most_staked(votes, stakes)
    committed = _committed(run, round, views.commit)
    void: list[str | None] = [None] * clock.leader_slots
    for index, record in enumerate(records):
        if index >= len(order):
            void[index] = "no validator leads this slot"
        elif record is None:
            void[index] = "no record of its leader for this round in the slot's blocks"
        else:
            author = order[index]
            vetoes = {p for p, a in attestations.items() if p in stakes and a.bitmap >> index & 1}
            fault = _fault(record, previous, theta, limit, committed)
            if fault is None and _vetoed(author, vetoes, stakes):
                fault = "vetoed by half of the other counted stake"
            if fault is None and run.voided(round, height):
                fault = "declared void by the run's owner"
            if fault is None:
                selection = _selection(record, committed)
                posted = encode_statement(record)
                link = record_link(posted, selection.contributing)
                return Agreed(selection, index, author, posted, link, tuple(void))
            void[index] = fault
    return Agreed(None, None, None, None, previous, tuple(void))


def proposals(run: Run, round: int, previous: Digest, commit_hash: Digest, views: Views) -> list[Selection | None]:
    """What every slot's record would make agreed if those before it were void; None where there is none, or where it is
    void whatever the others say. Its theta may be another than ours. Whoever may veto looks at all of them: a veto of
    one slot makes a later one agreed."""
    order = leader_order(run, round, commit_hash, views.commit)
    committed, limit = _committed(run, round, views.commit), run.spec_at(round).gauntlet.contributors
    return [
        None
        if record is None or _fault(record, previous, record.theta, limit, committed)
        else _selection(record, committed)
        for record in posted_records(run, round, order, views.slots)
    ]


def _committed(run: Run, round: int, peers: Iterable[Peer]) -> dict[Uid, tuple[PeerId, Digest]]:
    """(hotkey, envelope) of every uid that had committed by D. `peers` as of D."""
    last = run.clock.commit_by(round)
    promises = ((peer, commitment(peer, round, last)) for peer in peers)
    return {peer.uid: (peer.id, promise.envelope) for peer, promise in promises if promise is not None}


def _selection(record: Record, committed: Mapping[Uid, tuple[PeerId, Digest]]) -> Selection:
    pairs = tuple(sorted(committed[uid] for uid in selected(record)))
    return Selection(record.round, record.theta, record.previous, pairs)


def claimed_start(run: Run, round: int, peers: Iterable[Peer]) -> tuple[Digest, Digest] | None:
    """(theta digest, previous link) at the start of `round` by most stake among the statements for it; ties to the
    lowest. None when there are none. `peers` as of X. What a joiner has to reproduce; those that voted are the ones
    that will refuse its work if it does not."""
    totals: dict[tuple[Digest, Digest], int] = {}
    for peer in peers:
        if peer.validates and (statement := _statement(run, round, peer)) is not None:
            claim = statement.theta, statement.previous
            totals[claim] = totals.get(claim, 0) + peer.stake
    return min(totals, key=lambda claim: (-totals[claim], claim), default=None)


def selected(record: Record) -> tuple[Uid, ...]:
    """The uids whose bits are set."""
    return tuple(Uid(uid) for uid in range(MAX_UIDS) if record.bitmap >> uid & 1)


def record_for(round: int, uids: Collection[Uid], theta: Digest, previous: Digest) -> Record:
    """A leader's record: these uids contribute. Raises ValueError for none, or for one that has no bit."""
    return Record(round, _bitmap(uids, MAX_UIDS, "uid") or _refuse_empty(), theta, previous)


def attestation_for(round: int, vetoes: Collection[int], theta: Digest, previous: Digest) -> Attestation:
    """A validator's word after the slots: its theta, and the slots whose records it vetoes."""
    return Attestation(round, _bitmap(vetoes, MAX_UIDS, "slot"), theta, previous)


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
    blocks, an attestation after them and by X."""
    slot, clock = peer.slot, run.clock
    if slot is None or not isinstance(slot.statement, Record | Attestation) or slot.statement.round != round:
        return None
    first, slots_end = clock.slot(round, 0)[0], clock.slot(round, clock.leader_slots - 1)[1]
    is_record = isinstance(slot.statement, Record)
    window = (first, slots_end) if is_record else (slots_end + 1, clock.attest_by(round))
    return slot.statement if window[0] <= slot.block <= window[1] else None


def _most_staked(votes: Mapping[PeerId, Digest], stakes: Mapping[PeerId, int]) -> Digest | None:
    """The theta digest with most counted stake, ties to the lowest digest; None without votes. A validator that posts
    a record and an attestation votes with the attestation."""
    totals: dict[Digest, int] = {}
    for peer, theta in votes.items():
        totals[theta] = totals.get(theta, 0) + stakes[peer]
    return min(totals, key=lambda theta: (-totals[theta], theta), default=None)


def _vetoed(author: PeerId, vetoes: Collection[PeerId], stakes: Mapping[PeerId, int]) -> bool:
    """True when vetoes of others than the author hold at least half of all counted stake: whoever has less can neither
    stop the others' records nor keep its own from being stopped (docs/decisions/0013-vetoes-need-half.md). Silence is
    no veto, even where nobody has stake."""
    against = sum(stakes[peer] for peer in vetoes if peer != author)
    return 2 * against >= sum(stakes.values()) and against > 0


def _fault(
    record: Record,
    previous: Digest,
    theta: Digest | None,
    limit: int,
    committed: Mapping[Uid, tuple[PeerId, Digest]],
) -> str | None:
    """Why a record is void whatever the others say, None when it is not."""
    uids = selected(record)
    if record.previous != previous:
        return "its previous link is not the last agreed record's"
    if not uids:
        return "it selects nobody"
    if len(uids) > limit:
        return f"it selects {len(uids)} peers, at most {limit} contribute"
    if strangers := [uid for uid in uids if uid not in committed]:
        return f"it selects uid {strangers[0]}, which had not committed by block D"
    if record.theta != theta:
        return "its theta digest is not the one with most counted stake"
    return None
