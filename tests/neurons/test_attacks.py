"""Validators with a minority of the stake against the rest: nobody is stopped, and nobody's replica parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rounds.vote import Vote

from gauntlet.selection import Ranking
from node.state import SealedRound
from protocol import keys
from protocol.types import PeerId
from rounds.keep import Keeper
from rounds.miner import Miner
from rounds.score import Scores
from tests.network import FakeNetwork, with_parts

Networks = Callable[..., FakeNetwork]


class Mute(Miner):
    """Commits and keeps its key."""

    def reveal(self, round: int, sealed: SealedRound) -> None:
        self.node.wait_for(self.node.clock.commit_by(round) + 1, "nothing")


class RanksTheMute(Scores):
    """Selects the peer whose key nobody has."""

    mute: PeerId

    def rank(self, round: int, checked: Any) -> Ranking:
        return replace(super().rank(round, checked), contributing=(self.mute,), reserve=())


class NamesTheMute(Vote):
    """Names it in whatever slot it leads, and lets everything pass."""

    mute: PeerId

    def approves(self, *arguments: Any, **named: Any) -> bool:
        return True


class KeepsNothing(Keeper):
    def keep(self, round: int) -> None:
        pass


class RanksTheLastFirst(Scores):
    """Selects the peer that others rank last, and mirrors it, so that there is no reason for a veto."""

    def rank(self, round: int, checked: Any) -> Ranking:
        ranking = super().rank(round, checked)
        return replace(ranking, contributing=ranking.order[-1:], reserve=())


class ApprovesNothing(Vote):
    """Leads nothing and approves nothing."""

    def propose(self, *arguments: Any, **named: Any) -> None:
        pass

    def approves(self, *arguments: Any, **named: Any) -> bool:
        return False


def led(network: FakeNetwork, names: Sequence[str], round: int) -> Mapping[int, str]:
    """Which of the named validators posted a record in which slot."""
    return {e["slot"]: name for name in names for e in network[name].events("posted") if e["round"] == round}


def test_the_second_of_two_bad_records_is_not_agreed_either(networks: Networks) -> None:
    network = networks(miners=3, validators={"honest": 200, "a": 100, "b": 99})
    network.start("honest", "miner-1", "miner-2")
    network.start("miner-3", role=Mute)

    RanksTheMute.mute = NamesTheMute.mute = network["miner-3"].peer
    network.start("a", "b", role=with_parts(RanksTheMute, NamesTheMute, KeepsNothing))
    for round in range(20):
        network.run_to_block(network.clock.attest_by(round))
        if set(led(network, ("a", "b"), round)) == {0, 1}:
            break
    else:
        raise AssertionError("the two never led both slots")
    assert network["honest"].node.agreed_selection(round, network["honest"].node.held.claim).selection is None
    network.run_to_block(network.clock.start(round + 4))
    assert network["honest"].round > round + 1
    assert network["miner-1"].round > round + 1


def test_bytes_that_only_the_leader_selects_outlive_the_leaders_copies(networks: Networks) -> None:
    network = networks(miners=3, validators={"honest": 100, "evil": 99}, contributors=1, reserve=0)
    network.start("honest", "miner-1", "miner-2", "miner-3")
    network.start("evil", role=with_parts(RanksTheLastFirst))
    for round in range(20):
        network.run_to_block(network.clock.attest_by(round) - 1)
        if led(network, ["evil"], round).get(0) is None:
            continue
        node = network["honest"].node
        selection = node.provisional_selection(round, node.held.claim).selection
        if selection is not None:
            break
    else:
        raise AssertionError("the evil validator never led slot 0")
    ((peer, _),) = selection.contributing
    for member in network.members.values():
        if member.peer == peer:
            bucket = network.store.buckets[member.name]
            bucket.pop(keys.payload(network.run.id, round), None)
            bucket.pop(keys.reveal(network.run.id, round), None)
    for key in [key for key in network.store.buckets["evil"] if "/mirror" in key]:
        del network.store.buckets["evil"][key]
    network.run_to_block(network.clock.start(round + 4))
    assert network["honest"].round > round + 1
    assert network["miner-1"].round > round + 1


def test_dust_cannot_keep_a_giant_from_agreeing(networks: Networks) -> None:
    network = networks(miners=2, validators={"big": 10**15, "dust": 1})
    network.start("big", "miner-1", "miner-2")
    network.start("dust", role=with_parts(ApprovesNothing))
    network.run_until(5)
    assert not set(range(1, 5)) & set(network["big"].voids())
    assert network.assert_agreement()
