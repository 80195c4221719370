"""Consensus randomness against hashlib, and against the distributions that it should have."""

from collections import Counter
from hashlib import sha256, shake_256
from itertools import permutations
from math import prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.assignment import Draw, assigned, mirror_order, page_at
from murmur.protocol.types import Digest, Page, PeerId

RUN = Digest(b"\x01" * 32)
BLOCK = Digest(b"\x02" * 32)


def peer(number: int) -> PeerId:
    return PeerId(sha256(b"peer" + bytes([number])).digest())


def chi_square(observed: Counter[int], expected: dict[int, float]) -> float:
    return sum((observed[value] - share) ** 2 / share for value, share in expected.items())


# --- the stream ----------------------------------------------------------------------------------------------


def words(seed: bytes, num_bytes: int, count: int) -> list[int]:
    """The stream computed at once: the first `count` words of SHAKE-256 over `seed`."""
    stream = shake_256(seed).digest(num_bytes * count)
    return [int.from_bytes(stream[i * num_bytes :][:num_bytes], "little") for i in range(count)]


@pytest.mark.parametrize("num_bytes", [1, 4, 8, 16, 700, 3000])
def test_words_are_the_shake_256_of_label_and_parts_however_far_one_reads(num_bytes: int) -> None:
    draw = Draw("label", b"part", 258, b"\xff")
    assert [draw.words(num_bytes) for _ in range(300)] == words(b"labelpart\x02\x01\x00\x00\xff", num_bytes, 300)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_words_of_any_lengths_are_one_stream_without_gap_or_overlap(lengths: list[int]) -> None:
    draw = Draw("stream")
    read = b"".join(draw.words(length).to_bytes(length, "little") for length in lengths)
    assert read == shake_256(b"stream").digest(sum(lengths))


@given(st.integers(1, 2**64), st.integers(0, 2**32 - 1))
def test_below_takes_the_first_word_under_the_largest_multiple(n: int, seed: int) -> None:
    limit = 2**64 // n * n
    expected = next(word for word in words(b"x" + seed.to_bytes(4, "little"), 8, 200) if word < limit)
    assert Draw("x", seed).below(n) == expected % n


def test_below_rejects_the_biased_tail() -> None:
    """Of bytes below 171 only 0 .. 170 are usable: about a third of the words is thrown away."""
    usable = [word for word in words(b"tail", 1, 900) if word < 171]
    draw = Draw("tail")
    assert len(usable) < 700
    assert [draw.below(171, num_bytes=1) for _ in usable] == usable


@pytest.mark.parametrize(("n", "num_bytes"), [(0, 8), (-1, 8), (257, 1), (2**64 + 1, 8)])
def test_below_refuses_what_its_words_cannot_reach(n: int, num_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw below {n} from words of {num_bytes} bytes"):
        Draw("x").below(n, num_bytes)


def test_below_reaches_the_whole_range_of_a_word() -> None:
    draw = Draw("x")
    assert [draw.below(256, num_bytes=1) for _ in range(50)] == words(b"x", 1, 50)


@given(st.integers(1, 2**64) | st.just(2**63 + 1), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_many_below_are_below_one_after_the_other(n: int, count: int, seed: int) -> None:
    """Of words, up to a half is thrown away; what follows comes from where the last one ended."""
    at_once, one_by_one = Draw("x", seed), Draw("x", seed)
    assert at_once.many_below(n, count) == [one_by_one.below(n) for _ in range(count)]
    assert at_once.words(8) == one_by_one.words(8)


def test_below_is_uniform() -> None:
    draw = Draw("uniform", 7)
    counts = Counter(draw.below(10) for _ in range(20_000))
    assert chi_square(counts, dict.fromkeys(range(10), 2000.0)) < 27.9  # p = 0.001 at 9 degrees of freedom


def test_unit_is_a_multiple_of_2_to_the_minus_53_below_one() -> None:
    draw = Draw("unit")
    values = [draw.unit() for _ in range(2000)]
    assert values == [(word >> 11) / 2**53 for word in words(b"unit", 8, 2000)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert abs(sum(values) / 2000 - 0.5) < 0.03


# --- samples -------------------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(0, 50), st.integers(0, 1000))
def test_a_sample_has_distinct_elements_and_begins_like_every_longer_one(n: int, k: int, seed: int) -> None:
    population = [f"element {i}" for i in range(n)]
    sample = Draw("s", seed).sample(population, k)
    assert len(sample) == len(set(sample)) == min(n, k)
    assert set(sample) <= set(population)
    assert sample == Draw("s", seed).sample(population, n)[:k]


def test_every_order_of_a_sample_is_equally_likely() -> None:
    draw = Draw("orders")
    orders = list(permutations(range(4), 2))
    counts = Counter(orders.index(tuple(draw.sample(range(4), 2))) for _ in range(6000))
    assert chi_square(counts, dict.fromkeys(range(12), 500.0)) < 31.3  # p = 0.001 at 11 degrees of freedom


@given(st.integers(0, 200), st.integers(0, 220), st.integers(0, 1000))
def test_distinct_numbers_are_distinct_below_n_and_as_many_as_there_are(n: int, k: int, seed: int) -> None:
    numbers = Draw("d", seed).distinct(n, k)
    assert len(numbers) == len(set(numbers)) == min(n, k)
    assert all(0 <= number < n for number in numbers)


@given(st.integers(2, 2**53), st.integers(0, 1000))
def test_few_distinct_numbers_of_many_are_the_stream_without_repetitions(n: int, seed: int) -> None:
    k = min(30, (n - 1) // 2)
    draw, seen = Draw("d", seed), dict[int, None]()
    while len(seen) < k:
        seen[draw.below(n)] = None
    assert Draw("d", seed).distinct(n, k) == list(seen)


@pytest.mark.parametrize("k", [2, 9])
def test_each_number_is_equally_likely_to_be_drawn(k: int) -> None:
    draw = Draw("share", k)
    counts = Counter(number for _ in range(3000) for number in draw.distinct(10, k))
    assert chi_square(counts, dict.fromkeys(range(10), 300.0 * k)) < 27.9


# --- pages ---------------------------------------------------------------------------------------------------


def test_assigned_pages_are_what_hashlib_gives() -> None:
    seed = b"pages" + RUN + BLOCK + peer(1)
    limit = 2**64 // 1000 * 1000
    seen = dict.fromkeys(word % 1000 for word in words(seed, 8, 40) if word < limit)
    expected = tuple(Page(number * 256, 256) for number in list(seen)[:8])
    assert assigned(RUN, BLOCK, peer(1), num_pages=1000, page_tokens=256, count=8) == expected


def test_golden_pages_do_not_change_between_releases() -> None:
    pages = assigned(RUN, BLOCK, PeerId(b"\x03" * 32), num_pages=390, page_tokens=256, count=5)
    assert [page.first // 256 for page in pages] == [114, 105, 371, 267, 136]


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 8))
def test_pages_of_a_stage_are_those_of_a_split_that_begins_there(first: int, num_pages: int, count: int) -> None:
    plain = assigned(RUN, BLOCK, peer(1), num_pages=num_pages, page_tokens=64, count=count)
    staged = assigned(RUN, BLOCK, peer(1), num_pages=num_pages, page_tokens=64, count=count, first_page=first)
    assert staged == tuple(Page(page.first + 64 * first, 64) for page in plain)


@given(st.integers(1, 500), st.integers(0, 60), st.integers(0, 9))
def test_assigned_pages_are_distinct_whole_and_inside_the_split(num_pages: int, count: int, number: int) -> None:
    pages = assigned(RUN, BLOCK, peer(number), num_pages=num_pages, page_tokens=64, count=count)
    assert len(set(pages)) == len(pages) == min(count, num_pages)
    assert all(page.num_tokens == 64 and page.first % 64 == 0 for page in pages)
    assert all(0 <= page.first <= (num_pages - 1) * 64 for page in pages)


def test_another_run_block_or_peer_gets_other_pages() -> None:
    def pages(run: Digest, block: Digest, who: PeerId) -> tuple[Page, ...]:
        return assigned(run, block, who, num_pages=10**6, page_tokens=64, count=8)

    drawn = {pages(RUN, BLOCK, peer(1)), pages(BLOCK, BLOCK, peer(1)), pages(RUN, RUN, peer(1))}
    assert len(drawn | {pages(RUN, BLOCK, peer(2))}) == 4


def test_pages_follow_each_other_without_gap() -> None:
    assert [page_at(i, 7) for i in range(3)] == [Page(0, 7), Page(7, 7), Page(14, 7)]


# --- mirrors -------------------------------------------------------------------------------------------------

MINER = peer(100)
STAKES = st.lists(st.one_of(st.just(0), st.integers(1, 2**64 - 1)), max_size=8).map(
    lambda stakes: [(peer(number), stake) for number, stake in enumerate(stakes)]
)


def mirrors(round: int, stakes: list[tuple[PeerId, int]]) -> tuple[PeerId, ...]:
    return mirror_order(RUN, BLOCK, round, MINER, stakes)


@given(STAKES, st.randoms(use_true_random=False))
def test_mirrors_are_drawn_without_replacement_and_whatever_the_order_of_the_validators(
    stakes: list[tuple[PeerId, int]], random: Random
) -> None:
    order = mirrors(3, stakes)
    shuffled = stakes.copy()
    random.shuffle(shuffled)
    assert mirrors(3, shuffled) == order
    assert sorted(order) == sorted(who for who, _ in stakes)


@given(STAKES)
def test_validators_without_stake_copy_last_in_the_order_of_their_hotkeys(stakes: list[tuple[PeerId, int]]) -> None:
    order = mirrors(3, stakes)
    num_staked = sum(stake > 0 for _, stake in stakes)
    assert {who for who, stake in stakes if stake} == set(order[:num_staked])
    assert list(order[num_staked:]) == sorted(who for who, stake in stakes if not stake)


def test_each_order_of_mirrors_is_as_likely_as_its_stakes_say() -> None:
    stake = {peer(0): 1, peer(1): 2, peer(2): 5}
    orders = [tuple(order) for order in permutations(stake)]
    counts = Counter(orders.index(mirrors(round, list(stake.items()))) for round in range(8000))
    expected = {
        i: 8000 * prod(stake[who] / sum(stake[other] for other in order[at:]) for at, who in enumerate(order))
        for i, order in enumerate(orders)
    }
    assert chi_square(counts, expected) < 20.5  # p = 0.001 at 5 degrees of freedom


def test_without_validators_nobody_copies() -> None:
    assert mirrors(0, []) == ()


def test_golden_mirrors_do_not_change_between_releases() -> None:
    validators = [(PeerId(bytes([number]) * 32), 10**9 * (number + 1)) for number in range(6)]
    order = mirror_order(RUN, BLOCK, 12, PeerId(b"\x03" * 32), validators)
    assert [who[0] for who in order] == [5, 4, 3, 1, 2, 0]


def test_mirrors_of_a_payload_are_all_validators_in_an_order_of_its_own() -> None:
    """A walk over cumulative stake with hashlib."""
    stakes = {peer(number): 10 ** (number + 3) + number for number in range(6)}
    for miner in (peer(100), peer(101)):
        seed = b"mirror" + RUN + BLOCK + (9).to_bytes(4, "little") + miner
        stream, expected, left = iter(words(seed, 16, 200)), list[PeerId](), sorted(stakes)
        while left:
            total = sum(stakes[one] for one in left)
            point = next(word for word in stream if word < 2**128 // total * total) % total
            for one in left:
                if point < stakes[one]:
                    break
                point -= stakes[one]
            expected.append(one)
            left.remove(one)
        assert mirror_order(RUN, BLOCK, 9, miner, list(stakes.items())) == tuple(expected)
    nobody = peer(7)
    assert mirror_order(RUN, BLOCK, 9, peer(100), [(nobody, 0), (peer(1), 5)]) == (peer(1), nobody)


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_of_equal_validators_each_has_its_share_of_two_copies_of_everything(count: int) -> None:
    stakes = [(peer(number), 5) for number in range(count)]
    copied = Counter(
        one
        for round in range(50)
        for miner in range(100, 120)
        for one in mirror_order(RUN, BLOCK, round, peer(miner), stakes)[:2]
    )
    assert copied.total() == 1000 * min(2, count)
    assert set(copied) == {one for one, _ in stakes}
    share = copied.total() / count
    assert all(abs(found - share) < 5 * share**0.5 for found in copied.values())
