"""The chain's weights (docs/protocol.md section 9): by merit, which is convex in the averaged progress and anchored at
a fixed 0.

Convex: one peer's work split among several hotkeys earns less than undivided. Anchored at 0 and not at the worst peer:
an attacker can supply a worst peer. By its size and not by its rank (docs/decisions/0048-honest-work-pays.md): ranks
pay equal peers unequally, and favour peers that were lucky first. By progress and not by the LossScore, which only
decides eligibility: late in a run half of the work scores as much as all the work
(docs/decisions/0056-pay-by-progress.md).
"""

from collections.abc import Iterable, Mapping
from math import hypot, sqrt

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
CONVEXITY = 2
"""Power of worth in merit. Splitting one peer's work among n hotkeys pays as soon as each of them has more than n **
(-1 / CONVEXITY) of the whole's progress: half the steps have about 0.5, and less than 0.7."""
ENOUGH_PROOF = 0.8
"""A proof of at least this counts fully. A peer that trains on twice the sequences shows less on each of them and yet
has done more work (docs/decisions/0048-honest-work-pays.md); and luck beyond honest work earns nothing."""
LARGEST_WORTH = 2.0
"""In units of honest progress: if that is almost only noise, luck must not be worth many units."""


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


def honest_progress(record: PeerRecord) -> float:
    """Return the unit of worth: the root mean square of honest progress in the rounds in which a peer's progress was
    measured.

    It makes rounds comparable whose updates are more or less alike, and it divides all peers of a round alike: moving
    it changes no peer's share. A root mean square stays above 0 even if honest peers differ by more than their median.
    So luck is worth only a few units.
    """
    return hypot(record.usual_progress.value, sqrt(record.progress_variances.value))


def worth(record: PeerRecord) -> float:
    """Return the averaged progress in units of honest progress, 0 to LARGEST_WORTH: about 1 for honest work, 0 for
    noise. It is 1 while none was measured: a peer's first update shows it in the round after."""
    if not record.progress.weight:
        return 1.0
    moved, unit = record.progress.value, honest_progress(record)
    if moved <= 0.0:
        return 0.0
    return min(LARGEST_WORTH, moved / unit) if unit else LARGEST_WORTH


def merit(record: PeerRecord) -> float:
    """Return the share of pay: max(0, min(1, proof / ENOUGH_PROOF) - penalty) * presence * worth ** CONVEXITY.

    It is 0 without a proof, which honest work passes fully. Presence is a factor since weights are set in some rounds
    only, and anyone can compute in which (`is_due`): a peer that worked in those alone would be paid for all.
    """
    return proven(record) * record.presence * worth(record) ** CONVEXITY


def work(record: PeerRecord) -> float:
    """Return the share of pay where work is verified: the work that the hotkey is known to do, times its presence.

    It is linear in work, so splitting it among hotkeys earns nothing, and a slower machine earns its share
    (docs/decisions/0070-verified-work.md).
    """
    return record.work * record.presence


def proven(record: PeerRecord) -> float:
    """Return the proof as pay counts it, less the penalty, 0 to 1."""
    if record.proof is None:
        return 0.0
    return max(0.0, min(1.0, record.proof / ENOUGH_PROOF) - record.penalty)


def _presence(record: PeerRecord) -> float:
    return record.presence


def weights(
    book: ScoreBook, ranking: Ranking, uids: Mapping[PeerId, Uid], owner: PeerId, spec: GauntletSpec
) -> dict[Uid, float]:
    """Return weights that sum to 1. They are the merit of contributors and, at half, of the reserve, if the book still
    finds them eligible, normalised, less `burn_share` for the owner's uid. Where work is verified, the work in place of
    the merit; presence alone after the opening rounds if this validator has repeated nobody's steps. If no peer has
    earned anything, the owner gets all.

    `uids` of the hotkeys that may be paid (`lasting`); a hotkey without one gets nothing. {} if nothing was earned and
    the owner is not among them.
    """
    parts = dict.fromkeys(ranking.contributing, 1.0) | dict.fromkeys(ranking.reserve, RESERVE_SHARE)
    repeats = book.round < spec.opening_rounds or any(record.repeated for record in book.peers.values())
    earns = merit if not spec.trace_values else work if repeats else _presence
    earned = {
        peer: part * earns(record)
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
