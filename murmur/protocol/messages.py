"""Canonical bytes of every message between nodes. Each `parse_*` takes another node's bytes and returns a valid value
or raises InvalidMessage; each `encode_*` is its exact inverse. Integers u32 little-endian, PeerId 32 raw bytes.

On chain (docs/protocol.md sections 4 and 6), in the one commitment slot of a hotkey, in this order:

    pointer    up to 200 bytes   version | kind | bucket | access key | secret key | endpoint, or of a public bucket
                                 version | kind | endpoint
    statement  40 or 101 bytes   commitment or vote
    amendment  32 bytes          sha256 of the spec or of its latest amendment (the run's owner only)

In buckets: `Envelope` (204 bytes, in front of the ciphertext), `Reveal` (204 bytes), and signed documents: a header
with the signature, then records of fixed size, or canonical JSON. A stranger's JSON is read by its shape (`parse_as`):
what does not fit is refused at its first odd byte, before objects are made of it.
"""

import json
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from threading import Lock
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from murmur.protocol.errors import InvalidMessage
from murmur.protocol.pointers import WIRE_VERSION, encode_pointer, parse_pointer
from murmur.protocol.ports import Signer, Verify
from murmur.protocol.types import (
    DIGEST_BYTES,
    MAX_UIDS,
    SIGNATURE_BYTES,
    Commitment,
    Digest,
    PeerId,
    Pointer,
    PublicPointer,
    Selection,
    Slot,
    Vote,
)

BITMAP_BYTES = 32

_COMMITMENT_KIND = 1
_COMMITMENT = struct.Struct("<BB2xI32s")
_VOTE = struct.Struct("<BI32s32s32s")
_VOTE_FIRST = WIRE_VERSION | 3 << 6
"""A vote's first byte: version in the low 6 bits, its kind in the high 2. Protocol versions before 3 used kinds 1 and 2
for other statements (docs/decisions/0001-statement-kind.md)."""

# --- statements on chain -------------------------------------------------------------------------------------


def encode_statement(statement: Commitment | Vote) -> bytes:
    if isinstance(statement, Commitment):
        return _COMMITMENT.pack(WIRE_VERSION, _COMMITMENT_KIND, statement.round, statement.envelope)
    bitmap = statement.bitmap.to_bytes(BITMAP_BYTES, "little")
    return _VOTE.pack(_VOTE_FIRST, statement.round, bitmap, statement.theta, statement.previous)


def parse_statement(data: bytes) -> Commitment | Vote:
    if len(data) == _COMMITMENT.size:
        version, kind, round, envelope = _COMMITMENT.unpack(data)
        if version != WIRE_VERSION or kind != _COMMITMENT_KIND or data[2:4] != b"\0\0":
            raise InvalidMessage("commitment: unknown version or kind")
        return Commitment(round, Digest(envelope))
    if len(data) == _VOTE.size:
        first, round, bitmap, theta, previous = _VOTE.unpack(data)
        if first != _VOTE_FIRST:
            raise InvalidMessage("vote: unknown version or kind")
        vote = Vote(round, int.from_bytes(bitmap, "little"), Digest(theta), Digest(previous))
        if vote.state_ref is None and vote.bitmap:
            raise InvalidMessage("vote: names peers, and no state")
        return vote
    raise InvalidMessage(f"statement: {len(data)} bytes, expected {_COMMITMENT.size} or {_VOTE.size}")


def encode_slot(
    pointer: Pointer | PublicPointer,
    statement: Commitment | Vote | None = None,
    amendment: Digest | None = None,
) -> tuple[bytes, ...]:
    """Return the fields of a commitment slot. An amendment without a statement leaves an empty field between them."""
    fields = [encode_pointer(pointer)]
    if statement is not None or amendment is not None:
        fields.append(encode_statement(statement) if statement is not None else b"")
    if amendment is not None:
        fields.append(amendment)
    return tuple(fields)


def parse_slot(block: int, fields: tuple[bytes, ...]) -> Slot:
    """Parse a slot from the chain; never raises: a field that is not canonical is None."""
    pointer: Pointer | PublicPointer | None = None
    statement: Commitment | Vote | None = None
    with suppress(InvalidMessage):
        pointer = parse_pointer(fields[0]) if fields else None
    with suppress(InvalidMessage):
        statement = parse_statement(fields[1]) if len(fields) > 1 else None
    amendment = Digest(fields[2]) if len(fields) > 2 and len(fields[2]) == DIGEST_BYTES else None
    return Slot(block, pointer, statement, amendment)


def encode_selection(selection: Selection) -> bytes:
    """Encode a selection as validators keep it under its link: round, theta, previous link, head of the amendments in
    force, then the sorted (PeerId, envelope) pairs. The chain of selections thus settles which amendments are in
    force, and a joiner need not rely on the owner's present slot."""
    fixed = _SELECTION.pack(selection.round, selection.theta, selection.previous, selection.head)
    return fixed + b"".join(peer + envelope for peer, envelope in selection.contributing)


def link_of(selection: Selection) -> Digest:
    """Return `previous` of the selection that follows: sha256 of this one's bytes."""
    return Digest(sha256(encode_selection(selection)).digest())


def parse_selection(data: bytes, link: Digest) -> Selection:
    """Inverse of `encode_selection`, checked against the link."""
    if sha256(data).digest() != link:
        raise InvalidMessage("a selection that does not hash to its link")
    fixed, rest = data[: _SELECTION.size], data[_SELECTION.size :]
    if len(fixed) != _SELECTION.size or not rest or len(rest) % _PAIR_BYTES or len(rest) > MAX_UIDS * _PAIR_BYTES:
        raise InvalidMessage("a selection with a torn list of peers")
    pairs = tuple(
        (PeerId(rest[at : at + DIGEST_BYTES]), Digest(rest[at + DIGEST_BYTES : at + _PAIR_BYTES]))
        for at in range(0, len(rest), _PAIR_BYTES)
    )
    peers = [peer for peer, _ in pairs]
    if peers != sorted(set(peers)):
        raise InvalidMessage("a selection whose peers are not in order")
    round, theta, previous, head = _SELECTION.unpack(fixed)
    return Selection(round, Digest(theta), Digest(previous), Digest(head), pairs)


def first_link(run: Digest) -> Digest:
    """Return `previous` of a run's first agreed selection."""
    return Digest(sha256(b"murmuration genesis" + run).digest())


_SELECTION = struct.Struct("<I32s32s32s")
_PAIR_BYTES = 2 * DIGEST_BYTES
SELECTION_MAX_BYTES = _SELECTION.size + MAX_UIDS * _PAIR_BYTES

# --- envelope and reveal -------------------------------------------------------------------------------------

_ENVELOPE = struct.Struct("<4sI32sI32s32s32s64s")
_ENVELOPE_MAGIC = b"MURM"
ENVELOPE_BYTES = _ENVELOPE.size
_REVEAL = struct.Struct("<4sI32sI32s32s32s64s")
_REVEAL_MAGIC = b"MURK"
REVEAL_BYTES = _REVEAL.size
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Envelope:
    """The clear part in front of a sealed submission. `key_hash` = sha256(key); `root` = Merkle root over the
    ciphertext's sections; `signature` by `peer` over everything before it."""

    run: Digest
    round: int
    peer: PeerId
    key_hash: Digest
    root: Digest
    signature: bytes = field(default=b"\0" * SIGNATURE_BYTES, repr=False)

    def encode(self) -> bytes:
        return _ENVELOPE.pack(
            _ENVELOPE_MAGIC, WIRE_VERSION, self.run, self.round, self.peer, self.key_hash, self.root, self.signature
        )

    @property
    def signed_part(self) -> bytes:
        return self.encode()[:-SIGNATURE_BYTES]


def parse_envelope(data: bytes | memoryview) -> Envelope:
    if len(data) != ENVELOPE_BYTES:
        raise InvalidMessage(f"envelope: {len(data)} bytes, expected {ENVELOPE_BYTES}")
    magic, version, run, round, peer, key_hash, root, signature = _ENVELOPE.unpack(data)
    if magic != _ENVELOPE_MAGIC or version != WIRE_VERSION:
        raise InvalidMessage("envelope: unknown magic or version")
    return Envelope(Digest(run), round, PeerId(peer), Digest(key_hash), Digest(root), signature)


@dataclass(frozen=True, slots=True)
class Reveal:
    """Published after the commit deadline: the sealing key and the proof of being in sync (docs/protocol.md section
    5)."""

    run: Digest
    round: int
    peer: PeerId
    key: bytes = field(repr=False)
    proof: Digest = field(repr=False)
    signature: bytes = field(default=b"\0" * SIGNATURE_BYTES, repr=False)

    def encode(self) -> bytes:
        return _REVEAL.pack(
            _REVEAL_MAGIC, WIRE_VERSION, self.run, self.round, self.peer, self.key, self.proof, self.signature
        )

    @property
    def signed_part(self) -> bytes:
        return self.encode()[:-SIGNATURE_BYTES]


def parse_reveal(data: bytes | memoryview) -> Reveal:
    if len(data) != REVEAL_BYTES:
        raise InvalidMessage(f"reveal: {len(data)} bytes, expected {REVEAL_BYTES}")
    magic, version, run, round, peer, key, proof, signature = _REVEAL.unpack(data)
    if magic != _REVEAL_MAGIC or version != WIRE_VERSION:
        raise InvalidMessage("reveal: unknown magic or version")
    return Reveal(Digest(run), round, PeerId(peer), key, Digest(proof), signature)


# --- signed documents ----------------------------------------------------------------------------------------

_DOCUMENT = struct.Struct("<4sI8s32sI32s64s")
_DOCUMENT_MAGIC = b"MURD"
_KIND_BYTES = 8
NO_ROUND = 0
"""Round of a document that belongs to none."""
DOCUMENT_MAX_BYTES = 8 << 20
DOCUMENT_HEAD_BYTES = _DOCUMENT.size
_MAX_DEPTH = 32
_MAX_INTEGER = (1 << 64) - 1
"""The chain's widest number. Longer ones would overflow if a reader turns them into floats or SQL."""


def encode_signed(kind: str, run: Digest, round: int, content: bytes, signer: Signer) -> bytes:
    """Encode a signed document. `kind`: at most 8 ASCII letters."""
    if len(kind.encode()) > _KIND_BYTES:
        raise ValueError(f"a document's kind has at most {_KIND_BYTES} letters, got {kind!r}")
    head = struct.pack("<4sI8s32sI32s", _DOCUMENT_MAGIC, WIRE_VERSION, kind.encode(), run, round, signer.peer)
    encoded = head + signer.sign(head + content) + content
    if len(encoded) > DOCUMENT_MAX_BYTES:
        raise ValueError(f"a {kind} document of {len(encoded)} bytes; readers take {DOCUMENT_MAX_BYTES}")
    return encoded


def encode_document(kind: str, run: Digest, round: int, body: dict[str, Any], signer: Signer) -> bytes:
    """Encode a signed JSON object: validator's report, peer's report, a cluster's documents."""
    return encode_signed(kind, run, round, canonical_json(body), signer)


def parse_signed(data: bytes, kind: str, run: Digest, round: int, peer: PeerId, verify: Verify) -> bytes:
    """Return the content of a document that `peer` signed for this run and round. It is a claim of that peer, unread:
    no object is made of it."""
    if not _DOCUMENT.size <= len(data) <= DOCUMENT_MAX_BYTES:
        raise InvalidMessage(f"{kind}: {len(data)} bytes")
    magic, version, got_kind, got_run, got_round, got_peer, signature = _DOCUMENT.unpack_from(data)
    head, content = data[: _DOCUMENT.size - SIGNATURE_BYTES], data[_DOCUMENT.size :]
    expected = (_DOCUMENT_MAGIC, WIRE_VERSION, kind.encode().ljust(_KIND_BYTES, b"\0"), run, round, peer)
    if (magic, version, got_kind, got_run, got_round, got_peer) != expected:
        raise InvalidMessage(f"{kind}: made for another kind, run, round or peer")
    if not verify(peer, head + content, signature):
        raise InvalidMessage(f"{kind}: the signature is not the peer's")
    return content


def parse_document(data: bytes, kind: str, run: Digest, round: int, peer: PeerId, verify: Verify) -> dict[str, Any]:
    """Return the body of a signed JSON object of any shape: for documents of friends. A stranger's is read by
    `parse_signed` and `parse_as`."""
    return parse_json(parse_signed(data, kind, run, round, peer, verify))


# --- JSON ----------------------------------------------------------------------------------------------------

U32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Hex32 = Annotated[str, Meta(min_length=2 * DIGEST_BYTES, max_length=2 * DIGEST_BYTES)]
"""As long as 32 bytes in hex are."""


def from_hex(text: str) -> bytes:
    """Inverse of bytes.hex. Raises ValueError; its message omits the text."""
    data = bytes.fromhex(text) if text.isascii() else b""
    if data.hex() != text:  # fromhex ignores capitals and white space
        raise ValueError("not in lower-case hex")
    return data


class Shape(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object of exactly these fields; those that may be absent are UNSET by default."""


def parse_as(data: bytes, shape: type[Shape]) -> dict[str, Any]:
    """Parse a stranger's JSON object of this shape, as `canonical_json` writes it, into plain values: one value has one
    text. Lengths and ranges are those of the shape's types."""
    try:
        body: dict[str, Any] = msgspec.to_builtins(_decoder(shape).decode(data))
        canonical = canonical_json(body) == data
    except (ValueError, RecursionError):
        # not chained: the decoder's message may quote a name of the stranger's
        raise InvalidMessage("document: not of its shape, or a value out of range") from None
    if not canonical:
        raise InvalidMessage("document: not a JSON object in canonical form")
    return body


_building = Lock()
"""msgspec crashes the process where two threads build decoders of the same types at once."""


def _decoder(shape: type[Shape]) -> msgspec.json.Decoder[Any]:
    with _building:
        return _built(shape)


@cache
def _built(shape: type[Shape]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def canonical_json(body: dict[str, Any]) -> bytes:
    """Encode with sorted keys, no spaces, UTF-8; NaN and infinity are refused (ValueError)."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse a JSON object of any shape, of limited depth and integers of at most 64 bits, exactly as `canonical_json`
    writes it: for our own files, and those of friends and the run's owner. One value has one text: no NaN, no doubled
    name, no other encoding, no half of a surrogate state."""
    try:
        body: dict[str, Any] = json.loads(data.decode(), parse_int=_integer)
        canonical = isinstance(body, dict) and canonical_json(body) == data
    except (ValueError, RecursionError):
        raise InvalidMessage("document: not JSON, or a number out of range") from None
    if not canonical:
        raise InvalidMessage("document: not a JSON object in canonical form")
    if _depth(body) > _MAX_DEPTH:
        raise InvalidMessage("document: nested too deeply")
    return body


def _integer(text: str) -> int:
    if abs(value := int(text)) > _MAX_INTEGER:
        raise ValueError("an integer of more than 64 bits")
    return value


def _depth(body: dict[str, Any]) -> int:
    """Return the levels of nesting. Counted on values, because strings contain brackets too."""
    level: list[Any] = [body]
    depth = 0
    while level := [value for value in level if isinstance(value, (dict, list))]:
        depth += 1
        level = [child for value in level for child in (value.values() if isinstance(value, dict) else value)]
    return depth
