"""A miner whose own bucket refuses uploads for a while: what it costs on chain, and when it contributes again."""

from collections.abc import Callable

import pytest

from murmur.lab.simulation.store import Faults
from murmur.protocol.types import hotkey
from tests.network import FakeNetwork, posts

Networks = Callable[..., FakeNetwork]


def test_uploads_that_are_refused_for_five_rounds_cost_two_posts_and_the_miner_comes_back_by_itself(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    found = posts(network, "miner-1", monkeypatch)
    network.store.faults["miner-1"] = Faults(denied=True)
    network.run_to_block(network.clock.start(7))
    del network.store.faults["miner-1"]
    assert sum(found.values()) <= 2, found
    network.run_until(10)
    me = hotkey(network["miner-1"].peer)
    assert [round for round in range(2, 10) if me in network["miner-2"].contributing(round)][:1] in ([7], [8])
    assert network["miner-1"].alive
    network.assert_agreement()
