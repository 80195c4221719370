"""A machine with everything that a node needs, before a fake chain and a fake store."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from murmur.data.shards import Shards
from murmur.lab.simulation.store import Faults
from murmur.node.config import adapters
from murmur.node.config.adapters import opener
from murmur.node.config.ports import Ports
from murmur.node.config.settings import NodeConfig
from murmur.node.doctor import bucket, bucket_trial, machine
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Finding
from murmur.node.doctor.start import CHECKS
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError, StorageError
from murmur.protocol.types import Digest, Subnet, Uid
from sparseloco import ops
from storage.realtime import RealTime
from tests.fakes.bucket import FakeStore
from tests.fakes.chain import FakeChain, FakeSigner, FakeWorld, fake_verify
from tests.small_run import OWNER, small_spec
from tests.specs import to_toml

NETWORK = "ws://127.0.0.1:1"
OWN, READ = FakeSigner("miner"), "miner-read"


class ChainOfOne(FakeChain):
    """What the adapter has beyond the port."""

    refuses: ChainError | None = None
    hidden: bool = False
    archive: str | None = None
    """Keeps what the chain's node has pruned."""
    hangs: Callable[[float], None] | None = None

    def reach(self, timeout_seconds: float) -> None:
        if self.hangs is not None:
            self.hangs(timeout_seconds)
            raise ChainError(f"the chain did not answer within {timeout_seconds} s")
        self.world.check(self.peer)

    def subnet(self, block: int) -> Subnet:
        if self.hidden:
            raise ChainError("there is no subnet 7 on this chain", "SubnetNotExists")
        return super().subnet(block)

    def require_weights(self, weights: Mapping[Uid, float]) -> None:
        if self.refuses is not None:
            raise self.refuses

    def keeper(self, block: int) -> str:
        try:
            self.header(block)
        except ChainError as fault:
            if fault.code != STATE_PRUNED or self.archive is None:
                raise
            return self.archive
        return NETWORK

    def as_local(self) -> "ChainOfOne":
        return self

    def close(self) -> None:
        pass


class Clock(RealTime):
    """This machine's, `ahead` seconds of everybody else's; every pause is an event."""

    def __init__(self, world: FakeWorld) -> None:
        self.world, self.ahead, self.pauses, self.passed = world, 0.0, 0, 0.0
        self.after_pause: Callable[[], None] = lambda: None

    def now(self) -> float:
        return super().now() + self.passed

    def pass_by(self, seconds: float) -> None:
        self.passed += seconds

    def wall(self) -> float:
        return self.world.header(self.world.final).time + self.ahead

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self.passed += seconds
        assert self.pauses < 20, "waits for ever"
        self.after_pause()


@dataclass
class World:
    """A machine with everything that a node needs; each test takes one thing away."""

    folder: Path
    data: Path
    chain: ChainOfOne
    store: FakeStore
    time: Clock
    options: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    wallet_fault: ConfigError | None = None
    writable: bool = False
    date: float | None = 0.0
    """Seconds that the store's clock is ahead of the chain's; None where it does not say."""

    def config(self) -> NodeConfig:
        path = self.folder / "spec.toml"
        own = small_spec(Shards.open(self.data), Digest(bytes(32)), self.chain.world)
        path.write_text(to_toml(own.model_dump(mode="json") | self.spec))
        table: dict[str, Any] = {
            "network": NETWORK,
            "netuid": 1,
            "spec": path,
            "home": self.folder / "home",
            "data": self.data,
            "device": "cpu",
            "codec": "reference",
            "wallet": {"name": "mine"},
            "bucket": {
                "endpoint": "http://127.0.0.1:2",
                "name": "miner",
                "access_key": "own",
                "secret_key": "own-secret",
                "read_access_key": READ,
                "read_secret_key": "not-a-secret",
            },
        }
        return NodeConfig.model_validate(table | self.options)

    def found(self, role: str = "miner") -> dict[str, Finding]:
        node = ExaminedNode(self.config(), role, keeps=False, time=self.time)  # type: ignore[arg-type]
        try:
            return {finding.name: finding for finding in node.examine(CHECKS)}
        finally:
            node.close()


@pytest.fixture
def world(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    blocks = FakeWorld(epoch_blocks=20, weights_rate_limit=1)
    blocks.register(OWNER.peer)
    blocks.register(OWN.peer, stake=10**9, validates=True)
    blocks.step(5)
    store = FakeStore()
    store.bucket("miner")
    made = World(tmp_path, data_folder, ChainOfOne(blocks, OWN.peer), store, Clock(blocks))

    def own_wallet(config: NodeConfig) -> object:
        if made.wallet_fault is not None:
            raise made.wallet_fault
        return object()

    def open_ports(config: NodeConfig, line: object, *, local: bool) -> Ports:
        pointer = adapters.published(config.bucket)
        own = store.bucket(config.bucket.name)
        return Ports(made.chain, OWN, fake_verify, own, pointer, opener(local=local), made.time)  # type: ignore[arg-type]

    def server_time(endpoint: str, *, timeout_seconds: float) -> float | None:
        if store.faults.get("miner", Faults()).down:
            raise StorageError("head: no connection to the endpoint")
        return None if made.date is None else blocks.header(blocks.final).time + made.date

    monkeypatch.setattr(adapters, "own_wallet", own_wallet)
    monkeypatch.setattr(adapters, "signer_of", lambda wallet: OWN)
    monkeypatch.setattr(adapters, "own_chain", lambda config, wallet: made.chain)
    monkeypatch.setattr(bucket, "open_ports", open_ports)
    monkeypatch.setattr(
        bucket_trial,
        "open_published",
        lambda pointer, local: store.bucket(pointer.bucket, read_only=not made.writable, reader="published"),
    )
    monkeypatch.setattr(machine, "server_time", server_time)
    yield made
    ops.use("auto")
