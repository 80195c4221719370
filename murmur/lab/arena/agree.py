"""The chain's part of a round: the selection, by the real rules over votes that validators would post, and the
combination of their weights."""

from collections.abc import Mapping, Sequence

from gauntlet.agreement import Agreed, Log, Post, abstention, agreed, vote_for
from murmur.lab.arena.stage import POINTER
from murmur.protocol.messages import first_link
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Peer, PeerId, Slot, StateRef, Uid


class Votes:
    """The validators' votes, round after round. `stakes` in rao, of validators in the order of their uids from 0."""

    def __init__(self, run: Run, stakes: Mapping[PeerId, int]) -> None:
        self._run, self._stakes = run, stakes
        self._slots: dict[PeerId, Slot] = {peer: Slot(0, POINTER, abstention(0)) for peer in stakes}
        self._link = first_link(run.id)

    def decide(
        self,
        round: int,
        commit_hash: Digest,
        theta: Digest,
        miners: Sequence[Peer],
        names: Mapping[PeerId, Sequence[Uid]],
    ) -> Agreed:
        """Return the decision of the round's chain state after every validator has posted its vote. `miners` carry the
        incentive from the weights so far (Peer.incentive)."""
        at_commit, block = self._peers(miners), self._run.clock.vote_deadline(round)
        votes = {peer: vote_for(round, names[peer], StateRef(theta, self._link)) for peer in self._stakes}
        log = Log(at_commit, commit_hash, tuple(Post(block, peer, vote) for peer, vote in votes.items()))
        decision = agreed(self._run, round, log, block, block)
        assert decision is not None
        for peer, vote in votes.items():
            self._slots[peer] = Slot(block, POINTER, vote)
        self._link = decision.link or self._link
        return decision

    def _peers(self, miners: Sequence[Peer]) -> list[Peer]:
        validators = [
            Peer(peer, Uid(uid), stake, True, slot=self._slots[peer])
            for uid, (peer, stake) in enumerate(self._stakes.items())
        ]
        return [*validators, *miners]


def consensus(weights: Mapping[PeerId, Mapping[Uid, float]], stakes: Mapping[PeerId, int]) -> dict[Uid, float]:
    """Return for every uid the highest weight that validators with more than half of the stake give it, or more."""
    total = sum(stakes[peer] for peer in weights)
    limits: dict[Uid, float] = {}
    for uid in sorted({uid for given in weights.values() for uid in given}):
        backing = 0
        for value, stake in sorted(
            ((given.get(uid, 0.0), stakes[peer]) for peer, given in weights.items()), reverse=True
        ):
            backing += stake
            if 2 * backing > total:
                limits[uid] = value
                break
    return limits


def pooled(weights: Mapping[PeerId, Mapping[Uid, float]], stakes: Mapping[PeerId, int]) -> dict[Uid, float]:
    """Return the chain's combination of the validators' weights: each is cut to the consensus, then averaged by stake
    and normalised."""
    kept = {
        uid: sum(min(given.get(uid, 0.0), limit) * stakes[peer] for peer, given in weights.items())
        for uid, limit in consensus(weights, stakes).items()
    }
    shares = {uid: share for uid, share in kept.items() if share > 0}
    whole = sum(shares.values())
    return {uid: share / whole for uid, share in shares.items()}


def incentives(shares: Mapping[Uid, float]) -> dict[Uid, int]:
    """Return shares as the chain stores them: u16."""
    return {uid: round(share * 0xFFFF) for uid, share in shares.items()}
