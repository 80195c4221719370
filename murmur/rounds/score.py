"""Scoring: fast checks, ranking, LossScores, the fold into the book, and the report (docs/protocol.md sections 5 and
9). Every decision is a pure function of gauntlet/."""

from collections.abc import Mapping, Sequence

from loguru import logger

from gauntlet import book
from gauntlet.agreement import Agreed
from gauntlet.book import RoundOutcome, ScoreBook
from gauntlet.checks import Checked, CheckFunctions, Gathered
from gauntlet.commitment import is_judged, who_committed
from gauntlet.evaluation import Evaluation
from gauntlet.judge import Judge, Model
from gauntlet.observed import Unobserved, is_unreadable, pass_over
from gauntlet.repetition import Repetition
from gauntlet.report import Paid, round_report
from gauntlet.selection import Ranking, in_order
from murmur.data.shards import Shards
from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.opening import open_threads
from murmur.node.fetch.room import PAYLOADS, room_for_remembered
from murmur.node.node import Node
from murmur.node.state.payload_history import PayloadHistory
from murmur.node.telemetry.events import round_seconds
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError, InvalidMessage, StorageError
from murmur.protocol.messages import encode_document
from murmur.protocol.types import Digest, Peer, PeerId, hotkey
from murmur.rounds.collect import Seen
from murmur.training.probe import Prober
from storage.exchange import publish
from storage.seal import unseal


class Scores:
    """One validator's judgement: its book, and the earlier payloads with which it finds copies."""

    def __init__(self, node: Node, shards: Shards) -> None:
        self.node, self.shards = node, shards
        store, saved = node.state.store, node.state.saved.book
        try:
            self.book = book.from_json(store.read(saved)) if saved is not None else ScoreBook()
        except InvalidMessage as fault:
            raise ConfigError(
                f"the ratings saved in {store.folder} cannot be used ({fault}): run the release that wrote them, "
                "or remove this folder and start again: the node catches up, and every rating starts afresh"
            ) from None
        self._commit = (-1, Digest(b""))
        """The last judged round, and the hash of its commit deadline: a chain that fails later holds nothing up."""
        self.memory = PayloadHistory(store.folder / PAYLOADS, node.run.first.layout.records_bytes, self.book.remembered)

    def check(self, round: int, gathered: Sequence[Gathered]) -> Checked:
        """Run the fast checks (docs/protocol.md section 5), and log and emit the results."""
        node = self.node
        with node.state.timeline.begin("check") as watch:
            checked = self.checks(round, gathered)
        rejected = {hotkey(peer): str(rejection.reason) for peer, rejection in checked.rejected.items()}
        for peer, rejection in checked.rejected.items():
            logger.debug(
                "round {round}: {hotkey} rejected, {reason}: {detail}",
                round=round,
                hotkey=hotkey(peer),
                reason=str(rejection.reason),
                detail=rejection.detail,
            )
        for peer, where in checked.broken.items():
            logger.warning(
                "round {round}: one of our checks failed on the bytes of {hotkey} ({where}), and they were "
                "rejected. This is a bug: please report this line, and keep the object, {key}",
                round=round,
                hotkey=hotkey(peer),
                where=where,
                key=keys.payload(node.run.id, round),
            )
        node.state.events.emit(
            "checked",
            round,
            active=len(checked.committed),
            passed=[hotkey(peer) for peer in checked.passed],
            rejected=rejected,
            seconds={"check": round_seconds(watch.seconds)},
        )
        return checked

    def judge(self, round: int) -> Judge:
        """Return the rules of the round, by the present book."""
        node, (known, commit_hash) = self.node, self._commit
        if known != round:
            commit_hash = node.ports.chain.header(node.clock.commit_deadline(round)).hash
            self._commit = round, commit_hash
        return Judge(node.run.spec_at(round), node.run.id, round, commit_hash, self.book)

    def checks(self, round: int, gathered: Sequence[Gathered]) -> Checked:
        """Run the fast checks on these bytes."""
        node, judge = self.node, self.judge(round)
        functions = CheckFunctions(
            node.ports.verify,
            lambda envelope, key, data: unseal(envelope, key, data),
            lambda each, items: parallel_map(each, items, open_threads(judge.spec), node.time),
        )
        replica, earlier = node.state.replica, judge.compared()
        model = Model(replica.digest(), lambda peer: replica.sync_proof(judge.commit_hash, peer), replica.outer)
        return judge.check(model, gathered, functions, self.memory.sketches(earlier.names, earlier.sample))

    def unobserved(self, round: int, seen: Seen, checked: Checked) -> Unobserved | None:
        """Return why this round says nothing about the peers; None if it does."""
        node, last = self.node, self.node.clock.commit_deadline(round)
        committed = who_committed(seen.at_commit, round, last)
        reasons = {peer: rejection.reason for peer, rejection in checked.rejected.items()}
        why = None
        if seen.looked.is_late(node.clock, round):
            why = Unobserved.LATE
        elif not node.at_tip:
            why = Unobserved.APART
        elif is_unreadable(
            self.book, committed, dict.fromkeys(checked.passed) | reasons, node.run.spec_at(round).gauntlet
        ):
            why = Unobserved.UNREADABLE
        if why is not None:
            told = "round {round}: not observed ({why}): nobody is rated or paid for it; is our link or store down, or "
            logger.warning(told + "our theta another?", round=round, why=str(why))
            node.state.events.emit("unobserved", round, why=str(why))
        return why

    def rank(self, round: int, checked: Checked) -> Ranking:
        """Rank the peers that passed, by the book of the round before."""
        ranking = self.judge(round).rank(checked)
        self.node.state.events.emit(
            "ranked",
            round,
            contributing=[hotkey(peer) for peer in ranking.contributing],
            standing={hotkey(peer): str(standing) for peer, standing in ranking.standing.items()},
        )
        return ranking

    # --- score -------------------------------------------------------------------------------------------------

    def evaluate(
        self, round: int, checked: Checked, ranking: Ranking, at_commit: Sequence[Peer]
    ) -> Mapping[PeerId, Evaluation]:
        """Return the LossScores of the sampled peers on their own pages and on unassigned ones, with reference
        peers."""
        node, clock, replica = self.node, self.node.clock, self.node.state.replica
        sample_hash = node.wait_for(clock.sample_block(round), f"the samples of round {round}").hash
        page_hash = node.ports.chain.header(clock.page_block(round)).hash
        judge = self.judge(round)
        drawn = judge.draw(checked, ranking, sample_hash, node.me)
        miners = {peer.id for peer in at_commit if is_judged(peer, judge.spec.owner_id)}
        samples = judge.samples(drawn, page_hash, miners)
        prober = Prober(replica, self.shards.train, judge.spec.gauntlet.probe_step)
        with node.state.timeline.begin("evaluate") as watch, prober:
            evaluations = judge.evaluate(drawn, samples, prober.losses, checked.passed, replica.outer)
        node.state.events.emit(
            "evaluated", round, peers=len(evaluations), seconds={"evaluate": round_seconds(watch.seconds)}
        )
        return evaluations

    def outcome(
        self,
        round: int,
        at_commit: Sequence[Peer],
        checked: Checked,
        evaluations: Mapping[PeerId, Evaluation],
        decision: Agreed,
        repetitions: Mapping[PeerId, Repetition],
    ) -> RoundOutcome:
        """Return what the round taught. repetitions: of steps of the round before."""
        committed = who_committed(at_commit, round, self.node.clock.commit_deadline(round))
        named = decision.selection.contributing if decision.selection else ()
        selected = [peer for peer, _ in named]
        return self.judge(round).outcome(checked, committed, evaluations, selected, repetitions)

    def fold(self, outcome: RoundOutcome) -> None:
        """Fold the round into the book and save it: ratings survive anything from here on."""
        node, round, judge = self.node, outcome.round, self.judge(outcome.round)
        sent = {past.peer: (past, records) for past, records in outcome.checked.remember.items()}
        best_first = dict(sent[peer] for peer in in_order(self.book, sent, judge.commit_hash))
        self.memory.keep(round, best_first, room_for_remembered(judge.spec, node.state.store.folder))
        self.book = judge.fold(outcome)
        node.state.save(book=node.state.store.write(book.to_json(self.book)), scored=round)
        self.memory.prune(self.book.remembered)

    def pass_over(self, why: Unobserved) -> None:
        """Pass over the round, which was not observed: the ratings stay as they are."""
        self.book = pass_over(self.book, why)
        self.node.state.save(book=self.node.state.store.write(book.to_json(self.book)))

    def report(
        self,
        outcome: RoundOutcome,
        seen: Seen,
        ranking: Ranking,
        before: ScoreBook,
        paid: Paid,
        unobserved: Unobserved | None,
    ) -> None:
        """Publish the signed report in our bucket: the result of every hotkey, and the data for an audit of our
        judgement. If that fails, the round continues without it."""
        node, round, spec = self.node, outcome.round, self.node.run.spec_at(outcome.round)
        report = round_report(outcome, seen.at_commit, seen.gathered, ranking, before, self.book, paid, unobserved)
        data = encode_document("report", node.run.id, round, report.to_body(spec.gauntlet), node.ports.signer)
        try:
            publish(
                node.ports.bucket,
                keys.report(node.run.id, round),
                data,
                timeout_seconds=node.transfer_seconds(1),
                time=node.time,
            )
        except StorageError as fault:
            node.backoff.failed(round, fault)
        node.state.events.emit("reported", round, peers=report.named(spec.gauntlet))
