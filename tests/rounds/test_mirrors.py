"""Mirrors are shared, nobody waits for a copy, and what one honest validator holds everybody can have (docs/protocol.md
section 6). Whole networks in modelled time: payloads of 200 MB on lines of 110 Mb/s."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger

from gauntlet.agreement import COPIES, mirror_order
from murmur.lab.simulation.network import Network, Programs
from murmur.lab.simulation.signer import hash_verify
from murmur.lab.simulation.store import Faults as StoreFaults
from murmur.node.node import Node
from murmur.node.sync.repair_requests import Place, encode_wanted, parse_wanted
from murmur.protocol import keys
from murmur.protocol.messages import parse_reveal
from murmur.rounds.copies import HeldPayload, ValidatorCopies
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator

Made = Callable[..., Network]


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Made]:
    torch.set_num_threads(1)
    made: list[Network] = []
    logger.disable("")

    def make(
        validators: int, *, program: type[Validator] = Validator, miner: type[Miner] = Miner, miners: int = 3
    ) -> Network:
        network = Network(
            tmp_path / str(len(made)),
            3,
            validators=validators,
            miners=miners,
            tell=lambda member, event, round, fields: told.append((member.name, event, round, fields)),
            programs=Programs(miner, program),
        )
        told = network.history = []  # type: ignore[attr-defined]
        made.append(network)
        return network

    yield make
    for network in made:
        network.close()
    logger.enable("")


def until(network: Network, done: Callable[[], bool], rounds: int = 12) -> None:
    for _ in range(rounds * 86):
        if done():
            return
        network.clock.run(network.clock.now + 12.0)
    raise AssertionError("it did not happen")


def events(network: Network, name: str, event: str) -> list[tuple[int, dict[str, Any]]]:
    return [(round, fields) for who, what, round, fields in network.history if (who, what) == (name, event)]  # type: ignore[attr-defined]


def contributing(network: Network, name: str) -> dict[int, list[str]]:
    """Who contributed to each round that the node applied; nobody to a void one."""
    return {round: fields["contributing"] for round, fields in events(network, name, "applied")}


def copiers(network: Network, round: int, member: str) -> tuple[str, ...]:
    """The validators, by name, in the order in which they copy what this miner left."""
    last = network.run.clock.commit_deadline(round)
    chain = network.members[member].program.node.ports.chain  # type: ignore[union-attr]
    names = {one.peer: one.name for one in network.members.values()}
    miner = network.members[member].peer
    order = mirror_order(network.run, round, chain.header(last).hash, chain.peers(last), [miner])[miner]
    return tuple(names[one] for one in order)


def copied(network: Network, round: int, miner: str) -> set[str]:
    key = keys.mirror(network.run.id, round, network.members[miner].peer)
    return {name for name, bucket in network.store.buckets.items() if key in bucket}


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_every_payload_that_contributed_has_its_drawn_copies_and_no_others(networks: Made, count: int) -> None:
    network = networks(count, miners=4)
    network.begin()
    until(network, lambda: network.members["miner-1"].round >= 4)
    for round in (1, 2, 3):
        drawn = {miner: set(copiers(network, round, miner)[:COPIES]) for miner in contributors(network, round)}
        assert drawn
        until(network, lambda r=round, d=drawn: all(copied(network, r, miner) == names for miner, names in d.items()))  # type: ignore[misc]
        for miner in drawn:
            key = keys.mirror_reveal(network.run.id, round, network.members[miner].peer)
            assert sum(key in bucket for bucket in network.store.buckets.values()) == count
    assert all(contributing(network, "miner-1").values())
    told = Counter(fields["copies"] for _, fields in events(network, "validator-1", "mirrored"))
    assert told.total() >= 3


def contributors(network: Network, round: int) -> list[str]:
    return [network.by_hotkey[one].name for one in contributing(network, "miner-1")[round]]


@pytest.mark.parametrize("count", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_miner_that_serves_one_validator_alone_costs_no_round_and_nobody_else_its_place(
    networks: Made, count: int
) -> None:
    network = networks(count)
    others = {
        name: bytes(network.spec.object_bytes) for name in network.members if name not in ("miner-1", "validator-1")
    }
    network.store.faults["miner-1"] = StoreFaults(answers=others)
    network.begin()
    until(network, lambda: all(member.round >= 6 for member in network.members.values()))
    found = contributing(network, "miner-2")
    said = dict(events(network, "validator-1", "word_posted"))
    for round in range(6):
        assert {network.by_hotkey[one].name for one in found[round]} >= {"miner-2", "miner-3"}
        assert said[round]["named"] == 3


def lies(network: Network, name: str, wanted: list[Place]) -> None:
    """A validator says for ever that it lacks these."""
    said = encode_wanted(wanted, network.run.id, network.members[name].signer)
    network.store.bucket(name).put(keys.wanted(network.run.id), said, timeout_seconds=1)


class Waits(Miner):
    """For the decision, before it trains on."""

    def __init__(self, node: Node, shards: Any) -> None:
        super().__init__(node, shards, speculates=False)


class CopiesNothing(ValidatorCopies):
    def hold(self, *_: Any) -> None:
        pass


def test_what_hostile_mirrors_and_a_hostile_miner_hide_an_honest_holder_gives(networks: Made) -> None:
    """The drawn ones have nothing, the miner's bucket is gone, and one validator that is not drawn holds the bytes."""

    class Hostile(Validator):
        def __init__(self, node: Node, shards: Any) -> None:
            super().__init__(node, shards)
            if node.me != network.members["validator-3"].peer:
                self.copies = CopiesNothing(node, self.keeper.mirror)
                self.votes.copies = self.copies

    network = networks(3, program=Hostile, miner=Waits)
    network.begin()
    run, miner = network.run.id, network.members["miner-1"]

    def round_of_prey() -> int | None:
        """One that is being decided, and in which the honest validator is not drawn for the miner."""
        head = network.world.final
        round = network.run.clock.round_at(head)
        began, ends = network.run.clock.reveal_deadline(round) + 2, network.run.clock.reveal_deadline(round) + 8
        if round < 1 or not began <= head <= ends:
            return None
        return round if "validator-3" not in copiers(network, round, "miner-1")[:COPIES] else None

    until(network, lambda: round_of_prey() is not None, rounds=40)
    round = round_of_prey()
    assert round is not None
    for bucket in network.store.buckets.values():
        bucket.pop(keys.payload(run, round), None) if bucket is network.store.buckets["miner-1"] else None
    network.store.buckets["miner-1"].pop(keys.reveal(run, round), None)
    for name in ("miner-2", "miner-3"):
        network.members[name].program.node.stop_prefetch()  # type: ignore[union-attr]
        network.members[name].program.node.state.clear_cache()  # type: ignore[union-attr]
    until(network, lambda: all(network.members[f"miner-{number}"].round > round for number in (2, 3)))
    assert miner.name in contributors(network, round)
    assert "validator-3" in copied(network, round, "miner-1")
    assert not events(network, "miner-2", "not_followed")
    assert {network.members[name].round for name in ("miner-2", "validator-1")} == {round + 1}


def test_whoever_asks_for_everything_keeps_nobody_from_what_is_agreed(networks: Made) -> None:
    """All miners' buckets are gone, one honest validator holds the bytes, and a hostile one lacks everything, it says:
    more than a validator copies on somebody's word."""

    class Hostile(Validator):
        def __init__(self, node: Node, shards: Any) -> None:
            super().__init__(node, shards)
            if node.me != network.members["validator-3"].peer:
                self.copies = CopiesNothing(node, self.keeper.mirror)
                self.votes.copies = self.copies

    network = networks(3, program=Hostile, miners=14)
    network.begin()
    run, clock = network.run.id, network.run.clock
    miners = [member for member in network.members.values() if not member.validates]
    # A round in whose draw the honest one is not a copier of everybody: below.
    until(network, lambda: network.members["validator-3"].round >= 3)
    round = network.members["validator-3"].round
    everything = [(one, miner.peer) for one in range(round - 2, round + 9) for miner in miners]
    lies(network, "validator-1", everything)
    until(network, lambda: clock.round_at(network.world.final) == round)
    until(network, lambda: network.world.final >= clock.reveal_deadline(round) + 2)
    for miner in miners:
        network.store.buckets[miner.name].pop(keys.payload(run, round))
        network.store.buckets[miner.name].pop(keys.reveal(run, round))
        miner.program.node.stop_prefetch()  # type: ignore[union-attr]
        miner.program.node.state.clear_cache()  # type: ignore[union-attr]
    until(network, lambda: network.world.final >= clock.commit_deadline(round + 1))
    assert all(miner.round > round for miner in miners)
    chosen = contributors(network, round)
    assert len(miners) > network.spec.gauntlet.contributors + network.spec.gauntlet.reserve
    assert any("validator-3" not in copiers(network, round, miner)[:COPIES] for miner in chosen)
    assert all("validator-3" in copied(network, round, miner) for miner in chosen)


def test_a_validator_that_comes_after_v_does_not_say_that_it_lacks_what_it_never_asked_for(networks: Made) -> None:
    """Else others would upload for nothing what it can read."""
    network = networks(2)
    network.begin()
    until(network, lambda: network.members["validator-1"].round >= 2)
    round, late = network.members["validator-1"].round, network.members["validator-2"]
    network.kill(late)
    until(network, lambda: network.world.final >= network.run.clock.reveal_deadline(round))
    network.start(late)
    until(network, lambda: network.members["miner-1"].round > round)
    assert contributors(network, round)
    said = network.store.buckets[late.name].get(keys.wanted(network.run.id))
    assert said is None or (round, network.members["miner-1"].peer) not in parse_wanted(
        said.data, network.run.id, late.peer, hash_verify
    )


def test_a_restarted_validator_gives_what_it_had_applied(networks: Made) -> None:
    network = networks(2)
    network.begin()
    until(network, lambda: network.members["validator-1"].round >= 2)
    holder, miner = network.members["validator-1"], network.members["miner-1"]
    round = holder.round - 1
    assert round % network.spec.checkpoint_rounds != network.spec.checkpoint_rounds - 1
    network.kill(holder)
    network.clock.run(network.clock.now + 5.0)
    key = keys.mirror(network.run.id, round, miner.peer)
    before = network.store.buckets[holder.name].pop(key)
    network.store.buckets[holder.name].pop(keys.mirror_reveal(network.run.id, round, miner.peer))
    wanted = encode_wanted([(round, miner.peer), (77, miner.peer)], network.run.id, network.members["miner-2"].signer)
    network.store.buckets["miner-2"][keys.wanted(network.run.id)] = replace(before, data=wanted)
    network.start(holder)
    until(network, lambda: key in network.store.buckets[holder.name])
    assert network.store.buckets[holder.name][key].data == before.data
    assert keys.mirror_reveal(network.run.id, round, miner.peer) in network.store.buckets[holder.name]


def test_what_was_named_before_we_had_it_is_given_with_its_key_once_it_is_applied(networks: Made) -> None:
    network = networks(2)
    network.begin()
    until(network, lambda: network.members["validator-1"].round >= 2)
    program = network.members["validator-1"].program
    assert isinstance(program, Validator)
    step = program.node.state.saved.consensus.log[-1]
    payload, copies = step.payloads[0], program.copies
    place = step.round, payload.peer
    copies._held[place] = HeldPayload(payload.envelope, None, 0, named=True)
    copies.hold(step.round, copies._at_commit, [])
    held = copies._held[place]
    assert held.reveal is not None
    assert parse_reveal(held.reveal).key == payload.key
    assert held.is_ours


def test_who_asks_for_everything_gets_a_selection_a_round_and_nobodys_share_waits(networks: Made) -> None:
    network = networks(3)
    network.begin()
    until(network, lambda: network.members["validator-1"].round >= 3)
    everything = [(round, network.members[f"miner-{number}"].peer) for round in range(9) for number in (1, 2, 3)]
    lies(network, "validator-3", everything)
    until(network, lambda: min(network.members[name].round for name in ("validator-1", "miner-1")) >= 8)
    rules = network.spec.gauntlet
    told = [fields["copies"] for _, fields in events(network, "validator-1", "mirrored")]
    assert max(told) <= rules.contributors + rules.reserve + 3
    assert all(contributing(network, "miner-1")[round] for round in range(8))
    for round in range(4, 7):
        for miner in contributors(network, round):
            assert copied(network, round, miner) >= set(copiers(network, round, miner)[:COPIES])
            assert copied(network, round, miner) >= {"validator-1", "validator-2"}
