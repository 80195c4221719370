"""Two validators, of whom one disappears, lies or withholds: every node reaches the same decision, from the chain."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rounds.vote import Vote

from gauntlet.agreement import SEAT_ROUNDS
from protocol import keys
from protocol.types import Attestation, Digest, PeerId, Record, hotkey
from rounds.collect import Collector
from rounds.validator import Validator
from tests.fakes.bucket import Faults
from tests.network import OWNER, FakeNetwork, with_parts

Networks = Callable[..., FakeNetwork]


def decisions(network: FakeNetwork, name: str) -> dict[int, tuple[bool, tuple[str, ...]]]:
    return {event["round"]: (event["void"], tuple(event["contributing"])) for event in network[name].events("applied")}


def assert_one_branch(network: FakeNetwork, last: int) -> None:
    """Everybody decided the same in every round that both took part in, and holds the same theta."""
    network.assert_agreement()
    found: dict[int, object] = {}
    for name in network.members:
        for round, decision in decisions(network, name).items():
            assert found.setdefault(round, decision) == decision
    assert max(found) >= last


def test_of_two_equal_validators_one_goes_on_alone_once_the_word_of_the_other_is_too_old(networks: Networks) -> None:
    network = networks(miners=1, validators={"first": 100, "second": 100})
    network.start()
    network.run_until(1)
    network.kill("first")
    network.run_until(SEAT_ROUNDS + 4)
    assert_one_branch(network, SEAT_ROUNDS + 3)
    # It has half of the stake, and counts for so many rounds after its last word.
    assert all(1 <= round <= SEAT_ROUNDS + 1 for round in network["second"].voids())


def test_strangers_with_permits_lead_nothing_cost_no_round_and_are_asked_for_nothing(networks: Networks) -> None:
    """The owner's hotkey that only posted the spec, and a miner with stake. The validator announces itself."""
    network = networks(miners=2)
    network._publish(network["validator"].peer, "validator", None)
    network.world.set_stake(OWNER.peer, 10**15, True)
    network.world.set_stake(network["miner-1"].peer, 10**14, True)
    network.world.step(1)
    network.start()
    network.run_until(3)
    assert network["validator"].voids() == []
    assert len(network["validator"].events("posted")) == 3
    for member in network.members.values():
        assert member.node.sources().validators() == [network["validator"].peer]


class Liar(Vote):
    """Says something else in every round, in a leader slot of its own, valid record before it or not."""

    lies: dict[int, str]

    def is_agreed(self, round: int) -> bool:
        return False

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        if not isinstance(statement, Record):
            return super().post(round, statement)
        node = self.node
        everyone = sum(1 << p.uid for p in node.doors.chain.peers(node.head()) if not p.validates and p.uid)
        match round:
            case 0:
                statement = replace(statement, theta=Digest(bytes(32)))
            case 1:
                statement = replace(statement, previous=Digest(bytes(32)))
            case 2:
                statement = replace(statement, bitmap=statement.bitmap | 1)  # the owner has committed nothing
            case 3:
                statement = replace(statement, bitmap=everyone)  # one more than may contribute
            case 4:
                last = node.clock.slot(round, node.clock.leader_slots - 1)[1]
                node.wait_for(last, "the slots to pass")
            case 5:
                super().post(round, replace(statement, bitmap=everyone & -everyone))
        return super().post(round, statement)


def test_a_leader_that_lies_moves_nobody_apart(networks: Networks) -> None:
    network = networks(miners=2, validators={"honest": 200, "liar": 100}, contributors=1)
    network.start("honest", "miner-1", "miner-2")
    network.start("liar", role=with_parts(Liar))
    network.run_until(6)
    assert_one_branch(network, 5)
    posted = {event["round"]: event["slot"] for event in network["liar"].events("posted")}
    assert len(posted) >= 5
    # In every round the honest validator leads the other slot, so a lie costs nothing.
    assert network["honest"].voids() == []
    for round in range(6):
        assert len(network["miner-1"].contributing(round)) == 1


class Withholder(Vote):
    """Copies nothing, whoever lacks it."""

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        pass


class SeesNoPayloadOfFirstMiner(Collector):
    """Its view of miner-1's bucket is empty: it was not served."""

    hidden: PeerId

    def collect(self, round: int, at_commit: Any, book: Any) -> Any:
        found = super().collect(round, at_commit, book)
        return [replace(item, payload=None, reveal=None) if item.peer.id == self.hidden else item for item in found]


def hiding(network: FakeNetwork) -> type[Validator]:
    SeesNoPayloadOfFirstMiner.hidden = network["miner-1"].peer
    return with_parts(SeesNoPayloadOfFirstMiner)


def leads_first(network: FakeNetwork, name: str, rounds: int) -> set[int]:
    """Rounds in which the validator posted in slot 0."""
    return {e["round"] for e in network[name].events("posted") if e["slot"] == 0 and e["round"] < rounds}


def test_a_contributor_that_served_only_the_leader_does_not_cost_the_round(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100})
    network.start("first", "miner-1", "miner-2")
    network.start("second", role=hiding(network))
    network.run_until(4)
    assert_one_branch(network, 3)
    assert network["second"].voids() == []
    hidden = hotkey(network["miner-1"].peer)
    led = leads_first(network, "first", 4)
    assert led
    for round in led:
        assert hidden in network["miner-2"].contributing(round)


def test_a_leader_that_holds_nothing_is_not_approved_by_those_who_cannot_have_the_bytes(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100})
    network.start("miner-1", "miner-2")
    network.store.faults["miner-1"] = Faults(answers={"second": bytes(network.spec.object_bytes)})
    network.start("first", role=with_parts(Withholder))
    network.start("second", role=hiding(network))
    network.run_until(4)
    assert_one_branch(network, 3)
    hidden = hotkey(network["miner-1"].peer)
    for round in leads_first(network, "first", 4):
        void, contributing = decisions(network, "miner-2")[round]
        assert void or hidden not in contributing


def test_bytes_that_vanish_after_the_deadline_are_repaired_from_another_validators_mirror(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100})
    network.start("miner-1", "miner-2", "second")
    network.start("first", role=with_parts(Withholder))
    mirror = keys.mirror_reveal(network.run.id, 0, network["miner-1"].peer)
    network.run_blocks(lambda: mirror in network.store.buckets["second"])
    network.store.buckets["miner-1"].clear()
    network.run_until(1)
    assert_one_branch(network, 0)
    assert len(network["miner-2"].contributing(0)) == 2


def test_a_node_with_a_wrong_theta_finds_it_out_and_catches_up(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.kill("miner-2")
    spoil(network, "miner-2")
    network.start("miner-2")
    network.run_until(5)
    assert network["miner-2"].events("caught_up")
    honest = network["miner-1"].thetas()
    mine = network["miner-2"].thetas()
    assert mine[4] == honest[4]


def test_a_node_with_a_wrong_link_finds_it_out_and_catches_up(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.kill("miner-2")
    spoil(network, "miner-2", link=Digest(bytes(32)))
    network.start("miner-2")
    network.run_until(5)
    assert network["miner-2"].events("caught_up")
    assert network["miner-2"].thetas()[4] == network["miner-1"].thetas()[4]


def spoil(network: FakeNetwork, name: str, **changes: Any) -> None:
    """Change what a dead node has saved: the named fields, or else its theta."""
    from node.state import Consensus, Snapshot
    from sparseloco.digest import theta_digest
    from tests.network import saved_state
    from training import checkpoint
    from training.replica import parse_outer

    saved, store = saved_state(network, name)
    if not changes:
        snapshot = saved.consensus.snapshot
        state = checkpoint.load(store.snapshot, snapshot.state, network.spec.model.shapes())
        moved = {name: tensor + 1.0 for name, tensor in state.tensors.items()}
        other = checkpoint.save(store.snapshot, replace(state, tensors=moved))
        theta = theta_digest(moved, network.spec.layout, parse_outer(state.facts, network.spec.layout))
        changes = {"consensus": Consensus(Snapshot(saved.round, saved.link, other)), "theta": theta}
    store.commit(replace(saved, **changes))
    store.close()
