"""A fork that drops a miner's commitment: made again while there is time, and else a round like any other that passes a
miner by."""

from collections.abc import Callable

from murmur.protocol.types import hotkey
from tests.network import FakeNetwork

Networks = Callable[..., FakeNetwork]
LAG = 3


def drop_its_commitment(network: FakeNetwork, name: str) -> int:
    """Let a fork lose the block with the miner's newest commitment, as soon as it is made; that block."""
    member, before = network[name], len(network[name].events("committed"))
    network.run_blocks(lambda: len(member.events("committed")) > before)
    block = int(member.events("committed")[-1]["block"])
    depth = network.world.head - block + 1
    assert 0 < depth <= LAG
    network.world.reorg(depth, lost=True)
    return block


def test_a_commitment_that_a_fork_drops_in_time_is_made_again_and_counts(networks: Networks) -> None:
    network = networks(miners=1, finality_lag=LAG)
    network.start()
    block = drop_its_commitment(network, "miner-1")
    network.run_until(2)
    (dropped,) = network["miner-1"].events("commitment_dropped")
    assert (dropped["round"], dropped["block"], dropped["again"]) == (0, block, True)
    assert network["miner-1"].contributing(0) == [hotkey(network["miner-1"].peer)]


def test_one_that_is_dropped_too_late_is_a_round_without_us_and_costs_nothing_else(networks: Networks) -> None:
    network = networks(miners=2, finality_lag=LAG)
    network.start("validator", "miner-2")
    network.run_blocks(lambda: network.world.head >= network.clock.commit_deadline(0) - 3)
    network.start("miner-1")
    drop_its_commitment(network, "miner-1")
    network.run_until(3)
    late = network["miner-1"]
    assert [event["round"] for event in late.events("commitment_dropped")] == [0]
    assert late.contributing(0) == [hotkey(network["miner-2"].peer)]
    assert hotkey(late.peer) in late.contributing(1)
    assert not [event for event in late.events("revealed") if event["round"] == 0]
    network.assert_agreement()
