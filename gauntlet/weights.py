"""The chain's weights (docs/protocol.md section 9): linear in work, times presence.

By its size and not by its rank: ranks pay equal peers unequally, and favour peers that were lucky first. The LossScore
and the gap decide who is eligible, the rating who goes first; neither changes the pay.
"""

from collections.abc import Iterable, Mapping

from gauntlet.book import PeerRecord, ScoreBook, eligible
from gauntlet.selection import Ranking
from murmur.protocol.run import Run
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Peer, PeerId, Uid

U16_MAX = 65_535
WEIGHT_STEPS = 1.5
"""A weight on chain may differ by this many steps of 1 / U16_MAX, through rounding."""
RESERVE_SHARE = 0.5
"""Share of pay of a peer in the reserve for the same merit: its work was ready, but was not applied."""
ENOUGH_PROOF = 0.8
"""A proof of at least this counts fully. A peer that trains on twice the sequences shows less on each of them and yet
has done more work; and luck beyond honest work earns nothing."""


def is_due(run: Run, round: int, last_update: int, block: int) -> bool:
    """Whether a validator sets its weights for `round` in the block after `block`, if it set them last in
    `last_update`. That is the chain's record as of `block`, so a restart decides the same. They are due if the chain
    may take them again and the last paid round is at least `weight_rounds` ago."""
    spec = run.spec_at(round)
    rested = block + 1 - last_update >= spec.clock.weights_rate_limit
    return rested and round - run.clock.paid_in(last_update) >= spec.gauntlet.weight_rounds


def due_from(run: Run, round: int, last_update: int) -> int:
    """Return about the block in which a validator that set its weights last in `last_update` sets them next, as of
    `round`: the one that decides the first round for which they are due."""
    while not is_due(run, round, last_update, run.clock.vote_deadline(round)):
        round += 1
    return run.clock.vote_deadline(round)


def differing(shares: Mapping[Uid, float], row: Mapping[Uid, int]) -> list[Uid]:
    """Return uids whose weight in a row on chain is not the intended share, beyond the rounding to 65,535 steps."""
    top, most = max(shares.values(), default=0.0), max(row.values(), default=0)
    return [
        uid
        for uid in sorted({*shares, *row})
        if abs(shares.get(uid, 0.0) / (top or 1.0) - row.get(uid, 0) / (most or 1)) * U16_MAX > WEIGHT_STEPS
    ]


def lasting(at_commit: Iterable[Peer], now: Iterable[Peer]) -> dict[PeerId, Uid]:
    """Return the uid of every hotkey that held it at the round's commit deadline and holds it now: those that may be
    paid. A uid that changed hands since may do so again before the weights are in a block, and then another hotkey
    would be paid for this one's work."""
    before = {(peer.id, peer.uid) for peer in at_commit}
    return {peer.id: peer.uid for peer in now if (peer.id, peer.uid) in before}


def merit(record: PeerRecord, spec: GauntletSpec) -> float:
    """Return what a hotkey earns, 0 to 1: its presence times the share of a round's work that it is known to do.

    It is linear in work, so splitting it among hotkeys earns nothing, and a slower machine earns its share
    (docs/decisions/0070-verified-work.md). Where work can't be verified, the proof of computation stands in for it.
    """
    return record.presence * (record.work if spec.trace_values else proven(record))


def proven(record: PeerRecord) -> float:
    """Return the proof as pay counts it, less the penalty, 0 to 1."""
    if record.proof is None:
        return 0.0
    return max(0.0, min(1.0, record.proof / ENOUGH_PROOF) - record.penalty)


def weights(
    book: ScoreBook, ranking: Ranking, uids: Mapping[PeerId, Uid], owner: PeerId, spec: GauntletSpec
) -> dict[Uid, float]:
    """Return weights that sum to 1. They are the merit of contributors and, at half, of the reserve, if the book still
    finds them eligible, normalised, less `burn_share` for the owner's uid. By presence alone, after the opening rounds,
    where work is verified and this validator has repeated nobody's steps. If nobody has earned anything, the owner gets
    all.

    `uids` of the hotkeys that may be paid (`lasting`); a hotkey without one gets nothing. {} if nothing was earned and
    the owner is not among them.
    """
    parts = dict.fromkeys(ranking.contributing, 1.0) | dict.fromkeys(ranking.reserve, RESERVE_SHARE)
    knows = any(record.repeated for record in book.peers.values())
    blind = bool(spec.trace_values) and not knows and book.round >= spec.opening_rounds
    earned = {
        peer: part * (record.presence if blind else merit(record, spec))
        for peer, part in parts.items()
        # The ranking used the book before the round: the round's own scores may show that there is nothing to pay for.
        if peer in uids and (record := book.peers.get(peer)) is not None and eligible(record, spec)
    }
    total = sum(earned.values())
    burned = spec.burn_share if owner in uids else 0.0
    if total <= 0.0:
        return {uids[owner]: 1.0} if owner in uids else {}
    shares = {uids[peer]: (1.0 - burned) * value / total for peer, value in sorted(earned.items()) if value > 0.0}
    if burned:
        shares[uids[owner]] = shares.get(uids[owner], 0.0) + burned
    return {uid: share for uid, share in sorted(shares.items()) if share > 0.0}
