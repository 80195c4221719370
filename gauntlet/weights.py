"""The chain's weights (docs/protocol.md section 9): by merit, which is convex in the averaged progress and anchored at
a fixed 0.

Convex: one peer's work split among several hotkeys earns less than undivided. Anchored at 0 and never at the worst
peer: an attacker can supply a worst peer. By its size and not by its rank (docs/decisions/0048-honest-work-pays.md):
ranks pay equal peers unequally, and keep to whoever was lucky first. By progress and not by the LossScore, which is the
gate: late in a run half of the work scores as much as all of it (docs/decisions/0056-pay-by-progress.md).
"""

from collections.abc import Iterable, Mapping
from math import hypot, sqrt

from gauntlet.book import PeerRecord, ScoreBook, eligible
from gauntlet.selection import Ranking
from protocol.run import Run
from protocol.spec import GauntletSpec
from protocol.types import Peer, PeerId, Uid

U16_MAX = 65_535
WEIGHT_STEPS = 1.5
"""Of U16_MAX: by so much a weight on chain may be rounded."""
RESERVE_SHARE = 0.5
"""What a peer of the reserve earns for the same merit: its work was ready, but nobody applied it."""
CONVEXITY = 2
"""Power of worth in merit. Splitting one peer's work among n hotkeys pays as soon as each of them has more than
n ** (-1 / CONVEXITY) of the whole's progress: half the steps have about 0.5, and less than 0.7."""
ENOUGH_PROOF = 0.8
"""From here on a proof is whole. Who trains on twice the sequences shows less on each of them and yet has done more
(docs/decisions/0048-honest-work-pays.md); and luck beyond honest work earns nothing."""
LARGEST_WORTH = 2.0
"""Of honest progress: where that is all but noise, luck must not be worth many units."""


def is_due(run: Run, round: int, last_update: int, block: int) -> bool:
    """Whether a validator sets its weights for `round` in the block after `block`, when it set them last in
    `last_update`: the chain's word for it as of `block`, so that a restart decides the same. The chain may take them
    again, and the round that was paid last is `weight_rounds` ago."""
    spec = run.spec_at(round)
    rested = block + 1 - last_update >= spec.clock.weights_rate_limit
    return rested and round - run.clock.paid_in(last_update) >= spec.gauntlet.weight_rounds


def due_from(run: Run, round: int, last_update: int) -> int:
    """About the block in which a validator that set its weights last in `last_update` sets them next, as of `round`:
    that which decides the first round for which they are due."""
    while not is_due(run, round, last_update, run.clock.words_by(round)):
        round += 1
    return run.clock.words_by(round)


def differing(shares: Mapping[Uid, float], row: Mapping[Uid, int]) -> list[Uid]:
    """Uids whose weight in a row on chain is not the share that was to be set, but for its rounding to 65,535 steps."""
    top, most = max(shares.values(), default=0.0), max(row.values(), default=0)
    return [
        uid
        for uid in sorted({*shares, *row})
        if abs(shares.get(uid, 0.0) / (top or 1.0) - row.get(uid, 0) / (most or 1)) * U16_MAX > WEIGHT_STEPS
    ]


def lasting(at_commit: Iterable[Peer], now: Iterable[Peer]) -> dict[PeerId, Uid]:
    """The uid of every hotkey that held it when the round was committed to (D) and holds it now: those that may be
    paid. A uid that changed hands since may do so again before the weights are in a block, and then a stranger would
    be paid for another's work."""
    before = {(peer.id, peer.uid) for peer in at_commit}
    return {peer.id: peer.uid for peer in now if (peer.id, peer.uid) in before}


def honest_progress(record: PeerRecord) -> float:
    """The unit of worth: root mean square of honest progress in the rounds in which a peer's was measured.

    It makes rounds comparable in which updates are much and hardly alike, and divides all peers of a round alike:
    whoever moves it moves nobody's share. Root mean square, because it stays above 0 where honest peers differ more
    than their median: then luck is worth a few units and not any number of them.
    """
    return hypot(record.usual_progress.value, sqrt(record.progress_variances.value))


def worth(record: PeerRecord) -> float:
    """Averaged progress in honest ones, 0 to LARGEST_WORTH: about 1 for honest work, 0 for noise. 1 while none was
    measured: a peer's first update shows it in the round after."""
    if not record.progress.weight:
        return 1.0
    moved, unit = record.progress.value, honest_progress(record)
    if moved <= 0.0:
        return 0.0
    return min(LARGEST_WORTH, moved / unit) if unit else LARGEST_WORTH


def merit(record: PeerRecord) -> float:
    """What pay is shared by: max(0, min(1, proof / ENOUGH_PROOF) - penalty) * presence * worth ** CONVEXITY.

    0 without a proof: it is a gate, which honest work passes whole. By its presence, since weights are set in some
    rounds only, and in which anybody can tell (`is_due`): who worked in those alone would be paid for all.
    """
    return proven(record) * record.presence * worth(record) ** CONVEXITY


def proven(record: PeerRecord) -> float:
    """The proof as pay counts it, less the penalty, 0 to 1."""
    if record.proof is None:
        return 0.0
    return max(0.0, min(1.0, record.proof / ENOUGH_PROOF) - record.penalty)


def weights(
    book: ScoreBook, ranking: Ranking, uids: Mapping[PeerId, Uid], owner: PeerId, spec: GauntletSpec
) -> dict[Uid, float]:
    """Weights that sum to 1: the merit of contributors and, at half, of the reserve, as far as the book still finds
    them eligible, normalised, less `burn_share` for the owner's uid; all of it goes there when nobody has earned.

    `uids` of the hotkeys that may be paid (`lasting`); a hotkey without one gets nothing. {} when nothing was earned
    and the owner is not among them.
    """
    parts = dict.fromkeys(ranking.contributing, 1.0) | dict.fromkeys(ranking.reserve, RESERVE_SHARE)
    earned = {
        peer: part * merit(record)
        for peer, part in parts.items()
        # Ranked by the book of before the round: its own scores may have shown that there was nothing to pay for.
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
