"""Sealing against the rule in docs/protocol.md section 4, written out again with AES in ECB mode."""

import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.errors import InvalidMessage, InvalidSubmission
from murmur.protocol.merkle import SECTION_BYTES, leaf, sections_root
from murmur.protocol.messages import ENVELOPE_BYTES, parse_envelope
from murmur.protocol.types import Digest, PeerId, Reason
from storage.seal import (
    BLOCK_BYTES,
    Sealed,
    Sealing,
    blocks,
    blocks_of,
    matches,
    open_sealed,
    parse_blocks,
    seal,
    unseal,
    unseal_from,
)

RUN = Digest(bytes(range(32)))
KEY = bytes(range(100, 132))


class TestSigner:
    """A signature that names its key and message, without cryptography."""

    __test__ = False

    def __init__(self, name: bytes = b"miner") -> None:
        self.peer = PeerId(hashlib.sha256(name).digest())

    def sign(self, message: bytes) -> bytes:
        return hashlib.sha512(self.peer + message).digest()


def sealed(plaintext: bytes, round: int = 7, key: bytes | None = KEY, name: bytes = b"miner") -> Sealed:
    return seal(plaintext, key=key, run=RUN, round=round, signer=TestSigner(name))


def keystream(key: bytes, round: int, peer: PeerId, num_bytes: int) -> bytes:
    """CTR by hand: AES-256 of a big-endian block counter that starts at zero."""
    cipher_key = hmac.new(key, RUN + round.to_bytes(4, "little") + peer, hashlib.sha256).digest()
    blocks = b"".join(number.to_bytes(16, "big") for number in range((num_bytes + 15) // 16))
    ecb = Cipher(algorithms.AES(cipher_key), modes.ECB()).encryptor()
    return ecb.update(blocks)[:num_bytes]


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.binary(min_size=32, max_size=32))
def test_the_ciphertext_is_aes_ctr_under_the_hmac_of_key_run_round_and_peer(
    data: bytes, round: int, key: bytes
) -> None:
    made = sealed(data, round, key)
    stream = keystream(key, round, TestSigner().peer, len(data))
    assert made.ciphertext == bytes(a ^ b for a, b in zip(data, stream, strict=True))
    envelope, ciphertext = open_sealed(made.object)
    assert unseal(envelope, key, ciphertext) == data


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 19) + 7])
def test_what_is_opened_piece_by_piece_is_what_was_sealed_as_one(size: int) -> None:
    data = bytes(number * 7 % 251 for number in range(size % 4096)) + hashlib.shake_256(b"data").digest(
        size - size % 4096
    )
    made = sealed(data)
    opened = unseal(parse_envelope(made.envelope), KEY, made.ciphertext)
    assert opened == data
    assert opened.readonly


def test_the_envelope_says_and_signs_what_was_sealed() -> None:
    made = sealed(b"payload")
    envelope = parse_envelope(made.envelope)
    assert (envelope.run, envelope.round, envelope.peer) == (RUN, 7, TestSigner().peer)
    assert envelope.key_hash == hashlib.sha256(KEY).digest()
    assert envelope.root == sections_root(made.ciphertext)
    assert envelope.signature == TestSigner().sign(envelope.signed_part)
    assert made.digest == hashlib.sha256(made.object[:ENVELOPE_BYTES]).digest()


def test_every_seal_without_a_key_draws_a_fresh_one() -> None:
    first, second = sealed(bytes(100), key=None), sealed(bytes(100), key=None)
    assert first.key != second.key
    assert first.ciphertext != second.ciphertext


def test_a_key_of_another_length_is_our_bug() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        sealed(b"payload", key=b"short")


def test_a_wrong_key_is_named_as_such() -> None:
    envelope, ciphertext = open_sealed(sealed(b"payload").object)
    for key in (bytes(32), b"", KEY + b"x"):
        with pytest.raises(InvalidSubmission) as caught:
            unseal(envelope, key, ciphertext)
        assert caught.value.reason is Reason.BAD_KEY


def test_a_stolen_ciphertext_in_a_thiefs_envelope_decrypts_to_something_else() -> None:
    made = sealed(b"the victim's work")
    envelope = parse_envelope(made.envelope)
    for moved in (
        replace(envelope, peer=TestSigner(b"thief").peer),
        replace(envelope, round=8),
        replace(envelope, run=Digest(bytes(32))),
    ):
        assert unseal(moved, KEY, made.ciphertext) != b"the victim's work"


def test_only_the_committed_bytes_match() -> None:
    made = sealed(bytes(SECTION_BYTES + 100))
    accept = matches(made.digest)
    assert accept(made.object)
    for at in (0, 100, ENVELOPE_BYTES, ENVELOPE_BYTES + SECTION_BYTES + 50, len(made.object) - 1):
        flipped = bytearray(made.object)
        flipped[at] ^= 1
        assert not accept(bytes(flipped))
    for wrong in (b"", made.object[:-1], made.object + b"\0", made.envelope):
        assert not accept(wrong)


def test_committed_bytes_without_an_envelope_match_and_are_an_invalid_message() -> None:
    junk = bytes(500)
    with pytest.raises(InvalidMessage):
        open_sealed(junk)
    assert matches(Digest(hashlib.sha256(junk[:ENVELOPE_BYTES]).digest()))(junk)


def test_the_key_is_not_in_the_repr() -> None:
    shown = repr(sealed(b"payload"))
    assert repr(KEY) not in shown
    assert KEY.hex() not in shown


@pytest.mark.parametrize("size", [0, 1, SECTION_BYTES, 2 * SECTION_BYTES, 2 * SECTION_BYTES + 1])
def test_sections_in_any_order_and_by_several_threads_make_the_same_object(size: int) -> None:
    data = hashlib.shake_256(b"sections").digest(size)
    one = Sealing(data, key=KEY, run=RUN, round=7, signer=TestSigner())
    ends = [one.add(section) for section in reversed(one.sections)]
    one.finish()
    # Nothing is final before what stands in front of it is.
    assert ends == [ENVELOPE_BYTES] * (len(ends) - 1) + [len(one.object)] * bool(ends)
    two = Sealing(data, key=KEY, run=RUN, round=7, signer=TestSigner())
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(two.add, two.sections))
    two.finish()
    assert one.object == two.object == sealed(data).object
    stream = keystream(KEY, 7, TestSigner().peer, size)
    assert (
        bytes(one.object[ENVELOPE_BYTES:])
        == (np.frombuffer(data, dtype=np.uint8) ^ np.frombuffer(stream, dtype=np.uint8)).tobytes()
    )
    assert parse_envelope(bytes(one.object[:ENVELOPE_BYTES])).root == sections_root(
        memoryview(one.object)[ENVELOPE_BYTES:]
    )


def test_a_section_that_was_never_added_is_our_bug() -> None:
    sealing = Sealing(bytes(SECTION_BYTES + 1), key=KEY, run=RUN, round=7, signer=TestSigner())
    sealing.add(1)
    with pytest.raises(ValueError, match="never added"):
        sealing.finish()


# --- parts of a sealed object ----------------------------------------------------------------------------------


def signed(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return signature == hashlib.sha512(peer + message).digest()


@pytest.mark.parametrize("size", [0, 32, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_block_is_checked_and_opened_alone(size: int, threads: int) -> None:
    plaintext = bytes(bytearray(range(256)) * (size // 256 + 1))[:size]
    found, signer = sealed(plaintext), TestSigner()
    envelope, leaves = parse_blocks(blocks_of(found.object, signer, threads), found.digest, signer.peer, signed)
    assert envelope == parse_envelope(found.envelope)
    assert len(leaves) == -(-size // BLOCK_BYTES)
    for at, block in enumerate(blocks(found.ciphertext)):
        first = at * BLOCK_BYTES
        assert leaf(block) == leaves[at]
        assert unseal_from(first, envelope, KEY, block) == plaintext[first : first + BLOCK_BYTES]


def test_blocks_of_another_object_or_member_are_refused() -> None:
    signer, mine, other = TestSigner(), sealed(b"x" * 100), sealed(b"y" * 100)
    good, foreign = blocks_of(mine.object, signer), blocks_of(other.object, signer)
    swapped = mine.envelope + foreign[len(mine.envelope) :]
    for data in (b"", mine.envelope, foreign, swapped, good[:-1], good + bytes(32)):
        with pytest.raises(InvalidMessage):
            parse_blocks(data, mine.digest, signer.peer, signed)
    with pytest.raises(InvalidMessage):
        parse_blocks(good, mine.digest, TestSigner(b"other").peer, signed)
