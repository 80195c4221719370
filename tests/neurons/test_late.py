"""A validator that comes late, was stopped, or cannot see: it does what it still can, and blames nobody for it."""

from collections.abc import Callable

from protocol.types import hotkey
from rounds.collect import Collector
from rounds.keep import Keeper
from rounds.validator import Validator
from tests.network import FakeNetwork, Killed, with_parts

Networks = Callable[..., FakeNetwork]


class DiesAtBlockD(Collector):
    """Dead in round 1, as soon as block D is final."""

    def collect(self, round: int, *rest: object) -> object:  # type: ignore[override]
        if round == 1:
            raise Killed
        return super().collect(round, *rest)  # type: ignore[arg-type]


def restarted_in_round_1(network: FakeNetwork, block: int) -> None:
    """A network whose validator died at D of round 1 and is back at `block`."""
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(DiesAtBlockD))
    network.run_blocks(lambda: not network["validator"].alive)
    network.run_to_block(block)
    network.start("validator")


def test_a_validator_that_comes_back_after_block_d_still_judges_the_round(networks: Networks) -> None:
    network = networks(miners=2)
    restarted_in_round_1(network, network.clock.commit_by(1) + 1)
    network.run_until(3)
    assert network["validator"].voids() == []
    assert sorted(network["validator"].contributing(1)) == sorted(hotkey(network[f"miner-{n}"].peer) for n in (1, 2))
    network.assert_agreement()


class Overruns(Keeper):
    """Each round's work lasts until block D of the next one has passed."""

    def keep(self, round: int) -> None:
        super().keep(round)
        self.node.wait_for(self.node.clock.commit_by(round + 1) + 1, "nothing")


def test_a_lone_validator_whose_rounds_overrun_loses_none(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(Overruns))
    network.run_until(4)
    assert network["validator"].voids() == []
    assert [event["round"] for event in network["validator"].events("reported")] == [0, 1, 2, 3]
    network.assert_agreement()
