"""Contents of documents of states that no validator writes."""

from murmur.node.sync.checkpoints import CHECKPOINTS_KEPT, DOCUMENT_MAX_BYTES, STATES_TOLD


def content(heads: bytes = b"", digests: int = 0, **counts: int) -> bytes:
    """A document's content that says these counts."""
    said = [counts.get(name, 0) for name in ("checkpoints", "states", "loose")]
    return b"".join(count.to_bytes(4, "little") for count in said) + heads + bytes(32 * digests)


def head(num_files: int) -> bytes:
    """A checkpoint that says how many files it has."""
    return (7).to_bytes(4, "little") + num_files.to_bytes(4, "little") + bytes(64)


MALFORMED = {
    "nothing": b"",
    "cut short": content()[:-1],
    "a byte more": content() + b"\0",
    "fewer states than it says": content(states=2, digests=3),
    "more loose files than it says": content(loose=1, digests=2),
    "a checkpoint without its head": content(checkpoints=1),
    "fewer files than it says": content(head(2), 1, checkpoints=1),
    "files by the billion": content(head(2**32 - 1), 1, checkpoints=1),
    "loose files by the billion": content(loose=2**32 - 1),
    "more checkpoints than are kept": content(head(0) * (CHECKPOINTS_KEPT + 1), checkpoints=CHECKPOINTS_KEPT + 1),
    "more states than are told": content(states=STATES_TOLD + 1, digests=2 * STATES_TOLD + 2),
    "too long": content(loose=DOCUMENT_MAX_BYTES // 32, digests=DOCUMENT_MAX_BYTES // 32),
    "JSON": b'{"checkpoints":[],"states":[],"loose":[]}',
}
