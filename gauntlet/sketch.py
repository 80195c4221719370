"""Who copied whom (docs/protocol.md section 5, COPY; docs/decisions/0012-sampled-sketches.md).

What two payloads have in common is looked at in some chunks, drawn from the hash of block D: everybody has committed
by then, so no copier can know them and change just those. A `Sketch` is what a payload holds in the drawn chunks.
Every pair goes through a screen of a fixed small cost first; what may be a copy is then counted exactly.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256
from math import sqrt

import numpy as np
import numpy.typing as npt

from protocol.assignment import Draw
from protocol.layout import Layout, Region
from protocol.spec import GauntletSpec
from protocol.types import Digest, PeerId, hotkey
from sparseloco.records import Bytes, indices, signs

Integers = npt.NDArray[np.int64]

COMPARED_VALUES = 4096
"""So many chunks are compared as hold about so many values: 64 full ones. All of them in a small model."""

SCREENED_VALUES = 1024
"""Of those, in the first chunks drawn, the screen looks at so many."""

SCREEN_BUCKETS = 1024
SCREEN_SHARE = 0.75
"""The screen lets through pairs that seem to overlap by more than this share of the limit."""

_BLOCK = 32
"""Payloads that are decoded together: more leave the processor's cache."""


@dataclass(frozen=True, order=True, slots=True)
class Remembered:
    """A payload of an earlier round with which later ones are compared: `payload` is the sha256 of its records."""

    round: int
    peer: PeerId
    payload: Digest


@dataclass(frozen=True, slots=True)
class Sketch:
    """A payload's name, and its records of the chunks that a `Sample` drew, as `Sample.excerpt` gives them."""

    peer: PeerId
    round: int
    payload: Digest
    excerpt: bytes

    @property
    def name(self) -> Remembered:
        return Remembered(self.round, self.peer, self.payload)


@dataclass(frozen=True, slots=True)
class _Group:
    """Drawn chunks of one size. `offsets` int64 [chunks]: where their records begin among all records of a payload.
    `start`: where they begin in an excerpt. `first`: number of the first chunk's first element, counted over all drawn
    chunks."""

    n: int
    k: int
    record_bytes: int
    offsets: Integers
    start: int
    first: int

    @property
    def end(self) -> int:
        return self.start + self.offsets.size * self.record_bytes

    def records(self, records: bytes | Bytes) -> npt.NDArray[np.void]:
        """The drawn chunks' records out of all `records` of a payload, [chunks], each one element."""
        starts = len(records) - self.record_bytes + 1
        each = np.ndarray((starts,), dtype=f"V{self.record_bytes}", buffer=records, strides=(1,))
        return each[self.offsets]

    def places(self, excerpts: Bytes, *, signed: bool) -> npt.NDArray[np.uint32]:
        """Of P payloads [P, bytes of an excerpt]: numbers of their values' elements, counted over all drawn chunks;
        `signed`: twice that, plus the sign. uint32 [P, chunks * k], ascending."""
        chunks = self.offsets.size
        records = excerpts[:, self.start : self.end].reshape(-1, self.record_bytes)
        found = indices(records, self.n, self.k).reshape(-1, chunks, self.k)
        found += (self.first + self.n * np.arange(chunks, dtype=np.uint32))[:, None]
        if signed:
            found <<= np.uint32(1)
            found |= signs(records, self.n, self.k).reshape(found.shape)
        return found.reshape(-1, chunks * self.k)


class Sample:
    """The chunks of a layout that are compared in the round whose block D has `commit_hash`."""

    def __init__(self, layout: Layout, commit_hash: Digest) -> None:
        num_values = sum(region.down * region.across * region.k for tensor in layout for region in tensor.regions)
        compared, screened = (
            min(layout.num_chunks, -(-wanted * layout.num_chunks // max(1, num_values)))
            for wanted in (COMPARED_VALUES, SCREENED_VALUES)
        )
        drawn = [_located(layout, chunk) for chunk in Draw("copies", commit_hash).distinct(layout.num_chunks, compared)]
        self._seed = commit_hash
        self._screened = _groups(drawn[:screened], 0, 0)
        last = self._screened[-1] if self._screened else None
        start, first = (last.end, last.first + last.n * last.offsets.size) if last else (0, 0)
        self._groups = (*self._screened, *_groups(drawn[screened:], start, first))
        self._bytes = self._groups[-1].end if self._groups else 0
        self.num_values = sum(group.offsets.size * group.k for group in self._groups)
        self.num_elements = sum(group.offsets.size * group.n for group in self._groups)

    def excerpt(self, records: bytes | Bytes) -> bytes:
        """The records of the drawn chunks, from all `records` of a payload of this layout."""
        return b"".join(group.records(records).tobytes() for group in self._groups)

    def places(self, sketches: Sequence[Sketch]) -> npt.NDArray[np.uint32]:
        """Twice the element's number plus the sign, for every value of every sketch, uint32 [sketches, values]."""
        excerpts = _stacked(sketches, self._bytes)
        parts = [group.places(excerpts, signed=True) for group in self._groups]
        return np.concatenate([np.empty((len(sketches), 0), dtype=np.uint32), *parts], axis=1)

    def near(self, sketches: Sequence[Sketch], count: int, limit: float) -> npt.NDArray[np.bool_]:
        """The screen, [count, sketches]: which of the first `count` may have a share of more than `limit` in common
        with which of all.

        An element of the screened chunks goes to a bucket and has a factor of 1 or -1, both from the hash of block D.
        With the sums of factors in each bucket as a vector, the product of two vectors is on average the number of
        common elements; its standard deviation is about 1 / sqrt(buckets) of a payload's. Exact in float32, in any
        order: small integers.
        """
        least = SCREEN_SHARE * limit * sum(group.offsets.size * group.k for group in self._screened)
        vectors = self.vectors(sketches)
        common: npt.NDArray[np.float32] = vectors[:count] @ vectors.T
        return common > least

    @cached_property
    def _columns(self) -> Integers:
        """Of every element of the screened chunks: its bucket, plus SCREEN_BUCKETS where its factor is -1."""
        count = sum(group.offsets.size * group.n for group in self._screened)
        stream = shake_256(b"copies screen" + self._seed).digest(2 * count)
        return np.frombuffer(stream, dtype="<u2").astype(np.int64) % (2 * SCREEN_BUCKETS)

    def vectors(self, sketches: Sequence[Sketch]) -> npt.NDArray[np.float32]:
        """The vectors that the screen multiplies, float32 [sketches, SCREEN_BUCKETS]."""
        found = np.empty((len(sketches), SCREEN_BUCKETS), dtype=np.float32)
        rows = (np.arange(_BLOCK) * 2 * SCREEN_BUCKETS)[:, None]
        for first in range(0, len(sketches), _BLOCK):
            block = sketches[first : first + _BLOCK]
            excerpts = _stacked(block, self._bytes)
            sums = np.zeros((len(block), 2, SCREEN_BUCKETS), dtype=np.int64)
            for group in self._screened:
                columns = self._columns.take(group.places(excerpts, signed=False))
                columns += rows[: len(block)]
                sums += np.bincount(columns.ravel(), minlength=sums.size).reshape(sums.shape)
            found[first : first + len(block)] = sums[:, 0] - sums[:, 1]
        return found


def _located(layout: Layout, chunk: int) -> tuple[Region, int]:
    """The region of chunk number `chunk`, and where its record begins."""
    tensor = layout.tensors[bisect_right(layout.tensors, chunk, key=lambda tensor: tensor.first_chunk) - 1]
    for region in tensor.regions:
        row, column = divmod(chunk - tensor.first_chunk - region.first, region.chunk_stride)
        if 0 <= row < region.down and column < region.across:
            return region, tensor.offset + region.offset + row * region.stride + column * region.record_bytes
    raise ValueError(f"the layout has no chunk {chunk}")


def _groups(drawn: Sequence[tuple[Region, int]], start: int, first: int) -> tuple[_Group, ...]:
    """Located chunks by size, the first one's records from byte `start`, its elements from number `first` on."""
    by_size: dict[tuple[int, int, int], list[int]] = {}
    for region, offset in drawn:
        by_size.setdefault((region.n, region.k, region.record_bytes), []).append(offset)
    groups: list[_Group] = []
    for (n, k, record_bytes), offsets in by_size.items():
        groups.append(_Group(n, k, record_bytes, np.array(offsets, dtype=np.int64), start, first))
        start, first = groups[-1].end, first + n * len(offsets)
    return tuple(groups)


def _stacked(sketches: Sequence[Sketch], size: int) -> Bytes:
    return np.frombuffer(b"".join(sketch.excerpt for sketch in sketches), dtype=np.uint8).reshape(len(sketches), size)


@dataclass(frozen=True, slots=True)
class Copies:
    """Peers whose payload is a copy, each with what it copies in our words. `reposted`: those that copy a payload of
    an earlier round; the other ones copy, or were copied by, a payload of this round."""

    details: Mapping[PeerId, str]
    reposted: frozenset[PeerId]


def find_copies(
    sample: Sample,
    current: Mapping[PeerId, Sketch],
    history: Iterable[Sketch],
    void_rounds: Collection[int],
    spec: GauntletSpec,
) -> Copies:
    """Copies among this round's payloads and those of the last `copy_rounds` rounds; all sketches are by `sample`.

    More than `copy_overlap` in common, and one standard deviation of a share among so few values, is a copy.
    An earlier payload has an owner, so only who posts it again is at fault. Two of this round were both sealed until
    D, so both are. What a peer sent in a void round went back into its error feedback and mostly comes again: it is
    compared with the peer's own payload for equality only, and what two payloads have from their owners' void ones is
    nothing that one took from the other.
    """
    mine = [current[peer] for peer in sorted(current)]
    first_round = mine[0].round - spec.copy_rounds if mine else 0
    past = sorted((old for old in history if old.round >= first_round), key=lambda old: (old.round, old.peer))
    limit = spec.copy_overlap + 0.5 / sqrt(max(1, sample.num_values))
    pairs = _Pairs(sample, mine, past, void_rounds, limit)
    details: dict[PeerId, str] = {}
    for index, one in enumerate(mine):
        for old, share in pairs.earlier(index):
            equal = one.payload == old.payload
            if equal or (share > limit and not (old.peer == one.peer and old.round in void_rounds)):
                how = "equals" if equal else f"overlaps {share:.2f} with"
                details[one.peer] = f"{how} the payload of {hotkey(old.peer)} in round {old.round}"
                break
    reposted = frozenset(details)
    for index, one in enumerate(mine):
        # A re-poster is left out here: after a void round the owner's new payload rightly resembles the one re-posted.
        # One who is known to be a copy needs no second witness: a crowd of equal payloads costs a pair each.
        known = details.keys() if one.peer in details else reposted
        for other, share in pairs.beside(index, but=known) if one.peer not in reposted else ():
            if share == 1.0 or share > limit:
                for copy, two in ((one, mine[other]), (mine[other], one)):
                    told = f"overlaps {share:.2f} with the payload of {hotkey(two.peer)} in this round"
                    details.setdefault(copy.peer, told)
    return Copies(details, reposted)


class _Pairs:
    """The pairs that the screen lets through, of this round's payloads `mine` with one another and with `past`; both
    are sorted. Shares are of the values in the drawn chunks."""

    def __init__(
        self, sample: Sample, mine: list[Sketch], past: list[Sketch], void_rounds: Collection[int], limit: float
    ) -> None:
        self.all, self.count, self.num_values = [*mine, *past], len(mine), max(1, sample.num_values)
        self.near = sample.near(self.all, self.count, limit)
        equals: dict[Digest, list[int]] = {}
        for index, one in enumerate(self.all):
            equals.setdefault(one.payload, []).append(index)
        for index, one in enumerate(mine):
            self.near[index, equals[one.payload]] = True
        self.near[:, : self.count] &= ~np.tri(self.count, dtype=np.bool_)
        between = self.near[:, : self.count].any(axis=0) | self.near[:, : self.count].any(axis=1)
        peers = {mine[index].peer for index in np.flatnonzero(between)}
        self.void: dict[PeerId, list[int]] = {}
        for index, old in enumerate(past, self.count):
            if old.round in void_rounds and old.peer in peers:
                self.void.setdefault(old.peer, []).append(index)
        looked_at = np.array(self.near.any(axis=0))
        looked_at[: self.count] |= self.near.any(axis=1)
        looked_at[[index for void in self.void.values() for index in void]] = True
        self.row = np.cumsum(looked_at) - 1
        self.places = sample.places([self.all[index] for index in np.flatnonzero(looked_at)])
        self.table = np.zeros(2 * sample.num_elements, dtype=np.bool_)

    def earlier(self, index: int) -> list[tuple[Sketch, float]]:
        """Earlier payloads near number `index` of this round, by round and hotkey, and the share in common."""
        others = np.flatnonzero(self.near[index, self.count :]) + self.count
        return [(self.all[other], share) for other, share in zip(others, self._shares(index, others), strict=True)]

    def beside(self, index: int, but: Collection[PeerId]) -> list[tuple[int, float]]:
        """Later ones of this round near number `index`, `but` those, and the share in common: 1 when equal, else
        without what stands in a void payload of either one's owner."""
        others: list[int] = np.flatnonzero(self.near[index, : self.count]).tolist()
        near = [other for other in others if self.all[other].peer not in but]
        found: list[tuple[int, float]] = []
        for other, share in zip(near, self._shares(index, near), strict=True):
            one, two = self.all[index], self.all[other]
            void = self.void.get(one.peer, []) + self.void.get(two.peer, [])
            if one.payload == two.payload:
                share = 1.0
            elif void:
                share = self._fresh_share(index, other, void)
            found.append((other, share))
        return found

    def _shares(self, index: int, others: Sequence[int] | Integers) -> list[float]:
        if not len(others):
            return []
        mine, theirs = self.places[self.row[index]], self.places[self.row[others]]
        self.table[mine] = True
        common = self.table[theirs].sum(axis=1)
        self.table[mine] = False
        shares: list[float] = (common / self.num_values).tolist()
        return shares

    def _fresh_share(self, index: int, other: int, void: list[int]) -> float:
        old = self.places[self.row[void]]
        one, two = (np.setdiff1d(self.places[self.row[which]], old) for which in (index, other))
        return np.intersect1d(one, two, assume_unique=True).size / max(1, one.size, two.size)
