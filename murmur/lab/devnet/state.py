"""The chain's durable state: blocks, versioned keys and the pool, in SQLite, with the newest versions in memory.

One block is one SQLite transaction, so a process killed at any line restarts at its last finished block. Every key
keeps all its versions. With `keep_blocks` it keeps those written in the last that many blocks, plus the one before
them. State is readable at each kept height and at no other. WAL with synchronous=NORMAL: a killed process loses
nothing; a killed machine may lose its last blocks, but never part of one; readers (recorded.py) do not block it. Values
are opaque bytes here.
"""

import fcntl
import json
import sqlite3
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from murmur.protocol.errors import ConfigError

DATABASE = "chain.sqlite"
"""The database's name in the devnet's folder."""
SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS versions (key BLOB, block INTEGER, value BLOB, PRIMARY KEY (key, block)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS versions_by_block ON versions (block);
CREATE TABLE IF NOT EXISTS pool (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_RECENT_BODIES = 64
_RECENT_BLOCKS = 512
"""Recent blocks whose states are read from memory; older ones from disk."""
VERSION_AT = "SELECT value FROM versions WHERE key = ? AND block <= ? ORDER BY block DESC LIMIT 1"
"""The value of a key in the state after a block."""


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block as the RPC shows it. `header` and `extrinsics` are ready for JSON."""

    number: int
    hash: bytes
    header: dict[str, Any]
    extrinsics: list[str]


class State:
    """The chain's whole state. Not thread-safe; the server's event loop owns it."""

    def __init__(self, path: Path, keep_blocks: int | None = None) -> None:
        """Open or create the database. `keep_blocks` >= 1: heights below head - keep_blocks are pruned; None keeps all.
        Raises ConfigError when another process has it open for writing."""
        self.keep_blocks = keep_blocks
        self._lock = path.with_suffix(".lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path} can't be opened: another devnet is using it") from None
        self._database = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_SCHEMA)
        self.oldest = int(self.fact("oldest") or 0)
        """The oldest height whose state can still be read. Never falls: pruned state stays pruned after a rollback."""
        self._hashes: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._bodies: dict[int, Block] = {}
        for number, digest in self._database.execute("SELECT number, hash FROM blocks ORDER BY number"):
            self._hashes.append(digest)
            self._numbers[digest] = number
        self._load_versions()

    def _load_versions(self) -> None:
        """Load the versions that recent heights need."""
        self._recent = max(self.oldest, self.head - _RECENT_BLOCKS)
        """The oldest height whose state is in memory."""
        self._versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._written: dict[int, list[bytes]] = {}  # block -> keys that it wrote
        # SQLite returns `value` of the row that has the maximum.
        before = "SELECT key, max(block), value FROM versions WHERE block <= ? GROUP BY key"
        for key, block, value in self._database.execute(before, (self._recent,)):
            self._versions[key] = [(block, value)]
        since = "SELECT key, block, value FROM versions WHERE block > ? ORDER BY block"
        for key, block, value in self._database.execute(since, (self._recent,)):
            self._versions.setdefault(key, []).append((block, value))
            self._written.setdefault(block, []).append(key)
        self._keys = sorted(self._versions)

    def close(self) -> None:
        self._database.close()
        self._lock.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    # --- facts: small named values that belong to the whole chain

    def fact(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # --- blocks

    @property
    def head(self) -> int:
        """Number of the newest block; -1 before genesis."""
        return len(self._hashes) - 1

    def hash_of(self, number: int) -> bytes | None:
        return self._hashes[number] if 0 <= number <= self.head else None

    def number_of(self, digest: bytes) -> int | None:
        """Return the height of a block of the canonical branch; None for any other hash (discarded branches
        included)."""
        return self._numbers.get(digest)

    def block(self, number: int) -> Block:
        """Return a block of the canonical branch, 0 <= number <= head."""
        cached = self._bodies.get(number)
        if cached is not None:
            return cached
        body = self._database.execute("SELECT body FROM blocks WHERE number = ?", (number,)).fetchone()[0]
        return self._remember(Block(number, self._hashes[number], **json.loads(body)))

    def _remember(self, block: Block) -> Block:
        self._bodies[block.number] = block
        while len(self._bodies) > _RECENT_BODIES:
            del self._bodies[next(iter(self._bodies))]
        return block

    def append(self, block: Block, changes: dict[bytes, bytes | None], included: list[bytes], finalized: int) -> None:
        """Make `block` the head: commit its writes, the pool without `included`, and finality, in one transaction.

        A key whose value is None is deleted. Versions that no kept height needs are dropped.
        """
        number = block.number
        oldest = self.oldest if self.keep_blocks is None else max(self.oldest, number - self.keep_blocks)
        # A key written at height h hides its versions before h from every height that stays readable.
        written = "SELECT key, block FROM versions WHERE block > ? AND block <= ?"
        expired = self._database.execute(written, (self.oldest, oldest)).fetchall() if oldest > self.oldest else []
        with self._transaction() as database:
            body = json.dumps({"header": block.header, "extrinsics": block.extrinsics})
            database.execute("INSERT INTO blocks VALUES (?, ?, ?)", (number, block.hash, body))
            database.executemany(
                "INSERT INTO versions VALUES (?, ?, ?)", [(key, number, value) for key, value in changes.items()]
            )
            database.executemany("DELETE FROM pool WHERE data = ?", [(data,) for data in included])
            database.executemany("DELETE FROM versions WHERE key = ? AND block < ?", expired)
            self.set_fact("finalized", str(finalized))
            self.set_fact("oldest", str(oldest))
        self.oldest = oldest
        self._hashes.append(block.hash)
        self._numbers[block.hash] = number
        self._remember(block)
        for key, value in changes.items():
            if key not in self._versions:
                insort(self._keys, key)
                self._versions[key] = []
            self._versions[key].append((number, value))
        self._written[number] = list(changes)
        recent = max(self._recent, oldest, number - _RECENT_BLOCKS)
        for height in range(self._recent + 1, recent + 1):
            for key in self._written.pop(height, []):
                versions = self._versions[key]
                del versions[: bisect_left(versions, height, key=itemgetter(0))]
        self._recent = recent

    def rollback(self, number: int, returned: list[bytes]) -> None:
        """Make block `number` the head again and remove all later blocks; `returned` is added to the pool."""
        with self._transaction() as database:
            database.execute("DELETE FROM blocks WHERE number > ?", (number,))
            database.execute("DELETE FROM versions WHERE block > ?", (number,))
            database.executemany("INSERT OR IGNORE INTO pool (data) VALUES (?)", [(data,) for data in returned])
        for dropped in range(number + 1, self.head + 1):
            for key in self._written.pop(dropped, []):
                versions = self._versions[key]
                while versions and versions[-1][0] > number:
                    versions.pop()
            self._bodies.pop(dropped, None)
            del self._numbers[self._hashes[dropped]]
        del self._hashes[number + 1 :]
        if number < self._recent:
            self._load_versions()

    # --- keys

    def read(self, key: bytes, height: int) -> bytes | None:
        """Return the value of a key in the state after block `height`, which must be within oldest .. head."""
        if height < self._recent:
            row = self._database.execute(VERSION_AT, (key, height)).fetchone()
            return None if row is None else row[0]
        versions = self._versions.get(key)
        if not versions:
            return None
        if versions[-1][0] <= height:
            return versions[-1][1]
        index = bisect_right(versions, height, key=itemgetter(0))
        return versions[index - 1][1] if index else None

    def keys_after(self, prefix: bytes, start: bytes, count: int, height: int) -> list[bytes]:
        """Return up to `count` keys with `prefix` that sort after `start` (empty: from the first) and exist at
        `height`."""
        found: list[bytes] = []
        index = bisect_right(self._keys, start) if start else bisect_left(self._keys, prefix)
        while index < len(self._keys) and self._keys[index].startswith(prefix) and len(found) < count:
            if self.read(self._keys[index], height) is not None:
                found.append(self._keys[index])
            index += 1
        return found

    # --- pool

    def pooled(self) -> list[bytes]:
        """Return the extrinsics that wait for a block, oldest first."""
        return [row[0] for row in self._database.execute("SELECT data FROM pool ORDER BY id")]

    def add_to_pool(self, data: bytes) -> None:
        self._database.execute("INSERT OR IGNORE INTO pool (data) VALUES (?)", (data,))

    def remove_from_pool(self, data: bytes) -> None:
        self._database.execute("DELETE FROM pool WHERE data = ?", (data,))
