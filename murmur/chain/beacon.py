"""Weights sealed until a later epoch: the content of a commit under commit-reveal, and a local chain's own seal for it.

A real chain opens commits with pulses of the drand beacon, which a local chain cannot wait for. Its
`Drand.BeaconConfig` names its own X25519 key instead, and the epoch that reveals opens what was sealed to that key. The
payload is the runtime's `WeightsTlockPayload` in SCALE. Pure, except for the fresh key and nonce of each seal. Source:
subtensor, pallets/subtensor (timelocked commits); docs/decisions/0029-complete-rows-local-beacon-fate-by-blocks.md.
"""

import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
"""Size of either half of a local beacon's key."""
MAX_SEALED_BYTES = 5000
"""The runtime's bound on a commit."""

_NONCE_BYTES = 12
_INFO = b"murmuration local beacon"


class Weights(NamedTuple):
    """The content of a commit: `values` (u16) of `uids` (u16) by the hotkey (its 32 bytes), under a version key
    (u64)."""

    hotkey: bytes
    uids: tuple[int, ...]
    values: tuple[int, ...]
    version_key: int


def encode(weights: Weights) -> bytes:
    """Return the SCALE encoding of the runtime's WeightsTlockPayload. ValueError for more than 16,383 of any item."""
    return (
        _length(len(weights.hotkey))
        + weights.hotkey
        + _u16s(weights.uids)
        + _u16s(weights.values)
        + weights.version_key.to_bytes(8, "little")
    )


def decode(data: bytes) -> Weights:
    """Decode bytes of any origin. Raises ValueError for everything that `encode` does not produce."""
    hotkey, at = _take(data, 0, 1)
    uids, at = _take(data, at, 2)
    values, at = _take(data, at, 2)
    if len(data) != at + 8:
        raise ValueError(f"sealed weights of {len(data)} bytes, {at + 8} expected")
    weights = Weights(hotkey, _split(uids), _split(values), int.from_bytes(data[at:], "little"))
    if encode(weights) != data:
        raise ValueError("sealed weights in another encoding than SCALE's shortest")
    return weights


def seal(payload: bytes, public_key: bytes) -> bytes:
    """Seal `payload` to the private half of `public_key`: return a fresh public key (32 bytes), a nonce (12) and the
    box. ValueError for an invalid key."""
    mine = X25519PrivateKey.generate()
    sender = mine.public_key().public_bytes_raw()
    nonce = os.urandom(_NONCE_BYTES)
    shared = mine.exchange(X25519PublicKey.from_public_bytes(public_key))
    return sender + nonce + _cipher(shared, sender + public_key).encrypt(nonce, payload, None)


def open(sealed: bytes, private_key: bytes) -> bytes:
    """Return the payload sealed to this private key's public half. Raises ValueError for anything else."""
    mine = X25519PrivateKey.from_private_bytes(private_key)
    sender, nonce, box = sealed[:KEY_BYTES], sealed[KEY_BYTES : KEY_BYTES + _NONCE_BYTES], sealed[KEY_BYTES + 12 :]
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(sender))
        own = mine.public_key().public_bytes_raw()
        return _cipher(shared, sender + own).decrypt(nonce, box, None)
    except InvalidTag:
        raise ValueError("the weights were sealed to another key, or changed afterwards") from None


def public_key(private_key: bytes) -> bytes:
    """Return the public half of a local beacon's key, which is on chain (32 bytes)."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def _cipher(shared: bytes, keys: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), KEY_BYTES, salt=keys, info=_INFO).derive(shared))


def _length(count: int) -> bytes:
    """Return SCALE's compact form of a length, in its first two modes."""
    if count >= 1 << 14:
        raise ValueError(f"{count} items, at most {(1 << 14) - 1} fit")
    return bytes([count << 2]) if count < 1 << 6 else (count << 2 | 1).to_bytes(2, "little")


def _u16s(values: tuple[int, ...]) -> bytes:
    return _length(len(values)) + b"".join(value.to_bytes(2, "little") for value in values)


def _take(data: bytes, at: int, item_bytes: int) -> tuple[bytes, int]:
    """Return the items of a vector that begins at `at`, as bytes, and where it ends."""
    head = data[at : at + 2]
    if not head or head[0] & 2 or len(head) <= head[0] & 1:
        raise ValueError("sealed weights with an invalid length")
    wide = head[0] & 1
    first = at + 1 + wide
    end = first + item_bytes * (int.from_bytes(head[: 1 + wide], "little") >> 2)
    if end > len(data):
        raise ValueError("sealed weights that end early")
    return data[first:end], end


def _split(data: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2))
