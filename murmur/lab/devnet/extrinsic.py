"""Signed extrinsics (version 4): parsing, mortality, and the payload that the signature covers.

Source: Substrate's extrinsic format v4 and the signed extensions of the pinned runtime; only mortality, nonce, tip and
the metadata-hash mode have their own bytes. The bytes are a stranger's: anything unexpected is an ExtrinsicError.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from murmur.lab.devnet.codec import Codec, read_compact
from murmur.lab.devnet.metadata import TRANSACTION_VERSION
from murmur.protocol.types import PeerId, hotkey

_SIGNED_V4 = 0x84
_ACCOUNT_ID = 0
_SCHEMES = (0, 1)  # ed25519, sr25519; Bittensor has no ecdsa keys
_HASH_SIGNED_ABOVE_BYTES = 256


class ExtrinsicError(ValueError):
    """The bytes are not a signed extrinsic that this chain accepts."""


@dataclass(frozen=True)
class Extrinsic:
    """A parsed, not yet verified, signed extrinsic. `call` is the raw call, `extra` the raw signed extensions."""

    data: bytes
    public_key: bytes
    scheme: int
    signature: bytes
    era: tuple[int, int] | None
    """(period, phase) in blocks; None: immortal."""
    nonce: int
    extra: bytes
    call: bytes

    @cached_property
    def hash(self) -> bytes:
        return blake2b(self.data, digest_size=32).digest()

    @cached_property
    def signer(self) -> str:
        """SS58 address of the signing account."""
        return hotkey(PeerId(self.public_key))

    def birth(self, current: int) -> int:
        """Return the block whose hash the signature covers, as of block `current`; genesis for an immortal one."""
        if self.era is None:
            return 0
        period, phase = self.era
        return (max(current, phase) - phase) // period * period + phase

    def payload(self, genesis: bytes, birth: bytes, spec_version: int) -> bytes:
        """Return the signed bytes, given the hashes of block 0 and of the era's birth block, for a runtime of this
        version."""
        versions = spec_version.to_bytes(4, "little") + TRANSACTION_VERSION.to_bytes(4, "little")
        payload = self.call + self.extra + versions + genesis + birth + b"\x00"  # last byte: no metadata hash
        if len(payload) > _HASH_SIGNED_ABOVE_BYTES:
            payload = blake2b(payload, digest_size=32).digest()
        return payload

    def is_signed(self, codec: Codec, genesis: bytes, birth: bytes, spec_version: int) -> bool:
        return codec.verify(self.public_key, self.scheme, self.payload(genesis, birth, spec_version), self.signature)


def parse(data: bytes) -> Extrinsic:
    """Parse one length-prefixed extrinsic. Raises ExtrinsicError."""
    try:
        length, at = read_compact(data, 0)
        head = data[at : at + 2]
        if length != len(data) - at or head != bytes([_SIGNED_V4, _ACCOUNT_ID]):
            raise ExtrinsicError("not one signed extrinsic of version 4 by an account id")
        public_key, scheme, signature = data[at + 2 : at + 34], data[at + 34], data[at + 35 : at + 99]
        if scheme not in _SCHEMES:
            raise ExtrinsicError(f"signature scheme {scheme} is not supported")
        start = at + 99
        era, at = _read_era(data, start)
        nonce, at = read_compact(data, at)
        _tip, at = read_compact(data, at)
        if data[at] != 0:
            raise ExtrinsicError("signed metadata hashes are not supported")
        call = data[at + 1 :]
    except (IndexError, ValueError) as error:
        raise ExtrinsicError(str(error)) from error
    return Extrinsic(data, public_key, scheme, signature, era, nonce, data[start : at + 1], call)


def _read_era(data: bytes, at: int) -> tuple[tuple[int, int] | None, int]:
    if data[at] == 0:
        return None, at + 1
    encoded = data[at] | data[at + 1] << 8
    period = 2 << (encoded & 15)
    phase = (encoded >> 4) * max(period >> 12, 1)
    if period < 4 or phase >= period:
        raise ExtrinsicError(f"not an era: period {period}, phase {phase}")
    return (period, phase), at + 2
