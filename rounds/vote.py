"""The vote: a leader's record of whom it selects, with a mirror of their bytes, and every validator's approval of the
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
from protocol.types import Attestation, Digest, Peer, PeerId, Record, Selection
from rounds.score import Scores
from storage.collect import gather
from storage.exchange import Fault, Wanted
from storage.mirror import Copied, Mirror
from storage.realtime import seconds_until
from storage.seal import matches

LOOKS = 3
"""A record whose bytes we lack is looked at so often between the last slot and X: bytes may turn up."""
LOOK_SHARE = 2 / 3
"""Of the time until the next slot's end, or X: so long mirrors may hold us up in one look. The rest is for our word."""


class Vote:
    """One validator's part in what is agreed."""

    def __init__(self, node: Node, scores: Scores, mirror: Mirror) -> None:
        self.node, self.scores, self.mirror = node, scores, mirror
        self.mirrored: dict[PeerId, Copied] = {}
        self.seen: dict[PeerId, Gathered] = {}
        """What every peer registered at D left, as far as we know by now."""
        self.approved: set[int] = set()
        """Slots of this round whose records we approve."""
        self.posted: Record | Attestation | None = None
        """Our last word in this round."""

    def mirror_selected(
        self, round: int, at_commit: Sequence[Peer], gathered: Sequence[Gathered], ranking: Ranking
    ) -> None:
        """Mirror the bytes of the best-rated, so that whoever is selected can be repaired from us. What our bucket does
        not take we do not select; the round goes on."""
        node = self.node
        self.mirrored = {}
        items = {item.peer.id: item for item in gathered}
        self.seen = {peer.id: Gathered(peer) for peer in at_commit} | items
        with node.held.timeline.begin("mirror") as watch:
            for peer in (*ranking.contributing, *ranking.reserve):
                if not self._mirror(round, items[peer]):
                    break
        node.held.events.emit(
            "mirrored", round, copies=len(self.mirrored), seconds={"mirror": round_seconds(watch.seconds)}
        )

    def _mirror(self, round: int, item: Gathered) -> bool:
        """Whether our bucket took a copy of what this peer left."""
        assert item.payload is not None  # it has passed the checks
        try:
            self.mirrored[item.peer.id] = self.mirror.copy(
                round, item.peer.id, item.payload, item.reveal, timeout_seconds=self.node.transfer_seconds(1)
            )
        except StorageError as fault:
            logger.warning("round {round}: our mirror takes nothing: {fault}", round=round, fault=str(fault))
            return False
        return True

    def vote(self, round: int, ranking: Ranking, at_commit: Sequence[Peer], checked: Checked) -> None:
        """From the first leader slot to X: our record in the slots that we lead, our approval of the records that we
        can stand by as soon as their slots are over, and in any case which state we hold."""
        node, clock = self.node, self.node.clock
        self.posted = self.standing_word(round)
        said = self.posted.bitmap if isinstance(self.posted, Attestation) else 0
        self.approved = {slot for slot in range(clock.leader_slots) if said >> slot & 1}
        order = leader_order(node.run, round, node.doors.chain.header(clock.commit_by(round)).hash, at_commit)
        for slot in range(clock.leader_slots):
            first, last = clock.slot(round, slot)
            if slot < len(order) and order[slot] == node.me:
                node.wait_for(first - 1, f"our leader slot of round {round}")
                if self.approved:
                    # What others lead to is as good; should it not come to that, our own record is still in time.
                    node.wait_for(
                        last - node.run.first.clock.finality_blocks - 2, f"the approval of a record of round {round}"
                    )
                self.propose(round, slot, ranking, at_commit)
            node.wait_for(last, f"leader slot {slot} of round {round}")
            following = slot + 1
            self.look(
                round,
                checked,
                clock.slot(round, following)[1] if following < clock.leader_slots else clock.attest_by(round),
            )
            # Our record has overwritten what we had approved before it, which may be what made a record seem agreed.
            if self.approved and (isinstance(self.posted, Record) or not self.is_agreed(round)):
                self.attest(round)
        self.look_again(round, checked)
        if self.posted is None:
            self.attest(round)

    def standing_word(self, round: int) -> Record | Attestation | None:
        """What we have said in this round before a restart, for the state that we hold: a new word must not take it
        back unsaid."""
        me = self.node.registered()
        word = me.slot.statement if me is not None and me.slot is not None else None
        if not isinstance(word, Record | Attestation) or word.round != round:
            return None
        return word if (word.theta, word.previous) == self.node.held.claim else None

    # --- leading -----------------------------------------------------------------------------------------------

    def propose(self, round: int, slot: int, ranking: Ranking, at_commit: Sequence[Peer]) -> None:
        """Post our record, unless one is agreed already."""
        node, last = self.node, self.node.clock.slot(round, slot)[1]
        if self.is_agreed(round):
            return
        held = [peer for peer in ranking.contributing if peer in self.mirrored and self.mirror_holds(peer)]
        if not held:
            logger.warning("round {round}: nobody to select; posting no record", round=round)
            return
        if not node.seconds_to_post(last):
            logger.warning("round {round}: our leader slot passed before the checks were done", round=round)
            return
        uids = {peer.id: peer.uid for peer in at_commit}
        with node.held.timeline.begin("post") as watch:
            block = self.post(round, record_for(round, [uids[peer] for peer in held], *node.held.claim))
        if block is not None:
            node.held.events.emit(
                "posted", round, slot=slot, block=block, seconds={"select": round_seconds(watch.seconds)}
            )

    def is_agreed(self, round: int) -> bool:
        """Whether a record is agreed already, by the newest final block."""
        return self.node.provisional_selection(round, self.node.held.claim).selection is not None

    def mirror_holds(self, peer: PeerId) -> bool:
        """Read back: our mirror really has the bytes."""
        return self.mirror.holds(self.mirrored[peer], timeout_seconds=self.node.transfer_seconds(1))

    # --- approving ---------------------------------------------------------------------------------------------

    def look(self, round: int, checked: Checked, by: int) -> bool:
        """Approve the records of the slots that are over by now, as far as we can stand by them, and mirror whom they
        name; whether there is one that we do not approve. There is something to post by block `by`: no leader's mirror
        holds us up until then."""
        node, doubt = self.node, False
        until = node.time.now() + LOOK_SHARE * node.seconds_to_post(by)
        for slot, (author, selection) in node.proposals(round, node.held.claim).items():
            if slot in self.approved or author == node.me:
                continue
            if self.approves(round, selection, author, checked, until):
                self.approved.add(slot)
                self.mirror_approved(round, selection)
            else:
                doubt = True
        return doubt

    def look_again(self, round: int, checked: Checked) -> None:
        """After the last slot, while nothing is agreed: look again at what we could not approve, and say so if that has
        changed."""
        node, by = self.node, self.node.clock.attest_by(round)
        pause = node.seconds_to_post(by) / LOOKS
        while not self.is_agreed(round):
            doubt = self.look(round, checked, by)
            if self.approved:
                self.attest(round)
            if not doubt or not node.seconds_to_post(by):
                return
            node.time.sleep(max(pause, node.run.first.clock.block_seconds))

    def approves(self, round: int, selection: Selection, author: PeerId, checked: Checked, until: float) -> bool:
        """Whether our book tolerates whom a record names, and everybody named passes: with the bytes that we have, or
        else with those that its leader mirrors. A peer that served only the leader can so be repaired, and does not
        cost the round."""
        node = self.node
        named, rules = {peer for peer, _ in selection.contributing}, node.run.spec_at(round).gauntlet
        if not tolerable(self.scores.book, named, checked.passed, rules, round, checked.twins):
            return False
        doubted = [pair for pair in selection.contributing if pair[0] not in checked.passed]
        if not doubted:
            return True
        repaired = self._from_mirror(round, author, doubted, until)
        if len(repaired) < len(doubted):
            return False
        if not {peer for peer, _ in doubted} <= self.scores.judge(round, repaired).passed.keys():
            return False
        self.seen |= {item.peer.id: item for item in repaired}
        return True

    def _from_mirror(
        self, round: int, author: PeerId, pairs: Sequence[tuple[PeerId, Digest]], until: float
    ) -> list[Gathered]:
        """What the leader's mirror has of these peers, of those that we know; the digests on chain decide. One that
        stalls takes half of the time until `until` for each kind of object."""
        node = self.node
        sources, run, size = node.sources(), node.run.id, node.run.first.object_bytes
        wanted = [
            Wanted(peer, sources.own(author, keys.mirror(run, round, peer)), size, matches(envelope))
            for peer, envelope in pairs
        ]
        half = seconds_until(until, node.time) / 2
        payloads = gather(wanted, timeout_seconds=half, max_threads=MAX_THREADS, time=node.time)
        wanted = [
            Wanted(peer, sources.own(author, keys.mirror_reveal(run, round, peer)), REVEAL_BYTES, lambda data: True)
            for peer, _ in pairs
        ]
        half = seconds_until(until, node.time) / 2
        reveals = gather(wanted, timeout_seconds=half, max_threads=MAX_THREADS, time=node.time)
        return [
            replace(self.seen[peer], payload=payload, wrong_size=None, reveal=bytes(reveal))
            for peer, _ in pairs
            if peer in self.seen
            and not isinstance(payload := payloads[peer], Fault)
            and not isinstance(reveal := reveals[peer], Fault)
        ]

    def mirror_approved(self, round: int, selection: Selection) -> None:
        """Mirror whom a record names and we have not mirrored yet: its leader's and its miners' copies may be gone by
        the time that it is agreed, and then nobody could follow."""
        for peer, _ in selection.contributing:
            item = None if peer in self.mirrored else self.seen.get(peer)
            if item is not None and item.payload is not None and not self._mirror(round, item):
                return

    def attest(self, round: int) -> None:
        """Say which state we hold, and which records we approve, unless our last word was just that."""
        node = self.node
        attestation = attestation_for(round, self.approved, *node.held.claim)
        if attestation != self.posted and node.seconds_to_post(node.clock.attest_by(round)):
            self.post(round, attestation)

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        """Post a statement; its block, None when the chain refuses: that costs our word, never the round's scores."""
        if self.node.behind:
            return None
        try:
            block = self.node.post(statement)
        except ChainError as fault:
            logger.warning("round {round}: our statement is not on chain: {fault}", round=round, fault=str(fault))
            return None
        self.posted = statement
        return block
