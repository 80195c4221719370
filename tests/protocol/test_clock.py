"""The windows of a round against a list of its blocks."""

from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.clock import Clock
from tests.specs import toy_spec


@st.composite
def clocks(draw: st.DrawFn) -> Clock:
    """Clocks that a RunSpec would accept: 0 < commit < reveal < votes < round_blocks."""
    commit = draw(st.integers(1, 50))
    reveal = commit + draw(st.integers(1, 20))
    words = reveal + draw(st.integers(1, 60))
    start = draw(st.integers(1, 2**31))
    return Clock(start, words + draw(st.integers(1, 20)), commit, reveal, words)


@given(clocks(), st.integers(0, 2**20))
def test_every_block_of_a_round_lies_in_exactly_one_window(clock: Clock, round: int) -> None:
    windows = [
        (clock.start(round), clock.commit_deadline(round)),
        (clock.commit_deadline(round) + 1, clock.reveal_deadline(round)),
    ]
    windows += [
        (windows[-1][1] + 1, clock.vote_deadline(round)),
        (clock.vote_deadline(round) + 1, clock.end(round) - 1),
    ]
    blocks = [block for first, last in windows for block in range(first, last + 1)]
    assert blocks == list(range(clock.start(round), clock.start(round) + clock.round_blocks))
    assert all(first <= last for first, last in windows[:-1])


@given(clocks(), st.integers(0, 2**20))
def test_after_a_block_its_window_or_the_next_one_ends(clock: Clock, round: int) -> None:
    ends = [
        clock.commit_deadline(round),
        clock.reveal_deadline(round),
        clock.vote_deadline(round),
        clock.commit_deadline(round + 1),
    ]
    block = clock.start(round)
    for end in ends:
        while block < end:
            assert clock.window_end(block) == end
            block += 1


@given(clocks(), st.integers(0, 2**20))
def test_a_round_ends_where_the_next_begins_and_round_at_names_it_for_each_of_its_blocks(
    clock: Clock, round: int
) -> None:
    assert clock.end(round) == clock.start(round + 1)
    for block in (clock.start(round), clock.commit_deadline(round), clock.vote_deadline(round), clock.end(round) - 1):
        assert clock.round_at(block) == round
    assert clock.round_at(clock.start(round) - 1) == round - 1


@given(clocks(), st.integers(0, 2**20))
def test_pages_are_drawn_before_the_round_and_samples_after_the_last_key(clock: Clock, round: int) -> None:
    assert clock.page_block(round + 1) == clock.commit_deadline(round)
    assert 0 <= clock.page_block(0) < clock.start(0)
    assert clock.sample_block(round) == clock.reveal_deadline(round) + 1


def test_before_the_start_the_round_is_negative() -> None:
    clock = toy_spec().rounds_clock
    assert [clock.round_at(block) for block in (0, 9, 10, 49, 50)] == [-1, -1, 0, 0, 1]


def test_the_toy_round_has_the_blocks_that_one_counts_by_hand() -> None:
    clock = toy_spec().rounds_clock
    assert (clock.start(3), clock.page_block(3), clock.commit_deadline(3), clock.reveal_deadline(3)) == (
        130,
        110,
        150,
        154,
    )
    assert (clock.sample_block(3), clock.vote_deadline(3), clock.end(3)) == (155, 166, 170)


def test_a_round_is_decided_as_seen_from_the_block_after_its_last_words_on() -> None:
    clock = toy_spec().rounds_clock
    assert [clock.decided_before(clock.vote_deadline(3) + more) for more in (0, 1, 40, 41)] == [2, 3, 3, 4]
    assert clock.decided_before(clock.vote_deadline(0)) < 0 == clock.decided_before(clock.vote_deadline(0) + 1)


def test_weights_follow_from_the_newest_round_whose_keys_could_be_read() -> None:
    clock = toy_spec().rounds_clock
    assert [clock.paid_in(clock.reveal_deadline(3) + more) for more in (0, 1, 40, 41)] == [2, 3, 3, 4]
