"""Read a network without a wallet or a bucket: its public state, now and as of an older block."""

from collections.abc import Mapping
from pathlib import Path

from murmur.node.config.adapters import opener, own_chain, owner_opener
from murmur.node.config.ports import Opener, Ports
from murmur.node.config.settings import NetworkConfig
from murmur.node.sync import run_discovery as runs
from murmur.node.sync.amendments import settled
from murmur.protocol.errors import OutOfSync
from murmur.protocol.ports import Chain, ObjectFacts, Verify
from murmur.protocol.run import Run
from murmur.protocol.types import Header, Peer, PeerId, Pointer, Subnet, Uid
from storage.readonly import ReadOnly, refuse
from storage.s3 import Sink

Opened = tuple[Ports, Run]
_NOWHERE = Pointer("https://nowhere.invalid", "none", "none", "none")


def open_run(config: NetworkConfig, home: Path) -> Opened:
    """Open the run that the configuration names, with ports that only read. Uses the data saved in `home` and does not
    change it: a node may use that folder. Raises what runs.find_run raises."""
    from murmur.chain.keys import verify

    chain = own_chain(config, None)
    try:
        run = runs.find_run(config, chain, owner_opener(config), home)
        return _settled(run, reading(chain, verify, opener(local=run.first.local)))
    except BaseException:
        chain.close()  # a retry opens another one
        raise


def open_recorded(config: NetworkConfig, chain: Chain, verify: Verify, open_pointer: Opener, home: Path) -> Opened:
    """Open the run of a recorded network, given its chain and buckets. Raises what runs.find_run does."""
    run = runs.find_run(config, chain, open_pointer, home)
    return _settled(run, reading(chain, verify, open_pointer))


def reading(chain: Chain, verify: Verify, open_pointer: Opener) -> Ports:
    """Return ports that only read, without a signer or a bucket."""
    return Ports(chain, _Nobody(), verify, _NoBucket(), _NOWHERE, open_pointer)


class AsOf:
    """A chain as it was when `block` was the last final one: a node on it follows the run up to there."""

    def __init__(self, chain: Chain, block: int) -> None:
        self._chain, self._block = chain, block

    def genesis(self) -> bytes:
        return self._chain.genesis()

    def finalized(self) -> Header:
        return self._chain.header(self._block)

    def header(self, block: int) -> Header:
        return self._chain.header(block)

    def wait(self, block: int, timeout_seconds: float) -> Header:
        if block > self._block:
            # A live node would wait for new statements; here there will be none.
            raise OutOfSync("no source has all files of this round's start any more")
        return self._chain.header(block)

    def peers(self, block: int) -> tuple[Peer, ...]:
        return self._chain.peers(block)

    def subnet(self, block: int) -> Subnet:
        return self._chain.subnet(block)

    def stands_from(self, set_in: int) -> int | None:
        block = self._chain.stands_from(set_in)
        return block if block is not None and block <= self._block else None

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        return self._chain.weights(block, uid)

    def balance(self) -> int:
        refuse()

    def publish(self, fields: tuple[bytes, ...]) -> int:
        refuse()

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        refuse()


class _Nobody:
    """The signer of a reader without a hotkey."""

    peer = PeerId(bytes(32))

    def sign(self, message: bytes) -> bytes:
        refuse()


class _NoBucket(ReadOnly):
    """The bucket of a reader that has none."""

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        refuse()

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        refuse()

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        refuse()

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        refuse()

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        refuse()


def _settled(run: Run, ports: Ports) -> Opened:
    return ports, settled(run, 0, ports, {})
