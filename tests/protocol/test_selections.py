"""Selections and their links: one encoding, and no other bytes pass under a link."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import SELECTION_MAX_BYTES, encode_selection, first_link, link_of, parse_selection
from murmur.protocol.types import Digest, PeerId, Selection
from tests.protocol.strategies import DIGESTS, ROUNDS


def pair(number: int) -> tuple[PeerId, Digest]:
    return PeerId(sha256(b"peer %d" % number).digest()), Digest(sha256(b"envelope %d" % number).digest())


def contributing(numbers: Iterable[int]) -> tuple[tuple[PeerId, Digest], ...]:
    return tuple(sorted(pair(number) for number in numbers))


SELECTIONS = st.builds(
    Selection,
    ROUNDS,
    DIGESTS,
    DIGESTS,
    DIGESTS,
    st.sets(st.integers(0, 999), min_size=1, max_size=256).map(contributing),
)


def test_a_link_is_the_hash_of_round_theta_previous_the_amendments_in_force_and_the_sorted_pairs() -> None:
    pairs = ((PeerId(b"a" * 32), Digest(b"1" * 32)), (PeerId(b"b" * 32), Digest(b"2" * 32)))
    selection = Selection(258, Digest(b"t" * 32), Digest(b"p" * 32), Digest(b"h" * 32), pairs)
    data = b"\x02\x01\0\0" + b"t" * 32 + b"p" * 32 + b"h" * 32 + b"a" * 32 + b"1" * 32 + b"b" * 32 + b"2" * 32
    assert encode_selection(selection) == data
    assert link_of(selection) == sha256(data).digest()
    assert first_link(Digest(b"r" * 32)) == sha256(b"murmuration genesis" + b"r" * 32).digest()


@given(SELECTIONS)
def test_a_selection_reads_back_from_under_its_link(selection: Selection) -> None:
    data = encode_selection(selection)
    assert len(data) <= SELECTION_MAX_BYTES
    assert parse_selection(data, link_of(selection)) == selection


@given(SELECTIONS, st.data())
def test_no_bytes_pass_for_a_selection_under_a_link_that_is_not_theirs(selection: Selection, data: Any) -> None:
    encoded = bytearray(encode_selection(selection))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidMessage, match="hash to its link"):
        parse_selection(bytes(encoded), link_of(selection))


FIXED = b"\x07\0\0\0" + b"t" * 32 + b"p" * 32 + b"h" * 32
ONE, OTHER = (b"".join(one) for one in contributing([1, 2]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FIXED[:-1],
        FIXED,
        FIXED + ONE[:-1],
        FIXED + ONE + b"\0",
        FIXED + ONE + ONE,
        FIXED + OTHER + ONE,
        FIXED + b"".join(b"".join(one) for one in contributing(range(257))),
    ],
    ids=["nothing", "cut short", "nobody", "half a pair", "a byte more", "one twice", "out of order", "more than uids"],
)
def test_a_selection_names_somebody_and_everybody_once_in_order_even_under_its_own_hash(data: bytes) -> None:
    with pytest.raises(InvalidMessage, match=r"torn|not in order"):
        parse_selection(data, Digest(sha256(data).digest()))


@given(st.binary(max_size=300) | st.binary(max_size=256).map(lambda tail: FIXED + tail))
def test_any_bytes_under_their_own_hash_are_refused_or_the_one_encoding_of_a_selection(data: bytes) -> None:
    try:
        selection = parse_selection(data, Digest(sha256(data).digest()))
    except InvalidMessage:
        return
    assert encode_selection(selection) == data
