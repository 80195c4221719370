"""SS58 addresses against Bittensor's own, and the values that all packages share."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.types import Header, Peer, PeerId, Pointer, Reason, Uid, hotkey, peer_id

ALICE = "d43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d"
BOB = "8eaf04151687736326c9fea17e25fc5287613693c912909cb226aa4794f26a48"
KNOWN = {
    "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY": ALICE,
    "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty": BOB,
    "5C4hrfjw9DjXZTzV3MwzrrAr9P1MJhSrvWGWqi1eSuyUpnhM": "00" * 32,
}
"""The development keys //Alice and //Bob, and the account of all zeros."""

PEERS = st.binary(min_size=32, max_size=32).map(PeerId)


@pytest.mark.parametrize(("address", "public_key"), KNOWN.items())
def test_known_addresses_are_read_and_written(address: str, public_key: str) -> None:
    assert peer_id(address).hex() == public_key
    assert hotkey(PeerId(bytes.fromhex(public_key))) == address


@given(PEERS)
def test_addresses_are_those_that_bittensor_prints(peer: PeerId) -> None:
    from bittensor.sp_core import Keypair

    keypair = Keypair(public_key=bytes(peer), ss58_format=42)
    assert hotkey(peer) == keypair.ss58_address
    assert peer_id(keypair.ss58_address) == peer


@given(PEERS, st.data())
def test_a_mistyped_address_is_refused(peer: PeerId, data: st.DataObject) -> None:
    address = hotkey(peer)
    at = data.draw(st.integers(0, len(address) - 1))
    typed = data.draw(st.sampled_from("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0OIl +"))
    broken = address[:at] + typed + address[at + 1 :]
    if broken != address:
        with pytest.raises(ValueError, match="not an SS58 address"):
            peer_id(broken)


@given(st.text(max_size=80))
def test_text_that_is_no_address_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="not an SS58 address") as refusal:
        peer_id(text)
    assert str(refusal.value) in {
        "not an SS58 address: too long, or a character outside base58",
        "not an SS58 address of format 42: length, prefix or checksum differ",
    }


def test_two_spellings_of_one_key_are_not_both_addresses() -> None:
    """Base58 reads leading ones as zeros, and a number cut to its last bytes has many that end alike."""
    address = next(iter(KNOWN))
    number = 0
    for character in address:
        number = number * 58 + ALPHABET.index(character)
    for other in (number, number + 2**280, number + 5 * 2**304):
        text = ""
        while other:
            other, digit = divmod(other, 58)
            text = ALPHABET[digit] + text
        if text == address:
            assert peer_id(text).hex() == KNOWN[address]
            text = "1" + text
        with pytest.raises(ValueError, match="not an SS58 address"):
            peer_id(text)


ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@pytest.mark.parametrize(
    "address", ["", "5", "1" * 48, "z" * 64, "5" * 65, "15oF4uVJwmo4TdGW7VfQxNLavjCXviqxT9S1MgbjMNHr6Sp5"]
)
def test_addresses_of_other_lengths_or_chains_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not an SS58 address"):
        peer_id(address)


def test_the_reasons_stand_in_the_order_of_the_checks() -> None:
    order = "MISSING LATE WRONG_SIZE UNSIGNED WRONG_RUN UNREVEALED BAD_KEY OUT_OF_SYNC MALFORMED NORM COPY"
    assert " ".join(Reason) == order


def test_values_are_frozen_and_equal_by_content() -> None:
    header = Header(1, PeerId(b"h" * 32), 2.0)  # type: ignore[arg-type]
    assert header == dataclasses.replace(header)
    with pytest.raises(dataclasses.FrozenInstanceError):
        header.block = 2  # type: ignore[misc]
    assert Peer(PeerId(b"p" * 32), Uid(3), 0, False).slot is None
    assert "hush" not in repr(Pointer("https://h", "b", "k", "hush"))
