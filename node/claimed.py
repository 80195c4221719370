"""Which states validators claim on chain for the start of the newest round (docs/protocol.md section 8)."""

from collections.abc import Mapping, Sequence

from gauntlet.agreement import Claim, claims, votes
from node.follower import Follower
from protocol.errors import ChainError
from protocol.types import Attestation, Peer, Record


def newest_decided(follower: Follower) -> int:
    """The newest round whose attestations are final; -1 before the first."""
    head = follower.head()
    round = follower.clock.round_at(head)
    return round if head >= follower.clock.attest_by(round) else round - 1


def newest_claims(follower: Follower, newest: int) -> tuple[int, Mapping[Claim, bool]]:
    """The newest round up to `newest` with a statement made in time, and what is worth following of the claims for its
    start, the most staked first, each with whether more than half of all the stake that counts is behind it, whoever is
    silent; -1 for none. A slot keeps its last statement, however long its author has been silent, so one look at the
    newest round's X does."""
    peers = follower.doors.chain.peers(follower.clock.attest_by(newest))
    stated = {
        peer.slot.statement.round
        for peer in peers
        if peer.slot is not None and isinstance(peer.slot.statement, Record | Attestation)
    }
    for round in sorted(stated, reverse=True):
        if round > newest:
            continue
        commit = at_commit(follower, round)
        if found := claims(follower.run, round, commit, peers):
            spoken, counted = sum(found.values()), sum(votes(follower.run, round, commit).values())
            worth = [claim for claim, stake in found.items() if 2 * stake >= spoken][: 2 if spoken else 1]
            return round, {claim: 2 * found[claim] > counted for claim in worth}
    return -1, {}


def at_commit(follower: Follower, round: int) -> Sequence[Peer]:
    """Whose stake counts in `round`; nobody's where the chain's node has pruned that: then stake as of now orders."""
    try:
        return follower.doors.chain.peers(follower.clock.commit_by(round))
    except ChainError:
        return ()
