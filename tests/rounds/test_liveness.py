"""What a minority says, or does not say in time, costs at most a void round; the run goes on (docs/protocol.md 6)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gauntlet.agreement import SEAT_ROUNDS
from gauntlet.selection import Ranking
from murmur.node.node import VAIN_ROUNDS
from murmur.protocol import keys
from murmur.protocol.types import Digest, PeerId, Vote
from murmur.rounds.miner import Miner
from murmur.rounds.retention import Retention
from murmur.rounds.votes import Votes
from tests.fakes.bucket import Faults
from tests.network import FakeNetwork, with_parts
from tests.rounds.test_rounds import names

Networks = Callable[..., FakeNetwork]


class Poison(Votes):
    """Says what is true up to a round; from that one on so many votes with a digest that nobody has, then nothing."""

    since: int | None = None
    lie = "theta"
    most = 1
    said: list[int]

    def send(self, round: int, vote: Vote) -> int | None:
        if self.since is None or round < self.since:
            return super().send(round, vote)
        if len(self.said) == self.most:
            return None
        self.said.append(round)
        nobodys = {self.lie: Digest(bytes([19] * 32))}
        return super().send(round, replace(vote, **nobodys))  # type: ignore[arg-type]


def poisoned(networks: Networks, lie: str, most: int) -> tuple[FakeNetwork, int]:
    """A network whose giant goes away in this round, while one rao lies so many times."""
    Poison.since, Poison.lie, Poison.most, Poison.said = None, lie, most, []
    network = networks(miners=2, validators={"big": 10**15, "dust": 1})
    network.start("big", "miner-1", "miner-2")
    network.start("dust", role=with_parts(Poison))
    network.run_until(3)
    Poison.since = network["miner-1"].round
    network.kill("big")
    return network, Poison.since


def test_dust_that_is_alone_for_a_round_halts_nobody(networks: Networks) -> None:
    """One rao, while the giant is away for an update, names a theta that nobody can reproduce."""
    network, since = poisoned(networks, "theta", 1)
    network.run_to_block(network.clock.vote_deadline(since) + 1)
    assert Poison.said == [since]
    network.start("big")
    network.run_to_block(network.clock.start(since + 4))
    for name in ("big", "miner-1", "miner-2"):
        assert network[name].round >= since + 3
    # Void at the most: the round of the update.
    assert set(network["miner-1"].voids()) <= {since}
    network.assert_agreement()


@pytest.mark.parametrize("lie", [pytest.param("theta", marks=pytest.mark.slow), "previous"])
def test_dust_that_is_alone_for_longer_than_a_seat_lasts_halts_nobody_who_comes_back(
    networks: Networks, lie: str
) -> None:
    """Then its vote alone is the most of all that count, whatever it says."""
    away = SEAT_ROUNDS + 3
    network, since = poisoned(networks, lie, away)
    back = since + away
    network.run_to_block(network.clock.vote_deadline(back - 1) + 1)
    assert Poison.said == list(range(since, back))
    network.start("big")
    last = back + VAIN_ROUNDS + 1
    network.run_to_block(network.clock.start(last + 1))
    assert sorted(network["miner-1"].contributing(last)) == names(network, "miner-1", "miner-2")
    network.assert_agreement()


class Mute(Miner):
    """Commits, and lets nobody have its bytes."""

    def publish(self, round: int, sealed: Any) -> None:
        pass

    def reveal(self, round: int, sealed: Any) -> None:
        pass


class NamesTheMute(Votes):
    """And nobody else; its mirror has something of the right size."""

    mute: PeerId

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        run, bucket = self.node.run, self.node.ports.bucket
        bucket.put(keys.mirror(run.id, round, self.mute), bytes(run.first.object_bytes), timeout_seconds=1)
        bucket.put(keys.mirror_reveal(run.id, round, self.mute), bytes(204), timeout_seconds=1)

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        super().cast(round, replace(ranking, order=(self.mute,)), at_commit, checked)


class KeepsNothing(Retention):
    def keep(self, round: int) -> None:
        pass


def test_two_fifths_that_name_whom_nobody_can_read_and_whose_mirror_stalls_stop_no_round(networks: Networks) -> None:
    network = networks(miners=3, validators={"honest": 600, "evil": 399})
    network.start("honest", "miner-1", "miner-2")
    network.start("miner-3", role=Mute)
    NamesTheMute.mute = network["miner-3"].peer
    network.start("evil", role=with_parts(NamesTheMute, KeepsNothing))
    network.run_until(1, "honest")
    network.store.faults["evil"] = Faults(stalls=True)
    network.run_until(5, "honest", "miner-1")
    network.assert_agreement("honest", "miner-1", "miner-2")
    assert network["honest"].voids() == []
    for round in range(1, 5):
        assert sorted(network["miner-1"].contributing(round)) == names(network, "miner-1", "miner-2")
