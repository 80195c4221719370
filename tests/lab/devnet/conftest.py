"""A chain without a process around it, for the rules; real processes are in test_sdk.py and test_launch.py."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bittensor.sp_core import Keypair

from murmur.chain import beacon
from murmur.lab.devnet.author import Author
from murmur.lab.devnet.codec import Codec
from murmur.lab.devnet.genesis import Genesis
from murmur.lab.devnet.metadata import load_metadata
from murmur.lab.devnet.state import State
from murmur.protocol.errors import ConfigError

TAO = 10**9
OWNER, OWNER_HOTKEY = Keypair.create_from_uri("//Owner"), Keypair.create_from_uri("//Owner//hotkey")
ALICE, BOB = Keypair.create_from_uri("//Alice"), Keypair.create_from_uri("//Bob")


def hotkey_of(index: int) -> Keypair:
    return Keypair.create_from_uri(f"//hotkey//{index}")


FUNDS = {key.ss58_address: 1000 * TAO for key in (OWNER, ALICE, BOB)}
OWNED: dict[str, Any] = {
    "owner_coldkey": OWNER.ss58_address,
    "owner_hotkey": OWNER_HOTKEY.ss58_address,
    "balances": FUNDS,
}


def genesis(**changes: Any) -> Genesis:
    """A fast subnet of tempo 10 with three rich coldkeys."""
    return Genesis.fast(**{**OWNED, "tempo_blocks": 10, "weights_rate_limit_blocks": 5, **changes})


def real_genesis(**changes: Any) -> Genesis:
    """A subnet with a real one's settings, and three rich coldkeys."""
    return Genesis(**{**OWNED, **changes})


@dataclass
class Chain:
    """An Author on a clock that moves a second a block, with hands to sign and look."""

    codec: Codec
    folder: Path
    genesis: Genesis
    lag: int = 0
    keep: int = 256
    seconds: int = 1_700_000_000
    author: Author = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        state = State(self.folder / "chain.sqlite", self.keep)
        self.author = Author(self.codec, state, self.lag, self._milliseconds)
        self.author.start(self.genesis)

    def reopen(self) -> None:
        """As after a crash: nothing but what is on disk survives."""
        self.author.state.close()
        self.open()

    def _milliseconds(self) -> int:
        self.seconds += 1
        return self.seconds * 1000

    @property
    def head(self) -> int:
        return self.author.state.head

    def sign(self, key: Keypair, module: str, function: str, nonce: int | None = None, **params: Any) -> bytes:
        return self.sign_call(key, self.codec.compose_call(module, function, params), nonce)

    def sign_call(self, key: Keypair, call: bytes, nonce: int | None = None, birth: int = 0) -> bytes:
        """A signed extrinsic; immortal, or mortal over 64 blocks from `birth` on."""
        runtime = self.codec._runtime
        nonce = self.author.pool.next_nonce(key.ss58_address) if nonce is None else nonce
        era = {"period": 64, "current": birth} if birth else "00"
        hashes = {"genesis_hash": self.author.state.hash_of(0), "era_block_hash": self.author.state.hash_of(birth)}
        payload = runtime.signature_payload(call, era=era, nonce=nonce, tip=0, tip_asset_id=None, **hashes)
        data, _ = runtime.encode_signed_extrinsic(
            call,
            public_key=key.public_key,
            signature=key.sign(bytes(payload)),
            signature_version=1,
            era=era,
            nonce=nonce,
            tip=0,
            tip_asset_id=None,
        )
        return bytes(data)

    def run(self, key: Keypair, module: str, function: str, **params: Any) -> str | None:
        """Submit one call and make the block with it; the name of its error, None when it succeeded."""
        data = self.sign(key, module, function, **params)
        self.author.submit(data)
        block = self.author.build()
        index = block.extrinsics.index("0x" + data.hex())
        for record in self.get("System.Events"):
            if record["extrinsic_idx"] == index and record["event_id"] == "ExtrinsicFailed":
                return self.error_name(record["attributes"]["dispatch_error"])
        return None

    def error_name(self, error: Any) -> str:
        if isinstance(error, dict) and "Module" in error:
            code = error["Module"]["error"]
            index = bytes.fromhex(code[2:])[0] if isinstance(code, str) else code[0]
            return str(self.codec._runtime.module_error(error["Module"]["index"], index)[0])
        return str(error if isinstance(error, str) else next(iter(error.values())))

    def get(self, name: str, *params: Any, height: int | None = None) -> Any:
        return self.author.storage_at(self.head if height is None else height).get(name, *params)

    def free(self, key: Keypair) -> int:
        return int(self.get("System.Account", key.ss58_address)["data"]["free"])

    def step(self, blocks: int) -> None:
        for _ in range(blocks):
            self.author.build()

    def register(self, count: int, coldkey: Keypair = ALICE) -> list[Keypair]:
        """Register hotkeys 0 .. count - 1 under one coldkey, in one block."""
        for index in range(count):
            params = {"netuid": 1, "hotkey": hotkey_of(index).ss58_address}
            self.author.submit(self.sign(coldkey, "SubtensorModule", "burned_register", **params))
        self.author.build()
        return [hotkey_of(index) for index in range(count)]

    def commit_weights(
        self, key: Keypair, weights: dict[int, int], *, hotkey: Keypair | None = None, version_key: int = 0, **more: Any
    ) -> str | None:
        """Commit a row under commit-reveal, sealed to the devnet's key, as `hotkey`'s (default: the signer's own)."""
        payload = beacon.encode(
            beacon.Weights((hotkey or key).public_key, tuple(weights), tuple(weights.values()), version_key)
        )
        params = {"netuid": 1, "mecid": 0, "reveal_round": 7, "commit_reveal_version": 4, **more}
        params.setdefault("commit", beacon.seal(payload, self.beacon_key()))
        return self.run(key, "SubtensorModule", "commit_timelocked_mechanism_weights", **params)

    def beacon_key(self) -> bytes:
        """The public key that commits are sealed to: the first field of the beacon's configuration on chain."""
        raw = self.author.storage_at(self.head).raw(self.codec.key("Drand.BeaconConfig"))
        assert raw is not None
        assert raw[0] == beacon.KEY_BYTES << 2
        return raw[1 : 1 + beacon.KEY_BYTES]

    def events(self, name: str) -> list[Any]:
        """The attributes of the last block's events of this name, in order."""
        return [record["attributes"] for record in self.get("System.Events") if record["event_id"] == name]

    def fee(self) -> int:
        """What the last block's one extrinsic cost."""
        (paid,) = self.events("TransactionFeePaid")
        return int(paid["actual_fee"])

    def commit(self, key: Keypair, *fields: dict[str, bytes]) -> str | None:
        return self.run(key, "Commitments", "set_commitment", netuid=1, info={"fields": [list(fields)]})

    def stake(self, hotkey: Keypair, tao: int, coldkey: Keypair = ALICE) -> str | None:
        params = {"hotkey": hotkey.ss58_address, "netuid": 1, "amount_staked": tao * TAO}
        return self.run(coldkey, "SubtensorModule", "add_stake", **params)


@pytest.fixture(scope="session")
def codec() -> Codec:
    try:
        return Codec(load_metadata())
    except ConfigError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture
def make_chain(codec: Codec, tmp_path: Path) -> Iterator[Callable[..., Chain]]:
    chains: list[Chain] = []

    def make(*, lag: int = 0, keep: int = 256, real: bool = False, **changes: Any) -> Chain:
        folder = tmp_path / str(len(chains))
        folder.mkdir()
        start = real_genesis(**changes) if real else genesis(**changes)
        chains.append(Chain(codec, folder, start, lag, keep))
        return chains[-1]

    yield make
    for chain in chains:
        chain.author.state.close()


@pytest.fixture
def chain(make_chain: Callable[..., Chain]) -> Chain:
    return make_chain()


@pytest.fixture
def real(make_chain: Callable[..., Chain]) -> Chain:
    return make_chain(real=True)
