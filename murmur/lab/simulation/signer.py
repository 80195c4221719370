"""Signatures that cost a hash, for a chain in memory (world.py)."""

from hashlib import sha256, sha512

from murmur.protocol.types import SIGNATURE_BYTES, PeerId


class HashSigner:
    """A Signer that costs a hash. Anybody could compute its signatures: for tests only, where nobody forges them."""

    def __init__(self, name: str) -> None:
        self._peer = PeerId(sha256(b"fake hotkey " + name.encode()).digest())

    @property
    def peer(self) -> PeerId:
        return self._peer

    def sign(self, message: bytes) -> bytes:
        return _signature(self._peer, message)


def hash_verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """The Verify port for HashSigner's signatures."""
    return len(signature) == SIGNATURE_BYTES and signature == _signature(peer, message)


def _signature(peer: PeerId, message: bytes) -> bytes:
    return sha512(b"fake signature" + peer + message).digest()
