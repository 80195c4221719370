"""Signed documents: canonical JSON of one kind, run, round and peer, and nothing else is read."""

import json
import struct
import traceback
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Meta, UnsetType

from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import (
    DOCUMENT_MAX_BYTES,
    U32,
    Hex32,
    Shape,
    canonical_json,
    encode_document,
    parse_as,
    parse_document,
    parse_json,
)
from murmur.protocol.types import Digest, PeerId

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


# --- by shape --------------------------------------------------------------------------------------------------


class Row(Shape):
    count: U32
    value: float | UnsetType = UNSET


class Toy(Shape):
    a: dict[str, Row]
    b: Annotated[list[tuple[U32, Hex32]], Meta(max_length=2)]


GOOD: dict[str, Any] = {"a": {"x": {"count": 1, "value": 0.5}}, "b": [[7, "ab" * 32]]}


def test_an_object_of_its_shape_is_read_as_plain_values() -> None:
    assert parse_json(canonical_json(parse_as(canonical_json(GOOD), Toy))) == GOOD
    assert "value" not in parse_as(b'{"a":{"x":{"count":4294967295}},"b":[]}', Toy)["a"]["x"]


OTHER_SHAPES = HOSTILE | {
    "an unknown field": b'{"a":{},"b":[],"c":1}',
    "an unknown field in a row": b'{"a":{"x":{"count":1,"other":1}},"b":[]}',
    "a missing field": b'{"a":{"x":{}},"b":[]}',
    "an integer for a float": b'{"a":{"x":{"count":1,"value":1}},"b":[]}',
    "a float for an integer": b'{"a":{"x":{"count":1.0}},"b":[]}',
    "true for an integer": b'{"a":{"x":{"count":true}},"b":[]}',
    "an integer out of range": b'{"a":{"x":{"count":4294967296}},"b":[]}',
    "null": b'{"a":null,"b":[]}',
    "too long a list": canonical_json(GOOD | {"b": GOOD["b"] * 3}),
    "too long a string": canonical_json(GOOD | {"b": [[1, "ab" * 33]]}),
    "a name twice": b'{"a":{},"a":{},"b":[]}',
    "a name twice in a table": b'{"a":{"x":{"count":1},"x":{"count":1}},"b":[]}',
    "names out of order": b'{"b":[],"a":{}}',
    "a missing field of the whole": b'{"a":{}}',
    "a space": b'{"a":{}, "b":[]}',
    "bytes behind": b'{"a":{},"b":[]}x',
    "NaN in its place": b'{"a":{"x":{"count":1,"value":NaN}},"b":[]}',
    "a float too large in its place": b'{"a":{"x":{"count":1,"value":1e999}},"b":[]}',
    "a float of a million digits": b'{"a":{"x":{"count":1,"value":' + b"1" * 10**6 + b'.5}},"b":[]}',
    "not UTF-8 in its place": b'{"a":{"\xff":{"count":1}},"b":[]}',
    "half a surrogate pair in its place": b'{"a":{"\\ud800":{"count":1}},"b":[]}',
}


@pytest.mark.parametrize("text", OTHER_SHAPES.values(), ids=OTHER_SHAPES.keys())
def test_an_object_of_another_shape_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match=r"^document: "):
        parse_as(text, Toy)


@pytest.mark.parametrize("text", [b'{"S3CRET{fault}":1}', b'{"a":{"S3CRET":{"S3CRET":"S3CRET"}},"b":[]}'])
def test_a_refusal_quotes_nothing(text: bytes) -> None:
    with pytest.raises(InvalidMessage) as refusal:
        parse_as(text, Toy)
    assert "S3CRET" not in "".join(traceback.format_exception(refusal.value))


def filled(before: bytes, unit: bytes, after: bytes) -> bytes:
    """A text of 4 MiB."""
    return before + b",".join([unit] * ((4 << 20) // (len(unit) + 1))) + after


FLOODS = {
    "lists in an unknown field": filled(b'{"c":[', b"[" * 20 + b"]" * 20, b"]}"),
    "lists in a list": filled(b'{"a":{},"b":[', b"[" * 20 + b"]" * 20, b"]}"),
    "tables in a table": filled(b'{"a":{"x":', b'{"":{}}', b"}}"),
    "one field again and again": filled(b"{", b'"b":[]', b"}"),
    "one row again and again": filled(b'{"a":{', b'"x":{"count":1}', b"}}"),
}


@pytest.mark.parametrize("text", FLOODS.values(), ids=FLOODS.keys())
def test_what_is_not_of_its_shape_is_not_turned_into_objects(text: bytes) -> None:
    """json.loads makes up to 60 bytes of one."""

    def peak(parse: Callable[[bytes], object]) -> int:
        tracemalloc.start()
        try:
            with suppress(InvalidMessage, ValueError):
                parse(text)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    with pytest.raises(InvalidMessage):
        parse_as(text, Toy)
    assert peak(lambda data: parse_as(data, Toy)) < 1 << 20 < peak(json.loads)


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
