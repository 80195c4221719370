"""A validator: checks, scores and selects the round's submissions, stands up for its selection on chain, and pays.

`python neurons/validator.py` says what it needs. One round reads top to bottom in `Validator.play`; the rules are
docs/protocol.md sections 5, 6 and 9, and every decision is a pure function of gauntlet/.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from node.config import home, load
from node.events import round_seconds
from node.program import log_to_stderr, run_program
from protocol import keys
from protocol.errors import ChainError, ConfigError, InvalidMessage, StorageError
from protocol.messages import REVEAL_BYTES, encode_document, encode_link, parse_reveal
from protocol.types import Attestation, Peer, PeerId, Record, Selection, hotkey

if TYPE_CHECKING:
    from gauntlet.agreement import Agreed
    from gauntlet.book import ScoreBook
    from gauntlet.checks import Checked, Gathered
    from gauntlet.loss import Evaluation
    from gauntlet.report import Paid
    from gauntlet.selection import Ranking
    from node.config import NodeConfig
    from node.node import Node
    from training.parallel import Ranks
    from training.shards import Shards

SUMMARY = "Judge a Murmuration run: check and score submissions, select contributors on chain, set weights."

POLL_SECONDS = 0.25
REVEAL_SECONDS = 5.0
"""Longest time that one round of polls for keys waits for slow servers: those that have published meanwhile are asked
again after it."""
PAUSE_SECONDS = 1.0
"""After a round that broke off: what refuses at once must not be asked without end."""
RETAINED_ROUNDS = 8


class Validator:
    """One validator's rounds over a node."""

    def __init__(self, node: "Node", shards: "Shards") -> None:
        from gauntlet import book
        from node.memory import Memory
        from storage.mirror import Mirror

        self.node, self.shards = node, shards
        self.mirror = Mirror(node.doors.bucket, node.run.id)
        self.mirrored: dict[PeerId, object] = {}
        self.seen: dict[PeerId, Gathered] = {}
        node.before_apply = self.link
        saved = node.saved.book
        try:
            self.book: ScoreBook = book.from_json(node.store.read(saved)) if saved is not None else book.ScoreBook()
        except InvalidMessage as fault:
            raise ConfigError(
                f"the ratings saved in {node.store.folder} cannot be used ({fault}): run the release that wrote them, "
                "or remove this folder and start again: the node catches up, and every rating starts afresh"
            ) from None
        self.memory = Memory(node.store.folder / "payloads", self.book.remembered)

    def run(self) -> None:
        """Judge every round whose commit window is open when we get there, until stopped."""
        from loguru import logger

        while True:
            try:
                self.announce()
                self.play(self.node.next_round())
            except (ChainError, StorageError) as fault:
                logger.warning("round {round} broke off: {fault}", round=self.node.saved.round, fault=str(fault))
                time.sleep(PAUSE_SECONDS)

    def announce(self) -> None:
        """Publish our bucket on chain, so that we count as a validator before our first statement."""
        me = self.node.registered()
        if me is None or me.slot is None or me.slot.pointer != self.node.doors.pointer:
            self.node.post(me.slot.statement if me is not None and me.slot is not None else None)

    def play(self, round: int) -> None:
        """One round, from its first block to the state at the start of the next."""
        node = self.node
        node.advance(round)
        if node.saved.round != round:
            return  # catch-up went further: `round` is over
        at_commit = self.commitments(round)
        gathered = self.gather(round, at_commit)
        checked = self.check(round, gathered)
        ranking = self.rank(round, checked)
        self.copy(round, gathered, ranking)
        self.lead(round, ranking, at_commit, gathered, checked)
        self.attest(round, gathered, checked)
        evaluations = self.evaluate(round, checked, ranking, at_commit)
        decision = self.decision(round)
        before = self.book
        self.score(round, checked, evaluations, decision)
        paid = self.pay(round, ranking)
        if self.book is not before:  # else folded, and judged by another book, before a restart
            self.report(round, at_commit, gathered, checked, ranking, evaluations, before, paid)
        node.advance(round + 1)
        self.keep(round)

    # --- gather and check ------------------------------------------------------------------------------------

    def commitments(self, round: int) -> tuple[Peer, ...]:
        """Every registered hotkey as of block D."""
        last = self.node.clock.commit_by(round)
        self.node.wait_for(last, f"the commitments of round {round}")
        return self.node.doors.chain.peers(last)

    def gather(self, round: int, at_commit: Sequence[Peer]) -> "list[Gathered]":
        """What every peer left: its sealed bytes, and its key if one was readable before block V was final."""
        from concurrent.futures import ThreadPoolExecutor

        from gauntlet.checks import Gathered, commitment, is_late
        from node.payloads import Sources, fetch_pinned
        from storage.exchange import Fault

        node, clock = self.node, self.node.clock
        last, reveal_by = clock.commit_by(round), clock.reveal_by(round)
        promised = {p.id: c.envelope for p in at_commit if (c := commitment(p, round, last)) is not None}
        sources = Sources(at_commit, node.doors.open_pointer)
        # Beside each other: a server that holds on to its payload until V must not keep us from the others' keys.
        with node.timeline.begin("gather") as watch, ThreadPoolExecutor(1) as beside:
            fetching = beside.submit(
                fetch_pinned,
                node.run.spec_at(round),
                node.run.id,
                round,
                list(promised.items()),
                sources,
                max(POLL_SECONDS, node.seconds_until(reveal_by)),
                node.cache,  # what is selected is not fetched again
            )
            reveals = self.reveals(round, list(promised), sources)
            sealed = fetching.result()
        node.wait_for(reveal_by, f"the keys of round {round}")
        at_reveal = {peer.id: peer for peer in node.doors.chain.peers(reveal_by)}
        gathered = []
        for peer in at_commit:
            found = sealed.get(peer.id)
            gathered.append(
                Gathered(
                    peer,
                    payload=found if isinstance(found, bytes) else None,
                    wrong_size=found.size_bytes if isinstance(found, Fault) else None,
                    reveal=reveals.get(peer.id),
                    late=is_late(peer, at_reveal.get(peer.id), round, last, reveal_by),
                )
            )
        node.events.emit(
            "gathered",
            round,
            committed=len(promised),
            revealed=len(reveals),
            seconds={"gather": round_seconds(watch.seconds)},
        )
        return gathered

    def reveals(self, round: int, peers: Sequence[PeerId], sources: object) -> dict[PeerId, bytes]:
        """Keys as they appear, until all are there or our finalised head reaches V: being late is our observation. Only
        what the peer has signed for this round counts: a mirror that answers with anything else is passed over."""
        from node.payloads import MAX_THREADS, Sources
        from protocol.errors import InvalidMessage
        from storage.exchange import Wanted, gather

        assert isinstance(sources, Sources)
        node, clock = self.node, self.node.clock

        def signed_by(peer: PeerId) -> Callable[[bytes], bool]:
            def accept(data: bytes) -> bool:
                try:
                    reveal = parse_reveal(data)
                except InvalidMessage:
                    return False
                meant = (reveal.run, reveal.round, reveal.peer) == (node.run.id, round, peer)
                return meant and node.doors.verify(peer, reveal.signed_part, reveal.signature)

            return accept

        found: dict[PeerId, bytes] = {}
        while len(found) < len(peers) and (left := node.seconds_until(clock.reveal_by(round))) > 0:
            wanted = [
                Wanted(peer, sources.reveal(node.run.id, round, peer), REVEAL_BYTES, signed_by(peer))
                for peer in peers
                if peer not in found
            ]
            got = gather(wanted, timeout_seconds=min(REVEAL_SECONDS, left / 4), max_threads=MAX_THREADS)
            found |= {peer: data for peer, data in got.items() if isinstance(data, bytes)}
            if len(found) < len(peers):
                time.sleep(POLL_SECONDS)
        return found

    def check(self, round: int, gathered: "Sequence[Gathered]") -> "Checked":
        """The fast checks (docs/protocol.md section 5), told to the log."""
        from loguru import logger

        node = self.node
        with node.timeline.begin("check") as watch:
            checked = self.judge(round, gathered)
        rejected = {hotkey(peer): str(rejection.reason) for peer, rejection in checked.rejected.items()}
        for peer, rejection in checked.rejected.items():
            logger.info(
                "round {round}: {hotkey} rejected, {reason}: {detail}",
                round=round,
                hotkey=hotkey(peer),
                reason=str(rejection.reason),
                detail=rejection.detail,
            )
        node.events.emit(
            "checked",
            round,
            active=len(checked.committed),
            passed=[hotkey(peer) for peer in checked.passed],
            rejected=rejected,
            seconds={"check": round_seconds(watch.seconds)},
        )
        return checked

    def judge(self, round: int, gathered: "Sequence[Gathered]") -> "Checked":
        """The fast checks of these bytes."""
        from gauntlet.checks import Doors, fast_checks, is_judged
        from gauntlet.sketch import Sample
        from storage.seal import unseal

        node = self.node
        commit_hash, spec = node.doors.chain.header(node.clock.commit_by(round)).hash, node.run.spec_at(round)
        candidates = [item for item in gathered if is_judged(item.peer, node.run.first.owner_id)]
        return fast_checks(
            spec,
            node.run.id,
            round,
            node.replica.digest(),
            candidates,
            doors=Doors(node.doors.verify, lambda envelope, key, data: unseal(envelope, key, data)),
            clock=node.clock,
            expected_proof=lambda peer: node.replica.sync_proof(commit_hash, peer),
            outer_state=node.replica.outer,
            commit_hash=commit_hash,
            history=self.memory.sketches(self.book.remembered, Sample(spec.layout, commit_hash)),
            void_rounds=self.book.void_rounds,
        )

    def rank(self, round: int, checked: "Checked") -> "Ranking":
        """Our order of the peers that passed, by the book of the round before."""
        from gauntlet.selection import standing

        node = self.node
        commit_hash = node.doors.chain.header(node.clock.commit_by(round)).hash
        ranking = standing(self.book, checked.passed, node.run.spec_at(round).gauntlet, round, commit_hash)
        node.events.emit(
            "ranked",
            round,
            contributing=[hotkey(peer) for peer in ranking.contributing],
            standing={hotkey(peer): str(standing) for peer, standing in ranking.standing.items()},
        )
        return ranking

    # --- select, on chain ------------------------------------------------------------------------------------

    def copy(self, round: int, gathered: "Sequence[Gathered]", ranking: "Ranking") -> None:
        """Mirror the bytes of the best-rated, so that whoever is selected can be repaired from us. What our bucket does
        not take we do not select; the round goes on."""
        from loguru import logger

        node = self.node
        self.mirrored = {}
        items = self.seen = {item.peer.id: item for item in gathered}
        with node.timeline.begin("mirror") as watch:
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
        node.events.emit("mirrored", round, copies=len(self.mirrored), seconds={"mirror": round_seconds(watch.seconds)})

    def lead(
        self,
        round: int,
        ranking: "Ranking",
        at_commit: Sequence[Peer],
        gathered: "Sequence[Gathered]",
        checked: "Checked",
    ) -> None:
        """In our leader slot, if we have one: post the record, unless a valid one stands already."""
        from loguru import logger

        from gauntlet.agreement import leader_order, record_for

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
        held = [p for p in ranking.contributing if p in self.mirrored and self.holds(p)]
        if not held:
            logger.warning("round {round}: nobody to select; posting no record", round=round)
            return
        if node.head() >= last:
            logger.warning("round {round}: our leader slot passed before the checks were done", round=round)
            return
        uids = {peer.id: peer.uid for peer in at_commit}
        record = record_for(round, [uids[peer] for peer in held], node.replica.digest(), node.saved.link)
        with node.timeline.begin("post") as watch:
            block = self.state(round, record)
        if block is not None:
            node.events.emit("posted", round, slot=slot, block=block, seconds={"select": round_seconds(watch.seconds)})

    def state(self, round: int, statement: Record | Attestation) -> int | None:
        """Post a statement; its block, None when the chain refuses: that costs our word, never the round's scores."""
        from loguru import logger

        try:
            return self.node.post(statement)
        except ChainError as fault:
            logger.warning("round {round}: our statement is not on chain: {fault}", round=round, fault=str(fault))
            return None

    def holds(self, peer: PeerId) -> bool:
        """Read back: our mirror really has the bytes."""
        from storage.mirror import Copied

        copied = self.mirrored[peer]
        assert isinstance(copied, Copied)
        return self.mirror.holds(copied, timeout_seconds=self.node.transfer_seconds(1))

    def agrees_so_far(self, round: int, slots: int, gathered: "Sequence[Gathered]", checked: "Checked") -> bool:
        """Whether a record of the first `slots` slots is valid, by the newest final block, and we can stand by it. One
        with another theta is valid only until the others have said theirs: then there has to be a record after it."""
        decision = self.node.provisional_selection(round, slots)
        selection, author = decision.selection, decision.author
        if selection is None or author is None or selection.theta != self.node.replica.digest():
            return False
        by = self.node.clock.slot(round, slots)[1]
        return self.stands(round, selection, author, gathered, checked, by=by)

    def attest(self, round: int, gathered: "Sequence[Gathered]", checked: "Checked") -> None:
        """After the last slot: say which theta we hold, and veto records whose bytes break a rule or cannot be had from
        their leader, and those that name too many peers of no worth. A record of our own has said it already, when
        there is nothing to veto."""
        node, clock = self.node, self.node.clock
        last_slot = clock.slot(round, clock.leader_slots - 1)[1]
        node.wait_for(last_slot, f"the leader slots of round {round}")
        vetoed: list[int] = []
        approved: list[Selection] = []
        # All of them: a veto of one slot makes the next one agreed, whatever that one names.
        for place, proposal in enumerate(node.proposals(round)):
            if proposal is None or proposal[0] == node.me:
                continue
            author, selection = proposal
            by = clock.attest_by(round)
            ours = selection.theta == node.replica.digest()
            if ours and self.stands(round, selection, author, gathered, checked, by=by):
                approved.append(selection)
            else:
                vetoed.append(place)
        self.say(round, vetoed, last_slot)
        for selection in approved:
            self.secure(round, selection)

    def say(self, round: int, vetoed: Sequence[int], last_slot: int) -> None:
        """Attest, unless a record of our own has said the same."""
        from gauntlet.agreement import attestation_for

        node, clock = self.node, self.node.clock
        me = node.registered()
        slot = me.slot if me is not None else None
        recorded = slot is not None and isinstance(slot.statement, Record)
        if recorded and slot is not None and clock.reveal_by(round) < slot.block <= last_slot and not vetoed:
            return
        if node.head() >= clock.attest_by(round):
            return
        self.state(round, attestation_for(round, vetoed, node.replica.digest(), node.saved.link))

    def secure(self, round: int, selection: Selection) -> None:
        """Mirror whom a record names and we have not mirrored yet: its leader's and its miners' copies may be gone by
        the time that it is agreed, and then nobody could follow."""
        from loguru import logger

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

    def stands(
        self,
        round: int,
        selection: Selection,
        author: PeerId,
        gathered: "Sequence[Gathered]",
        checked: "Checked",
        *,
        by: int,
    ) -> bool:
        """Whether our book tolerates whom a record names, and everybody named passes: with the bytes that we have, or
        else with those that its leader mirrors. A peer that served only the leader can so be repaired, and does not
        cost the round.

        `by`: the block by which the answer is needed.
        """
        from dataclasses import replace

        from gauntlet.selection import tolerable
        from node.payloads import MAX_THREADS, Sources
        from storage.exchange import Source, Wanted, gather
        from storage.seal import matches

        node = self.node
        named, rules = {peer for peer, _ in selection.contributing}, node.run.spec_at(round).gauntlet
        if not tolerable(self.book, named, checked.passed, rules, round):
            return False
        doubted = {peer: envelope for peer, envelope in selection.contributing if peer not in checked.passed}
        if not doubted:
            return True
        opener = Sources(node.doors.chain.peers(node.head()), node.doors.open_pointer).bucket_of(author)
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
        )
        reveals = gather(
            [
                Wanted(peer, (Source(opener, keys.mirror_reveal(run, round, peer)),), REVEAL_BYTES, lambda data: True)
                for peer in doubted
            ],
            timeout_seconds=patience,
            max_threads=MAX_THREADS,
        )
        mirrored = []
        for item in gathered:
            payload, reveal = payloads.get(item.peer.id), reveals.get(item.peer.id)
            if isinstance(payload, bytes) and isinstance(reveal, bytes):
                item = replace(item, payload=payload, wrong_size=None, reveal=reveal)
            mirrored.append(item)
        if not doubted.keys() <= self.judge(round, mirrored).passed.keys():
            return False
        self.seen |= {item.peer.id: item for item in mirrored if item.peer.id in doubted}
        return True

    def decision(self, round: int) -> "Agreed":
        """The round's agreed record, read back like everybody else."""
        self.node.wait_for(self.node.clock.attest_by(round), f"the selection of round {round}")
        return self.node.agreed_selection(round)

    # --- score and pay ---------------------------------------------------------------------------------------

    def evaluate(
        self, round: int, checked: "Checked", ranking: "Ranking", at_commit: Sequence[Peer]
    ) -> "Mapping[PeerId, Evaluation]":
        """LossScore of the sampled peers on their own pages and on nobody's, with reference peers."""
        from gauntlet.checks import is_judged
        from gauntlet.loss import bounded, evaluate
        from gauntlet.sampling import Seed, pick, references, samples
        from training.probe import Prober

        node, clock = self.node, self.node.clock
        spec = node.run.spec_at(round)
        sample_hash = node.wait_for(clock.sample_block(round), f"the samples of round {round}").hash
        page_hash = node.doors.chain.header(clock.page_block(round)).hash
        seed = Seed(node.run.id, sample_hash, round, node.me)
        picked = pick(self.book, set(checked.passed), set(ranking.contributing), spec.gauntlet, seed)
        miners = {peer.id for peer in at_commit if is_judged(peer, spec.owner_id)}
        sampled = samples(spec, page_hash, picked, miners, seed)
        prober = Prober(node.replica, self.shards.train, spec.gauntlet.probe_step)
        with node.timeline.begin("evaluate") as watch, prober:
            evaluations = evaluate(
                prober.losses,
                checked.passed,
                bounded(checked.passed, node.replica.outer),
                sampled,
                references(picked, set(checked.passed), set(ranking.contributing), spec.gauntlet, seed),
            )
        node.events.emit("evaluated", round, peers=len(evaluations), seconds={"evaluate": round_seconds(watch.seconds)})
        return evaluations

    def score(
        self, round: int, checked: "Checked", evaluations: "Mapping[PeerId, Evaluation]", decision: "Agreed"
    ) -> None:
        """Fold the round into the book and save it: ratings survive anything from here on."""
        from gauntlet import book
        from gauntlet.book import RoundOutcome, fold

        node = self.node
        if self.book.round >= round:
            return  # folded before a restart
        contributing = decision.selection.contributing if decision.selection else ()
        outcome = RoundOutcome(round, checked, evaluations, frozenset(peer for peer, _ in contributing))
        self.memory.keep(round, checked.remember)
        self.book = fold(self.book, outcome, node.run.spec_at(round).gauntlet)
        node.save(book=node.store.write(book.to_json(self.book)), scored=round)
        self.memory.prune(self.book.remembered)

    def pay(self, round: int, ranking: "Ranking") -> "Paid":
        """Set weights when they are due; what was computed is returned either way. A refusal costs a round's pay, never
        the round."""
        from loguru import logger

        from gauntlet.report import Paid
        from gauntlet.weights import lasting, weights

        node, spec = self.node, self.node.run.spec_at(round)
        head = node.head()
        peers = node.doors.chain.peers(head)
        uids = lasting(node.doors.chain.peers(node.clock.commit_by(round)), peers)
        by_uid = weights(self.book, ranking, uids, spec.owner_id, spec.gauntlet)
        shares = {peer.id: by_uid[peer.uid] for peer in peers if peer.uid in by_uid}
        if not by_uid or round % spec.gauntlet.weight_rounds:
            return Paid(head, None, shares)
        try:
            block = node.doors.chain.set_weights(by_uid)
        except ChainError as fault:
            logger.warning("round {round}: weights were not set: {fault}", round=round, fault=str(fault))
            return Paid(head, None, shares)
        node.events.emit("weights", round, block=block, weights={str(uid): w for uid, w in by_uid.items()})
        return Paid(head, block, shares)

    def report(
        self,
        round: int,
        at_commit: Sequence[Peer],
        gathered: "Sequence[Gathered]",
        checked: "Checked",
        ranking: "Ranking",
        evaluations: "Mapping[PeerId, Evaluation]",
        before: "ScoreBook",
        paid: "Paid",
    ) -> None:
        """The signed report in our bucket: what became of every hotkey, and what an audit needs to judge us. A round
        goes on without it."""
        from loguru import logger

        from gauntlet.report import round_report
        from storage.exchange import publish

        node, spec = self.node, self.node.run.spec_at(round)
        report = round_report(round, at_commit, gathered, checked, ranking, evaluations, before, self.book, paid)
        data = encode_document("report", node.run.id, round, report.to_body(spec.gauntlet), node.doors.signer)
        try:
            publish(node.doors.bucket, keys.report(node.run.id, round), data, timeout_seconds=node.transfer_seconds(1))
        except StorageError as fault:
            logger.warning("round {round}: no report: {fault}", round=round, fault=str(fault))
        node.events.emit("reported", round, peers=report.named(spec.gauntlet))

    # --- keep ------------------------------------------------------------------------------------------------

    def link(self, decision: "Agreed") -> None:
        """The agreed record under its link, for joiners; before our state moves past it, or a crash would tear a hole
        into the chain that they follow."""
        node = self.node
        if decision.selection is not None and decision.record is not None:
            head = node.run.head_at(decision.selection.round)
            link = encode_link(decision.record, decision.selection.contributing, head)
            key = keys.statement(node.run.id, decision.link)
            node.doors.bucket.put(key, link, timeout_seconds=node.transfer_seconds(1))

    def keep(self, round: int) -> None:
        """What joiners need from us: checkpoints and mirrors of recent rounds. Then the held-out loss, for people."""
        from node import catchup
        from training.evaluate import held_out_loss

        node, spec = self.node, self.node.run.spec_at(round)
        seconds = node.transfer_seconds(1)
        if node.saved.round % spec.checkpoint_rounds == 0:
            catchup.publish_checkpoint(node)
        self.mirror.prune(max(0, round - spec.checkpoint_rounds - RETAINED_ROUNDS), timeout_seconds=seconds)
        loss = held_out_loss(node.replica, self.shards, spec.data.held_out_sequences)
        node.events.emit("held_out", round, val_loss=loss)


def main(argv: Sequence[str] | None = None) -> None:
    """Configure, connect, catch up and validate until stopped."""
    config = load("neurons/validator.py", SUMMARY, sys.argv[1:] if argv is None else argv, os.environ)
    log_to_stderr(config.log_level)
    from node.build import on_ranks

    on_ranks(config, lambda ranks: validate(config, ranks))


def validate(config: "NodeConfig", ranks: "Ranks") -> None:
    """Everything between configuration and the end, on the first rank."""
    from node.build import build

    built = build(config, "validator", home(config), ranks)
    Validator(built.node, built.shards).run()


if __name__ == "__main__":
    sys.exit(run_program(main))
