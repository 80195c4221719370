"""A validator's rounds: collect the peers' objects, check them, name who may contribute, score, pay and keep.

`Validator.play` is one round from top to bottom; the rules are in docs/protocol.md sections 4, 5, 6 and 9.
"""

from collections import Counter
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import Agreed, abstention
from gauntlet.checks import Checked
from gauntlet.observed import Unobserved
from gauntlet.report import Paid
from gauntlet.weights import due_from
from murmur.data.shards import Shards
from murmur.node.node import Node
from murmur.node.telemetry import round_line
from murmur.protocol.errors import ChainError, StorageError
from murmur.rounds.collect import Collector
from murmur.rounds.copies import ValidatorCopies
from murmur.rounds.pay import Pay
from murmur.rounds.retention import Retention
from murmur.rounds.score import Scores
from murmur.rounds.verify import Verifier
from murmur.rounds.votes import Votes
from storage.mirror import Mirror


class Validator:
    """One validator's rounds on a node. The six parts are class attributes, so that a dishonest validator can replace
    one."""

    collecting: type[Collector] = Collector
    scoring: type[Scores] = Scores
    voting: type[Votes] = Votes
    paying: type[Pay] = Pay
    keeping: type[Retention] = Retention
    verifying: type[Verifier] = Verifier

    def __init__(self, node: Node, shards: Shards) -> None:
        self.node = node
        mirror = Mirror(node.ports.bucket, node.run.id, node.time)
        self.collector = self.collecting(node)
        self.scores = self.scoring(node, shards)
        self.copies = ValidatorCopies(node, mirror)
        self.votes = self.voting(node, self.scores, self.copies)
        self.pay = self.paying(node)
        self.keeper = self.keeping(node, shards, mirror)
        self.verifier = self.verifying(node, shards)
        node.before_apply = self.keeper.publish_link

    def run(self) -> None:
        """Judge every round that is not decided yet, until stopped: the state at the commit deadline can be read
        afterwards, keys count until the reveal deadline, and votes until the vote deadline."""
        self.node.abort_unfinished()
        while True:
            round = self.node.state.saved.round
            try:
                if self.node.is_out(round):
                    self.sit_out()
                    continue
                self.announce()
                round = self.node.next_round(self.node.clock.vote_deadline)
                self.play(round)
                self.node.backoff.passed(round)
            except (ChainError, StorageError) as fault:
                self.node.state.events.emit("interrupted", round, fault=str(fault))
                self.node.backoff.pause_after(round, fault)

    def sit_out(self) -> None:
        """Follow the run for a round in which our hotkey has no place on the subnet."""
        round = self.node.next_round(self.node.clock.vote_deadline)
        self.node.advance(round)
        self.node.wait_for(self.node.clock.vote_deadline(round), "this hotkey to be registered")

    def announce(self) -> None:
        """Publish our bucket on chain. By the commit deadline of the run's first round also announce us: a validator
        that has not voted does not count."""
        node = self.node
        me = node.registered()
        slot = me.slot if me is not None else None
        statement = slot.statement if slot is not None else None
        vote = abstention(0) if node.head() < node.clock.commit_deadline(0) else statement
        if slot is None or slot.pointer != node.ports.pointer or statement != vote:
            node.post(vote)

    def play(self, round: int) -> None:
        """Play one round, from its first block to the state at the start of the next."""
        node, scores, votes, pay = self.node, self.scores, self.votes, self.pay
        if not node.at_tip:
            votes.keep_seat()  # catch-up may take longer than a round
        node.advance(round)
        if node.state.saved.round != round:
            return  # catch-up went further: `round` is over
        node.look_around(round, validates=True)
        self.verifier.work(round)
        seen = self.collector.look(round, scores.book)
        at_commit, gathered = seen.at_commit, seen.gathered
        votes.ask(round, at_commit, gathered)
        checked = scores.check(round, gathered)
        unobserved = scores.unobserved(round, seen, checked)
        votes.hold(round, at_commit, checked)
        ranking = scores.rank(round, checked)
        votes.cast(round, ranking, at_commit, checked)
        evaluations = scores.evaluate(round, checked, ranking, at_commit) if unobserved is None else {}
        decision = node.decided(round)
        if decision.selection is not None:
            self.copies.name(round, decision.selection.contributing)
        pay.read_back()
        before, paid = scores.book, None
        if before.round < round:  # otherwise it was folded before a restart, and judged by another book
            repetitions = self.verifier.take()
            outcome = scores.outcome(round, at_commit, checked, evaluations, decision, repetitions)
            if unobserved is None:
                scores.fold(outcome)
                paid = pay.pay(round, scores.book, ranking)
                self.verifier.draw(round, checked, ranking, scores.book)
            else:
                self.verifier.give_back(repetitions)
                outcome = replace(outcome, repetitions={})
                scores.pass_over(unobserved)
                paid = pay.nothing()
            scores.report(outcome, seen, ranking, before, paid, unobserved)
        node.advance(round + 1)
        loss = self.keeper.keep(round)
        self.copies.tell()
        self.tell(round, checked, len(evaluations), decision, paid, unobserved, loss)

    def tell(
        self,
        round: int,
        checked: Checked,
        num_evaluated: int,
        decision: Agreed,
        paid: Paid | None,
        unobserved: Unobserved | None,
        loss: float | None,
    ) -> None:
        """Emit and log the round in one line. `paid`: None if that was done before a restart."""
        node, me = self.node, self.node.registered()
        event = {
            "active": len(checked.committed),
            "evaluated": num_evaluated,
            "rejected": dict(Counter(str(rejection.reason) for rejection in checked.rejected.values())),
            "selected": len(decision.selection.contributing) if decision.selection is not None else 0,
            "drawn": self.verifier.drawn,
            "verified": self.verifier.verified,
            "unobserved": unobserved,
            "loss": loss,
            "set_in": paid.set_in if paid is not None else None,
            "unrevealed": sum(sent.round != round for sent in node.state.saved.unread),
            "next_set": due_from(node.run, round + 1, me.last_update) if me is not None else None,
        }
        node.state.events.emit("judged", round, **event)
        logger.info("{line}", line=round_line.line({"event": "judged", "round": round, **event}))
