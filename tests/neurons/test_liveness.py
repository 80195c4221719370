"""What a minority says, or does not say in time, costs at most a void round; the run goes on (docs/protocol.md 6)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rounds.vote import Vote

from protocol import keys
from protocol.types import Attestation, Digest, PeerId, Record
from rounds.keep import Keeper
from rounds.miner import Miner
from rounds.score import Scores
from tests.fakes.bucket import Faults
from tests.network import FakeNetwork, with_parts

Networks = Callable[..., FakeNetwork]


class Poison(Vote):
    """Says what is true up to a round; in that one a record with a theta that nobody has, then nothing more."""

    since: int | None = None
    said = -1

    def is_agreed(self, round: int) -> bool:
        return self.since is None and super().is_agreed(round)

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        if self.since is None or round < self.since:
            return super().post(round, statement)
        if isinstance(statement, Record) and Poison.said < 0:
            Poison.said = round
            return super().post(round, replace(statement, theta=Digest(bytes([19] * 32))))
        return None


def test_dust_that_is_alone_for_a_round_halts_nobody(networks: Networks) -> None:
    """One rao, while the giant is away for an update, names a theta that nobody can reproduce."""
    Poison.since, Poison.said = None, -1
    network = networks(miners=2, validators={"big": 10**15, "dust": 1})
    network.start("big", "miner-1", "miner-2")
    network.start("dust", role=with_parts(Poison))
    network.run_until(3)
    Poison.since = poisoned = network["miner-1"].round
    network.kill("big")
    network.run_to_block(network.clock.attest_by(poisoned) + 1)
    assert Poison.said == poisoned
    network.start("big")
    network.run_to_block(network.clock.start(poisoned + 4))
    for name in ("big", "miner-1", "miner-2"):
        assert network[name].round >= poisoned + 3
    # Void at the most: the round of the update, and the one in which the giant was on its way back.
    assert not [round for round in network["miner-1"].voids() if not poisoned <= round <= poisoned + 1]
    network.assert_agreement()


class Mute(Miner):
    """Commits, and lets nobody have its bytes."""

    def publish(self, round: int, sealed: Any) -> None:
        pass

    def reveal(self, round: int, sealed: Any) -> None:
        pass


class RanksTheMute(Scores):
    mute: PeerId

    def rank(self, round: int, checked: Any) -> Any:
        return replace(super().rank(round, checked), contributing=(self.mute,), reserve=())


class NamesTheMute(Vote):
    """In whatever slot it leads; its mirror has something of the right size."""

    mute: PeerId

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        run, bucket = self.node.run, self.node.doors.bucket
        bucket.put(keys.mirror(run.id, round, self.mute), bytes(run.first.object_bytes), timeout_seconds=1)
        bucket.put(keys.mirror_reveal(run.id, round, self.mute), bytes(204), timeout_seconds=1)

    def is_agreed(self, round: int) -> bool:
        return False

    def approves(self, *arguments: Any, **named: Any) -> bool:
        return True


class KeepsNothing(Keeper):
    def keep(self, round: int) -> None:
        pass


def test_a_leader_of_two_fifths_whose_mirror_stalls_stops_no_round_that_an_honest_one_leads_too(
    networks: Networks,
) -> None:
    network = networks(miners=3, validators={"honest": 600, "evil": 399})
    network.start("honest", "miner-1", "miner-2")
    network.start("miner-3", role=Mute)
    RanksTheMute.mute = NamesTheMute.mute = network["miner-3"].peer
    network.start("evil", role=with_parts(RanksTheMute, NamesTheMute, KeepsNothing))
    network.run_until(1, "honest")
    network.store.faults["evil"] = Faults(stalls=True)
    network.run_until(5, "honest", "miner-1")
    network.assert_agreement("honest", "miner-1", "miner-2")
    assert [round for round in network["honest"].voids() if round >= 1] == []
    for round in range(1, 5):
        assert network["miner-1"].contributing(round)
