"""Which addresses a node follows: its run's spec decides, not the address of its chain node."""

from typing import Any

import pytest

from murmur.chain.adapter import open_chain
from murmur.node.config.adapters import ChainAccess, open_ports, opener, owner_opener
from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig, NodeConfig
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Pointer, PublicPointer
from tests.fakes.chain import FakeSigner, fake_verify

PRIVATE = [Pointer(f"http://{host}", "bucket", "access", "secret") for host in ("169.254.169.254", "127.0.0.1:9000")]
BUCKET = {"name": "own", "access_key": "a", "secret_key": "b", "read_access_key": "c", "read_secret_key": "d"}


def config(endpoint: str, network: str = "ws://127.0.0.1:9944", **bucket: str | None) -> NodeConfig:
    table: dict[str, Any] = {
        "network": network,
        "netuid": 1,
        "owner": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
        "wallet": {"name": "w"},
        "bucket": BUCKET | {"endpoint": endpoint} | bucket,
    }
    return NodeConfig.model_validate(table)


def access() -> ChainAccess:
    return ChainAccess(open_chain("ws://127.0.0.1:1", 1, None), FakeSigner("a"), fake_verify)


@pytest.mark.parametrize("pointer", PRIVATE)
def test_a_public_run_over_a_chain_node_on_this_machine_follows_no_private_pointer(pointer: Pointer) -> None:
    """Whoever runs a node of a public chain beside its miner has such an address."""
    ports = open_ports(config("https://own.example"), access(), local=False)
    with pytest.raises(ConfigError):
        ports.open_pointer(pointer)
    open_ports(config("http://127.0.0.1:9000"), access(), local=True).open_pointer(PRIVATE[1])


def test_a_proxy_that_cannot_be_used_ends_a_node_whose_peers_are_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "own.example")
    with pytest.raises(ConfigError, match="all_proxy cannot be used"):
        open_ports(config("https://own.example"), access(), local=False)
    open_ports(config("http://127.0.0.1:9000"), access(), local=True)


def test_ones_own_bucket_has_to_be_one_that_the_runs_peers_will_follow() -> None:
    with pytest.raises(ConfigError, match="https"):
        open_ports(config("http://127.0.0.1:9000"), access(), local=False)


def test_a_public_bucket_is_published_without_a_key_and_its_address_has_to_be_one_that_peers_follow() -> None:
    def ports(public_url: str) -> Ports:
        table = config("https://own.example", read_access_key=None, read_secret_key=None, public_url=public_url)
        return open_ports(table, access(), local=False)

    assert ports("https://cdn.example").pointer == PublicPointer("https://cdn.example")
    with pytest.raises(ConfigError, match=r"bucket\.public_url must be an https URL"):
        ports("http://cdn.example")
    with pytest.raises(ConfigError, match="public URL must be https://HOST"):
        ports("https://cdn.example/")


@pytest.mark.parametrize("pointer", PRIVATE)
def test_a_public_pointer_to_a_private_address_is_not_followed(pointer: Pointer) -> None:
    ports = open_ports(config("https://own.example"), access(), local=False)
    with pytest.raises(ConfigError):
        ports.open_pointer(PublicPointer(pointer.endpoint.replace("http:", "https:")))


def test_the_owners_bucket_may_be_on_this_machine_when_the_chain_is() -> None:
    def named(network: str) -> NetworkConfig:
        return NetworkConfig(network=network, netuid=1, owner="5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY")

    owner_opener(named("ws://127.0.0.1:9944"))(PRIVATE[1])
    with pytest.raises(ConfigError):
        owner_opener(named("finney"))(PRIVATE[1])


def test_a_pointer_that_was_opened_is_kept() -> None:
    opened = opener(local=True)
    assert opened(PRIVATE[1]) is opened(PRIVATE[1])
