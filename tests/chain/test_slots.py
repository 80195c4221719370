"""Commitment fields between bytes and the SDK's values. The codec's rendering is imitated here; the contract suite
runs the same fields through a real one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.chain.slots import decode_fields, decode_slot, encode_fields
from murmur.protocol.messages import encode_slot
from murmur.protocol.types import Commitment, Digest, Pointer, Slot


def rendered(field: dict[str, bytes]) -> dict[str, object]:
    """What the SDK's decoder shows of an encoded field: Raw as hex (Raw0 as an empty list), BigRaw as text if it is."""
    ((variant, data),) = field.items()
    if variant == "BigRaw":
        try:
            return {variant: data.decode()}
        except UnicodeDecodeError:
            return {variant: "0x" + data.hex()}
    return {variant: "0x" + data.hex() if data else []}


# Text that spells hex is the one rendering that reads as something else; see murmur/chain/slots.py.
FIELD = st.binary(max_size=512).filter(lambda data: not data.startswith(b"0x"))


@given(st.lists(FIELD, min_size=1, max_size=3).map(tuple))
@example((b"x" * 200, b"\xc3\xa9" * 100, b"\xff" * 200))
def test_fields_come_back_as_they_were_written(fields: tuple[bytes, ...]) -> None:
    (encoded,) = encode_fields(fields)["fields"]
    assert decode_fields({"fields": [rendered(field) for field in encoded]}) == fields


@pytest.mark.parametrize(
    ("size", "variant"), [(0, "Raw0"), (1, "Raw1"), (128, "Raw128"), (129, "BigRaw"), (512, "BigRaw")]
)
def test_the_variant_equals_the_length_exactly(size: int, variant: str) -> None:
    assert encode_fields((bytes(size),)) == {"fields": [[{variant: bytes(size)}]]}


@pytest.mark.parametrize("fields", [(), (b"",) * 4, (bytes(513),)])
def test_fields_that_the_pallet_cannot_hold_are_a_bug_of_the_caller(fields: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="fit"):
        encode_fields(fields)


def test_a_field_that_holds_no_raw_bytes_keeps_its_place_and_reads_as_empty() -> None:
    digest = "0x" + "11" * 32
    fields = ["None", {"Sha256": digest}, {"TimelockEncrypted": {"encrypted": digest, "reveal_round": 7}}]
    assert decode_fields({"fields": fields}) == (b"", b"", b"")
    assert decode_slot({"block": 3, "deposit": 0, "info": {"fields": fields}}) == Slot(3)


def test_a_slot_is_parsed_with_the_block_that_wrote_it() -> None:
    pointer, commitment = Pointer("https://s3.example", "b", "a", "s"), Commitment(4, Digest(b"e" * 32))
    (encoded,) = encode_fields(encode_slot(pointer, commitment, Digest(b"a" * 32)))["fields"]
    registration = {"deposit": 0, "block": 77, "info": {"fields": [rendered(field) for field in encoded]}}
    assert decode_slot(registration) == Slot(77, pointer, commitment, Digest(b"a" * 32))
    assert decode_slot(None) is None
