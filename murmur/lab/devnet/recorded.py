"""A devnet's chain read from its database, while the devnet runs or after its end.

No server, no socket, no SDK. The same code reads it as any chain (murmur/chain/adapter.py); only the connection is
replaced.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from murmur.chain.adapter import SubtensorChain
from murmur.chain.archives import StateReader
from murmur.chain.connection import Call, Connection, T
from murmur.chain.session import Session
from murmur.lab.devnet.codec import Codec
from murmur.lab.devnet.metadata import load_metadata
from murmur.lab.devnet.state import DATABASE, SCHEMA_VERSION, VERSION_AT
from murmur.lab.devnet.storage import Storage
from murmur.lab.devnet.views import runtime_call
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError


def open_recorded(folder: Path) -> SubtensorChain:
    """Open the chain in a devnet's folder, read only. Raises ConfigError when there is none."""
    record = Record(folder / DATABASE)
    return SubtensorChain(StateReader(_Recorded(record), None), record.netuid, None, True)


class Record:
    """The database, behind the part of the SDK's Substrate interface that reading needs. Thread-safe."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise ConfigError(f"there is no chain in {path.parent}: {path.name} is missing")
        self._metadata = load_metadata()
        self._codec = Codec(self._metadata)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        try:
            if int(self._fact("schema")) != SCHEMA_VERSION:
                raise ConfigError(f"{path} was written by another release of the devnet: read it with that one")
        except sqlite3.DatabaseError as fault:
            raise ConfigError(f"{path} can't be read: {fault}") from None
        self.netuid = int(self._fact("netuid"))
        self._at = lru_cache(maxsize=64)(lambda height: Storage(self._codec, lambda key: self._version(key, height)))

    async def block_number(self) -> int:
        return int(self._one("SELECT max(number) FROM blocks")[0])

    async def finalized_block_number(self) -> int:
        return int(self._fact("finalized"))

    async def block_hash(self, block: int | None = None) -> str:
        number = await self.block_number() if block is None else block
        return "0x" + bytes(self._one("SELECT hash FROM blocks WHERE number = ?", number)[0]).hex()

    async def query(self, pallet: str, item: str, params: Sequence[Any], *, block_hash: str) -> Any:
        return self._storage(block_hash).get(f"{pallet}.{item}", *params)

    async def query_batch(self, pallet: str, item: str, keys: Sequence[Sequence[Any]], *, block_hash: str) -> list[Any]:
        storage = self._storage(block_hash)
        return [storage.get(f"{pallet}.{item}", *params) for params in keys]

    async def runtime_call(self, api: str, method: str, params: Sequence[Any], *, block_hash: str) -> Any:
        definition = self._codec.apis[api][method]
        given = b"".join(
            self._codec.encode(kind, value) for (_, kind), value in zip(definition["inputs"], params, strict=True)
        )
        answer = runtime_call(self._storage(block_hash), self._metadata, f"{api}_{method}", given)
        return self._codec.decode(definition["output"], answer)

    def _storage(self, block_hash: str) -> Storage:
        height = int(self._one("SELECT number FROM blocks WHERE hash = ?", bytes.fromhex(block_hash[2:]))[0])
        if height < int(self._fact("oldest")):
            raise ChainError(f"block {height} is below the pruning horizon of this chain", STATE_PRUNED)
        return self._at(height)

    def _version(self, key: bytes, height: int) -> bytes | None:
        with self._lock:
            row = self._database.execute(VERSION_AT, (key, height)).fetchone()
        return None if row is None else row[0]

    def _fact(self, name: str) -> str:
        return str(self._one("SELECT value FROM facts WHERE name = ?", name)[0])

    def _one(self, query: str, *params: Any) -> Sequence[Any]:
        with self._lock:
            row = self._database.execute(query, params).fetchone()
        if row is None or row[0] is None:
            raise ChainError("there is no such block in this chain")
        return cast(Sequence[Any], row)


class _Recorded(Connection):
    """A connection to a record: calls run in the caller's thread."""

    def __init__(self, record: Record) -> None:
        super().__init__("its record", 30.0, lambda: cast(Any, record))
        self._session = cast(Session, SimpleNamespace(substrate=record))

    def genesis(self) -> bytes:
        return bytes.fromhex(self.call(lambda session: session.substrate.block_hash(0))[2:])

    def call(self, call: Call[T], *, timeout_seconds: float | None = None, block: int | None = None) -> T:
        assert self._session is not None
        return asyncio.run(call(self._session))
