"""Validators with a minority of the stake against the rest: nobody is stopped, and nobody's replica parts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gauntlet.selection import Ranking
from murmur.node.state.saved import SealedRound
from murmur.protocol import keys
from murmur.protocol.types import PeerId, Vote
from murmur.rounds.miner import Miner
from murmur.rounds.retention import Retention
from murmur.rounds.votes import Votes
from tests.network import FakeNetwork, with_parts
from tests.rounds.test_rounds import names

Networks = Callable[..., FakeNetwork]


class Mute(Miner):
    """Commits and keeps its key."""

    def reveal(self, round: int, sealed: SealedRound) -> None:
        self.node.wait_for(self.node.clock.commit_deadline(round) + 1, "nothing")


class NamesTheMute(Votes):
    """Names the peer whose key nobody has, and nobody else."""

    mute: PeerId

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        super().cast(round, replace(ranking, order=(self.mute,)), at_commit, checked)


class KeepsNothing(Retention):
    def keep(self, round: int) -> None:
        pass


class NamesTheLast(Votes):
    """Names nobody but the peer that it ranks last, and gives nobody a copy."""

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        pass

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        super().cast(round, replace(ranking, order=ranking.order[-1:]), at_commit, checked)


class Silent(Votes):
    """Says nothing."""

    def send(self, round: int, vote: Vote) -> int | None:
        return None


class Abstains(Votes):
    """Says of every round that it is elsewhere."""

    def cast(self, round: int, *_: Any) -> None:
        self.post(round, None)


def test_just_under_half_that_names_a_peer_without_a_key_brings_it_in_in_no_round(networks: Networks) -> None:
    network = networks(miners=3, validators={"honest": 200, "a": 100, "b": 99})
    network.start("honest", "miner-1", "miner-2")
    network.start("miner-3", role=Mute)
    NamesTheMute.mute = network["miner-3"].peer
    network.start("a", "b", role=with_parts(NamesTheMute, KeepsNothing))
    network.run_until(6)
    assert network["a"].events("word_posted")[-1]["named"] == 1
    for round in range(6):
        assert sorted(network["miner-1"].contributing(round)) == names(network, "miner-1", "miner-2")
    network.assert_agreement()


def test_bytes_that_two_have_named_outlive_their_owners_bucket_where_one_of_the_two_gives_them(
    networks: Networks,
) -> None:
    network = networks(miners=3, validators={"honest": 100, "evil": 100}, contributors=1, reserve=0)
    network.start("honest", "miner-1", "miner-2", "miner-3")
    network.start("evil", role=with_parts(NamesTheLast))
    network.run_until(2)
    run, node = network.run, network["honest"].node
    network.run_blocks(lambda: node.agreement.agreed(run, 2, network.world.final) is not None)
    decision = node.agreement.agreed(run, 2, network.world.final)
    assert decision is not None
    assert decision.selection is not None
    ((peer, _),) = decision.selection.contributing
    for name, bucket in network.store.buckets.items():
        if name.startswith("miner"):
            del bucket[keys.payload(run.id, 2)], bucket[keys.reveal(run.id, 2)]
            network[name].node.stop_prefetch()
            network[name].node.state.clear_cache()
    network.run_until(4)
    others = [name for name in ("miner-1", "miner-2", "miner-3") if network[name].peer != peer]
    for name in others:
        assert network[name].contributing(2)
        assert 3 not in network[name].voids()
    network.assert_agreement()


@pytest.mark.parametrize("dust", [Silent, Abstains])
def test_dust_cannot_keep_a_giant_from_agreeing_nor_make_it_wait(networks: Networks, dust: type[Votes]) -> None:
    network = networks(miners=2, validators={"big": 10**15, "dust": 1})
    network.start("big", "miner-1", "miner-2")
    network.start("dust", role=with_parts(dust))
    network.run_until(5)
    for event in network["miner-1"].events("applied"):
        assert not event["void"]
        assert event["decided"] < network.clock.vote_deadline(event["round"])
    assert len(network.assert_agreement()) >= 5
