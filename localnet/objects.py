"""What the local network's S3 server must not forget: moto's objects and unfinished uploads in an SQLite file.

A change is in the file before its request is answered, and each is one transaction, so a server that is killed at any
line starts again with everything that it has promised. WAL without fsync: a killed process loses nothing.
"""

import pickle
import sqlite3
import threading
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    bucket TEXT, kind TEXT, key TEXT, id TEXT, state BLOB NOT NULL, PRIMARY KEY (bucket, kind, key, id)
) WITHOUT ROWID;
"""
_OBJECT, _UPLOAD = "object", "upload"


class Objects:
    """moto's buckets, and their copy on disk. Thread-safe. Only reads files that it wrote itself: they are pickles."""

    def __init__(self, path: Path) -> None:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        self._buckets: Any = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.executescript(_SCHEMA)

    def restore(self) -> None:
        """Fill the buckets, which must exist, with what is on disk."""
        for name, kind, key, state in self._database.execute("SELECT bucket, kind, key, state FROM kept"):
            bucket, found = self._buckets[name], pickle.loads(state)  # noqa: S301
            if kind == _OBJECT:
                bucket.keys[key] = found
            else:
                bucket.multiparts[found.id] = found

    def keep(self, path: str) -> None:
        """Write down what stands under an object's path, `/bucket/key`, now that a request has changed it."""
        name, _, key = path.lstrip("/").partition("/")
        bucket = self._buckets.get(name)
        if bucket is None or not key:
            return
        with self._lock:
            rows = []
            found = bucket.keys.get(key)
            if found is not None:
                found.multipart = None  # else every object would keep the parts that it was made of
                rows.append((name, _OBJECT, key, "", pickle.dumps(found)))
            uploads = [upload for upload in list(bucket.multiparts.values()) if upload.key_name == key]
            rows += [(name, _UPLOAD, key, upload.id, pickle.dumps(upload)) for upload in uploads]
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("DELETE FROM kept WHERE bucket = ? AND key = ?", (name, key))
            self._database.executemany("INSERT INTO kept VALUES (?, ?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")
