"""Block production: the operator's loop over pool, runtime and state, with finality and reorgs on request.

A block's hash is the hash of its SCALE header, as on Substrate. Its state root is a running hash of the writes (there
is no trie, and no second node needs a proof). A random seal in its digest makes every block and branch unique. Finality
trails the head by a fixed lag and never moves back. The clock is an argument.
"""

import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from murmur.chain import beacon
from murmur.lab.devnet.codec import Codec, compact
from murmur.lab.devnet.extrinsic import Extrinsic, parse
from murmur.lab.devnet.genesis import Genesis, write_genesis
from murmur.lab.devnet.pool import Pool, PoolError
from murmur.lab.devnet.runtime import execute_block, refusal, spec_version, timestamp
from murmur.lab.devnet.state import SCHEMA_VERSION, Block, State
from murmur.lab.devnet.storage import Storage
from murmur.protocol.errors import ConfigError

_SEAL_BYTES = 8
_ENGINE = b"dvnt"
_PRE_RUNTIME = b"\x06"
_NO_PARENT = bytes(32)

Watcher = Callable[[str | dict[str, str]], None]
"""Called with each status of a submitted extrinsic, as author_submitAndWatchExtrinsic notifies it."""


class Author:
    """The chain. `on_block` and `on_final` are called with every new head and every newly final block."""

    def __init__(self, codec: Codec, state: State, finality_lag_blocks: int, milliseconds: Callable[[], int]) -> None:
        self.codec = codec
        self.state = state
        self.finality_lag_blocks = finality_lag_blocks
        self.reveals = True
        """Whether sealed weights are opened when they are due."""
        self.on_block: Callable[[Block], None] = lambda block: None
        self.on_final: Callable[[Block], None] = lambda block: None
        self.netuid = 0
        self.finalized = 0
        """Height of the last final block."""
        self._milliseconds = milliseconds
        self._watchers: dict[bytes, list[Watcher]] = {}
        self._included: dict[int, list[Extrinsic]] = {}  # by block, until final
        self.pool = Pool(codec, state.hash_of, self._nonce, self._refusal, self._spec_version)
        self._beacon_key = bytes(beacon.KEY_BYTES)

    # --- life

    def start(self, genesis: Genesis | None) -> None:
        """Make block 0 on a new database, or resume an old one and its pool.

        Raises ConfigError when a new chain has no genesis, or an old one has another schema version.
        """
        version = self.state.fact("schema")
        if version is not None and int(version) != SCHEMA_VERSION:
            raise ConfigError(f"the devnet's database has schema {version}, expected {SCHEMA_VERSION}: start a new one")
        if self.state.head < 0:
            if genesis is None:
                raise ConfigError(
                    "a new devnet needs a genesis: write one (murmur/lab/devnet/genesis.py) and give --genesis"
                )
            self._make_genesis(genesis)
        self.netuid = int(self.state.fact("netuid") or 0)
        self._beacon_key = bytes.fromhex(self.state.fact("beacon") or "")
        self.finalized = int(self.state.fact("finalized") or 0)
        for data in self.state.pooled():
            self._repool(data)

    def _make_genesis(self, genesis: Genesis) -> None:
        storage = Storage(self.codec, lambda key: None)
        beacon_key = secrets.token_bytes(beacon.KEY_BYTES)
        write_genesis(storage, genesis, beacon.public_key(beacon_key))
        storage.put("System.Number", value=0)
        timestamp(storage, self._milliseconds())
        self.state.set_fact("schema", str(SCHEMA_VERSION))
        self.state.set_fact("netuid", str(genesis.netuid))
        self.state.set_fact("beacon", beacon_key.hex())  # never in the state: it would disclose the commits
        self._seal(0, _NO_PARENT, bytes(32), storage.changes, [], [], bytes.fromhex(genesis.seed))

    # --- reading

    def storage_at(self, height: int) -> Storage:
        """Return the state after block `height`, which must still be kept. Writes to it are discarded."""
        return Storage(self.codec, lambda key: self.state.read(key, height))

    def _nonce(self, address: str) -> int:
        return int(self.storage_at(self.state.head).get("System.Account", address)["nonce"])

    def _refusal(self, extrinsic: Extrinsic) -> str | None:
        return refusal(self.storage_at(self.state.head), self.state.head + 1, extrinsic)

    def _spec_version(self) -> int:
        return spec_version(self.storage_at(self.state.head))

    # --- extrinsics

    def submit(self, data: bytes) -> bytes:
        """Add an extrinsic to the pool; return its hash. Raises PoolError."""
        extrinsic = self.pool.add(data, self.state.head + 1)
        self.state.add_to_pool(data)
        return extrinsic.hash

    def watch(self, digest: bytes, watcher: Watcher) -> None:
        """Notify `watcher` of an extrinsic's status from now on."""
        self._watchers.setdefault(digest, []).append(watcher)

    def unwatch(self, digest: bytes, watcher: Watcher) -> None:
        watchers = self._watchers.get(digest, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self._watchers.pop(digest, None)

    def _tell(self, extrinsic: Extrinsic, status: str | dict[str, str], last: bool = False) -> None:
        for watcher in list(self._watchers.get(extrinsic.hash, [])):
            watcher(status)
        if last:
            self._watchers.pop(extrinsic.hash, None)

    def _repool(self, data: bytes) -> None:
        try:
            self.pool.add(data, self.state.head + 1)
        except PoolError:  # outdated while it was in a discarded block, or while the process was down
            self.state.remove_from_pool(data)

    # --- blocks

    def build(self, *, empty: bool = False) -> Block:
        """Make the next block from the pool; `empty` leaves the pool waiting."""
        number = self.state.head + 1
        parent = self.state.block(number - 1)
        storage = self.storage_at(number - 1)
        # Time always advances between blocks, whatever the machine's clock does.
        milliseconds = max(self._milliseconds(), storage.get("Timestamp.Now") + 1)
        taken, invalid = ([], []) if empty else self.pool.take(number)
        key = self._beacon_key if self.reveals else None
        raw, included, left_out = execute_block(storage, self.netuid, number, milliseconds, taken, key)
        invalid += left_out
        leaving = [extrinsic.data for extrinsic in (*included, *invalid)]
        parent_root = bytes.fromhex(parent.header["stateRoot"][2:])
        seal = secrets.token_bytes(_SEAL_BYTES)
        block = self._seal(number, parent.hash, parent_root, storage.changes, raw, leaving, seal)
        self._included[number] = included
        self.on_block(block)
        for extrinsic in included:
            self._tell(extrinsic, {"inBlock": _hex(block.hash)})
        for extrinsic in invalid:
            self._tell(extrinsic, "invalid", last=True)
        self._finalize()
        return block

    def _final_after(self, number: int) -> int:
        return max(self.finalized, number - self.finality_lag_blocks)

    def _finalize(self) -> None:
        first, self.finalized = self.finalized + 1, self._final_after(self.state.head)
        for number in range(first, self.finalized + 1):
            block = self.state.block(number)
            self.on_final(block)
            for extrinsic in self._included.pop(number, []):
                self._tell(extrinsic, {"finalized": _hex(block.hash)}, last=True)

    def _seal(
        self,
        number: int,
        parent: bytes,
        parent_root: bytes,
        changes: dict[bytes, bytes | None],
        raw: list[bytes],
        leaving: list[bytes],
        seal: bytes,
    ) -> Block:
        """Build the block's header, and commit everything about the block in one transaction."""
        root = blake2b(parent_root, digest_size=32)
        for key in sorted(changes):
            value = changes[key]
            root.update(compact(len(key)) + key + (b"\x00" if value is None else b"\x01" + compact(len(value)) + value))
        extrinsics_root = blake2b(b"".join(raw), digest_size=32).digest()
        log = _PRE_RUNTIME + _ENGINE + compact(len(seal)) + seal
        encoded = parent + compact(number) + root.digest() + extrinsics_root + compact(1) + log
        header: dict[str, Any] = {
            "parentHash": _hex(parent),
            "number": hex(number),
            "stateRoot": _hex(root.digest()),
            "extrinsicsRoot": _hex(extrinsics_root),
            "digest": {"logs": [_hex(log)]},
        }
        block = Block(number, blake2b(encoded, digest_size=32).digest(), header, [_hex(data) for data in raw])
        self.state.append(block, changes, leaving, self._final_after(number))
        return block

    def reorg(self, depth: int, *, drop: bool = False, empty_blocks: int = 0) -> Block:
        """Discard the last `depth` blocks and build a branch one longer in their place; return the new head.

        Their extrinsics return to the pool, unless `drop`; the first `empty_blocks` of the new branch leave them there.
        Raises ValueError when a discarded block is already final.
        """
        head = self.state.head
        if not 1 <= depth <= head - self.finalized:
            raise ValueError(f"can discard 1 to {head - self.finalized} blocks that are not final, not {depth}")
        fork = head - depth
        returned: list[Extrinsic] = []
        for number in range(fork + 1, head + 1):
            block = self.state.block(number)
            self._included.pop(number, None)
            for data in block.extrinsics[1:]:  # after the timestamp
                extrinsic = parse(bytes.fromhex(data[2:]))
                self._tell(extrinsic, {"retracted": _hex(block.hash)}, last=drop)
                returned.append(extrinsic)
        self.state.rollback(fork, [] if drop else [extrinsic.data for extrinsic in returned])
        if not drop:
            for extrinsic in returned:
                self._repool(extrinsic.data)
        for index in range(depth + 1):
            block = self.build(empty=index < empty_blocks)
        return block


def _hex(data: bytes) -> str:
    return "0x" + data.hex()
