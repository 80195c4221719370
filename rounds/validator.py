"""A validator's rounds: collect what the peers left, check it, vote on who contributes, score, pay and keep.

One round reads top to bottom in `Validator.play`; the rules are docs/protocol.md sections 4, 5, 6 and 9.
"""

from loguru import logger

from gauntlet.agreement import Agreed
from node.node import Node
from protocol.errors import ChainError, StorageError
from rounds.collect import Collector
from rounds.keep import Keeper
from rounds.score import Scores
from rounds.vote import Vote
from storage.mirror import Mirror
from training.shards import Shards

PAUSE_SECONDS = 1.0
"""After a round that broke off: what refuses at once must not be asked without end."""


class Validator:
    """One validator's rounds over a node. The four parts are named here, so that a dishonest one can replace a part."""

    collecting: type[Collector] = Collector
    scoring: type[Scores] = Scores
    voting: type[Vote] = Vote
    keeping: type[Keeper] = Keeper

    def __init__(self, node: Node, shards: Shards) -> None:
        self.node = node
        mirror = Mirror(node.doors.bucket, node.run.id, node.time)
        self.collector = self.collecting(node)
        self.scores = self.scoring(node, shards)
        self.vote = self.voting(node, self.scores, mirror)
        self.keeper = self.keeping(node, shards, mirror)
        node.before_apply = self.keeper.publish_link

    def run(self) -> None:
        """Judge every round that is not decided yet when we get there, until stopped: block D's state can be read
        afterwards, keys count until V, and others' records can be looked at until X."""
        self.node.abort_unfinished()
        while True:
            try:
                self.announce()
                self.play(self.node.next_round(self.node.clock.attest_by))
            except (ChainError, StorageError) as fault:
                logger.warning("round {round} broke off: {fault}", round=self.node.held.saved.round, fault=str(fault))
                self.node.time.sleep(PAUSE_SECONDS)

    def announce(self) -> None:
        """Publish our bucket on chain, so that we count as a validator before our first statement."""
        me = self.node.registered()
        if me is None or me.slot is None or me.slot.pointer != self.node.doors.pointer:
            self.node.post(me.slot.statement if me is not None and me.slot is not None else None)

    def play(self, round: int) -> None:
        """One round, from its first block to the state at the start of the next."""
        node, scores, vote = self.node, self.scores, self.vote
        node.advance(round)
        if node.held.saved.round != round:
            return  # catch-up went further: `round` is over
        seen = self.collector.look(round, scores.book)
        at_commit, gathered = seen.at_commit, seen.gathered
        checked = scores.check(round, gathered)
        unobserved = scores.unobserved(round, seen, checked)
        ranking = scores.rank(round, checked)
        vote.mirror_selected(round, at_commit, gathered, ranking)
        vote.vote(round, ranking, at_commit, checked)
        evaluations = scores.evaluate(round, checked, ranking, at_commit) if unobserved is None else {}
        decision = self.decision(round)
        before = scores.book
        if before.round < round:  # else folded before a restart, and judged by another book
            if unobserved is None:
                scores.fold(round, checked, evaluations, decision)
                paid = scores.pay(round, ranking)
            else:
                paid = scores.pass_over(unobserved)
            scores.report(round, at_commit, gathered, checked, ranking, evaluations, before, paid, unobserved)
        node.advance(round + 1)
        self.keeper.keep(round)

    def decision(self, round: int) -> Agreed:
        """The round's agreed record, read back like everybody else."""
        self.node.wait_for(self.node.clock.attest_by(round), f"the selection of round {round}")
        return self.node.agreed_selection(round, self.node.held.claim)
