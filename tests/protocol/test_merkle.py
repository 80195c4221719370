"""The Merkle tree against a recursive twin."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol import merkle
from murmur.protocol.merkle import leaf, root, sections_root


def twin(leaves: list[bytes]) -> bytes:
    """The left subtree holds the largest power of two below the count: the same tree, seen from above."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while 2 * half < len(leaves):
        half *= 2
    return sha256(b"\x01" + twin(leaves[:half]) + twin(leaves[half:])).digest()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40))
def test_the_root_is_that_of_the_recursive_tree(data: list[bytes]) -> None:
    leaves = [sha256(b"\x00" + item).digest() for item in data]
    assert [leaf(item) for item in data] == leaves
    assert root(leaves) == twin(leaves)
    assert root(iter(leaves)) == twin(leaves)


def test_of_nothing_the_root_is_the_hash_of_nothing() -> None:
    assert root([]) == sections_root(b"") == sha256(b"").digest()


def test_one_leaf_is_its_own_root_and_an_odd_node_is_promoted() -> None:
    a, b, c = (leaf(text) for text in (b"a", b"b", b"c"))
    assert root([a]) == a
    assert root([a, b, c]) == sha256(b"\x01" + sha256(b"\x01" + a + b).digest() + c).digest()
    assert root([a, b, c]) != root([a, b, c, c])


@given(st.binary(max_size=100), st.integers(0, 99), st.integers(0, 7))
def test_any_flipped_bit_of_a_ciphertext_changes_the_root(data: bytes, at: int, bit: int) -> None:
    if at >= len(data):
        data = data.ljust(at + 1, b"\0")
    flipped = bytearray(data)
    flipped[at] ^= 1 << bit
    assert sections_root(data) != sections_root(bytes(flipped))


@given(st.binary(max_size=200), st.integers(1, 64))
def test_sections_are_cut_at_whole_lengths(data: bytes, length: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merkle, "SECTION_BYTES", length)
        sections = [data[at : at + length] for at in range(0, len(data), length)]
        assert sections_root(data) == sections_root(memoryview(data)) == root(leaf(section) for section in sections)


def test_a_section_has_16_mib_and_the_byte_after_it_opens_the_next() -> None:
    data = bytes(2**24 + 1)
    assert sections_root(data[:-1]) == leaf(data[:-1])
    assert sections_root(data) == sha256(b"\x01" + leaf(data[:-1]) + leaf(b"\0")).digest()


def test_a_node_cannot_pass_for_a_leaf() -> None:
    a, b = leaf(b"a"), leaf(b"b")
    assert root([leaf(a + b)]) != root([a, b])
