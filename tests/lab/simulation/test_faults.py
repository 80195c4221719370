"""Every fault does something to a network, and is over when it says."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from murmur.lab.simulation.chain import BLOCK_SECONDS, NodeChain, NodeConnection
from murmur.lab.simulation.faults import KINDS, Faults, Incident, Kind
from murmur.lab.simulation.hostile import SERVERS, serves
from murmur.lab.simulation.network import KEEP_BLOCKS, OWNER, Network, SimulatedNode
from murmur.lab.simulation.store import Faults as StoreFaults
from murmur.protocol.errors import STATE_PRUNED, ChainError

SETTLED_SECONDS = 200.0
ROUNDS = 12


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Callable[[], Network]]:
    made: list[Network] = []

    def make() -> Network:
        folder = tmp_path / str(len(made))
        made.append(Network(folder, 1, validators=2, miners=2, tell=lambda *told: None))
        made[-1].begin()
        made[-1].clock.run(SETTLED_SECONDS)
        return made[-1]

    yield make
    for network in made:
        network.close()


def state(network: Network) -> dict[str, Any]:
    """What faults change, but for what is drawn anew."""
    members = {
        m.name: (m.up, m.down, m.disk_full, m.wall_offset, m.gone, m.connection.down, m.connection.stuck_at)
        for m in network.members.values()
    }
    lives = {
        m.name: (m.lives, m.life is not None and m.life.frozen_until > network.clock.now)
        for m in network.members.values()
    }
    return {
        "members": members,
        "lives": lives,
        "stores": {name: faults for name, faults in network.store.faults.items() if faults != StoreFaults()},
        "chain": (network.world.finality_stops, network.blocks.late_seconds, network.world._forks),
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_fault_is_seen_at_once_and_over_in_time(networks: Callable[[], Network], kind: Kind) -> None:
    network = networks()
    faults = Faults(network, 0.0, ROUNDS)
    before = state(network)
    name = "validator-1" if kind.whom == "validator" else "miner-1"
    member: SimulatedNode | None = None if kind.whom == "everybody" else network.members[name]
    faults._does[kind.name](member, 20.0)  # type: ignore[operator]
    assert state(network) != before
    network.clock.run(network.clock.now + 120.0)
    after = state(network)
    assert after["stores"] == {}
    assert after["chain"][:2] == (None, 0.0)
    for other in network.members.values():
        assert other.up or other.gone, other.name
        assert (other.down, other.disk_full) == (0, 0)
        assert other.connection == NodeConnection(hangs=other.connection.hangs)
    if kind.name == "hotkey replaced":
        assert network.members["joiner-1"].up
        assert network.members["miner-1"].gone


def test_faults_keep_their_rate_in_storms_and_none_begins_or_lasts_in_a_calm(networks: Callable[[], Network]) -> None:
    network = networks()
    seen: list[Incident] = []
    faults = Faults(network, 200.0, 60, seen.append)
    for kind in list(faults._does):
        faults._does[kind] = lambda member, seconds: None
    for member in network.members.values():
        network.kill(member)
    faults.begin()
    clock, hours = network.run.clock, 10.0
    network.clock.run(network.clock.now + hours * 3600)
    stormy = sum(not faults.calm(round) for round in range(clock.round_at(network.world.head)))
    storm_hours = stormy * clock.round_blocks * 12 / 3600
    assert 0.8 < len(seen) / storm_hours / 200.0 < 1.2
    assert {incident.kind for incident in seen} == {kind.name for kind in KINDS}


def test_the_first_round_and_the_last_ones_are_left_in_peace(networks: Callable[[], Network]) -> None:
    faults = Faults(networks(), 100.0, 100)
    calm = [round for round in range(100) if faults.calm(round)]
    assert calm[0] == 0
    assert calm[-6:] == list(range(94, 100))
    assert 0 < len(calm) < 50


@pytest.mark.parametrize(("archive", "shares"), [("yes", (1.0, 1.0)), ("no", (0.0, 0.0)), ("some", (1.0, 1 / 3))])
def test_an_archive_answers_always_never_or_in_calms_and_a_third_of_the_rest(
    networks: Callable[[], Network], archive: str, shares: tuple[float, float]
) -> None:
    network = networks()
    for member in network.members.values():
        network.kill(member)
        member.gone = True
    faults = Faults(network, 0.0, 200, archive=archive)
    faults.begin()
    seen: dict[bool, list[bool]] = {True: [], False: []}
    clock = network.run.clock
    for round in range(3, 150):
        network.clock.run((clock.start(round) + 20) * BLOCK_SECONDS)
        seen[faults.calm(round)].append(network.blocks.has_archive)
    for calm, share in zip((True, False), shares, strict=True):
        assert sum(seen[calm]) / len(seen[calm]) == pytest.approx(share, abs=0.1)


def test_what_a_chain_node_has_pruned_is_read_from_an_archive_while_that_answers(
    networks: Callable[[], Network],
) -> None:
    network = networks()
    for member in network.members.values():
        network.kill(member)
        member.gone = True
    network.clock.run(network.clock.now + (KEEP_BLOCKS + 10) * BLOCK_SECONDS)
    read: list[int | str | None] = []

    def look() -> None:
        for has_archive in (False, True):
            network.blocks.has_archive = has_archive
            try:
                chain = NodeChain(network.blocks, NodeConnection(), OWNER.peer, life, random.Random(1))
                read.append(len(chain.peers(5)))
            except ChainError as fault:
                read.append(fault.code)

    life = network.clock.life("reader")
    life.start(look, "look")
    network.clock.run(network.clock.now + 100.0)
    assert read == [STATE_PRUNED, len(network.world.state(network.world.final).peers)]


def test_servers_of_a_hostile_minority_change_their_ways_every_round_and_nobody_elses_do(tmp_path: Path) -> None:
    network = Network(tmp_path, 1, validators=3, miners=1, tell=lambda *told: None, hostile_stake=0.3)
    for member in network.members.values():
        member.gone = True  # no process: only who serves how is looked at
    Faults(network, 0.0, ROUNDS).begin()
    network.begin()
    seen = []
    for round in range(ROUNDS):
        network.clock.run((network.run.clock.start(round) - 1 + 20) * 12.0)
        assert [name for name, faults in network.store.faults.items() if faults != StoreFaults()] in (
            [],
            ["validator-3"],
        )
        faults = network.store.faults["validator-3"]
        seen.append("dead" if faults.down else "stalls" if faults.stalls else "lies" if faults.lies else "honest")
    assert seen == [serves(network.run.id, round) for round in range(ROUNDS)]
    assert set(seen) == set(SERVERS)
    network.close()
