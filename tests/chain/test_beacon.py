"""Sealed weights: the runtime's encoding, and a local beacon's seal."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.chain import beacon
from murmur.lab.devnet.codec import Codec
from murmur.lab.devnet.metadata import load_metadata

U16 = st.integers(0, 65535)
WEIGHTS = st.builds(
    beacon.Weights,
    st.binary(min_size=32, max_size=32),
    st.lists(U16, max_size=300).map(tuple),
    st.lists(U16, max_size=300).map(tuple),
    st.integers(0, 2**64 - 1),
)


@pytest.fixture(scope="module")
def runtime() -> Codec:
    return Codec(load_metadata())


@given(WEIGHTS)
def test_weights_survive_their_encoding(weights: beacon.Weights) -> None:
    assert beacon.decode(beacon.encode(weights)) == weights


@given(st.one_of(st.binary(max_size=200), WEIGHTS.map(lambda w: beacon.encode(w)[:-1])))
def test_bytes_of_anybody_are_weights_in_this_very_encoding_or_a_value_error(data: bytes) -> None:
    try:
        weights = beacon.decode(data)
    except ValueError:
        return
    assert beacon.encode(weights) == data


@pytest.mark.parametrize("count", [0, 1, 63, 64, 256])
def test_the_encoding_is_that_of_the_runtimes_codec(count: int, runtime: Codec) -> None:
    values = tuple(range(count))
    row = runtime.encode("Vec<u16>", list(values))
    theirs = runtime.encode("Vec<u8>", bytes(range(32))) + row + row + runtime.encode("u64", 7)
    assert beacon.encode(beacon.Weights(bytes(range(32)), values, values, 7)) == theirs


def test_what_is_sealed_to_a_beacon_opens_with_its_private_key_and_with_no_other() -> None:
    private, other = os.urandom(32), os.urandom(32)
    sealed = beacon.seal(b"payload", beacon.public_key(private))
    assert beacon.open(sealed, private) == b"payload"
    assert beacon.seal(b"payload", beacon.public_key(private)) != sealed
    with pytest.raises(ValueError, match="another key"):
        beacon.open(sealed, other)


def test_a_full_row_of_a_subnet_fits_the_runtimes_bound_on_a_commit() -> None:
    row = tuple(range(256))
    sealed = beacon.seal(beacon.encode(beacon.Weights(bytes(32), row, row, 1)), beacon.public_key(os.urandom(32)))
    assert len(sealed) < beacon.MAX_SEALED_BYTES


@given(st.binary(max_size=100), st.integers(0, 10_000))
def test_what_was_changed_on_the_way_is_a_value_error(noise: bytes, at: int) -> None:
    private = bytes(range(32))
    sealed = beacon.seal(b"payload", beacon.public_key(private))
    at %= len(sealed)
    for changed in (noise, sealed[:at], sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]):
        with pytest.raises(ValueError):  # noqa: PT011 - whichever layer notices
            beacon.open(changed, private)
