"""Choose the peers that a validator names: those that pass and may contribute by its book, best by PeerScore first
(docs/protocol.md 6 and 9).

Ratings are those of the book before this round: this round's losses are not on the critical path.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gauntlet.book import PeerRecord, ScoreBook, eligible
from gauntlet.remembered import NO_TWINS, Twins
from murmur.protocol.assignment import Draw
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, PeerId, Standing

RATED_NEEDED = 3
"""While fewer of the passing peers have been evaluated, peers not evaluated may fill the remaining places."""
RATED_SHARE = 0.5
"""The same while a smaller share of them has been evaluated. Validators that have each evaluated a few peers name few
in common, and a round without a peer named by most is void."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """`order`: all peers that may contribute, best first, of twins the best only. `contributing` its first G, `reserve`
    the next. `standing`: why every other passing peer does not contribute."""

    order: tuple[PeerId, ...]
    contributing: tuple[PeerId, ...]
    reserve: tuple[PeerId, ...]
    standing: Mapping[PeerId, Standing]


def peer_score(record: PeerRecord | None) -> float:
    """Return max(0, proof - penalty) * max(0, rating mu): never negative, and a penalty can only lower it."""
    if record is None or record.proof is None:
        return 0.0
    return max(0.0, record.proof - record.penalty) * max(0.0, record.rating.mu)


def in_order(book: ScoreBook, peers: Collection[PeerId], commit_hash: Digest) -> tuple[PeerId, ...]:
    """Sort the peers, best first, equal scores by SHAKE(hash of the commit deadline's block, hotkey). Their objects are
    fetched in this order, so that newcomers' garbage comes after all peers with earlier good work, and no newcomer is
    always the last."""

    def place(peer: PeerId) -> tuple[float, int, PeerId]:
        return -peer_score(book.peers.get(peer)), Draw("tie", commit_hash, peer).words(8), peer

    return tuple(sorted(peers, key=place))


def standing(
    book: ScoreBook,
    passed: Collection[PeerId],
    spec: GauntletSpec,
    round: int,
    commit_hash: Digest,
    twins: Twins = NO_TWINS,
) -> Ranking:
    """Rank the passing peers of `round`. Equal scores are ordered by SHAKE(hash of the commit deadline's block,
    hotkey).

    Normally peers that were not evaluated are left out. They come after the eligible ones during the first
    `opening_rounds` rounds, and while fewer than three or less than half of the passing peers were ever evaluated.
    """
    records = {peer: book.peers.get(peer) for peer in passed}
    rated = _rated(book, passed)
    few = len(rated) < max(RATED_NEEDED, RATED_SHARE * len(passed))
    open_to_all = round < spec.opening_rounds or few
    good = {peer for peer in rated if (record := records[peer]) is not None and eligible(record, spec)}

    def place(peer: PeerId) -> tuple[bool, float, int, PeerId]:
        tie = Draw("tie", commit_hash, peer).words(8)
        return peer not in good, -peer_score(records[peer]), tie, peer

    candidates = good | (set(passed) - rated if open_to_all else set())
    order: list[PeerId] = []
    for peer in sorted(candidates, key=place):
        if twins.get(peer, frozenset()).isdisjoint(order):
            order.append(peer)
    standings: dict[PeerId, Standing] = {}
    for peer in sorted(passed):
        if peer in order[: spec.contributors]:
            continue
        if peer in candidates:
            standings[peer] = Standing.NOT_SELECTED
        else:
            standings[peer] = Standing.LOW_SCORE if peer in rated else Standing.NOT_ELIGIBLE
    end = spec.contributors + spec.reserve
    return Ranking(tuple(order), tuple(order[: spec.contributors]), tuple(order[spec.contributors : end]), standings)


def _rated(book: ScoreBook, passed: Collection[PeerId]) -> set[PeerId]:
    return {peer for peer in passed if (record := book.peers.get(peer)) is not None and record.evaluations > 0}
