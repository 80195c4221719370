"""A node that comes late, was stopped, or cannot see: it does what it still can, and blames nobody for it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gauntlet.book import from_json, to_json
from gauntlet.finding import Topic, Verdict
from murmur.protocol.types import hotkey
from murmur.rounds.collect import Collector
from murmur.rounds.miner import Late, Miner
from murmur.rounds.retention import Retention
from murmur.rounds.score import Scores
from murmur.rounds.validator import Validator
from murmur.training.inner import InnerReport
from tests.network import FakeNetwork, Killed, with_parts
from tests.rounds.test_audit import audits

Networks = Callable[..., FakeNetwork]


class DiesAtBlockD(Collector):
    """Dead in round 1, as soon as the commit deadline is final."""

    def collect(self, round: int, *rest: Any) -> Any:
        if round == 1:
            raise Killed
        return super().collect(round, *rest)


def restarted_in_round_1(network: FakeNetwork, block: int) -> None:
    """A network whose validator died at the commit deadline of round 1 and is back at `block`."""
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(DiesAtBlockD))
    network.run_blocks(lambda: not network["validator"].alive)
    network.run_to_block(block)
    network.start("validator")


def test_a_validator_that_comes_back_after_block_d_still_judges_the_round(networks: Networks) -> None:
    network = networks(miners=2)
    restarted_in_round_1(network, network.clock.commit_deadline(1) + 1)
    network.run_until(3)
    assert network["validator"].voids() == []
    assert sorted(network["validator"].contributing(1)) == sorted(hotkey(network[f"miner-{n}"].peer) for n in (1, 2))
    network.assert_agreement()


class Overruns(Retention):
    """Each round's work lasts until the commit deadline of the next one has passed."""

    def keep(self, round: int) -> None:
        super().keep(round)
        self.node.wait_for(self.node.clock.commit_deadline(round + 1) + 1, "nothing")


def test_a_lone_validator_whose_rounds_overrun_loses_none(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(Overruns))
    network.run_until(4)
    assert network["validator"].voids() == []
    assert [event["round"] for event in network["validator"].events("reported")] == [0, 1, 2, 3]
    network.assert_agreement()


class Stalls(Miner):
    """Its first inner step of round 1 lasts until the commit deadline has passed."""

    def train(self, round: int, pages: Any) -> None:
        replica, node = self.node.state.replica, self.node
        errors = {name: error.clone() for name, error in replica._errors().items()}
        made = replica.inner_round

        def slow(batch: Any, *, on_step: Any, **named: Any) -> InnerReport:
            def stalled(step: int, loss: float) -> None:
                if round == 1 and step == 0:
                    node.wait_for(node.clock.commit_deadline(1) + 2, "nothing")
                on_step(step, loss)

            return made(batch, on_step=stalled, **named)

        replica.inner_round = slow  # type: ignore[method-assign]
        try:
            super().train(round, pages)
        except Late:
            assert all(torch.equal(error, errors[name]) for name, error in replica._errors().items())
            raise
        finally:
            replica.inner_round = made  # type: ignore[method-assign]


def test_a_miner_whose_training_lasts_beyond_block_d_breaks_it_off_and_is_in_time_for_the_next_round(
    networks: Networks,
) -> None:
    network = networks(miners=2)
    network.start("validator", "miner-1")
    network.start("miner-2", role=Stalls)
    network.run_until(3)
    late = network["miner-2"]
    assert [(event["round"], event["fault"][:41]) for event in late.events("interrupted")] == [
        (1, "too late to commit after inner step 1 of ")
    ]
    assert [event["round"] for event in late.events("committed")][:2] == [0, 2]
    assert [event["round"] for event in late.events("trained")][:2] == [0, 2]
    assert [hotkey(late.peer) in network["validator"].contributing(round) for round in range(3)] == [True, False, True]
    assert [(event["round"], event["cause"]) for event in late.events("trouble")] == [(1, "too_slow")]
    network.assert_agreement()


def test_a_miner_that_comes_into_a_round_too_late_for_its_work_is_not_called_slow(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("validator", "miner-1")
    network.run_to_block(network.clock.commit_deadline(0) + 3)
    network.start("miner-2", role=Stalls)
    network.run_until(3)
    late = network["miner-2"]
    assert [event["round"] for event in late.events("interrupted")] == [1]
    assert [event["round"] for event in late.events("committed")][:1] == [2]
    assert late.events("trouble") == []
    network.assert_agreement()


def books(network: FakeNetwork) -> list[bytes]:
    """The validator's book as each of its rounds found it, and as it is now."""
    program = network["validator"].program
    assert isinstance(program, Validator)
    return [*getattr(program.scores, "found", []), to_json(program.scores.book)]


class Watched(Scores):
    """Keeps every book by which it judged."""

    def check(self, round: int, gathered: Any) -> Any:
        self.found = [*getattr(self, "found", []), to_json(self.book)]
        return super().check(round, gathered)


class Blind(Collector):
    """Our link is dead from round 2 to round 3: nothing of anybody can be read."""

    def collect(self, round: int, *rest: Any) -> Any:
        found = super().collect(round, *rest)
        return [replace(item, payload=None, reveal=None) for item in found] if round in (2, 3) else found


class Stopped(Collector):
    """Our process is stopped in round 2 from the commit deadline until long after the reveal deadline."""

    def collect(self, round: int, *rest: Any) -> Any:
        if round == 2:
            self.node.wait_for(
                2 * self.node.clock.reveal_deadline(round) - self.node.clock.commit_deadline(round) + 1, "nothing"
            )
        return super().collect(round, *rest)


@pytest.mark.parametrize(("part", "rounds", "why"), [(Blind, [2, 3], "unreadable"), (Stopped, [2], "late")])
def test_what_a_validator_could_not_see_is_nobodys_fault_and_changes_no_weights(
    networks: Networks, tmp_path: Path, part: type[Collector], rounds: list[int], why: str
) -> None:
    network = networks(miners=4)
    network.start("miner-1", "miner-2", "miner-3", "miner-4")
    network.start("validator", role=with_parts(part, Watched))
    network.run_until(6)
    network.run_to_block(network.clock.vote_deadline(5))
    network.close()
    validator = network["validator"]
    assert [(e["round"], e["why"]) for e in validator.events("unobserved")] == [(round, why) for round in rounds]
    assert [e["round"] for e in validator.events("weights")] == [r for r in range(6) if r not in rounds]
    found = [from_json(book) for book in books(network)]
    first = rounds[0]
    for book in found[first + 1 : first + 1 + len(rounds)]:
        assert replace(book, unobserved=0.0) == replace(found[first], unobserved=0.0)
    last = found[6]
    assert all(record.faults == record.penalty == 0 for record in last.peers.values())
    assert {record.evaluations for record in last.peers.values()} == {6 - len(rounds)}
    assert validator.voids() == rounds, "it names nobody whom it has not read"
    network.assert_agreement()
    for round in range(6):
        (audited,) = audits(network, round, tmp_path).values()
        assert not audited.differs, (round, audited.findings)
        assert audited.report is not None
        assert (audited.report.unobserved is not None) == (round in rounds)
        told = [f for f in audited.findings if f.topic is Topic.BOOK]
        assert [f.verdict for f in told] == ([Verdict.OBSERVED] if round in rounds else []), told


STEPS = {
    "collector": ["commitments", "collect"],
    "scores": ["check", "rank", "evaluate", "fold", "report"],
    "pay": ["pay"],
    "votes": ["ask", "hold", "cast", "post", "send"],
    "keeper": ["keep"],
}


@pytest.mark.parametrize("step", [f"{part}.{name}" for part, names in STEPS.items() for name in names])
def test_a_chain_that_fails_for_a_moment_costs_a_lone_validator_nothing(networks: Networks, step: str) -> None:
    network = networks(miners=2)
    network.start("miner-1", "miner-2")

    def role(node: Any, shards: Any) -> Validator:
        validator = Validator(node, shards)
        part, _, name = step.partition(".")
        original = getattr(getattr(validator, part), name)

        def unlucky(round: int, *rest: Any) -> Any:
            if round == 1:
                network.world.fail(node.me, 1)
            return original(round, *rest)

        setattr(getattr(validator, part), name, unlucky)
        return validator

    network.start("validator", role=role)
    network.run_until(3)
    validator = network["validator"]
    assert validator.voids() == []
    assert validator.events("unobserved") == []
    assert [event["round"] for event in validator.events("reported")] == [0, 1, 2]
    assert [event["round"] for event in validator.events("weights")] == [0, 1, 2]
    network.assert_agreement()
