"""Every message: there and back, exactly one spelling, and nothing but InvalidMessage for a stranger's bytes."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.messages import (
    ENVELOPE_BYTES,
    REVEAL_BYTES,
    Envelope,
    Reveal,
    canonical_json,
    encode_slot,
    encode_statement,
    parse_envelope,
    parse_json,
    parse_reveal,
    parse_slot,
    parse_statement,
)
from murmur.protocol.pointers import encode_pointer, parse_pointer
from murmur.protocol.types import Commitment, Digest, PeerId, Pointer, PublicPointer, Slot, Vote
from tests.protocol.strategies import (
    DIGESTS,
    ENDPOINTS,
    NOTHING,
    PEERS,
    POINTERS,
    PRINTABLE,
    R2_POINTERS,
    ROUNDS,
    SIGNATURES,
    STATEMENTS,
    texts,
)


def url_bytes(endpoint: str, bucket: str = "b", access: str = "k", secret: str = "s") -> bytes:
    """A URL pointer written by hand, whatever its parts."""
    fields = [text.encode() for text in (bucket, access, secret, endpoint)]
    return b"\x01\x02" + b"".join(bytes([len(field)]) + field for field in fields)


# --- pointer -------------------------------------------------------------------------------------------------


@given(POINTERS)
def test_a_pointer_survives_its_bytes(pointer: Pointer | PublicPointer) -> None:
    data = encode_pointer(pointer)
    assert len(data) <= 200
    assert parse_pointer(data) == pointer


@given(R2_POINTERS)
def test_an_r2_pointer_takes_67_bytes_and_the_name_of_its_bucket(pointer: Pointer) -> None:
    assert len(encode_pointer(pointer)) == 67 + len(pointer.bucket)


def test_an_r2_pointer_of_a_usual_bucket_fits_a_raw_field_of_128_bytes() -> None:
    pointer = Pointer(f"https://{'0a' * 16}.r2.cloudflarestorage.com", "murmuration-miner-0", "1b" * 16, "2c" * 32)
    data = encode_pointer(pointer)
    assert len(data) <= 128
    assert data == b"\x01\x01\x13murmuration-miner-0" + b"\x0a" * 16 + b"\x1b" * 16 + b"\x2c" * 32


def test_the_pointer_of_a_public_bucket_is_its_address_and_nothing_else() -> None:
    pointer = PublicPointer("https://cdn.example")
    assert encode_pointer(pointer) == b"\x01\x03\x13https://cdn.example"
    assert parse_pointer(b"\x01\x03\x13https://cdn.example") == pointer


def test_an_r2_pointer_with_an_unusual_key_still_survives_unpacked() -> None:
    pointer = Pointer(f"https://{'0a' * 16}.r2.cloudflarestorage.com", "b", "KEY", "2c" * 32)
    assert encode_pointer(pointer)[1] == 2
    assert parse_pointer(encode_pointer(pointer)) == pointer


@pytest.mark.parametrize("length", [1, 2, 60])
def test_a_pointer_over_200_bytes_is_the_operators_to_fix(length: int) -> None:
    room = 200 - len(url_bytes("https://s3.example.com", "b" * 40, "k" * 40, ""))
    assert len(encode_pointer(Pointer("https://s3.example.com", "b" * 40, "k" * 40, "s" * room))) == 200
    with pytest.raises(ConfigError, match=f"takes {200 + length} bytes on chain, at most 200 fit") as refusal:
        encode_pointer(Pointer("https://s3.example.com", "b" * 40, "k" * 40, "s" * (room + length)))
    assert "sss" not in str(refusal.value)


NOT_ENDPOINTS = [
    "ftp://host",
    "host:9000",
    "https://",
    "https:///path",
    "https://host/",
    "https://host/path",
    "https://host?",
    "https://host?a=b",
    "https://host#",
    "https://host#f",
    "https://user@host",
    "https://user:vote@host",
    "https://@host",
    "https://host:0",
    "https://host:65536",
    "https://host:-1",
    "https://[::1",
    "https://[nonsense]",
    "https://public.example\\@169.254.169.254",
    "https://public.example\\.evil.example",
    "https://public.example%2f",
    "https://public.example,other.example",
    "HTTPS://host",
    "//host",
    "https://host..",
    "https://.host",
    "https://a..b",
    "https://127.1",
    "https://0177.0.0.1",
    "https://10.0.0.0x1",
    "https://2130706433",
    "https://0x7f000001",
    "https://[1.2.3.4]",
]

SPELLINGS = {
    "https://store.example": [
        "https://Store.Example",
        "https://store.example.",
        "https://store.example:443",
        "https://store.example:0443",
    ],
    "http://store.example": ["http://store.example:80", "http://STORE.example:00080"],
    "https://store.example:80": ["https://store.example:080"],
    "https://xn--bcher-kva.example": ["https://XN--BCHER-KVA.example"],
    "https://9.9.9.9": ["https://9.9.9.9.", "https://[::ffff:9.9.9.9]", "https://[::ffff:909:909]"],
    "https://[2620:fe::9]:9000": [
        "https://[2620:FE::9]:9000",
        "https://[2620:fe:0:0::9]:9000",
        "https://[2620:00fe:0:0:0:0:0:9]:09000",
        "https://[2620:fe::0.0.0.9]:9000",
    ],
}


@pytest.mark.parametrize("endpoint", NOT_ENDPOINTS)
def test_an_endpoint_that_is_more_or_less_than_scheme_host_and_port_is_refused_on_both_sides(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="must be https://HOST"):
        encode_pointer(Pointer(endpoint, "b", "k", "s"))
    with pytest.raises(ConfigError, match="public URL must be https://HOST"):
        encode_pointer(PublicPointer(endpoint))
    for data in (url_bytes(endpoint), b"\x01\x03" + bytes([len(endpoint)]) + endpoint.encode()):
        with pytest.raises(InvalidMessage):
            parse_pointer(data)
    assert parse_pointer(url_bytes("https://host")).endpoint == "https://host"


@pytest.mark.parametrize(
    ("plain", "spelling"), [(plain, spelling) for plain, spellings in SPELLINGS.items() for spelling in spellings]
)
def test_an_endpoint_has_one_spelling_which_the_operator_is_told(plain: str, spelling: str) -> None:
    """Requests are counted by endpoint: of nine capitals, each server would have had 512 endpoints."""
    assert parse_pointer(url_bytes(plain)).endpoint == plain
    assert parse_pointer(b"\x01\x03" + bytes([len(plain)]) + plain.encode()).endpoint == plain
    for pointer in (Pointer(spelling, "b", "k", "s"), PublicPointer(spelling)):
        with pytest.raises(ConfigError, match=f"must be {re.escape(plain)}$"):
            encode_pointer(pointer)
    for data in (url_bytes(spelling), b"\x01\x03" + bytes([len(spelling)]) + spelling.encode()):
        with pytest.raises(InvalidMessage, match="one spelling"):
            parse_pointer(data)


@pytest.mark.parametrize("text", ["", "two words", "new\nline", "tab\t", "ünïcode", "\ud800", "\x7f", "x" * 256])
def test_a_name_or_key_that_is_not_printable_ascii_is_the_operators_to_fix(text: str) -> None:
    for pointer in (
        Pointer("https://h", text, "k", "s"),
        Pointer("https://h", "b", text, "s"),
        Pointer("https://h", "b", "k", text),
    ):
        with pytest.raises(ConfigError, match="printable ASCII") as refusal:
            encode_pointer(pointer)
        assert not text or text not in str(refusal.value)


def test_a_pointer_has_one_spelling_only() -> None:
    pointer = Pointer(f"https://{'0a' * 16}.r2.cloudflarestorage.com", "b", "1b" * 16, "2c" * 32)
    long = url_bytes(pointer.endpoint, pointer.bucket, pointer.access_key, pointer.secret_key)
    assert len(long) <= 200
    with pytest.raises(InvalidMessage, match="canonical"):
        parse_pointer(long)


@given(POINTERS, st.data())
def test_a_pointer_cut_short_or_made_longer_is_refused(pointer: Pointer | PublicPointer, data: st.DataObject) -> None:
    encoded = encode_pointer(pointer)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for broken in (encoded[:cut], encoded + b"\0", b"\x02" + encoded[1:], encoded[:1] + b"\x04" + encoded[2:]):
        with pytest.raises(InvalidMessage):
            parse_pointer(broken)


@given(POINTERS, st.data())
def test_a_pointer_with_another_byte_is_refused_or_the_one_encoding_of_another(
    pointer: Pointer | PublicPointer, data: st.DataObject
) -> None:
    changed = bytearray(encode_pointer(pointer))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = parse_pointer(bytes(changed))
    except InvalidMessage:
        return
    assert found != pointer
    assert encode_pointer(found) == changed


def test_the_secret_does_not_stand_in_the_repr_of_a_pointer() -> None:
    assert "hush" not in repr(Pointer("https://h", "b", "k", "hush"))


# --- statements and slots ------------------------------------------------------------------------------------


@given(STATEMENTS)
def test_a_statement_survives_its_bytes_and_takes_40_or_101(statement: Commitment | Vote) -> None:
    data = encode_statement(statement)
    assert len(data) == (40 if isinstance(statement, Commitment) else 101)
    assert parse_statement(data) == statement


def test_a_commitment_is_version_kind_two_zeros_round_and_digest() -> None:
    assert encode_statement(Commitment(258, Digest(b"e" * 32))) == b"\x01\x01\0\0\x02\x01\0\0" + b"e" * 32


def test_a_vote_is_version_and_kind_round_bitmap_theta_and_previous_with_bit_u_in_byte_u_over_8() -> None:
    vote = Vote(7, 1 << 0 | 1 << 9 | 1 << 255, Digest(b"t" * 32), Digest(b"p" * 32))
    bitmap = b"\x01\x02" + b"\0" * 29 + b"\x80"
    assert encode_statement(vote) == b"\xc1\x07\0\0\0" + bitmap + b"t" * 32 + b"p" * 32


@pytest.mark.parametrize("first", [0x41, 0x81])
def test_a_record_or_attestation_of_an_older_protocol_is_no_word(first: int) -> None:
    data = bytearray(encode_statement(Vote(7, 5, Digest(b"t" * 32), Digest(b"p" * 32))))
    data[0] = first
    with pytest.raises(InvalidMessage, match="version or kind"):
        parse_statement(bytes(data))


@given(STATEMENTS, st.integers(0, 3), st.integers(1, 255))
def test_a_statement_with_another_head_is_refused(statement: Commitment | Vote, at: int, flip: int) -> None:
    """Version, kind and the zeros of a commitment; of a vote only the first byte is fixed."""
    data = bytearray(encode_statement(statement))
    data[at if isinstance(statement, Commitment) else 0] ^= flip
    with pytest.raises(InvalidMessage):
        parse_statement(bytes(data))


@given(ROUNDS, st.integers(1, 2**256 - 1))
def test_a_vote_that_names_peers_and_no_state_is_refused(round: int, bitmap: int) -> None:
    with pytest.raises(InvalidMessage, match="no state"):
        parse_statement(encode_statement(Vote(round, bitmap, NOTHING, NOTHING)))


def test_only_zeros_in_both_digests_are_an_abstention() -> None:
    theta, previous = Digest(b"t" * 32), Digest(b"p" * 32)
    assert Vote(1, 0, NOTHING, NOTHING).state_ref is None
    for state_ref in ((theta, previous), (theta, NOTHING), (NOTHING, previous)):
        assert Vote(1, 0, *state_ref).state_ref == state_ref


@given(POINTERS, st.none() | STATEMENTS, st.none() | DIGESTS, st.integers(0, 2**31))
def test_a_slot_survives_its_fields(
    pointer: Pointer | PublicPointer,
    statement: Commitment | Vote | None,
    amendment: Digest | None,
    block: int,
) -> None:
    fields = encode_slot(pointer, statement, amendment)
    assert 1 <= len(fields) <= 3
    assert parse_slot(block, fields) == Slot(block, pointer, statement, amendment)


@given(st.integers(0, 2**31), st.lists(st.binary(max_size=210), max_size=5))
def test_a_slot_of_any_bytes_is_read_and_keeps_its_block(block: int, fields: list[bytes]) -> None:
    slot = parse_slot(block, tuple(fields))
    assert slot.block == block
    assert slot.amendment is None or len(slot.amendment) == 32


@given(POINTERS, st.builds(Commitment, ROUNDS, DIGESTS), st.binary(max_size=120))
def test_a_field_that_does_not_parse_takes_no_other_with_it(
    pointer: Pointer | PublicPointer, commitment: Commitment, noise: bytes
) -> None:
    good, statement = encode_slot(pointer, commitment)
    assert parse_slot(5, (b"\xff" + noise, statement, b"d" * 31)) == Slot(5, None, commitment, None)
    assert parse_slot(5, (good, b"\xff" + noise, b"d" * 32)) == Slot(5, pointer, None, Digest(b"d" * 32))


ENVELOPES = st.builds(Envelope, DIGESTS, ROUNDS, PEERS, DIGESTS, DIGESTS, SIGNATURES)
REVEALS = st.builds(Reveal, DIGESTS, ROUNDS, PEERS, DIGESTS, DIGESTS, SIGNATURES)


@given(ENVELOPES)
def test_an_envelope_survives_its_bytes_and_fits_512(envelope: Envelope) -> None:
    data = envelope.encode()
    assert len(data) == ENVELOPE_BYTES == 204 <= 512
    assert parse_envelope(data) == envelope
    assert envelope.signed_part + envelope.signature == data


@given(REVEALS)
def test_a_reveal_survives_its_bytes(reveal: Reveal) -> None:
    data = reveal.encode()
    assert len(data) == REVEAL_BYTES == 204
    assert parse_reveal(data) == reveal
    assert reveal.signed_part + reveal.signature == data


@given(REVEALS, ENVELOPES)
def test_neither_can_be_read_as_the_other(reveal: Reveal, envelope: Envelope) -> None:
    with pytest.raises(InvalidMessage, match="magic"):
        parse_envelope(reveal.encode())
    with pytest.raises(InvalidMessage, match="magic"):
        parse_reveal(envelope.encode())


def test_the_signature_covers_every_other_field_of_an_envelope() -> None:
    fields = {"run": b"r" * 32, "round": 1, "peer": b"p" * 32, "key_hash": b"k" * 32, "root": b"m" * 32}
    signed = {Envelope(**fields).signed_part}  # type: ignore[arg-type]
    for name, value in fields.items():
        other: Any = value + 1 if isinstance(value, int) else b"x" * 32
        signed.add(Envelope(**(fields | {name: other})).signed_part)  # type: ignore[arg-type]
    assert len(signed) == 1 + len(fields)


def test_the_key_does_not_stand_in_the_repr_of_a_reveal() -> None:
    assert "hush" not in repr(Reveal(Digest(b"r" * 32), 1, PeerId(b"p" * 32), b"hush" * 8, Digest(b"hush" * 8)))


# --- strangers' bytes ----------------------------------------------------------------------------------------

PARSERS: list[Callable[[bytes], Any]] = [parse_pointer, parse_statement, parse_envelope, parse_reveal, parse_json]
HEADS = st.sampled_from(
    [b"", b"\x01\x01", b"\x01\x02", b"\x01\x01\0\0", b"\x41", b"\x81", b"\xc1", b"MURM\x01\0\0\0", b'{"a":']
)
SPLICED = st.builds(
    lambda head, tail, size: (head + tail).ljust(size, b"\0")[: max(size, 1)],
    HEADS,
    st.binary(max_size=204),
    st.sampled_from([2, 40, 101, 200, 204, 205]),
)
LENGTH_PREFIXED = st.lists(st.text(PRINTABLE | st.characters(), min_size=0, max_size=30), max_size=6).map(
    lambda fields: (
        b"\x01\x02"
        + b"".join(
            bytes([len(text.encode("utf-8", "ignore")) % 256]) + text.encode("utf-8", "ignore") for text in fields
        )
    )
)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(data=st.binary(max_size=210) | SPLICED | LENGTH_PREFIXED)
def test_a_parser_gives_a_value_or_invalid_message_and_nothing_else(parse: Callable[[bytes], Any], data: bytes) -> None:
    try:
        value = parse(data)
    except InvalidMessage:
        return
    encode: dict[Callable[[bytes], Any], Callable[[Any], bytes]] = {
        parse_pointer: encode_pointer,
        parse_statement: encode_statement,
        parse_envelope: Envelope.encode,
        parse_reveal: Reveal.encode,
        parse_json: canonical_json,
    }
    assert encode[parse](value) == data


@given(ENDPOINTS | st.text(PRINTABLE, min_size=1, max_size=60).map(lambda text: "https://" + text), texts(30))
def test_any_printable_endpoint_is_read_back_as_it_was_or_refused(endpoint: str, bucket: str) -> None:
    data = url_bytes(endpoint, bucket)
    try:
        assert encode_pointer(parse_pointer(data)) == data
    except InvalidMessage:
        with pytest.raises(ConfigError):
            encode_pointer(Pointer(endpoint, bucket, "k", "s"))
