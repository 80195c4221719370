"""Copies: what the screen and the drawn chunks find is what plain sets find, and attacks that copy in part."""

from hashlib import sha256
from itertools import combinations
from random import Random
from time import process_time

import numpy as np
import pytest
import torch

from gauntlet.sketch import COMPARED_VALUES, FoundCopies, Sample, Sketch, find_copies
from murmur.protocol.layout import Layout
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest
from sparseloco.quantize import Codes
from sparseloco.records import Chunks, encode, window
from sparseloco.update import Update
from tests.gauntlet.world import digest, peer_id

SPEC = GauntletSpec(copy_overlap=0.6, copy_rounds=2)
LAYOUT = Layout.of({"bias": (70,), "in": (512, 512), "out": (200, 300), "ragged": (130, 70)}, 64)
SMALL = Layout.of({"one": (100, 30), "two": (40,)}, 64)
BLOCK_D = digest("block D")

Places = list[list[tuple[np.ndarray, np.ndarray]]]
"""Per tensor and region: sorted indices [chunks, k'] and signs [chunks, k']."""


class Pool:
    """Updates as their places and signs, one random stream for all."""

    def __init__(self, seed: int, layout: Layout = LAYOUT) -> None:
        self.random, self.layout = np.random.default_rng(seed), layout

    def fresh(self) -> Places:
        return [
            [
                (self._drawn(region.n, region.k, region.down * region.across), self._signs(region))
                for region in tensor.regions
            ]
            for tensor in self.layout
        ]

    def like(self, places: Places, share: float, flipped: float = 0.0) -> Places:
        """Every value stays where it is with probability `share`, else moves; that share of the signs is turned."""
        found: Places = []
        for tensor, parts in zip(self.layout, places, strict=True):
            row = []
            for region, (indices, signs) in zip(tensor.regions, parts, strict=True):
                kept = self.random.random(indices.shape) < share
                moved = np.sort(
                    np.stack(
                        [self._around(old, keep, region.n, region.k) for old, keep in zip(indices, kept, strict=True)]
                    )
                )
                of = {
                    (c, i): s
                    for c, (line, bits) in enumerate(zip(indices.tolist(), signs.tolist(), strict=True))
                    for i, s in zip(line, bits, strict=True)
                }
                now = np.array([[of.get((c, i), i & 1) for i in line] for c, line in enumerate(moved.tolist())])
                row.append((moved, now ^ (self.random.random(now.shape) < flipped)))
            found.append(row)
        return found

    def mixed(self, one: Places, two: Places, share: float) -> Places:
        """Whole chunks of `one` with probability `share`, else of `two`."""
        found: Places = []
        for left, right in zip(one, two, strict=True):
            row = []
            for (a, b), (c, d) in zip(left, right, strict=True):
                first = self.random.random(len(a))[:, None] < share
                row.append((np.where(first, a, c), np.where(first, b, d)))
            found.append(row)
        return found

    def update(self, places: Places) -> Update:
        data = np.zeros(self.layout.records_bytes, dtype=np.uint8)
        for tensor, parts in zip(self.layout, places, strict=True):
            for region, (indices, signs) in zip(tensor.regions, parts, strict=True):
                levels = torch.full((len(indices),), 100, dtype=torch.uint8)
                bits = torch.from_numpy(np.array(signs, dtype=np.uint8))
                chunks = Chunks(torch.from_numpy(indices.copy()), Codes(bits, torch.zeros_like(bits), levels, levels))
                view = window(data, tensor, region)
                view[:] = encode(chunks, region).reshape(view.shape)
        return Update(self.layout, data.tobytes())

    def _drawn(self, n: int, k: int, count: int) -> np.ndarray:
        return np.sort(
            self.random.random((count, n)).argpartition(k - 1)[:, :k] if k < n else np.tile(np.arange(n), (count, 1))
        )

    def _signs(self, region) -> np.ndarray:
        return self.random.integers(0, 2, (region.down * region.across, region.k))

    def _around(self, old: np.ndarray, keep: np.ndarray, n: int, k: int) -> np.ndarray:
        free = np.setdiff1d(np.arange(n), old, assume_unique=True)
        need = k - int(keep.sum())
        if need > free.size:
            return old
        return np.concatenate((old[keep], self.random.choice(free, need, replace=False)))


def sketch_of(sample: Sample, number: int, round: int, update: Update) -> Sketch:
    return Sketch(peer_id(number), round, update.digest, sample.excerpt(update.records))


def found(current, past=(), layout: Layout = LAYOUT, block: Digest = BLOCK_D):
    """Numbers of the peers that are copies or twins, and of those that posted again. `current`: number -> update;
    `past`: (number, round, update). This round is number 5."""
    sample = Sample(layout, block)
    now = {peer_id(number): sketch_of(sample, number, 5, update) for number, update in current.items()}
    copies = find_copies(sample, now, [sketch_of(sample, *one) for one in past], SPEC)
    numbers = {peer_id(number): number for number in current}
    return {numbers[p] for p in (*copies.reposted, *copies.twins)}, {numbers[p] for p in copies.reposted}


# --- the sample ----------------------------------------------------------------------------------------------


def test_drawn_values_are_a_part_of_all_values_chunk_by_chunk() -> None:
    pool = Pool(0)
    updates = [pool.update(pool.fresh()) for _ in range(3)]
    sample = Sample(LAYOUT, BLOCK_D)
    places = sample.places([sketch_of(sample, n, 5, update) for n, update in enumerate(updates)])
    assert places.shape == (3, sample.num_values)
    assert COMPARED_VALUES * 0.9 < sample.num_values < COMPARED_VALUES * 1.1
    assert (np.diff(places.astype(np.int64)) > 0).all()
    # Overlaps over many draws of chunks are on average those over everything.
    one = pool.fresh()
    left, right = pool.update(one), pool.update(pool.like(one, 0.5))
    whole = np.intersect1d(left.positions, right.positions).size / left.positions.size
    shares = []
    for number in range(60):
        sample = Sample(LAYOUT, digest(f"block {number}"))
        a, b = sample.places([sketch_of(sample, 0, 5, left), sketch_of(sample, 1, 5, right)])
        shares.append(np.intersect1d(a, b).size / sample.num_values)
    assert np.mean(shares) == pytest.approx(whole, abs=0.01)
    assert np.std(shares) > 0


def test_every_chunk_of_a_small_model_is_compared_and_all_are_drawn_alike_in_a_large_one() -> None:
    pool = Pool(1, SMALL)
    update = pool.update(pool.fresh())
    sample = Sample(SMALL, BLOCK_D)
    assert sample.num_values == update.positions.size
    assert sorted(sample.excerpt(update.records)) == sorted(update.records)
    numbered = np.arange(LAYOUT.records_bytes) % 251
    seen = [Sample(LAYOUT, digest(f"block {n}")).excerpt(numbered.astype(np.uint8).tobytes()) for n in range(40)]
    assert len(set(seen)) == 40
    empty = Sample(Layout.of({}, 64), BLOCK_D)
    assert empty.excerpt(b"") == b""


def test_the_screen_lets_every_pair_through_that_overlaps_clearly_more_than_the_limit_and_few_others() -> None:
    pool = Pool(2)
    pairs = 40
    mine = [pool.fresh() for _ in range(pairs)]
    near = [pool.update(pool.like(one, 0.7)) for one in mine]
    far = [pool.update(pool.like(one, 0.2)) for one in mine]
    same = [pool.update(one) for one in mine]
    lost = passed = 0
    for number in range(10):
        sample = Sample(LAYOUT, digest(f"block {number}"))
        left, close, apart = (
            [sketch_of(sample, n, 5, update) for n, update in enumerate(some)] for some in (same, near, far)
        )
        lost += pairs - np.diag(sample.near([*left, *close], pairs, 0.6), pairs).sum()
        passed += np.diag(sample.near([*left, *apart], pairs, 0.6), pairs).sum()
    assert lost == 0
    assert passed < 10


# --- against plain sets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("layout", [SMALL, LAYOUT], ids=["small", "larger"])
def test_the_same_copies_are_found_as_by_comparing_every_pair_of_sets(seed: int, layout: Layout) -> None:
    random, pool = Random(seed), Pool(seed, layout)
    base = pool.fresh()
    past = [(n, random.choice([2, 3, 4]), pool.update(pool.fresh())) for n in range(6)]
    originals = [pool.fresh() for _ in range(3)]
    past += [(n, 4, pool.update(one)) for n, one in zip((6, 7, 8), originals, strict=True)]
    current = {n: pool.update(pool.like(base, random.choice([0.2, 0.5, 0.9]))) for n in range(4)}
    current[4] = pool.update(pool.like(originals[0], 0.8))
    current[5] = past[-1][2]
    current[6] = past[0][2]
    current[7] = current[8] = pool.update(pool.fresh())

    sample = Sample(layout, BLOCK_D)

    def values(update: Update) -> set[int]:
        return set(sample.places([sketch_of(sample, 0, 5, update)])[0].tolist())

    def alike(one: Update, two: Update) -> bool:
        left, right = values(one), values(two)
        return one.records == two.records or len(left & right) > SPEC.copy_overlap * len(left) + len(left) ** 0.5 / 2

    reposted = {n for n, mine in current.items() if any(r >= 3 and alike(mine, old) for _, r, old in past)}
    left = current.keys() - reposted
    both = {n for pair in combinations(sorted(left), 2) if alike(*(current[m] for m in pair)) for n in pair}
    assert found(current, past, layout=layout) == (reposted | both, reposted)
    assert {4, 5} <= reposted
    assert {7, 8} <= both


def test_a_payload_of_nothing_is_near_to_nothing_but_its_equal() -> None:
    empty = Layout.of({}, 64)
    sample = Sample(empty, BLOCK_D)
    sketches = {peer_id(n): Sketch(peer_id(n), 5, Digest(sha256(b"%d" % (n // 2)).digest()), b"") for n in range(3)}
    twins = {peer_id(0): frozenset([peer_id(1)]), peer_id(1): frozenset([peer_id(0)])}
    assert find_copies(sample, sketches, [], SPEC) == FoundCopies({}, twins)
    assert find_copies(sample, {}, [], SPEC) == FoundCopies({}, {})


# --- what a copier may try -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "flipped", "is_copy"),
    [(1.0, 0.0, True), (0.7, 0.0, True), (1.0, 0.3, True), (0.5, 0.0, False), (1.0, 0.5, False)],
)
def test_moved_values_and_turned_signs_count_alike(share: float, flipped: float, is_copy: bool) -> None:
    pool = Pool(10)
    old = pool.fresh()
    current = {1: pool.update(pool.like(old, share, flipped)), 2: pool.update(pool.fresh())}
    past = [(3, 4, pool.update(old))]
    assert found(current, past) == (({1}, {1}) if is_copy else (set(), set()))


def test_copying_most_chunks_is_a_copy_and_copying_half_of_them_or_of_two_peers_is_left_to_the_proof() -> None:
    pool = Pool(11)
    one, two, own = pool.fresh(), pool.fresh(), pool.fresh()
    past = [(3, 4, pool.update(one)), (4, 4, pool.update(two))]
    current = {
        1: pool.update(pool.mixed(one, own, 0.85)),
        2: pool.update(pool.mixed(one, pool.fresh(), 0.45)),
        5: pool.update(pool.mixed(one, two, 0.5)),
    }
    for number in range(5):
        assert found(current, past, block=digest(f"block {number}")) == ({1}, {1})


def test_chunks_in_another_order_are_another_payload() -> None:
    pool = Pool(12)
    old = pool.fresh()
    turned = [[(indices[::-1], signs[::-1]) for indices, signs in tensor] for tensor in old]
    assert found({1: pool.update(turned)}, [(3, 4, pool.update(old))]) == (set(), set())


def test_a_copier_that_changes_the_chunks_compared_last_round_is_caught_in_this_one() -> None:
    wide = Layout.of({"w": (2048, 2048)}, 64)
    pool = Pool(13, wide)
    old = pool.update(pool.fresh())
    known = Sample(wide, digest("last block D"))
    records = bytearray(old.records)
    other = pool.update(pool.fresh()).records
    for group in known._groups:
        for at in group.offsets.tolist():
            records[at : at + group.record_bytes] = other[at : at + group.record_bytes]
    changed = Update(wide, bytes(records))
    assert found({1: changed}, [(3, 4, old)], layout=wide, block=digest("last block D")) == (set(), set())
    assert found({1: changed}, [(3, 4, old)], layout=wide, block=digest("this block D")) == ({1}, {1})


def test_an_own_payload_may_come_again_but_not_exactly_and_not_for_others() -> None:
    """After a void round, and where more was learned than may be sent at once, it does."""
    pool = Pool(14)
    old = pool.fresh()
    past = [(1, 4, pool.update(old))]
    mostly = pool.update(pool.like(old, 0.8))
    assert found({1: mostly}, past) == (set(), set())
    assert found({2: mostly}, past) == ({2}, {2})
    assert found({1: pool.update(old)}, past) == ({1}, {1})


def test_those_who_learned_the_same_in_many_void_rounds_are_no_copies_of_one_another() -> None:
    """What each one sends is what it sent before; that the others did as well says nothing."""
    pool = Pool(17)
    base = pool.fresh()
    before = {n: pool.like(base, 0.85) for n in range(4)}
    past = [(n, 4, pool.update(places)) for n, places in before.items()]
    current = {n: pool.update(pool.like(places, 0.95)) for n, places in before.items()}
    assert found(current) == (set(range(4)), set())
    assert found(current, past) == (set(), set())
    # Somebody without that past has it from another.
    assert found({**current, 9: pool.update(pool.like(before[0], 0.95))}, past)[1] == {9}


def test_nobody_is_made_a_copier_by_one_who_takes_from_its_earlier_payload() -> None:
    """An attacker may take less of an earlier payload than makes it a copier, and guess a part of what its owner adds.
    The sum is above the limit; but what stands in the earlier payload says nothing about who copied whom."""
    pool = Pool(15)
    old = pool.fresh()
    victim = pool.like(old, 0.85)
    attacker = pool.like(victim, 0.65)
    updates = {1: pool.update(victim), 2: pool.update(attacker)}
    sample = Sample(LAYOUT, BLOCK_D)
    a, b, o = sample.places([sketch_of(sample, 0, 5, u) for u in (*updates.values(), pool.update(old))])
    assert np.intersect1d(a, b).size > 0.6 * a.size
    assert np.intersect1d(b, o).size < 0.6 * a.size
    assert found(updates) == ({1, 2}, set())
    takes_from_old = pool.like(old, 0.58)
    assert found({1: updates[1], 2: pool.update(takes_from_old)}, [(1, 4, pool.update(old))]) == (set(), set())
    # Whoever also has what the owner added, must have had it from the owner, or is the same person.
    assert found({1: updates[1], 2: pool.update(pool.like(victim, 0.95))}, [(1, 4, pool.update(old))])[0] >= {2}


def test_one_that_resembles_two_payloads_does_not_make_twins_of_them() -> None:
    pool = Pool(18)
    one = pool.fresh()
    two = pool.mixed(one, pool.fresh(), 0.4)
    between = pool.mixed(one, two, 0.5)
    sample = Sample(LAYOUT, BLOCK_D)
    now = {peer_id(n): sketch_of(sample, n, 5, pool.update(places)) for n, places in enumerate((one, two, between))}
    assert find_copies(sample, now, [], SPEC).twins == {
        peer_id(0): frozenset([peer_id(2)]),
        peer_id(1): frozenset([peer_id(2)]),
        peer_id(2): frozenset([peer_id(0), peer_id(1)]),
    }


def test_a_crowd_of_near_equal_payloads_costs_seconds_at_most() -> None:
    pool = Pool(16)
    base = pool.update(pool.fresh())
    sample = Sample(LAYOUT, BLOCK_D)
    few = [pool.update(pool.like(pool.fresh(), 1.0)) for _ in range(16)]

    def seconds(updates) -> tuple[float, int]:
        now = {}
        for number in range(256):
            name = Digest(sha256(b"%d" % number).digest())
            now[peer_id(number)] = Sketch(
                peer_id(number), 5, name, sample.excerpt(updates[number % len(updates)].records)
            )
        start = process_time()
        copies = find_copies(sample, now, [], SPEC)
        return process_time() - start, len(copies.twins)

    crowd, caught = seconds([base])
    assert caught == 256
    assert crowd < 30.0
    assert seconds(few)[1] == 256
