"""Which states validators claim on chain for the start of the newest round (docs/protocol.md section 8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gauntlet.agreement import LAST_WORDS_ROUNDS, Claim, claims, last_words, votes
from node.follower import Follower
from protocol.errors import ChainError
from protocol.types import Attestation, Peer, Record

CLAIMS_ASKED = 8
"""In one pass: a claim that nobody can follow may cost as long as a walk along its records may take."""


def newest_decided(follower: Follower) -> int:
    """The newest round whose attestations are final; -1 before the first."""
    head = follower.head()
    round = follower.clock.round_at(head)
    return round if head >= follower.clock.attest_by(round) else round - 1


@dataclass(frozen=True, slots=True)
class Claimed:
    """What validators claim for the start of the newest round that any of them has stated something for.

    round: -1 where nobody has. stakes: counted stake behind each claim, the most first. counted: all the stake that
    counts, whoever is silent; 0 where the chain's node has pruned it. last: what every validator said last in the
    LAST_WORDS_ROUNDS rounds before, with what its word counts.
    """

    round: int
    stakes: Mapping[Claim, int]
    counted: int
    last: Sequence[tuple[Claim, int]] = ()

    def by_most(self, claim: Claim) -> bool:
        """Whether more than half of all the stake that counts is behind it."""
        return 2 * self.stakes[claim] > self.counted

    @property
    def likely(self) -> tuple[Claim, ...]:
        """What at least half of the stake claims that claims anything."""
        spoken = sum(self.stakes.values())
        return tuple(claim for claim, stake in self.stakes.items() if 2 * stake >= spoken)[: 2 if spoken else 1]

    @property
    def worth_asking(self) -> tuple[Claim, ...]:
        """What a node looks at, in this order, that can't see on chain what was agreed on: liars may have more of the
        stake than the only honest one that speaks. The first is always there, and the others by turns: nobody fills
        all places for ever."""
        first, *rest = [claim for claim, stake in self.stakes.items() if stake] or self.stakes
        turn = (CLAIMS_ASKED - 1) * self.round % (len(rest) or 1)
        return (first, *(rest[turn:] + rest[:turn])[: CLAIMS_ASKED - 1])


def newest_claims(follower: Follower, newest: int) -> Claimed:
    """The newest round up to `newest` with a statement made in time, and what is claimed for its start. A slot keeps
    its last statement, however long its author has been silent, so one look at the newest round's X does."""
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
            counted = sum(votes(follower.run, round, commit).values())
            return Claimed(round, found, counted, last_words(follower.run, newest - LAST_WORDS_ROUNDS, peers))
    return Claimed(-1, {}, 0)


def at_commit(follower: Follower, round: int) -> Sequence[Peer]:
    """Whose stake counts in `round`; nobody's where the chain's node has pruned that: then stake as of now orders."""
    try:
        return follower.doors.chain.peers(follower.clock.commit_by(round))
    except ChainError:
        return ()
