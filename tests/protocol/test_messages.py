"""Every message: there and back, exactly one spelling, and nothing but InvalidMessage for a stranger's bytes."""

import json
import struct
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError, InvalidMessage
from protocol.messages import (
    DOCUMENT_MAX_BYTES,
    ENVELOPE_BYTES,
    REVEAL_BYTES,
    SELECTION_MAX_BYTES,
    Envelope,
    Reveal,
    canonical_json,
    encode_document,
    encode_pointer,
    encode_selection,
    encode_slot,
    encode_statement,
    first_link,
    link_of,
    parse_document,
    parse_envelope,
    parse_json,
    parse_pointer,
    parse_reveal,
    parse_selection,
    parse_slot,
    parse_statement,
)
from protocol.types import Commitment, Digest, PeerId, Pointer, PublicPointer, Selection, Slot, Word

ROUNDS = st.integers(0, 2**32 - 1)
DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
PEERS = DIGESTS.map(PeerId)
SIGNATURES = st.binary(min_size=64, max_size=64)
PRINTABLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)


def texts(most: int) -> st.SearchStrategy[str]:
    return st.text(PRINTABLE, min_size=1, max_size=most)


def hexes(num_bytes: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=num_bytes, max_size=num_bytes).map(bytes.hex)


R2_POINTERS = st.builds(
    lambda account, bucket, access, secret: Pointer(
        f"https://{account}.r2.cloudflarestorage.com", bucket, access, secret
    ),
    hexes(16),
    texts(63),
    hexes(16),
    hexes(32),
)
HOSTS = st.from_regex(r"\A[a-z0-9][a-z0-9.-]{0,40}\Z") | st.sampled_from(["[::1]", "127.0.0.1", "object_store"])
ENDPOINTS = st.builds(
    lambda scheme, host, port: f"{scheme}://{host}{port}",
    st.sampled_from(["https", "http"]),
    HOSTS,
    st.just("") | st.integers(1, 65535).map(lambda port: f":{port}"),
)
URL_POINTERS = st.builds(Pointer, ENDPOINTS, texts(40), texts(40), texts(44))
PUBLIC_POINTERS = st.builds(PublicPointer, ENDPOINTS)
POINTERS = R2_POINTERS | URL_POINTERS | PUBLIC_POINTERS
BITMAPS = st.integers(0, 2**256 - 1)
NOTHING = Digest(bytes(32))
WORDS = st.builds(Word, ROUNDS, BITMAPS, DIGESTS, DIGESTS).filter(lambda word: word.pair is not None)
ABSTENTIONS = st.builds(Word, ROUNDS, st.just(0), st.just(NOTHING), st.just(NOTHING))
STATEMENTS = st.builds(Commitment, ROUNDS, DIGESTS) | WORDS | ABSTENTIONS


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
    "https://user:word@host",
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
]


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
def test_a_statement_survives_its_bytes_and_takes_40_or_101(statement: Commitment | Word) -> None:
    data = encode_statement(statement)
    assert len(data) == (40 if isinstance(statement, Commitment) else 101)
    assert parse_statement(data) == statement


def test_a_commitment_is_version_kind_two_zeros_round_and_digest() -> None:
    assert encode_statement(Commitment(258, Digest(b"e" * 32))) == b"\x01\x01\0\0\x02\x01\0\0" + b"e" * 32


def test_a_word_is_version_and_kind_round_bitmap_theta_and_previous_with_bit_u_in_byte_u_over_8() -> None:
    word = Word(7, 1 << 0 | 1 << 9 | 1 << 255, Digest(b"t" * 32), Digest(b"p" * 32))
    bitmap = b"\x01\x02" + b"\0" * 29 + b"\x80"
    assert encode_statement(word) == b"\xc1\x07\0\0\0" + bitmap + b"t" * 32 + b"p" * 32


@pytest.mark.parametrize("first", [0x41, 0x81])
def test_a_record_or_attestation_of_an_older_protocol_is_no_word(first: int) -> None:
    data = bytearray(encode_statement(Word(7, 5, Digest(b"t" * 32), Digest(b"p" * 32))))
    data[0] = first
    with pytest.raises(InvalidMessage, match="version or kind"):
        parse_statement(bytes(data))


@given(STATEMENTS, st.integers(0, 3), st.integers(1, 255))
def test_a_statement_with_another_head_is_refused(statement: Commitment | Word, at: int, flip: int) -> None:
    """Version, kind and the zeros of a commitment; of a word only the first byte is fixed."""
    data = bytearray(encode_statement(statement))
    data[at if isinstance(statement, Commitment) else 0] ^= flip
    with pytest.raises(InvalidMessage):
        parse_statement(bytes(data))


@given(ROUNDS, st.integers(1, 2**256 - 1))
def test_a_word_that_names_peers_and_no_state_is_refused(round: int, bitmap: int) -> None:
    with pytest.raises(InvalidMessage, match="no state"):
        parse_statement(encode_statement(Word(round, bitmap, NOTHING, NOTHING)))


def test_only_zeros_in_both_digests_are_an_abstention() -> None:
    theta, previous = Digest(b"t" * 32), Digest(b"p" * 32)
    assert Word(1, 0, NOTHING, NOTHING).pair is None
    for pair in ((theta, previous), (theta, NOTHING), (NOTHING, previous)):
        assert Word(1, 0, *pair).pair == pair


@given(POINTERS, st.none() | STATEMENTS, st.none() | DIGESTS, st.integers(0, 2**31))
def test_a_slot_survives_its_fields(
    pointer: Pointer | PublicPointer,
    statement: Commitment | Word | None,
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


# --- envelope and reveal -------------------------------------------------------------------------------------

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


# --- documents -----------------------------------------------------------------------------------------------

RUN = Digest(b"r" * 32)
ALICE = PeerId(b"a" * 32)


class HashSigner:
    """Stands for sr25519: a signature is a hash that only its owner is supposed to write."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer

    def sign(self, message: bytes) -> bytes:
        return sha256(self.peer + message).digest() * 2


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return signature == HashSigner(peer).sign(message)


def signed(text: bytes) -> bytes:
    """A document over any text, however broken, with a good signature."""
    head = struct.pack("<4sI8s32sI32s", b"MURD", 1, b"report", RUN, 3, ALICE)
    return head + HashSigner(ALICE).sign(head + text) + text


def read(data: bytes) -> dict[str, Any]:
    return parse_document(data, "report", RUN, 3, ALICE, verify)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64) + 1, 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # a lone surrogate has no UTF-8 bytes
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)
BODIES = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), JSON, max_size=5)


@given(BODIES)
def test_a_document_survives_its_bytes(body: dict[str, Any]) -> None:
    data = encode_document("report", RUN, 3, body, HashSigner(ALICE))
    assert data == signed(canonical_json(body))
    assert read(data) == body


def test_a_document_of_another_kind_run_round_or_peer_is_refused() -> None:
    data = encode_document("report", RUN, 3, {}, HashSigner(ALICE))
    other = Digest(b"x" * 32)
    assert parse_document(data, "report", RUN, 3, ALICE, verify) == {}
    for kind, run, round, peer in [
        ("state", RUN, 3, ALICE),
        ("repor", RUN, 3, ALICE),
        ("report", other, 3, ALICE),
        ("report", RUN, 4, ALICE),
        ("report", RUN, 3, PeerId(other)),
    ]:
        with pytest.raises(InvalidMessage, match="made for another kind, run, round or peer"):
            parse_document(data, kind, run, round, peer, verify)


@given(st.data())
def test_a_document_with_any_bit_flipped_is_refused(data: st.DataObject) -> None:
    good = bytearray(encode_document("report", RUN, 3, {"loss": 5.5, "peers": ["a", "b"]}, HashSigner(ALICE)))
    good[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidMessage, match=r"another kind|signature is not"):
        read(bytes(good))


@given(st.binary(max_size=400))
def test_a_document_of_any_bytes_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        read(data)


def test_a_document_over_8_mib_is_neither_written_nor_read() -> None:
    with pytest.raises(ValueError, match="readers take 8388608"):
        encode_document("report", RUN, 3, {"text": "x" * DOCUMENT_MAX_BYTES}, HashSigner(ALICE))
    with pytest.raises(InvalidMessage, match=r"report: \d+ bytes"):
        read(signed(b'{"text":"' + b"x" * DOCUMENT_MAX_BYTES + b'"}'))


def test_a_kind_that_would_be_cut_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 8 letters"):
        encode_document("checkpoint", RUN, 3, {}, HashSigner(ALICE))


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"{}" + b"}" * depth


HOSTILE = {
    "nothing": b"",
    "an array": b"[]",
    "a number": b"1",
    "a string": b'"text"',
    "null": b"null",
    "NaN": b'{"a":NaN}',
    "infinity": b'{"a":Infinity}',
    "minus infinity": b'{"a":-Infinity}',
    "a float too large": b'{"a":1e999}',
    "a negative float too large": b'{"a":-1e999}',
    "an integer of 65 bits": b'{"a":18446744073709551616}',
    "an integer of 4000 digits": b'{"a":' + b"9" * 4000 + b"}",
    "an integer of a million digits": b'{"a":' + b"9" * 10**6 + b"}",
    "33 levels": nested(32),
    "half a million levels": b'{"a":' * (500_000),
    "a million arrays": b'{"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}",
    "levels behind brackets in strings": b'{"a":["]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",' + nested(40) + b"]}",
    "a name twice": b'{"a":1,"a":2}',
    "names out of order": b'{"b":1,"a":2}',
    "spaces": b'{"a": 1}',
    "bytes behind": b'{"a":1}\n',
    "half a surrogate pair": b'{"a":"\\ud800"}',
    "an escape that is not needed": b'{"a":"\\u0041"}',
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "not UTF-8": b'{"a":"\xff"}',
    "a float by another name": b'{"a":1E0}',
    "minus zero as an integer": b'{"a":-0}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_signed_document_that_is_not_canonical_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match=r"^document: ") as refusal:
        read(signed(text))
    assert len(str(refusal.value)) < 100


def test_the_limits_themselves_are_allowed() -> None:
    assert read(signed(b'{"a":18446744073709551615,"b":-18446744073709551615}'))["a"] == 2**64 - 1
    assert read(signed(nested(31)))
    assert read(signed(b'{"a":"' + b"[" * 100 + b'"}')) == {"a": "[" * 100}


def test_canonical_json_refuses_what_is_not_a_number() -> None:
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical_json({"a": value})


@given(BODIES, st.randoms(use_true_random=False))
def test_canonical_json_does_not_depend_on_the_order_of_names(body: dict[str, Any], random: Any) -> None:
    shuffled = dict(random.sample(list(body.items()), len(body)))
    assert canonical_json(shuffled) == canonical_json(body)
    assert json.loads(canonical_json(body)) == body
