"""The vote: a leader's record of whom it selects, with a mirror of their bytes, and every validator's word on the
others' records (docs/protocol.md section 6).
"""

from collections.abc import Sequence
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import attestation_for, leader_order, record_for
from gauntlet.checks import Checked, Gathered
from gauntlet.selection import Ranking, tolerable
from node.events import round_seconds
from node.node import Node
from node.payloads import MAX_THREADS
from protocol import keys
from protocol.errors import ChainError, StorageError
from protocol.messages import REVEAL_BYTES
from protocol.types import Attestation, Peer, PeerId, Record, Selection
from rounds.score import Scores
from storage.collect import gather
from storage.exchange import Fault, Source, Wanted
from storage.mirror import Copied, Mirror
from storage.seal import matches


class Vote:
    """One validator's part in what is agreed."""

    def __init__(self, node: Node, scores: Scores, mirror: Mirror) -> None:
        self.node, self.scores, self.mirror = node, scores, mirror
        self.mirrored: dict[PeerId, Copied] = {}
        self.seen: dict[PeerId, Gathered] = {}

    def mirror_selected(self, round: int, gathered: Sequence[Gathered], ranking: Ranking) -> None:
        """Mirror the bytes of the best-rated, so that whoever is selected can be repaired from us. What our bucket does
        not take we do not select; the round goes on."""
        node = self.node
        self.mirrored = {}
        items = self.seen = {item.peer.id: item for item in gathered}
        with node.held.timeline.begin("mirror") as watch:
            for peer in (*ranking.contributing, *ranking.reserve):
                item = items[peer]
                assert item.payload is not None  # it has passed the checks
                try:
                    self.mirrored[peer] = self.mirror.copy(
                        round, peer, item.payload, item.reveal, timeout_seconds=node.transfer_seconds(1)
                    )
                except StorageError as fault:
                    logger.warning("round {round}: our mirror takes nothing: {fault}", round=round, fault=str(fault))
                    break
        node.held.events.emit(
            "mirrored", round, copies=len(self.mirrored), seconds={"mirror": round_seconds(watch.seconds)}
        )

    def propose(
        self,
        round: int,
        ranking: Ranking,
        at_commit: Sequence[Peer],
        gathered: Sequence[Gathered],
        checked: Checked,
    ) -> None:
        """In our leader slot, if we have one: post the record, unless a valid one stands already."""
        node, clock = self.node, self.node.clock
        commit_hash = node.doors.chain.header(clock.commit_by(round)).hash
        order = leader_order(node.run, round, commit_hash, at_commit)
        if node.me not in order:
            return
        slot = order.index(node.me)
        first, last = clock.slot(round, slot)
        node.wait_for(first - 1, f"our leader slot of round {round}")
        if slot > 0 and self.agrees_so_far(round, slot, gathered, checked):
            return
        held = [p for p in ranking.contributing if p in self.mirrored and self.mirror_holds(p)]
        if not held:
            logger.warning("round {round}: nobody to select; posting no record", round=round)
            return
        if node.head() >= last:
            logger.warning("round {round}: our leader slot passed before the checks were done", round=round)
            return
        uids = {peer.id: peer.uid for peer in at_commit}
        record = record_for(round, [uids[peer] for peer in held], node.held.replica.digest(), node.held.saved.link)
        with node.held.timeline.begin("post") as watch:
            block = self.post(round, record)
        if block is not None:
            node.held.events.emit(
                "posted", round, slot=slot, block=block, seconds={"select": round_seconds(watch.seconds)}
            )

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        """Post a statement; its block, None when the chain refuses: that costs our word, never the round's scores."""
        try:
            return self.node.post(statement)
        except ChainError as fault:
            logger.warning("round {round}: our statement is not on chain: {fault}", round=round, fault=str(fault))
            return None

    def mirror_holds(self, peer: PeerId) -> bool:
        """Read back: our mirror really has the bytes."""
        copied = self.mirrored[peer]
        return self.mirror.holds(copied, timeout_seconds=self.node.transfer_seconds(1))

    def agrees_so_far(self, round: int, slots: int, gathered: Sequence[Gathered], checked: Checked) -> bool:
        """Whether a record of the first `slots` slots is valid, by the newest final block, and we can stand by it. One
        with another theta is valid only until the others have said theirs: then there has to be a record after it."""
        decision = self.node.provisional_selection(round, self.node.held.saved.link, slots)
        selection, author = decision.selection, decision.author
        if selection is None or author is None or selection.theta != self.node.held.replica.digest():
            return False
        by = self.node.clock.slot(round, slots)[1]
        return self.approves(round, selection, author, gathered, checked, by=by)

    def attest(self, round: int, gathered: Sequence[Gathered], checked: Checked) -> None:
        """After the last slot: say which theta we hold, and veto records whose bytes break a rule or cannot be had from
        their leader, and those that name too many peers of no worth. A record of our own has said it already, when
        there is nothing to veto."""
        node, clock = self.node, self.node.clock
        last_slot = clock.slot(round, clock.leader_slots - 1)[1]
        node.wait_for(last_slot, f"the leader slots of round {round}")
        vetoed: list[int] = []
        approved: list[Selection] = []
        # All of them: a veto of one slot makes the next one agreed, whatever that one names.
        for place, proposal in enumerate(node.proposals(round, node.held.saved.link)):
            if proposal is None or proposal[0] == node.me:
                continue
            author, selection = proposal
            by = clock.attest_by(round)
            ours = selection.theta == node.held.replica.digest()
            if ours and self.approves(round, selection, author, gathered, checked, by=by):
                approved.append(selection)
            else:
                vetoed.append(place)
        self.attest_once(round, vetoed, last_slot)
        for selection in approved:
            self.mirror_approved(round, selection)

    def attest_once(self, round: int, vetoed: Sequence[int], last_slot: int) -> None:
        """Attest, unless a record of our own has said the same."""
        node, clock = self.node, self.node.clock
        me = node.registered()
        slot = me.slot if me is not None else None
        recorded = slot is not None and isinstance(slot.statement, Record)
        if recorded and slot is not None and clock.reveal_by(round) < slot.block <= last_slot and not vetoed:
            return
        if node.head() >= clock.attest_by(round):
            return
        self.post(round, attestation_for(round, vetoed, node.held.replica.digest(), node.held.saved.link))

    def mirror_approved(self, round: int, selection: Selection) -> None:
        """Mirror whom a record names and we have not mirrored yet: its leader's and its miners' copies may be gone by
        the time that it is agreed, and then nobody could follow."""
        for peer, _ in selection.contributing:
            item = self.seen.get(peer)
            if peer in self.mirrored or item is None or item.payload is None:
                continue
            try:
                seconds = self.node.transfer_seconds(1)
                self.mirrored[peer] = self.mirror.copy(round, peer, item.payload, item.reveal, timeout_seconds=seconds)
            except StorageError as fault:
                logger.warning("round {round}: our mirror takes nothing: {fault}", round=round, fault=str(fault))
                return

    def approves(
        self,
        round: int,
        selection: Selection,
        author: PeerId,
        gathered: Sequence[Gathered],
        checked: Checked,
        *,
        by: int,
    ) -> bool:
        """Whether our book tolerates whom a record names, and everybody named passes: with the bytes that we have, or
        else with those that its leader mirrors. A peer that served only the leader can so be repaired, and does not
        cost the round.

        `by`: the block by which the answer is needed.
        """
        node = self.node
        named, rules = {peer for peer, _ in selection.contributing}, node.run.spec_at(round).gauntlet
        if not tolerable(self.scores.book, named, checked.passed, rules, round):
            return False
        doubted = {peer: envelope for peer, envelope in selection.contributing if peer not in checked.passed}
        if not doubted:
            return True
        opener = node.sources().bucket_of(author)
        if opener is None:
            return False
        run, size = node.run.id, node.run.first.object_bytes
        patience = node.seconds_until(by) / 4
        payloads = gather(
            [
                Wanted(peer, (Source(opener, keys.mirror(run, round, peer)),), size, matches(envelope))
                for peer, envelope in doubted.items()
            ],
            timeout_seconds=patience,
            max_threads=MAX_THREADS,
            time=node.time,
        )
        reveals = gather(
            [
                Wanted(peer, (Source(opener, keys.mirror_reveal(run, round, peer)),), REVEAL_BYTES, lambda data: True)
                for peer in doubted
            ],
            timeout_seconds=patience,
            max_threads=MAX_THREADS,
            time=node.time,
        )
        mirrored = []
        for item in gathered:
            payload, reveal = payloads.get(item.peer.id), reveals.get(item.peer.id)
            if payload is not None and not isinstance(payload, Fault) and isinstance(reveal, bytes):
                item = replace(item, payload=payload, wrong_size=None, reveal=reveal)
            mirrored.append(item)
        if not doubted.keys() <= self.scores.judge(round, mirrored).passed.keys():
            return False
        self.seen |= {item.peer.id: item for item in mirrored if item.peer.id in doubted}
        return True
