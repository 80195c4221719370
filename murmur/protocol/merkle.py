"""The one Merkle tree of the protocol: leaf sha256(00 | x), node sha256(01 | left | right), odd node promoted."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from murmur.protocol.types import Digest

SECTION_BYTES = 16 << 20
"""Section of a large object that can be hashed and verified alone."""


def leaf(data: bytes | memoryview) -> Digest:
    state = sha256(b"\x00")
    state.update(data)
    return Digest(state.digest())


def root(leaves: Iterable[bytes]) -> Digest:
    """Return the root over hashed leaves; without leaves the sha256 of nothing."""
    level: Sequence[bytes] = list(leaves)
    if not level:
        return Digest(sha256(b"").digest())
    while len(level) > 1:
        paired = [sha256(b"\x01" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = paired + ([level[-1]] if len(level) % 2 else [])
    return Digest(level[0])


def sections(data: bytes | memoryview) -> Iterator[memoryview]:
    """Yield the 16 MiB sections of an object's bytes, the last one shorter; none for no bytes."""
    view = memoryview(data)
    return (view[at : at + SECTION_BYTES] for at in range(0, len(view), SECTION_BYTES))


def leaves(parts: Iterable[bytes | memoryview], threads: int = 1) -> list[Digest]:
    """Return the leaf of every part, in order; hashed in parallel if `threads` is above 1."""
    if threads == 1:
        return [leaf(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(leaf, parts))


def sections_root(data: bytes | memoryview) -> Digest:
    """Return the root over the 16 MiB sections of a ciphertext."""
    return root(leaves(sections(data)))
