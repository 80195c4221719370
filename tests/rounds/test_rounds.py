"""Whole rounds of real miners and validators over the fake chain and store: what honest nodes do together, and what
one bad bucket, a silent validator, a fork or the owner may change in it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from loguru import logger

import murmur.rounds.miner
from gauntlet.agreement import SEAT_ROUNDS
from murmur.node.program.process import EXIT_UPDATE, run_program
from murmur.node.telemetry.events import Events
from murmur.protocol import keys
from murmur.protocol.errors import UpdateNeeded
from murmur.protocol.messages import encode_slot, parse_document
from murmur.protocol.run import Amendment
from murmur.protocol.types import PeerId, hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator
from murmur.training.checkpoint import TensorState
from sparseloco.update import Update
from tests.fakes.bucket import Faults
from tests.fakes.chain import fake_verify
from tests.network import FakeNetwork
from tests.small_run import OWNER

Networks = Callable[..., FakeNetwork]


def names(network: FakeNetwork, *members: str) -> list[str]:
    return sorted(hotkey(network[name].peer) for name in members)


def reasons(network: FakeNetwork, round: int, validator: str = "validator") -> dict[str, str]:
    return next(event["rejected"] for event in network[validator].events("checked") if event["round"] == round)


def stored(network: FakeNetwork, bucket: str, key: str) -> bytes:
    return network.store.buckets[bucket][key].data


class SilentInRoundOne(Validator):
    def play(self, round: int) -> None:
        if round != 1:
            return super().play(round)
        self.node.advance(round)
        self.node.wait_for(self.node.clock.vote_deadline(round), "the round to pass")


@pytest.mark.quick
def test_honest_nodes_hold_the_same_theta_and_the_chain_pays_them(networks: Networks) -> None:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level="DEBUG", format="{message} {extra} {exception}")
    network = networks(miners=3)
    run = network.run.id
    network.start()
    try:
        network.run_until(2)
        network.run_to_block(network.clock.commit_deadline(2) - 1)
    finally:
        logger.remove(sink)

    assert list(network.assert_agreement()) == [0, 1]
    assert len(set(network.assert_agreement().values())) == 2
    miners = ("miner-1", "miner-2", "miner-3")
    for round in range(2):
        assert sorted(network["validator"].contributing(round)) == names(network, *miners)
    validator = network["validator"]
    uid = next(
        peer.uid for peer in network.world.state(network.world.final).neurons.values() if peer.id == validator.peer
    )
    assert sum(network.world.state(network.world.final).weights[uid].values()) > 0

    report = parse_document(
        stored(network, "validator", keys.report(run, 1)), "report", run, 1, validator.peer, fake_verify
    )
    assert {row["uid"] for row in report["peers"].values()} == {0, 1, 2, 3, 4}
    assert all(report["peers"][name]["contributing"] for name in names(network, *miners))
    for name in miners:
        peer = network[name].peer
        assert stored(network, "validator", keys.mirror(run, 1, peer)) == stored(network, name, keys.payload(run, 1))
        assert stored(network, "validator", keys.mirror_reveal(run, 1, peer)) == stored(
            network, name, keys.reveal(run, 1)
        )
        claims = parse_document(stored(network, name, keys.peer_report(run, 1)), "peer", run, 1, peer, fake_verify)
        assert claims["tokens"] == 2 * 16 * 16

    # No secret is ever told: not the sealing keys, not the buckets' keys.
    told = "\n".join(lines) + "".join((member.home / "events.jsonl").read_text() for member in network.members.values())
    assert "round 1" in told
    secrets = [network.store.pointer("validator").secret_key]
    for name in miners:
        sealed = network[name].node.state.saved.sealed
        assert sealed is not None
        assert sealed.round == 2, "its key is public"
        secrets += [sealed.key.hex(), repr(sealed.key)]
        told += repr(network[name].node.state.saved) + repr(network[name].node.ports)
    assert not [secret for secret in secrets if secret in told]


def copied(saved: TensorState) -> TensorState:
    return replace(saved, tensors={name: tensor.clone() for name, tensor in saved.tensors.items()})


def test_a_void_round_loses_nothing(networks: Networks) -> None:
    began: dict[int, tuple[Any, int]] = {}
    sent: dict[int, tuple[Update, Any]] = {}

    class Watched(Miner):
        def pages(self, round: int) -> Any:
            began[round] = copied(self.node.state.replica.own_state()), self.node.state.replica.outer.rounds
            return super().pages(round)

        def seal(self, round: int, update: Update) -> Any:
            sent[round] = update, copied(self.node.state.replica.own_state())
            return super().seal(round, update)

    network = networks()
    network.start("validator", role=SilentInRoundOne)
    network.start("miner-1", role=partial(Watched, speculates=False))
    network.start("miner-2")
    network.run_until(3)

    assert network["miner-1"].voids() == [1]
    thetas = network.assert_agreement()
    assert thetas[1] == thetas[0] != thetas[2]
    assert [began[round][1] for round in (0, 1, 2)] == [0, 1, 1]
    update, after_seal = sent[1]
    after_void = began[2][0]
    assert after_void.facts == after_seal.facts
    for name, tensor in after_void.tensors.items():
        if name.startswith("error/"):
            parameter = name.removeprefix("error/")
            expected = after_seal.tensors[name] + update.dense(parameter)
            assert torch.equal(tensor, expected)
        else:
            assert torch.equal(tensor, after_seal.tensors[name])
    assert any(bool(update.dense(tensor.name).any()) for tensor in network.run.layout)


def test_a_server_that_stalls_costs_only_its_owner(networks: Networks) -> None:
    network = networks(miners=3)
    network.store.faults["miner-3"] = Faults(stalls=True)
    network.start()
    network.run_to_block(network.clock.commit_deadline(0))
    network.run_until(1)
    assert sorted(network["validator"].contributing(0)) == names(network, "miner-1", "miner-2")
    assert reasons(network, 0) == {hotkey(network["miner-3"].peer): "MISSING"}


def test_a_pointer_that_may_not_be_followed_costs_only_its_owner(networks: Networks) -> None:
    network = networks(miners=2, validators={"validator": 100, "stranger": 200})
    network.refused = {"miner-2", "stranger"}
    network.start("validator", "miner-1", "miner-2")
    network.run_until(SEAT_ROUNDS + 2)
    network.assert_agreement()
    # The stranger has most stake and never posts a vote: it counts until it could have.
    assert network["validator"].voids() == list(range(SEAT_ROUNDS))
    assert network["validator"].contributing(SEAT_ROUNDS + 1) == names(network, "miner-1")


def test_a_mirror_that_answers_with_garbage_takes_nobodys_key(networks: Networks) -> None:
    network = networks(miners=2, validators={"validator": 100, "stranger": 200})
    for name in ("miner-1", "miner-2"):
        for round in range(SEAT_ROUNDS + 2):
            key = keys.mirror_reveal(network.run.id, round, network[name].peer)
            network.store.bucket("stranger").put(key, bytes(204), timeout_seconds=1)
    network.start("validator", "miner-1", "miner-2")
    network.run_until(SEAT_ROUNDS + 2)
    last = network["validator"].contributing(SEAT_ROUNDS + 1)
    assert sorted(last) == names(network, "miner-1", "miner-2")


def test_what_a_contributor_hides_from_others_is_repaired_from_the_mirror(networks: Networks) -> None:
    network = networks(miners=3)
    size = network.spec.object_bytes
    network.store.faults["miner-1"] = Faults(answers={"miner-2": bytes(size), "miner-3": b"\1" * size})
    network.start()
    network.run_blocks(lambda: bool(network["validator"].events("word_posted")))
    del network.store.buckets["miner-2"][keys.payload(network.run.id, 0)]
    del network.store.buckets["miner-2"][keys.reveal(network.run.id, 0)]
    network.run_until(1)
    assert sorted(network["miner-3"].contributing(0)) == names(network, "miner-1", "miner-2", "miner-3")
    network.assert_agreement()


def test_a_forged_last_modified_changes_nothing(networks: Networks) -> None:
    network = networks()
    network.store.faults["miner-1"] = Faults(modified=0.0)
    network.store.faults["miner-2"] = Faults(modified=4e9)
    network.start()
    network.run_until(1)
    assert sorted(network["validator"].contributing(0)) == names(network, "miner-1", "miner-2")


def test_forks_below_finality_change_no_decision(networks: Networks) -> None:
    network = networks(finality_lag=4)
    clock = network.clock
    moments = [
        block + offset
        for round in (0, 1)
        for block in (
            clock.start(round),
            clock.commit_deadline(round),
            clock.reveal_deadline(round) + 3,
            clock.vote_deadline(round),
        )
        for offset in (1, 5)
    ]

    def forked() -> bool:
        if moments and network.world.head >= moments[0]:
            moments.pop(0)
            network.world.reorg(3)
        return not moments and all(member.round >= 2 for member in network.alive)

    network.start()
    network.run_blocks(forked)
    assert list(network.assert_agreement()) == [0, 1]
    assert network["validator"].voids() == []


def test_a_chain_that_is_away_for_a_while_delays_and_breaks_nothing(networks: Networks) -> None:
    network = networks()
    network.start()
    for block in (3, 16, 25):
        network.run_to_block(network.clock.start(0) + block)
        network.world.down = True
        network.run_blocks(lambda: True)
        network.wait(1.0)
        network.world.down = False
    network.run_until(2)
    assert len(network.alive) == 3
    assert set(network.assert_agreement()) == {0, 1}
    assert 1 not in network["validator"].voids()


def test_the_owners_amendment_is_in_force_everywhere_from_the_same_round(networks: Networks) -> None:
    network = networks()
    network.start()
    network.run_until(1)
    network.amend(from_round=3, changes={"outer": {"alpha": 0.25}})
    network.run_until(3)
    network.amend(from_round=5, changes={"protocol": {"min_protocol": 5, "max_protocol": 5}})
    faults = network.until_dead("miner-1", "miner-2", "validator")
    for fault in faults:
        assert isinstance(fault, UpdateNeeded)
        assert "from round 5 on" in str(fault)
    assert set(network.assert_agreement()) == {0, 1, 2, 3}
    for member in network.members.values():
        run = member.node.run
        assert [run.spec_at(round).outer.alpha for round in (2, 3)] == [1.0, 0.25]

    def main() -> None:
        assert faults[0] is not None
        raise faults[0]

    assert run_program(main) == EXIT_UPDATE


def test_miners_draw_the_pages_of_the_stage_that_an_amendment_begins(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    network.amend(from_round=3, changes={"inner": {"first_page": 20}})
    network.run_until(5)
    miner = network["miner-1"]
    page_tokens = network.run.first.page_tokens
    assert all(page.first >= 20 * page_tokens for round in (3, 4) for page in miner.program.pages(round))
    assert set(network.assert_agreement()) == {0, 1, 2, 3, 4}


def test_an_amendment_that_came_too_late_is_followed_by_nobody(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(2)
    network.run_to_block(network.clock.start(2))
    late = network.amend(from_round=3, changes={"outer": {"alpha": 0.25}})
    network.run_until(4)
    for member in network.members.values():
        run = member.node.run
        assert late.digest not in [amendment.digest for amendment in run.amendments]
        assert run.spec_at(3).outer.alpha == 1.0
    assert set(network.assert_agreement()) == {0, 1, 2, 3}


def test_an_amendment_that_is_not_valid_stops_nobody(networks: Networks) -> None:
    network = networks(miners=1)
    head = network.run.head
    network.start()
    for round, previous, changes in (
        (1, "77" * 32, {"outer": {"alpha": 0.5}}),
        (2, head.hex(), {"outer": {"alhpa": 0.5}}),
        (3, head.hex(), {"inner": {"steps": -1}}),
    ):
        broken = Amendment(previous=previous, from_round=round, changes=changes)
        network.store.bucket("owner").put(keys.blob(broken.digest), broken.to_bytes(), timeout_seconds=1)
        network.world.publish(OWNER.peer, encode_slot(network.store.pointer("owner"), None, broken.digest))
        network.run_until(round)
    assert network["miner-1"].node.run.head == head
    assert set(network.assert_agreement()) == {0, 1, 2}


def test_the_owners_node_does_not_take_back_an_amendment_that_it_has_not_read(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    named = network.amend(from_round=9, changes={"outer": {"alpha": 0.5}}).digest
    network.world.step(2)
    node = network["validator"].node
    owners = replace(node.ports, chain=network.world.chain(OWNER.peer), pointer=network.store.pointer("owner"))
    node.ports, node.me = owners, OWNER.peer
    node.post(None)
    node.me = PeerId(network["validator"].peer)
    network.world.step(1)
    owner = next(p for p in network.world.chain(OWNER.peer).peers(network.world.final) if p.id == OWNER.peer)
    assert owner.slot is not None
    assert owner.slot.amendment == named


def test_a_validator_that_comes_late_to_a_run_in_which_nobody_spoke_starts_it(networks: Networks) -> None:
    network = networks(miners=1, keep_blocks=45)
    network.start("miner-1")
    network.run_until(3)
    network.start("validator")
    network.run_until(6)
    assert network["miner-1"].voids()[:3] == [0, 1, 2]
    assert 5 not in network["miner-1"].voids()
    network.assert_agreement()


def test_a_miner_that_has_committed_stops_after_its_reveal_and_before_anything_else(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str | None]()
    monkeypatch.setattr(murmur.rounds.miner, "stop_after", told.append)
    emit = Events.emit

    def seen(self: Events, kind: str, *arguments: Any, **values: Any) -> None:
        if kind in ("committed", "revealed"):
            told.append(kind)
        emit(self, kind, *arguments, **values)

    monkeypatch.setattr(Events, "emit", seen)
    network = networks(miners=1)
    network.start()
    network.run_until(3)
    rounds = [one for one in told if one is not None]
    assert rounds[:6] == [
        *("the key of round 0 is out: we have committed to it", "committed", "revealed"),
        *("the key of round 1 is out: we have committed to it", "committed", "revealed"),
    ]
    for at, one in enumerate(told):
        if one == "revealed":
            assert told[at - 1] == "committed"
            assert told[at + 1] is None
