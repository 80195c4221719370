"""The chain's part of a round: who is named, by the real rules over statements that validators would post, and what the
validators' weights come to."""

from collections.abc import Callable, Mapping, Sequence

from arena.stage import POINTER
from gauntlet.agreement import Agreed, Views, agreed, announcement, attestation_for, leader_order, record_for, selected
from protocol.messages import first_link
from protocol.run import Run
from protocol.types import Attestation, Digest, Peer, PeerId, Record, Slot, Uid

Approve = Callable[[PeerId, PeerId, Sequence[Uid]], bool]
"""(validator, author of a record, the uids it names) -> whether the validator approves it."""


class Statements:
    """The validators' slots, round after round. `stakes` in rao, of validators in the order of their uids from 0."""

    def __init__(self, run: Run, stakes: Mapping[PeerId, int]) -> None:
        self._run, self._stakes = run, stakes
        here = announcement(run, Digest(bytes(32)))
        self._said: dict[PeerId, Slot] = {peer: Slot(0, POINTER, here) for peer in stakes}
        self._link = first_link(run.id)

    def decide(
        self,
        round: int,
        commit_hash: Digest,
        theta: Digest,
        miners: Sequence[Peer],
        choices: Mapping[PeerId, Sequence[Uid]],
        approves: Approve,
    ) -> Agreed:
        """What the round's chain state says after every leader has posted the record of its choice in its slot, and
        every validator its attestation."""
        clock = self._run.clock
        at_commit = self._peers(miners)
        order = leader_order(self._run, round, commit_hash, at_commit)
        views, records = [], []
        for place, leader in enumerate(order):
            first, _ = clock.slot(round, place)
            if choices[leader]:
                record = record_for(round, choices[leader], theta, self._link)
                records.append((place, leader, selected(record)))
                self._state(leader, first, record)
            views.append(self._peers(miners))
        views += [self._peers(miners)] * (clock.leader_slots - len(views))
        for validator in self._stakes:
            approved = [place for place, author, uids in records if approves(validator, author, uids)]
            self._state(validator, clock.attest_by(round), attestation_for(round, approved, theta, self._link))
        decision = agreed(
            self._run,
            round,
            theta,
            self._link,
            commit_hash,
            Views(at_commit, views, self._peers(miners)),
            clock.attest_by(round),
        )
        self._link = decision.link
        return decision

    def _state(self, validator: PeerId, block: int, statement: Record | Attestation) -> None:
        self._said[validator] = Slot(block, POINTER, statement)

    def _peers(self, miners: Sequence[Peer]) -> list[Peer]:
        validators = [
            Peer(peer, Uid(uid), stake, True, slot=self._said[peer])
            for uid, (peer, stake) in enumerate(self._stakes.items())
        ]
        return [*validators, *miners]


def consensus(weights: Mapping[PeerId, Mapping[Uid, float]], stakes: Mapping[PeerId, int]) -> dict[Uid, float]:
    """Of every uid the highest weight that validators with more than half of the stake give it, or more."""
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
    """What the chain makes of the validators' weights: each is cut to the consensus, then averaged by stake and
    normalised."""
    kept = {
        uid: sum(min(given.get(uid, 0.0), limit) * stakes[peer] for peer, given in weights.items())
        for uid, limit in consensus(weights, stakes).items()
    }
    shares = {uid: share for uid, share in kept.items() if share > 0}
    whole = sum(shares.values())
    return {uid: share / whole for uid, share in shares.items()}
