"""The buckets of each member on a local network's S3 server, and their credentials file.

    {"endpoint": "http://127.0.0.1:9000",
     "users": {"miner-1": {"bucket": "miner-1", "write_access_key": "..", "write_secret_key": "..",
                           "read_access_key": "..", "read_secret_key": ".."}, ..}}

murmur/lab/localnet/seaweed.py writes it for the network's own server; `murmur localnet --store FILE` accepts any
server's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from murmur import files
from murmur.protocol.errors import ConfigError
from murmur.protocol.pointers import encode_pointer
from murmur.protocol.types import Pointer


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
    """A running store: its endpoint and its users by name."""

    endpoint: str
    users: dict[str, StoreUser]

    def pointer(self, name: str) -> Pointer:
        """Return the pointer that the peer publishes: its bucket and the read-only credential."""
        user = self.users[name]
        return Pointer(self.endpoint, user.bucket, user.read_access_key, user.read_secret_key)


def read_ready(path: Path, names: Iterable[str] = ()) -> StoreReady:
    """Parse the file; every one of `names` must be in it. Raises ConfigError with a line for each fault."""
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{path} is not a credentials file of a store: {fault}") from None
    faults = list(_faults(body, names))
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return StoreReady(body["endpoint"], {name: StoreUser(**user) for name, user in body["users"].items()})


def write_ready(path: Path, ready: StoreReady) -> None:
    """Write the file atomically and with mode 0600: it holds secrets, and a reader that sees the file may rely on
    it."""
    write_secret(path, asdict(ready))


def write_secret(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON file that only its owner can read, whole or not at all."""
    files.write(path, json.dumps(body).encode(), mode=0o600)


def _faults(body: object, names: Iterable[str]) -> Iterator[str]:
    if not isinstance(body, dict) or set(body) != {"endpoint", "users"} or not isinstance(body["users"], dict):
        yield 'expected {"endpoint": URL, "users": {NAME: {..}}}'
        return
    endpoint, users = body["endpoint"], body["users"]
    if not isinstance(endpoint, str):
        yield "endpoint: expected text"
    elif fault := _refused(Pointer(endpoint, "bucket", "key", "secret")):
        yield f"endpoint: {fault}"
    else:
        yield from (f"users.{name}: {fault}" for name, user in users.items() if (fault := _fault_of(endpoint, user)))
    yield from (f"no entry for {name}: every member needs a bucket and two keys" for name in names if name not in users)
    buckets = [user["bucket"] for user in users.values() if isinstance(user, dict) and "bucket" in user]
    for number, bucket in enumerate(buckets):
        if bucket in buckets[:number]:
            yield f"bucket {bucket!r} is given twice: every member needs its own"


def _fault_of(endpoint: str, user: object) -> str | None:
    if not isinstance(user, dict) or set(user) != set(_FIELDS):
        return "expected " + ", ".join(_FIELDS)
    wrong = [key for key, value in user.items() if not isinstance(value, str) or not value]
    if wrong:
        return f"{', '.join(wrong)}: expected text"
    if user["write_access_key"] == user["read_access_key"]:
        return "the write key equals the read key, which is published"
    return _refused(Pointer(endpoint, user["bucket"], user["read_access_key"], user["read_secret_key"]))


def _refused(pointer: Pointer) -> str | None:
    """Return why the pointer cannot be published."""
    try:
        encode_pointer(pointer)
    except ConfigError as fault:
        return str(fault)
    return None
