"""Saved state of one node: files under digest names, and one SQLite row that names them.

The row is the only commit point. Files are written, flushed and renamed before the row that names them is committed;
files that no row names are swept later. So a process may be killed at any line and finds, at the next start, either
the state before or the state after, never a mixture. A file that the disk has changed is moved aside and never used:
all of it can be had again, or begun anew. All SQL of a node stands here.
"""

import fcntl
import os
import sqlite3
import time
from hashlib import file_digest, sha256
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.node.config.run_file import LOCK, RunFile, folder_of
from murmur.node.state.saved import ADVICE, Saved, decode, encode
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, DiskFull
from murmur.protocol.types import Digest
from murmur.training.checkpoint import blobs

SCHEMA = 5
STATE = "state.db"
DAMAGED_KEPT = 8
"""Number of files moved aside that are kept to show what the disk did; the oldest are deleted first."""
_FAULTS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a damaged database raises; the second when SQLite's message itself quotes damaged text."""
_OF_THE_MACHINE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
}
"""Faults that no change of the file's bytes brings about .."""
_DISK_IS_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
""".. and those of a full disk among them; the second when its file of shared memory has no room."""


LOCK_SECONDS = 0.1
"""Pause between two tries to lock a folder."""


class InUse(ConfigError):
    """Another process has this state folder."""


class StateStore:
    """The state folder of one node: `state.db`, `run.json`, the files that the row names, and in `damaged/` what was
    set aside. One process at a time: a second one is refused. The folder is the owner's alone, also one that was there
    before: the row holds sealing keys.

    `files`: what was sealed, and the book. `snapshot`: theta and the outer state (murmur/training/checkpoint.py).
    `log`: the payloads applied since (murmur/node/state/redo_log.py). `own`: a miner's own state
    (murmur/node/state/inner_state.py). `run`: the run as it is followed.
    """

    def __init__(self, home: Path, run: Digest) -> None:
        self.folder = folder_of(home, run)
        self.files = self.folder / "files"
        self.snapshot, self.log = self.folder / "snapshot", self.folder / "log"
        for folder in (self.files, self.snapshot, self.log):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.own = self.folder / "own"
        _tighten(self.folder)
        self.run = RunFile(self.folder)
        self._path = self.folder / STATE
        self._lock = _lock(self.folder / LOCK)
        self._db = self._connect()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def exists(home: Path, run: Digest) -> bool:
        """Whether a state of this run was ever kept here."""
        return (folder_of(home, run) / STATE).exists()

    def _open(self) -> None:
        try:
            self._prepare()
            self.load()
        except CheckpointCorrupt as fault:
            logger.warning(
                "{fault}. The file is set aside and the node joins the run anew. A miner loses its error "
                "feedback, a validator its ratings",
                fault=str(fault),
            )
            self._db.close()
            for path in sorted(self.folder.glob(f"{self._path.name}*")):
                self.set_aside(path)
            self._db = self._connect()
            self._prepare()

    def _connect(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600)  # SQLite gives its other files the same mode
        return sqlite3.connect(self._path, isolation_level=None)

    def _prepare(self) -> None:
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise ConfigError(
                    f"{self._path} was written by another release (schema {version}, this one reads {SCHEMA}): "
                    "run the release that wrote it, or choose another --home and catch up"
                )
            verdict = self._db.execute("PRAGMA integrity_check").fetchone()[0]
            if verdict != "ok":  # it may well read, and then refuse the first commit
                raise sqlite3.DatabaseError(verdict)
            self._db.execute("CREATE TABLE IF NOT EXISTS saved (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT)")
            self._db.execute(f"PRAGMA user_version={SCHEMA}")
        except _FAULTS as fault:
            raise self._unreadable(fault) from None

    def load(self) -> Saved | None:
        """The last committed state, None on a fresh folder. Raises CheckpointCorrupt."""
        try:
            row = self._db.execute("SELECT CAST(value AS BLOB) FROM saved").fetchone()
        except _FAULTS as fault:
            raise self._unreadable(fault) from None
        return decode(row[0]) if row else None

    def commit(self, saved: Saved) -> None:
        """Make `saved` the node's state: the commit point. Files that it does not name are removed afterwards.
        Payloads of the log may be missing: others have them.

        Raises ConfigError, with the state before still in force, when the disk does not take it; DiskFull when that is
        full.
        """
        keep = self._named(saved)
        try:
            self._db.execute("INSERT OR REPLACE INTO saved VALUES (1, ?)", (encode(saved),))
        except sqlite3.OperationalError as fault:
            raise _class_of(fault)(
                f"{self._path} cannot be written ({fault}): free disk space and start again; nothing is lost"
            ) from None
        except _FAULTS as fault:
            raise self._unreadable(fault) from None
        self._sweep(keep)

    def sweep(self, *states: Saved) -> None:
        """Remove every file that none of these states names. Raises CheckpointCorrupt, like `commit`."""
        self._sweep({path for saved in states for path in self._named(saved)})

    def _sweep(self, keep: set[Path]) -> None:
        for folder in (self.files, self.snapshot, self.log):
            for path in folder.iterdir():
                if path not in keep:
                    path.unlink(missing_ok=True)

    def path(self, digest: Digest) -> Path:
        """Where the file with this digest is or will be."""
        return self.files / digest.hex()

    def write(self, data: bytes | bytearray) -> Digest:
        """Store bytes durably under their sha256 and return it. Not part of the state until a commit names it."""
        digest = Digest(sha256(data).digest())
        files.write(self.path(digest), data)
        return digest

    def read(self, digest: Digest) -> bytes:
        """The bytes of a stored file, checked against its digest. Raises CheckpointCorrupt."""
        try:
            data = self.path(digest).read_bytes()
        except OSError as fault:
            raise CheckpointCorrupt(f"{self.path(digest)} cannot be read ({fault.strerror}): {ADVICE}") from None
        if sha256(data).digest() != digest:
            raise CheckpointCorrupt(f"{self.path(digest)} is damaged, the disk changed it: {ADVICE}")
        return data

    def read_head(self, digest: Digest, num_bytes: int) -> bytes:
        """The first bytes of a stored file, not checked: the whole was when it was written, or when the node started.
        Raises CheckpointCorrupt."""
        try:
            with self.path(digest).open("rb") as file:
                return file.read(num_bytes)
        except OSError as fault:
            raise CheckpointCorrupt(f"{self.path(digest)} cannot be read ({fault.strerror}): {ADVICE}") from None

    def set_aside_damaged(self) -> None:
        """Move every file whose bytes do not hash to its name out of the way."""
        for path in sorted([*self.files.iterdir(), *self.snapshot.iterdir(), *self.own.glob("*.*")]):
            with path.open("rb") as file:
                if file_digest(file, "sha256").hexdigest() != path.name.partition(".")[0]:
                    self.set_aside(path)

    def set_aside(self, path: Path) -> None:
        """Move a file out of the way."""
        damaged = self.folder / "damaged"
        damaged.mkdir(exist_ok=True, mode=0o700)
        there = sorted(damaged.iterdir(), key=_number)
        os.replace(path, damaged / f"{_number(there[-1]) + 1 if there else 1}-{path.name}")
        for old in there[: -DAMAGED_KEPT + 1]:
            old.unlink()

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _unreadable(self, fault: Exception) -> ConfigError | CheckpointCorrupt:
        # SQLite's class of error does not tell: "no such column" of a changed schema is operational too.
        of_the_machine = getattr(fault, "sqlite_errorcode", 0) & 0xFF in _OF_THE_MACHINE
        if of_the_machine or not os.access(self._path, os.R_OK | os.W_OK):
            return _class_of(fault)(
                f"{self._path} cannot be opened ({fault}): check the disk, and whether another process uses the file"
            )
        return CheckpointCorrupt(f"{self._path} is damaged ({fault}): {ADVICE}")

    def _named(self, saved: Saved) -> set[Path]:
        """Every file that a row names. Raises CheckpointCorrupt when one was never written, but for payloads."""
        single = (saved.book, saved.sealed.object if saved.sealed else None)
        paths = [self.path(digest) for digest in single if digest is not None]
        paths += [path for _, path in blobs(self.snapshot, saved.consensus.snapshot.state)]
        for path in paths:
            if not path.exists():
                raise CheckpointCorrupt(f"the state to be committed names {path.name}, which was never written")
        return {*paths, *(self.log / p.envelope.hex() for step in saved.consensus.log for p in step.payloads)}


def _class_of(fault: Exception) -> type[ConfigError]:
    """The class of a fault of this machine's."""
    return DiskFull if getattr(fault, "sqlite_errorcode", 0) in _DISK_IS_FULL else ConfigError


def _number(path: Path) -> int:
    """Which of the files that were set aside this one is."""
    number, _, _ = path.name.partition("-")
    return int(number) if number.isdecimal() else 0


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for again in (True, True, True, False):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if again:  # `murmur status` holds it for a moment
                time.sleep(LOCK_SECONDS)
        else:
            return handle
    os.close(handle)
    raise InUse(
        f"another process uses the state folder {path.parent}: two nodes in one would overwrite "
        "each other's payloads and use the same nonces; stop the other one or choose another --home"
    )


def _tighten(folder: Path) -> None:
    """Take from all others what an older release, or a looser umask, gave them."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        path.chmod(0o700 if path.is_dir() else 0o600)
