"""Find copies (docs/protocol.md section 5, COPY; docs/decisions/0012-sampled-sketches.md).

Payloads are compared in some chunks, drawn from the hash of the commit deadline's block: all peers have committed by
then, so a copier cannot know the chunks and change only those. A `Sketch` is a payload's content of the drawn chunks.
Every pair first goes through a screen of a fixed small cost; possible copies are then counted exactly.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256

import numpy as np
import numpy.typing as npt

from gauntlet.remembered import Remembered, Twins
from murmur.protocol.assignment import Draw
from murmur.protocol.layout import Layout, Region
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, PeerId, hotkey
from sparseloco.records import Bytes, indices, signs
from sparseloco.update import Records

Integers = npt.NDArray[np.int64]

COMPARED_VALUES = 4096
"""Chunks are compared until they hold about this many values: 64 full ones. All of them in a small model."""

SCREENED_VALUES = 1024
"""The screen uses the first drawn chunks, up to this many values."""

SCREEN_BUCKETS = 1024
SCREEN_SHARE = 0.75
"""The screen lets through pairs that seem to overlap by more than this share of the limit."""

_BLOCK = 32
"""Payloads that are decoded together: more do not fit into the processor's cache."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A payload's name, and its records of the chunks that a `Sample` drew, as `Sample.excerpt` returns them."""

    peer: PeerId
    round: int
    payload: Digest
    excerpt: bytes

    @property
    def name(self) -> Remembered:
        return Remembered(self.round, self.peer, self.payload)


@dataclass(frozen=True, slots=True)
class _Group:
    """Drawn chunks of one size. `offsets` int64 [chunks]: first bytes of their records among all records of a payload.
    `start`: first byte of their records in an excerpt. `first`: number of the first chunk's first element, counted over
    all drawn chunks."""

    n: int
    k: int
    record_bytes: int
    offsets: Integers
    start: int
    first: int

    @property
    def end(self) -> int:
        return self.start + self.offsets.size * self.record_bytes

    def records(self, records: Records | Bytes) -> npt.NDArray[np.void]:
        """Return the drawn chunks' records out of all `records` of a payload, [chunks], each one element."""
        starts = len(records) - self.record_bytes + 1
        each = np.ndarray((starts,), dtype=f"V{self.record_bytes}", buffer=records, strides=(1,))
        return each[self.offsets]

    def places(self, excerpts: Bytes, *, signed: bool) -> npt.NDArray[np.uint32]:
        """For P payloads [P, bytes of an excerpt]: return numbers of their values' elements, counted over all drawn
        chunks; `signed`: twice that, plus the sign. uint32 [P, chunks * k], ascending."""
        chunks = self.offsets.size
        records = excerpts[:, self.start : self.end].reshape(-1, self.record_bytes)
        found = indices(records, self.n, self.k).reshape(-1, chunks, self.k)
        found += (self.first + self.n * np.arange(chunks, dtype=np.uint32))[:, None]
        if signed:
            found <<= np.uint32(1)
            found |= signs(records, self.n, self.k).reshape(found.shape)
        return found.reshape(-1, chunks * self.k)


class Sample:
    """The chunks of a layout that are compared in the round whose commit deadline has `commit_hash`, drawn one after
    the other until they hold about COMPARED_VALUES values."""

    def __init__(self, layout: Layout, commit_hash: Digest) -> None:
        held = sum(region.down * region.across * region.k for tensor in layout for region in tensor.regions)
        looked_at, screened = (
            min(layout.num_chunks, -(-wanted * layout.num_chunks // max(1, held)))
            for wanted in (COMPARED_VALUES, SCREENED_VALUES)
        )
        drawn = [
            _located(layout, chunk) for chunk in Draw("copies", commit_hash).distinct(layout.num_chunks, looked_at)
        ]
        self._seed = commit_hash
        self._screened = _groups(drawn[:screened], 0, 0)
        last = self._screened[-1] if self._screened else None
        start, first = (last.end, last.first + last.n * last.offsets.size) if last else (0, 0)
        self._groups = (*self._screened, *_groups(drawn[screened:], start, first))
        self._bytes = self._groups[-1].end if self._groups else 0
        self.num_values = sum(group.offsets.size * group.k for group in self._groups)
        self.num_elements = sum(group.offsets.size * group.n for group in self._groups)

    def excerpt(self, records: Records | Bytes) -> bytes:
        """Return the records of the drawn chunks, from all `records` of a payload of this layout."""
        return b"".join(group.records(records).tobytes() for group in self._groups)

    def places(self, sketches: Sequence[Sketch]) -> npt.NDArray[np.uint32]:
        """Return twice the element's number plus the sign, for every value of every sketch, uint32 [sketches,
        values]."""
        excerpts = _stacked(sketches, self._bytes)
        parts = [group.places(excerpts, signed=True) for group in self._groups]
        return np.concatenate([np.empty((len(sketches), 0), dtype=np.uint32), *parts], axis=1)

    def near(self, sketches: Sequence[Sketch], count: int, limit: float) -> npt.NDArray[np.bool_]:
        """Return the screen's result, [count, sketches]: which of the first `count` may share more than `limit` with
        which of all.

        An element of the screened chunks goes to a bucket and has a factor of 1 or -1, both from the hash of the commit
        deadline. With the sums of factors in each bucket as a vector, the product of two vectors is on average the
        number of common elements; its standard deviation is about 1 / sqrt(buckets) of a payload's. Exact in float32,
        in any order: small integers.
        """
        least = SCREEN_SHARE * limit * sum(group.offsets.size * group.k for group in self._screened)
        vectors = self.vectors(sketches)
        common: npt.NDArray[np.float32] = vectors[:count] @ vectors.T
        return common > least

    @cached_property
    def _columns(self) -> Integers:
        """Each element's bucket in the screened chunks, plus SCREEN_BUCKETS if its factor is -1."""
        count = sum(group.offsets.size * group.n for group in self._screened)
        stream = shake_256(b"copies screen" + self._seed).digest(2 * count)
        return np.frombuffer(stream, dtype="<u2").astype(np.int64) % (2 * SCREEN_BUCKETS)

    def vectors(self, sketches: Sequence[Sketch]) -> npt.NDArray[np.float32]:
        """Return the vectors that the screen multiplies, float32 [sketches, SCREEN_BUCKETS]."""
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
    """Return the region of chunk number `chunk`, and the first byte of its record."""
    tensor = layout.tensors[bisect_right(layout.tensors, chunk, key=lambda tensor: tensor.first_chunk) - 1]
    for region in tensor.regions:
        row, column = divmod(chunk - tensor.first_chunk - region.first, region.chunk_stride)
        if 0 <= row < region.down and column < region.across:
            return region, tensor.offset + region.offset + row * region.stride + column * region.record_bytes
    raise ValueError(f"the layout has no chunk {chunk}")


def _groups(drawn: Sequence[tuple[Region, int]], start: int, first: int) -> tuple[_Group, ...]:
    """Group located chunks by size. The first group's records begin at byte `start`, its elements at number `first`."""
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
class FoundCopies:
    """`reposted`: peers whose payload is one of an earlier round, each with its owner in our words. `twins`: among the
    others."""

    reposted: Mapping[PeerId, str]
    twins: Twins


def find_copies(
    sample: Sample, current: Mapping[PeerId, Sketch], history: Iterable[Sketch], spec: GauntletSpec
) -> FoundCopies:
    """Find copies among this round's payloads and those of the last `copy_rounds` rounds; all sketches are by `sample`.

    A copy has more in common than `copy_overlap` plus one standard deviation of a share among their number of values.
    An earlier payload has an owner, so a peer that posts it again is at fault. Two payloads of this round were both
    sealed until the commit deadline: only the peers' own pages can show which of them did the work.

    A peer's earlier payloads are its own: after a void round, and if more was learned than may be sent at once, the
    same values come again. So a peer's payload is compared with its own earlier ones for equality only. Of two
    payloads, only values count that are in no earlier payload of a peer that the comparison may put in doubt.
    """
    mine = [current[peer] for peer in sorted(current)]
    first_round = mine[0].round - spec.copy_rounds if mine else 0
    past = sorted((old for old in history if old.round >= first_round), key=lambda old: (old.round, old.peer))
    pairs = _Pairs(sample, mine, past, spec.copy_overlap)
    reposted: dict[PeerId, str] = {}
    for number, one in enumerate(mine):
        for old, share in pairs.reposts(number)[:1]:
            how = "equals" if share is None else f"overlaps {share:.2f} with"
            reposted[one.peer] = f"{how} the payload of {hotkey(old.peer)} in round {old.round}"
    twins: dict[PeerId, set[PeerId]] = {}
    for left, right in pairs.twins():
        # The owner's own next payload may well be a near copy of one that is posted again.
        if not {mine[left].peer, mine[right].peer} & reposted.keys():
            twins.setdefault(mine[left].peer, set()).add(mine[right].peer)
    return FoundCopies(reposted, {peer: frozenset(others) for peer, others in twins.items()})


class _Pairs:
    """The pairs that the screen lets through, of this round's payloads `mine` with one another and with `past`; both
    are sorted. Payloads are numbered by their place in `mine` and after it in `past`."""

    def __init__(self, sample: Sample, mine: list[Sketch], past: list[Sketch], overlap: float) -> None:
        self.all, self.count, self.overlap = [*mine, *past], len(mine), overlap
        payloads = {one.payload: number for number, one in enumerate(self.all)}
        names = np.array([payloads[one.payload] for one in self.all], dtype=np.int64)
        self.equal = names[: self.count, None] == names
        np.fill_diagonal(self.equal, val=False)
        limit = overlap + float(_margin(np.array(sample.num_values)))
        self.near = sample.near(self.all, self.count, limit) & ~self.equal
        np.fill_diagonal(self.near, val=False)
        own: dict[PeerId, list[int]] = {}
        for number, old in enumerate(past, self.count):
            own.setdefault(old.peer, []).append(number)
        self.own = [own.get(one.peer, []) for one in mine]
        looked_at = np.array(self.near.any(axis=0))
        for number in np.flatnonzero(self.near.any(axis=1)).tolist():
            looked_at[[number, *self.own[number]]] = True
        self.row = np.cumsum(looked_at) - 1
        self.places = sample.places([self.all[number] for number in np.flatnonzero(looked_at).tolist()])
        self.table = np.zeros(2 * sample.num_elements, dtype=np.bool_)

    def reposts(self, number: int) -> list[tuple[Sketch, float | None]]:
        """Return the earlier payloads that number `number` of this round copies, by round and hotkey, and the share in
        common, None for equal ones."""
        equal: list[int] = np.flatnonzero(self.equal[number, self.count :]).tolist()
        found: list[tuple[Sketch, float | None]] = [(self.all[self.count + other], None) for other in equal]
        others = np.flatnonzero(self.near[number, self.count :]) + self.count
        others = np.setdiff1d(others, self.own[number])
        if others.size:
            mine, theirs, before = self._values(number), self._values(others), self._before(number)
            mine, new = mine[~self._within(before, mine)], ~self._within(before, theirs)
            common = (self._within(mine, theirs) & new).sum(axis=1)
            counts = np.maximum(mine.size, new.sum(axis=1))
            for at in np.flatnonzero(self._too_much(common, counts)):
                found.append((self.all[others[at]], float(common[at] / counts[at])))
        return sorted(found, key=lambda one: (one[0].round, one[0].peer))

    def twins(self) -> list[tuple[int, int]]:
        """Return pairs of this round's payloads that are copies, each both ways."""
        near, equal = self.near[:, : self.count], self.equal[:, : self.count]
        common = np.zeros(near.shape, dtype=np.int64)
        counts = np.zeros_like(common)
        involved: list[int] = np.flatnonzero(near.any(axis=1)).tolist()
        own = {one: self._within(self._before(one), self._values(one)) for one in involved}
        for one in involved:
            others = np.flatnonzero(near[one])
            theirs = self._values(others)
            # The others' values that are in no earlier payload of either owner; and of these, the common ones.
            new = ~(np.stack([own[other] for other in others.tolist()]) | self._within(self._before(one), theirs))
            counts[one, others] = new.sum(axis=1)
            common[one, others] = (self._within(self._values(one), theirs) & new).sum(axis=1)
        found: list[list[int]] = np.argwhere(equal | self._too_much(common, np.maximum(counts, counts.T))).tolist()
        return [(one, two) for one, two in found]

    def _too_much(self, common: Integers, counts: Integers) -> npt.NDArray[np.bool_]:
        """Whether `common` values out of `counts` make a copy."""
        found: npt.NDArray[np.bool_] = common > counts * (self.overlap + _margin(counts))
        return found

    def _values(self, which: int | Integers) -> npt.NDArray[np.uint32]:
        found: npt.NDArray[np.uint32] = self.places[self.row[which]]
        return found

    def _before(self, number: int) -> npt.NDArray[np.uint32]:
        """Return the values of all earlier payloads of the owner of number `number`."""
        return self._values(np.array(self.own[number], dtype=np.int64)).ravel()

    def _within(self, some: npt.NDArray[np.uint32], values: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Return which `values` are among `some`."""
        self.table[some] = True
        found: npt.NDArray[np.bool_] = self.table[values]
        self.table[some] = False
        return found


def _margin(counts: Integers) -> npt.NDArray[np.float64]:
    """Return a standard deviation of a share among `counts` values."""
    found: npt.NDArray[np.float64] = 0.5 / np.sqrt(np.maximum(1, counts))
    return found
