"""A network that has just been played, for commands that look at one."""

from pathlib import Path

import pytest

from murmur.lab.localnet.faults import Garbage
from murmur.node.chain import follower, retrying_chain
from murmur.node.sync import backoff
from tests.network import FakeNetwork, data_folder, networks

__all__ = ["data_folder", "networks"]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> FakeNetwork:
    """Three rounds of two validators and four miners, one of which sends garbage; two contribute. Tests that change
    anything of it put it back."""
    with pytest.MonkeyPatch.context() as patch:
        for module, pause in (
            (backoff, "PAUSE_SECONDS"),
            (follower, "STALL_SECONDS"),
            (retrying_chain, "PAUSE_SECONDS"),
        ):
            patch.setattr(module, pause, 0.02)
        found = FakeNetwork(
            tmp_path_factory.mktemp("network"),
            data_folder,
            miners=4,
            validators={"one": 300, "two": 100},
            contributors=2,
            reserve=0,
        )
        try:
            found.start("one", "two", "miner-1", "miner-2", "miner-3")
            found.start("miner-4", role=Garbage)
            found.run_until(3)
            found.run_to_block(found.clock.vote_deadline(2))
        finally:
            found.close()
    return found
