"""The chain's weights (docs/protocol.md section 9): convex in PeerScore and anchored at a fixed 0.

Convex: one peer's work split among several hotkeys earns less than undivided. Anchored at 0 and never at the worst
peer: an attacker can supply a worst peer.
"""

from collections.abc import Iterable, Mapping

from gauntlet.book import ScoreBook, eligible
from gauntlet.selection import Ranking, peer_score
from protocol.spec import GauntletSpec
from protocol.types import Peer, PeerId, Uid

RESERVE_SHARE = 0.5
"""What a peer of the reserve earns for the same score: its work was ready, but nobody applied it."""


def lasting(at_commit: Iterable[Peer], now: Iterable[Peer]) -> dict[PeerId, Uid]:
    """The uid of every hotkey that held it when the round was committed to (D) and holds it now: those that may be
    paid. A uid that changed hands since may do so again before the weights are in a block, and then a stranger would
    be paid for another's work."""
    before = {(peer.id, peer.uid) for peer in at_commit}
    return {peer.id: peer.uid for peer in now if (peer.id, peer.uid) in before}


def weights(
    book: ScoreBook, ranking: Ranking, uids: Mapping[PeerId, Uid], owner: PeerId, spec: GauntletSpec
) -> dict[Uid, float]:
    """Weights that sum to 1: max(0, s)^2 of contributors and, at half, of the reserve, as far as the book still finds
    them eligible, normalised, less `burn_share` for the owner's uid; all of it goes there when nobody has earned.

    `uids` of the hotkeys that may be paid (`lasting`); a hotkey without one gets nothing. {} when nothing was earned
    and the owner is not among them.
    """
    shares_of_work = dict.fromkeys(ranking.contributing, 1.0) | dict.fromkeys(ranking.reserve, RESERVE_SHARE)
    earned = {
        peer: share * peer_score(record) ** 2
        for peer, share in shares_of_work.items()
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
