"""Our own reading of extrinsics and compact integers against the SDK's native codec."""

import pytest
from bittensor.sp_core import Keypair
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.lab.devnet.codec import Codec, compact, read_compact
from murmur.lab.devnet.extrinsic import ExtrinsicError, parse
from murmur.lab.devnet.metadata import SPEC_VERSION
from tests.lab.devnet.conftest import ALICE

GENESIS, BIRTH = bytes(range(32)), bytes(range(32, 64))


@given(value=st.one_of(st.integers(0, 1 << 16), st.integers(0, (1 << 64) - 1)), tail=st.binary(max_size=3))
def test_compact_integers_agree_with_the_native_codec(codec: Codec, value: int, tail: bytes) -> None:
    encoded = compact(value)
    assert encoded == codec.encode("Compact<u64>", value)
    assert read_compact(b"x" + encoded + tail, 1) == (value, 1 + len(encoded))
    with pytest.raises(ValueError, match="runs past the end"):
        read_compact(encoded[:-1], 0)


@settings(deadline=None)
@given(
    period=st.sampled_from([0, 4, 8, 64, 4096, 65536]),
    current=st.integers(0, 100_000),
    nonce=st.integers(0, 1 << 20),
    tip=st.integers(0, 1 << 40),
    remark=st.binary(max_size=300),
    crypto=st.sampled_from([0, 1]),
)
def test_signed_extrinsics_parse_and_verify_as_the_client_made_them(
    codec: Codec, period: int, current: int, nonce: int, tip: int, remark: bytes, crypto: int
) -> None:
    runtime = codec._runtime
    key = Keypair.create_from_seed(bytes(range(32)), crypto_type=crypto)
    call = codec.compose_call("System", "remark", {"remark": remark})
    era = {"period": period, "current": current} if period else "00"
    common = {"era": era, "nonce": nonce, "tip": tip, "tip_asset_id": None}
    payload = runtime.signature_payload(call, **common, genesis_hash=GENESIS, era_block_hash=BIRTH)
    data, digest = runtime.encode_signed_extrinsic(
        call, public_key=key.public_key, signature=key.sign(bytes(payload)), signature_version=crypto, **common
    )
    extrinsic = parse(bytes(data))
    assert (extrinsic.signer, extrinsic.nonce, extrinsic.call) == (key.ss58_address, nonce, call)
    assert extrinsic.hash == bytes(digest)
    assert extrinsic.payload(GENESIS, BIRTH, SPEC_VERSION) == bytes(payload)
    assert extrinsic.is_signed(codec, GENESIS, BIRTH, SPEC_VERSION)
    assert not extrinsic.is_signed(codec, BIRTH, GENESIS, SPEC_VERSION)
    if period:
        assert extrinsic.birth(current) == codec._core.era_birth(period, current)
        assert extrinsic.birth(extrinsic.birth(current) + period) == extrinsic.birth(current) + period
    else:
        assert extrinsic.birth(current) == 0


@settings(max_examples=300)
@given(data=st.binary(max_size=160), signed=st.booleans())
def test_strangers_bytes_are_refused_and_nothing_else(data: bytes, signed: bool) -> None:
    if signed:
        body = b"\x84\x00" + ALICE.public_key + data
        data = compact(len(body)) + body
    try:
        extrinsic = parse(data)
    except ExtrinsicError:
        return
    assert len(extrinsic.signature) == 64
    assert extrinsic.data == data
