"""Who has which bucket on the S3 server under a local network, and the file that says so.

    {"endpoint": "http://127.0.0.1:9000",
     "users": {"miner-1": {"bucket": "miner-1", "write_access_key": "..", "write_secret_key": "..",
                           "read_access_key": "..", "read_secret_key": ".."}, ..}}

localnet/seaweed.py writes it for the network's own server; `murmur localnet --store FILE` takes anybody's.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from protocol.messages import encode_pointer
from protocol.types import Pointer


@dataclass(frozen=True, slots=True)
class StoreUser:
    """A peer's bucket with both of its credentials."""

    bucket: str
    write_access_key: str
    write_secret_key: str = field(repr=False)
    read_access_key: str
    read_secret_key: str = field(repr=False)


_FIELDS = [field.name for field in fields(StoreUser)]


@dataclass(frozen=True, slots=True)
class StoreReady:
    """A running store: where it listens and whom it knows, by name."""

    endpoint: str
    users: dict[str, StoreUser]

    def pointer(self, name: str) -> Pointer:
        """What the peer publishes: its bucket and the read-only credential."""
        user = self.users[name]
        return Pointer(self.endpoint, user.bucket, user.read_access_key, user.read_secret_key)


def read_ready(path: Path, names: Iterable[str] = ()) -> StoreReady:
    """Parse the file; every one of `names` must be in it. Raises ConfigError with a line for each fault."""
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{path} is no credentials file of a store: {fault}") from None
    faults = list(_faults(body, names))
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return StoreReady(body["endpoint"], {name: StoreUser(**user) for name, user in body["users"].items()})


def write_ready(path: Path, ready: StoreReady) -> None:
    """Atomically and with mode 0600: it holds secrets, and whoever sees the file may rely on it."""
    write_secret(path, asdict(ready))


def write_secret(path: Path, body: Mapping[str, Any]) -> None:
    """A JSON file for its owner's eyes only, whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(body, file)
    os.replace(temporary, path)


def _faults(body: object, names: Iterable[str]) -> Iterator[str]:
    if not isinstance(body, dict) or set(body) != {"endpoint", "users"} or not isinstance(body["users"], dict):
        yield 'expected {"endpoint": URL, "users": {NAME: {..}}}'
        return
    for name in names:
        if name not in body["users"]:
            yield f"nothing about {name}: every member of the network needs a bucket and two keys"
    for name, user in body["users"].items():
        yield from (f"users.{name}: {fault}" for fault in _faults_of(body["endpoint"], user))
    buckets = [user.get("bucket") for user in body["users"].values() if isinstance(user, dict)]
    for bucket in sorted({str(bucket) for bucket in buckets if buckets.count(bucket) > 1}):
        yield f"bucket {bucket} stands there twice: a peer owns its bucket alone"


def _faults_of(endpoint: object, user: object) -> Iterator[str]:
    if not isinstance(user, dict) or set(user) != set(_FIELDS):
        yield "expected " + ", ".join(_FIELDS)
        return
    wrong = [key for key, value in user.items() if not isinstance(value, str) or not value]
    if wrong:
        yield f"{', '.join(wrong)}: expected text"
    elif not isinstance(endpoint, str):
        yield "the file's endpoint is not text"
    elif user["write_access_key"] == user["read_access_key"]:
        yield "the write key and the read key are the same: the read key is published"
    else:
        try:
            encode_pointer(Pointer(endpoint, user["bucket"], user["read_access_key"], user["read_secret_key"]))
        except ConfigError as fault:
            yield str(fault)
