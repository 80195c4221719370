"""Consensus randomness and its draws: pages, mirrors, samples.

All draws expand chain hashes by SHAKE-256 with rejection sampling (docs/protocol.md section 0), so anyone can replay
them and no peer can choose them.
"""

from collections.abc import Sequence
from hashlib import shake_256
from struct import unpack
from typing import TypeVar

from murmur.protocol.types import Digest, Page, PeerId

T = TypeVar("T")


class Draw:
    """An endless stream of uniform integers: SHAKE-256 over the label and the parts, little-endian words.

    Every part has a fixed length for a given label, so the concatenation is injective. Integers are u32 LE.
    """

    def __init__(self, label: str, *parts: bytes | int) -> None:
        encoded = [part.to_bytes(4, "little") if isinstance(part, int) else part for part in parts]
        self._shake = shake_256(label.encode() + b"".join(encoded))
        self._buffer = self._shake.digest(1024)
        self._used = 0

    def _take(self, num_bytes: int) -> bytes:
        if self._used + num_bytes > len(self._buffer):
            self._buffer = self._shake.digest(2 * (self._used + num_bytes))
        taken = self._buffer[self._used : self._used + num_bytes]
        self._used += num_bytes
        return taken

    def words(self, num_bytes: int) -> int:
        """Return the next `num_bytes` of the stream as one little-endian integer."""
        return int.from_bytes(self._take(num_bytes), "little")

    def below(self, n: int, num_bytes: int = 8) -> int:
        """Return a uniform integer in [0, n), 1 <= n <= 2^(8 * num_bytes); words in the biased tail are rejected."""
        span = 1 << (8 * num_bytes)
        if not 1 <= n <= span:
            raise ValueError(f"cannot draw below {n} from words of {num_bytes} bytes")
        limit = span - span % n
        while (word := self.words(num_bytes)) >= limit:
            pass
        return word % n

    def many_below(self, n: int, count: int) -> list[int]:
        """Return the results of `count` calls of `below(n)`, at a tenth of their cost."""
        limit = (1 << 64) - (1 << 64) % n
        found: list[int] = []
        while missing := count - len(found):
            words = unpack(f"<{missing}Q", self._take(8 * missing))
            found += [word % n for word in words if word < limit]
        return found

    def unit(self) -> float:
        """Return a uniform multiple of 2^-53 in [0, 1)."""
        return (self.words(8) >> 11) * 2.0**-53

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """Return min(k, len) distinct elements in drawn order (partial Fisher-Yates)."""
        pool = list(population)
        k = min(k, len(pool))
        for i in range(k):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]

    def distinct(self, n: int, k: int) -> list[int]:
        """Return min(k, n) distinct integers below n in drawn order. Takes memory of order k, for large n."""
        if 2 * k >= n:
            return self.sample(range(n), k)
        seen: dict[int, None] = {}
        while len(seen) < k:
            seen.setdefault(self.below(n))
        return list(seen)


def page_at(index: int, page_tokens: int) -> Page:
    """Return page number `index` of a split cut into pages of `page_tokens`."""
    return Page(index * page_tokens, page_tokens)


def assigned(
    run: Digest,
    block_hash: Digest,
    peer: PeerId,
    *,
    num_pages: int,
    page_tokens: int,
    count: int,
    first_page: int = 0,
) -> tuple[Page, ...]:
    """Return the `count` distinct pages that `peer` trains on in the round whose page block has `block_hash`, in
    training order. They are drawn from the `num_pages` pages from `first_page` on. Every page is a contiguous run of
    tokens: long runs carry the proof of computation (docs/protocol.md 9)."""
    draw = Draw("pages", run, block_hash, peer)
    return tuple(page_at(first_page + index, page_tokens) for index in draw.distinct(num_pages, count))


def mirror_order(
    run: Digest, commit_hash: Digest, round: int, peer: PeerId, stakes: Sequence[tuple[PeerId, int]]
) -> tuple[PeerId, ...]:
    """Return the given validators in the order in which they copy this peer's sealed object. They are drawn without
    replacement, by stake in rao, and for each peer anew, so that they share the copies of a selection.

    u128 words with rejection below the remaining total, cumulative stake in hotkey order (docs/protocol.md 6).
    Validators without stake come last.
    """
    draw = Draw("mirror", run, commit_hash, round, peer)
    remaining = sorted((peer, stake) for peer, stake in stakes if stake > 0)
    total = sum(stake for _, stake in remaining)
    order: list[PeerId] = []
    while remaining:
        point = draw.below(total, num_bytes=16)
        for index, (peer, stake) in enumerate(remaining):
            if point < stake:
                order.append(peer)
                total -= stake
                del remaining[index]
                break
            point -= stake
    unstaked = sorted(peer for peer, stake in stakes if stake <= 0)
    return tuple(order + unstaked)
