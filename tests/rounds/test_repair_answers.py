"""What no validator has any more, miners give from their own disks: to whoever says that it lacks it, one after the
other, and never while their own payload goes up (docs/protocol.md section 6)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger

from murmur.lab.simulation.network import Network, Programs, SimulatedNode
from murmur.lab.simulation.signer import hash_verify
from murmur.lab.simulation.store import Call
from murmur.node.node import Node
from murmur.node.sync.repair_requests import parse_wanted
from murmur.protocol import keys
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.types import Digest, hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.repair_answers import RepairAnswers
from murmur.rounds.validator import Validator
from murmur.training.memory import RECENT_ROUNDS
from tests.rounds.test_mirrors import CopiesNothing, contributing, copied, events, lies, until

Made = Callable[..., Network]
EVERYTHING = range(20)
HASH = Digest(bytes(range(32)))


class GivesNothing(Validator):
    """No validator has any copy."""

    def __init__(self, node: Node, shards: Any) -> None:
        super().__init__(node, shards)
        self.copies = CopiesNothing(node, self.keeper.mirror)
        self.votes.copies = self.copies


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Made]:
    torch.set_num_threads(1)
    made: list[Network] = []
    logger.disable("")

    def make(*, miners: int = 3, miner: type[Miner] = Miner) -> Network:
        network = Network(
            tmp_path / str(len(made)),
            3,
            validators=3,
            miners=miners,
            tell=lambda member, event, round, fields: told.append((member.name, event, round, fields)),
            programs=Programs(miner=miner, validator=GivesNothing),
        )
        told = network.history = []  # type: ignore[attr-defined]
        made.append(network)
        return network

    yield make
    for network in made:
        network.close()
    logger.enable("")


def lose(network: Network, name: str, round: int) -> None:
    """The miner's own bucket has its payload and key of this round no more."""
    network.store.buckets[name].pop(keys.payload(network.run.id, round))
    network.store.buckets[name].pop(keys.reveal(network.run.id, round))


def answers(network: Network, name: str) -> RepairAnswers:
    program = network.members[name].program
    assert isinstance(program, Miner)
    return program.answers


def follows(network: Network, member: SimulatedNode) -> bool:
    """Whether it stands where all others do."""
    both = [one.program for one in (member, network.members["miner-2"]) if one.up and one.program is not None]
    return len(both) == 2 and member.round >= 0 and len({program.node.state.ref for program in both}) == 1


def end_of(network: Network, round: int) -> None:
    """Let everybody live until this round's payloads may go up."""
    until(network, lambda: network.world.final >= network.run.clock.vote_deadline(round))


def newcomer(network: Network) -> SimulatedNode:
    member = network.add("miner-4", validates=False, stake=0)
    network.clock.run(network.clock.now + 60.0)
    return member


def one_that_was_away(network: Network) -> SimulatedNode:
    member = network.members["validator-3"]
    network.kill(member)
    return member


def a_miner_that_was_away(network: Network) -> SimulatedNode:
    member = network.members["miner-3"]
    network.kill(member)
    return member


@pytest.mark.parametrize("who", [newcomer, one_that_was_away, a_miner_that_was_away])
def test_what_no_validator_has_comes_from_a_miners_disk(
    networks: Made, who: Callable[[Network], SimulatedNode]
) -> None:
    network = networks()
    network.begin()
    until(network, lambda: network.members["miner-2"].round >= 2)
    late, round = who(network), 2
    until(network, lambda: network.members["miner-2"].round > round)
    assert hotkey(network.members["miner-1"].peer) in contributing(network, "miner-2")[round]
    assert not copied(network, round, "miner-1")
    lose(network, "miner-1", round)
    network.start(late)
    until(network, lambda: follows(network, late), rounds=4)
    assert copied(network, round, "miner-1")

    def lacks() -> bool:
        said = network.store.buckets[late.name][keys.wanted(network.run.id)].data
        return bool(parse_wanted(said, network.run.id, late.peer, hash_verify))

    until(network, lambda: not lacks(), rounds=1)
    network.clock.run(network.clock.now + 3 * 86 * 12.0)
    assert len(copied(network, round, "miner-1")) <= 2, "one gives it, and the others see that it does"


def test_a_copy_that_is_none_delays_a_payload_by_one_round_at_most(networks: Made) -> None:
    """It begins as it should, so nobody who does not read all of it can tell."""
    network = networks()
    network.begin()
    until(network, lambda: network.members["miner-2"].round >= 4)
    late = one_that_was_away(network)
    until(network, lambda: network.members["miner-2"].round >= 5)
    round, run, size = 4, network.run.id, network.spec.object_bytes
    own = network.store.buckets["miner-1"][keys.payload(run, round)]
    fake = replace(own, data=own.data[:ENVELOPE_BYTES] + bytes(size - ENVELOPE_BYTES))
    key = keys.mirror(run, round, network.members["miner-1"].peer)
    for number in (1, 2, 3):
        network.store.buckets[f"validator-{number}"][key] = fake
    lose(network, "miner-1", round)
    network.start(late)
    end_of(network, round + 1)
    assert all(name.startswith("validator") for name in copied(network, round, "miner-1"))
    end_of(network, round + 2)
    assert any(name.startswith("miner") for name in copied(network, round, "miner-1"))
    until(network, lambda: follows(network, late), rounds=2)


def test_whoever_asks_for_everything_gets_a_selection_a_round_and_no_miner_is_late(networks: Made) -> None:
    class Alone(Miner):
        """Only one answers, so that nobody else's copies spare it any."""

        def __init__(self, node: Node, shards: Any) -> None:
            super().__init__(node, shards)
            if node.me != network.members["miner-2"].peer:
                self.answers.answer = lambda round: None  # type: ignore[method-assign]

    network = networks(miners=8, miner=Alone)
    network.begin()
    until(network, lambda: network.members["miner-2"].round >= 3)
    everything = [(round, network.members[f"miner-{number}"].peer) for round in EVERYTHING for number in range(1, 9)]
    lies(network, "validator-3", everything)
    clock, put = network.run.clock, dict[int, set[str]]()

    def watch(call: Call) -> None:
        if (call.bucket, call.verb) == ("miner-2", "put") and "/mirror/" in call.key:
            head = network.world.final
            round = clock.round_at(head)
            assert clock.commit_deadline(round) <= head <= clock.vote_deadline(round)
            put.setdefault(round, set()).add(call.key)

    network.store.before = watch
    until(network, lambda: network.members["miner-2"].round >= 8)
    rules = network.spec.gauntlet
    counts = [len(put.get(round, ())) for round in range(3, 8)]
    assert max(counts) == rules.contributors + rules.reserve
    told = [fields["copies"] for _, fields in events(network, "miner-2", "mirrored")]
    assert told[:2] == [count for count in counts if count][:2]
    for number in range(1, 9):
        assert all(fields["in_time"] for _, fields in events(network, f"miner-{number}", "committed"))
    assert not events(network, "miner-2", "commitment_dropped")
    assert all(contributing(network, "miner-2")[round] for round in range(8))


def test_miners_give_one_after_the_other(networks: Made) -> None:
    network = networks(miners=6)
    network.begin()
    until(network, lambda: network.members["miner-2"].round >= 3)
    round = 2
    given = {network.by_hotkey[one].name for one in contributing(network, "miner-2")[round]}
    prey = sorted(given)[0]
    lies(network, "validator-3", [(round, network.members[prey].peer)])
    counts = []
    for later in range(3, 7):
        end_of(network, later)
        counts.append(len(copied(network, round, prey)))
    assert 1 <= counts[0] <= 3, "who comes first gives it, and the others see that it does"
    assert counts == sorted(counts)
    place = round, network.members[prey].peer
    ranks = [len(answers(network, f"miner-{number}")._miners_before(place)) for number in range(1, 7)]
    assert len(set(ranks)) == 6


def test_a_request_of_one_look_is_not_answered(networks: Made) -> None:
    """A validator gives it, or its owner is back, before a miner's first turn."""
    network = networks()
    network.begin()
    until(network, lambda: network.members["miner-2"].round >= 3)
    held = answers(network, "miner-2")
    place = 2, network.members["miner-1"].peer
    held._turn_to(3, HASH, network.members["miner-2"].program.node.sources(), held._applied())  # type: ignore[union-attr]
    held._wanted = {network.members["miner-3"].peer: frozenset([place, (77, place[1])])}
    for times, due in ((1, False), (2, not held._miners_before(place)), (4, True)):
        held._times_lacked = {place: times}
        assert (held._next(()) is not None) == due
    held._put_off = {place}
    assert held._next(()) is None


def test_copies_go_with_the_miners_own_objects(networks: Made) -> None:
    network = networks()
    network.begin()
    until(network, lambda: network.members["miner-2"].round >= 2)
    bucket, peer, run = network.store.buckets["miner-2"], network.members["miner-1"].peer, network.run.id
    copies = [keys.mirror(run, 1, peer), keys.mirror_reveal(run, 1, peer)]
    bucket.update(dict.fromkeys(copies, bucket[keys.payload(run, 1)]))
    until(network, lambda: keys.payload(run, 1) not in bucket, rounds=40)
    until(network, lambda: not any(key in bucket for key in copies), rounds=1)


def test_what_was_applied_just_before_a_snapshot_is_still_there(networks: Made) -> None:
    """The snapshot takes it from the log before anybody who lacks it could be heard."""
    network = networks()
    network.begin()
    every = network.spec.checkpoint_rounds
    until(network, lambda: network.members["miner-2"].round >= every + 1)
    node, copier = network.members["miner-2"].program.node, answers(network, "miner-2")  # type: ignore[union-attr]
    until(network, lambda: all(step.round >= every for step in node.state.saved.consensus.log))
    held = {place: one for place, one in copier._applied().items() if place[0] == every - 1}
    assert len(held) == 3
    assert all(one.reveal and node.state.sealed_file(*place, one.envelope) for place, one in held.items())
    until(network, lambda: network.members["miner-2"].round >= every + RECENT_ROUNDS)
    assert not any(place[0] < every for place in copier._applied())
    assert not any(node.state.sealed_file(*place, one.envelope) for place, one in held.items())
