"""What doctor says of the ways out of this machine."""

import pytest

from tests.node.doctor_world import World, world

__all__ = ["world"]


def test_doctor_shows_the_proxy_of_chain_and_bucket(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://me:secret@proxy.test:3128")
    found = world.found()
    assert not [one for one in ("chain", "bucket") if "proxy" in found[one].detail]  # they are on this machine
    world.options = {
        "network": "wss://chain.test",
        "bucket": world.config().bucket.model_copy(update={"endpoint": "https://store.test"}),
    }
    found = world.found()
    for one in ("chain", "bucket"):
        assert "through the proxy http://proxy.test:3128" in found[one].detail
