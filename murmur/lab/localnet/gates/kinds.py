"""The faults that a gate can make, by their names in a faults file: lines of NODE KIND."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from murmur import files
from murmur.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StoreFault:
    """What a store answers in place of the bucket. status 0: nothing, and the connection stays; -1: it breaks. `of`:
    `writes`, `reads` with the published key, or `all` requests."""

    status: int
    code: str
    of: str
    what: str


STORE: dict[str, StoreFault] = {
    "store-readonly": StoreFault(403, "AccessDenied", "writes", "the write key may not write any more"),
    "store-full": StoreFault(507, "InsufficientStorage", "writes", "the disk of the store is full"),
    "store-quota": StoreFault(403, "QuotaExceeded", "writes", "the bucket's quota is used up"),
    "store-throttled": StoreFault(503, "SlowDown", "all", "too many requests"),
    "store-limited": StoreFault(429, "TooManyRequests", "all", "too many requests, by the other status"),
    "store-expired": StoreFault(400, "ExpiredToken", "writes", "the write key has expired"),
    "store-suspended": StoreFault(403, "AccountProblem", "all", "the account is unpaid"),
    "store-unknown-key": StoreFault(403, "InvalidAccessKeyId", "writes", "the write key was deleted"),
    "store-wrong-secret": StoreFault(403, "SignatureDoesNotMatch", "writes", "the secret was replaced"),
    "store-no-bucket": StoreFault(404, "NoSuchBucket", "all", "the bucket was deleted"),
    "store-broken": StoreFault(500, "InternalError", "all", "the server fails"),
    "store-hangs": StoreFault(0, "", "all", "the server takes requests and answers none"),
    "store-gone": StoreFault(-1, "", "all", "the server is away"),
    "store-skewed": StoreFault(403, "RequestTimeTooSkewed", "all", "the server takes our clock for wrong"),
    "read-key-revoked": StoreFault(403, "InvalidAccessKeyId", "reads", "the published read key was deleted"),
}
BEHIND_SECONDS = 50.0
CHAIN: dict[str, str] = {
    "chain-frozen": "its head stands still",
    "chain-behind": f"its head is {BEHIND_SECONDS:.0f} seconds old",
    "chain-mute": "it takes connections and answers nothing",
    "chain-gone": "it is away",
    "chain-other": "it is a chain of another genesis",
    "chain-refuses": "it takes no posts",
}
CLOCK_SECONDS = {"clock-ahead": 1200, "clock-behind": -1200}
CLOCK = {
    "clock-ahead": "the node's clock is twenty minutes ahead",
    "clock-behind": "the node's clock is twenty minutes behind",
}
EVERYBODY = "chain"
"""In place of a node's name: what the whole chain does."""
WHOLE = {
    "halts": "no block becomes final any more",
    "never-reveals": "sealed weights are not opened when they are due",
}
KINDS = {kind: fault.what for kind, fault in STORE.items()} | CHAIN | CLOCK | WHOLE
"""kind -> what it is."""


def parse_fault(text: str) -> tuple[str, str]:
    """Return node and kind of NODE:KIND. Raises ConfigError."""
    node, _, kind = text.rpartition(":")
    if not node or kind not in KINDS or (kind in WHOLE) != (node == EVERYBODY):
        one = ", ".join(kind for kind in KINDS if kind not in WHOLE)
        raise ConfigError(
            f"--fault {text[:80]}: expected NODE:KIND, and KIND one of {one}; or {EVERYBODY}:KIND, and KIND one of "
            + ", ".join(WHOLE)
        )
    return node, kind


def read_faults(path: Path) -> dict[str, frozenset[str]]:
    """Return the kinds of each node in a faults file; lines of other forms are no faults."""
    found: dict[str, set[str]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[1] in KINDS:
            found.setdefault(words[0], set()).add(words[1])
    return {node: frozenset(kinds) for node, kinds in found.items()}


def write_faults(path: Path, faults: Iterable[tuple[str, str]]) -> None:
    """Write a faults file of these nodes and kinds, whole."""
    files.write(path, "".join(f"{node} {kind}\n" for node, kind in faults).encode())
