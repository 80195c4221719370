"""The vote: a leader's record of whom it selects, and every validator's approval of the others' records
(docs/protocol.md section 6). Whoever stands by a record holds what it names; copies go up beside (rounds/copies.py).
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import attestation_for, leader_order, record_for, votes
from gauntlet.checks import Checked, Gathered
from gauntlet.commitment import commitment, who_committed
from gauntlet.selection import Ranking, in_order, tolerable
from node.events import round_seconds
from node.node import Node
from node.payloads import MAX_THREADS
from node.wanted import say_wanted
from protocol import keys
from protocol.errors import ChainError
from protocol.messages import REVEAL_BYTES
from protocol.types import Attestation, Digest, Peer, PeerId, Record, Selection
from rounds.copies import Copies
from rounds.score import Scores
from storage.collect import gather
from storage.exchange import Fault, Wanted
from storage.realtime import seconds_until
from storage.seal import matches

LOOKS = 3
"""A record whose bytes we lack is looked at so often between the last slot and X: bytes may turn up."""
LOOK_SHARE = 2 / 3
"""Of the time until the next slot's end, or X: so long mirrors may hold us up in one look. The rest is for our word."""


class Vote:
    """One validator's part in what is agreed."""

    def __init__(self, node: Node, scores: Scores, copies: Copies) -> None:
        self.node, self.scores, self.copies = node, scores, copies
        self.seen: dict[PeerId, Gathered] = {}
        """What every peer registered at D left, as far as we know by now."""
        self.lacked: frozenset[PeerId] = frozenset()
        """Whose bytes we have said to lack."""
        self.approved: set[int] = set()
        """Slots of this round whose records we approve."""
        self.posted: Record | Attestation | None = None
        """Our last word in this round."""

    def ask(self, round: int, at_commit: Sequence[Peer], gathered: Sequence[Gathered]) -> None:
        """Say what we lack of those whom a record will probably name: whoever holds it has time to copy it until we
        look at the record."""
        node, last = self.node, self.node.clock.commit_by(round)
        rules = node.run.spec_at(round).gauntlet
        self.seen = {peer.id: Gathered(peer) for peer in at_commit} | {item.peer.id: item for item in gathered}
        committed = who_committed(at_commit, round, last)
        best = in_order(self.scores.book, committed, node.doors.chain.header(last).hash)
        likely = best[: rules.contributors + rules.reserve]
        self.lacked = frozenset()
        # Of whom we had no time to ask we know nothing: they may be there, and a leader leaves out whom we lack.
        lacked = {item.peer.id for item in gathered if item.payload is None and item.wrong_size is None}
        self.say(round, lacked.intersection(likely))

    def say(self, round: int, lacked: Set[PeerId]) -> None:
        """Say that we lack these as well, unless we have."""
        if lacked - self.lacked:
            self.lacked |= lacked
            say_wanted(self.node, round, self.lacked)

    def hold(self, round: int, at_commit: Sequence[Peer], checked: Checked) -> None:
        """From now on others may have copies of what passes from us."""
        self.copies.hold(round, at_commit, [self.seen[peer] for peer in checked.passed])

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
        named = [peer for peer in ranking.contributing if self.is_to_be_had(round, peer, at_commit)]
        if not named:
            logger.warning("round {round}: nobody to select; posting no record", round=round)
            return
        if not node.seconds_to_post(last):
            logger.warning("round {round}: our leader slot passed before the checks were done", round=round)
            return
        uids = {peer.id: peer.uid for peer in at_commit}
        with node.held.timeline.begin("post") as watch:
            block = self.post(round, record_for(round, [uids[peer] for peer in named], *node.held.claim))
        if block is not None:
            self.name(round, named)
            node.held.events.emit(
                "posted", round, slot=slot, block=block, seconds={"select": round_seconds(watch.seconds)}
            )

    def is_agreed(self, round: int) -> bool:
        """Whether a record is agreed already, by the newest final block."""
        return self.node.provisional_selection(round, self.node.held.claim).selection is not None

    def is_to_be_had(self, round: int, peer: PeerId, at_commit: Sequence[Peer]) -> bool:
        """Whether a record that names this peer can be agreed: not while half of the counted stake lacks its bytes, and
        our copy is not up."""
        lacking = self.copies.lacking(peer)
        stakes = votes(self.node.run, round, at_commit)
        return not lacking or 2 * sum(stakes.get(one, 0) for one in lacking) < sum(stakes.values())

    def name(self, round: int, peers: Iterable[PeerId]) -> None:
        """We stand by a record that names these."""
        last = self.node.clock.commit_by(round)
        promises = ((peer, commitment(self.seen[peer].peer, round, last)) for peer in peers)
        self.copies.name(round, [(peer, promise.envelope) for peer, promise in promises if promise is not None])

    # --- approving ---------------------------------------------------------------------------------------------

    def look(self, round: int, checked: Checked, by: int) -> bool:
        """Approve the records of the slots that are over by now, as far as we can stand by them; whether there is one
        that we do not approve. There is something to post by block `by`: no mirror holds us up until then, and
        none that one record sends us to takes the time of another record."""
        node, doubt = self.node, False
        until = node.time.now() + LOOK_SHARE * node.seconds_to_post(by)
        proposals = node.proposals(round, node.held.claim).items()
        open_ones = [(slot, *said) for slot, said in proposals if slot not in self.approved and said[0] != node.me]
        for place, (slot, author, selection) in enumerate(open_ones):
            now = node.time.now()
            share = now + (until - now) / (len(open_ones) - place)
            if self.approves(round, selection, author, checked, share):
                self.approved.add(slot)
                self.copies.name(round, selection.contributing)
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
        else with those that its leader or another validator mirrors. A peer that served only the leader can so be
        repaired, and does not cost the round."""
        node = self.node
        named, rules = {peer for peer, _ in selection.contributing}, node.run.spec_at(round).gauntlet
        if not tolerable(self.scores.book, named, checked.passed, rules, round, checked.twins):
            return False
        doubted = [pair for pair in selection.contributing if pair[0] not in checked.passed]
        if not doubted:
            return True
        repaired = self._repaired(round, author, doubted, until)
        if len(repaired) < len(doubted):
            return False
        if not {peer for peer, _ in doubted} <= self.scores.judge(round, repaired).passed.keys():
            return False
        self.seen |= {item.peer.id: item for item in repaired}
        self.copies.add(repaired)
        return True

    def _repaired(
        self, round: int, author: PeerId, pairs: Sequence[tuple[PeerId, Digest]], until: float
    ) -> list[Gathered]:
        """What we have of these peers, or get now: from the leader's mirror, their own bucket, any other mirror; keys
        from the leader's, who says that it has read them. The digests on chain decide. What nobody gives us we ask for.
        What stalls takes half of the time until `until` for each kind of object."""
        node = self.node
        sources, run, size = node.sources(), node.run.id, node.run.first.object_bytes
        mirrors = [one for one in sources.validators() if one not in (author, node.me)]
        lacked = [(peer, envelope) for peer, envelope in pairs if peer in self.seen and self.seen[peer].payload is None]
        wanted = [
            Wanted(
                peer,
                (
                    *sources.own(author, keys.mirror(run, round, peer)),
                    *sources.own(peer, keys.payload(run, round)),
                    *(source for one in mirrors for source in sources.own(one, keys.mirror(run, round, peer))),
                ),
                size,
                matches(envelope),
            )
            for peer, envelope in lacked
        ]
        half = seconds_until(until, node.time) / 2
        payloads = gather(wanted, timeout_seconds=half, max_threads=MAX_THREADS, cache=node.held.cache, time=node.time)
        self.say(round, {peer for peer, found in payloads.items() if isinstance(found, Fault)})
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
            and not isinstance(payload := payloads.get(peer, self.seen[peer].payload), Fault)
            and not isinstance(reveal := reveals[peer], Fault)
        ]

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
