"""What the local network's S3 server must not forget: moto's objects and unfinished uploads in an SQLite file.

A change is in the file before its request is answered, and each is one transaction, so a server that is killed at any
line starts again with everything that it has promised. WAL without fsync: a killed process loses nothing.
"""

import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT, key TEXT, value BLOB NOT NULL, etag TEXT NOT NULL, modified REAL NOT NULL, PRIMARY KEY (bucket, key)
);
CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, bucket TEXT NOT NULL, key TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS uploads_of_key ON uploads (bucket, key);
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT REFERENCES uploads ON DELETE CASCADE, number INTEGER, value BLOB NOT NULL, PRIMARY KEY (upload, number)
);
"""


class Objects:
    """moto's buckets, and their copy on disk. Thread-safe."""

    def __init__(self, path: Path) -> None:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        self._moto: Any = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=OFF", "foreign_keys=ON"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.executescript(_SCHEMA)

    def restore(self) -> None:
        """Fill the buckets, which must exist, with what is on disk."""
        from moto.s3.models import FakeMultipart

        read = self._database.execute
        for bucket, key, value, etag, modified in read("SELECT bucket, key, value, etag, modified FROM objects"):
            found = self._moto.put_object(bucket, key, value, etag=etag)
            found.last_modified = datetime.fromtimestamp(modified, UTC).replace(tzinfo=None)
        for identity, bucket, key in read("SELECT id, bucket, key FROM uploads"):
            upload = FakeMultipart(key, {}, self._moto.account_id, self._moto.region_name, tags={})
            upload.id = identity
            for number, value in read("SELECT number, value FROM parts WHERE upload = ?", (identity,)):
                upload.set_part(number, value)
            self._moto.buckets[bucket].multiparts[identity] = upload

    def keep(self, path: str) -> None:
        """Write down what stands under an object's path, `/bucket/key`, now that a request has changed it."""
        name, _, key = path.lstrip("/").partition("/")
        bucket = self._moto.buckets.get(name)
        if bucket is None or not key:
            return
        with self._lock, self._database:
            found, write = bucket.keys.get(key), self._database.execute
            write("BEGIN IMMEDIATE")
            write("DELETE FROM objects WHERE bucket = ? AND key = ?", (name, key))
            if found is not None:
                row = name, key, found.value, found.etag.strip('"'), found.last_modified.replace(tzinfo=UTC).timestamp()
                write("INSERT INTO objects VALUES (?, ?, ?, ?, ?)", row)
            write("DELETE FROM uploads WHERE bucket = ? AND key = ?", (name, key))
            for upload in [upload for upload in list(bucket.multiparts.values()) if upload.key_name == key]:
                write("INSERT INTO uploads VALUES (?, ?, ?)", (upload.id, name, key))
                for number, part in list(upload.parts.items()):
                    write("INSERT INTO parts VALUES (?, ?, ?)", (upload.id, number, part.value))
