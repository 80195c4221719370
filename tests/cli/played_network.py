"""A network that has been played, as it is read from outside."""

import json
from pathlib import Path
from typing import Any

from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.observe.reader import reading
from murmur.page.live.network import Network
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.types import Peer, PeerId, hotkey
from tests.fakes.chain import FakeChain, fake_verify
from tests.network import FakeNetwork
from tests.small_run import OWNER

SECONDS = 60.0


class Forgetful(FakeChain):
    """A usual chain node, that has forgotten the state of all blocks before this one."""

    oldest = 0

    def peers(self, block: int) -> tuple[Peer, ...]:
        if block < self.oldest:
            raise ChainError("pruned", STATE_PRUNED)
        return super().peers(block)


def outside(played: FakeNetwork) -> Ports:
    return reading(FakeChain(played.world, PeerId(bytes(32))), fake_verify, played.store.open)


def opened(played: FakeNetwork, ports: Ports | None = None) -> OpenedNetwork:
    config = NetworkConfig(netuid=1, owner=hotkey(OWNER.peer), device="cpu")
    return OpenedNetwork(config, Path(), ports or outside(played), played.run)


def read_all(source: Network) -> dict[int, dict[str, Any]]:
    """Every round as the page gets it, once nothing more is to come."""
    for _ in range(20):
        source._look()
        while source.read():
            pass
        assert source._history is not None
        if not source._history.more:
            break
    bodies, _, more = source.rounds.since(0, 1 << 30)
    assert not more
    return {body["round"]: body for body in map(json.loads, bodies)}
