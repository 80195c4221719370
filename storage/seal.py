"""Sealing: a payload is encrypted until everybody has committed (docs/protocol.md sections 3 and 4).

AES-256-CTR under HMAC-SHA256(key, run id | round | PeerId) with a nonce of zeros: the cipher key is used once, and a
ciphertext or key that is moved to another run, round or hotkey decrypts to nothing. CTR does not authenticate; the
signed envelope's Merkle root does. May not parse the plaintext, which is sparseloco/wire.py's.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from protocol.errors import InvalidMessage, InvalidSubmission
from protocol.merkle import SECTION_BYTES, leaf, root, sections_root
from protocol.messages import ENVELOPE_BYTES, KEY_BYTES, Envelope, parse_envelope
from protocol.ports import Signer, Verify
from protocol.types import Digest, PeerId, Reason

_NONCE = bytes(16)
_PIECE_BYTES = 1 << 20
_SPARE_BYTES = 15
"""A block less one, which the cipher asks for behind what it makes."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a miner saves before it publishes anything: `envelope` (204 bytes) and `ciphertext` travel as one object,
    `key` stays here until block D is final."""

    envelope: bytes
    ciphertext: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def object(self) -> bytes:
        """The bytes under keys.payload: envelope, then ciphertext."""
        return self.envelope + self.ciphertext

    @property
    def digest(self) -> Digest:
        """What is committed on chain: sha256 of the envelope."""
        return Digest(sha256(self.envelope).digest())


class Sealing:
    """A payload that is encrypted, and hashed by sections, as it comes, so that what is done can travel before the rest
    is there (storage/upload.py).

    `object` is the sealed object in the making; its first `num_final` bytes are final, but for the envelope, which
    comes last. `key` opens it.
    """

    def __init__(
        self, plaintext_bytes: int, *, key: bytes | None = None, run: Digest, round: int, signer: Signer
    ) -> None:
        """plaintext_bytes: all that will be added. key: 32 secret bytes never used before; None draws them."""
        self.key = secrets.token_bytes(KEY_BYTES) if key is None else key
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a sealing key has {KEY_BYTES} bytes, not {len(self.key)}")
        self.object = bytearray(ENVELOPE_BYTES + plaintext_bytes)
        self.num_final = ENVELOPE_BYTES
        self._run, self._round, self._signer = run, round, signer
        self._stream = _stream(self.key, run, round, signer.peer)
        self._leaves: list[Digest] = []

    def add(self, plaintext: bytes | memoryview) -> None:
        """The next bytes of the payload, as many as there are."""
        end = self.num_final + len(plaintext)
        if end > len(self.object):
            raise ValueError(f"more than the {len(self.object) - ENVELOPE_BYTES} bytes of payload that were announced")
        self.object[self.num_final : end] = self._stream.update(plaintext)
        self.num_final = end
        while len(self._leaves) < (end - ENVELOPE_BYTES) // SECTION_BYTES:
            self._close_section()

    def finish(self) -> None:
        """All bytes were added: sign the envelope and put it in front."""
        if self.num_final != len(self.object):
            raise ValueError(f"{len(self.object) - self.num_final} bytes of the payload were never added")
        if (len(self.object) - ENVELOPE_BYTES) % SECTION_BYTES:
            self._close_section()
        hashed = Digest(sha256(self.key).digest())
        envelope = Envelope(self._run, self._round, self._signer.peer, hashed, root(self._leaves))
        signed = replace(envelope, signature=self._signer.sign(envelope.signed_part))
        self.object[:ENVELOPE_BYTES] = signed.encode()

    def _close_section(self) -> None:
        first = ENVELOPE_BYTES + len(self._leaves) * SECTION_BYTES
        self._leaves.append(leaf(memoryview(self.object)[first : first + SECTION_BYTES]))


def seal(plaintext: bytes, *, key: bytes | None = None, run: Digest, round: int, signer: Signer) -> Sealed:
    """Encrypt and sign a whole payload. `key`: 32 secret bytes that were never used before; None draws them."""
    sealing = Sealing(len(plaintext), key=key, run=run, round=round, signer=signer)
    sealing.add(plaintext)
    sealing.finish()
    return Sealed(bytes(sealing.object[:ENVELOPE_BYTES]), bytes(sealing.object[ENVELOPE_BYTES:]), sealing.key)


def unseal(envelope: Envelope, key: bytes, ciphertext: bytes | memoryview) -> memoryview:
    """The plaintext that belongs to an envelope whose signature and root were checked, read-only, in memory of its own.

    The cipher holds the interpreter's lock, while what it made is copied without: so it works in pieces that stay in
    the processor's cache, and several payloads are opened beside each other in little more than the cipher's time.

    Raises InvalidSubmission(BAD_KEY) when `key` is not the one that the envelope was made with.
    """
    if len(key) != KEY_BYTES or not hmac.compare_digest(sha256(key).digest(), envelope.key_hash):
        raise InvalidSubmission(Reason.BAD_KEY, "the revealed key does not hash to the envelope's key_hash")
    stream = _stream(key, envelope.run, envelope.round, envelope.peer)
    sealed, plaintext = memoryview(ciphertext), np.empty(len(ciphertext), dtype=np.uint8)
    piece = np.empty(_PIECE_BYTES + _SPARE_BYTES, dtype=np.uint8)
    for first in range(0, len(ciphertext), _PIECE_BYTES):
        made = stream.update_into(sealed[first : first + _PIECE_BYTES], piece.data)
        plaintext[first : first + made] = piece[:made]
    return plaintext.data.toreadonly()


def open_sealed(data: bytes | memoryview) -> tuple[Envelope, memoryview]:
    """Envelope and ciphertext of a sealed object; the ciphertext is a view of `data`.

    Raises InvalidMessage when there is no envelope in front. The signature is the caller's to verify.
    """
    return parse_envelope(data[:ENVELOPE_BYTES]), memoryview(data)[ENVELOPE_BYTES:]


def matches(committed: Digest) -> Callable[[bytes | memoryview], bool]:
    """The test for gather: are these the bytes whose envelope digest was committed on chain? Committed bytes that are
    no envelope pass: what they are is judged by the checks, alike on every node."""

    def accept(data: bytes | memoryview) -> bool:
        if sha256(data[:ENVELOPE_BYTES]).digest() != committed:
            return False
        try:
            envelope, ciphertext = open_sealed(data)
        except InvalidMessage:
            return True  # pinned garbage: every node sees the same bytes, and counts them with s = 0
        return sections_root(ciphertext) == envelope.root

    return accept


def signed_by(peer: PeerId, run: Digest, round: int, verify: Verify) -> Callable[[bytes | memoryview], bool]:
    """The test for what is fetched before anybody is held to it: is this whole, and has the peer signed it for the
    round? Whether it is what the peer commits to, `matches` says later."""

    def accept(data: bytes | memoryview) -> bool:
        try:
            envelope, ciphertext = open_sealed(data)
        except InvalidMessage:
            return False
        meant = (envelope.run, envelope.round, envelope.peer) == (run, round, peer)
        return (
            meant
            and verify(peer, envelope.signed_part, envelope.signature)
            and sections_root(ciphertext) == envelope.root
        )

    return accept


def _stream(key: bytes, run: Digest, round: int, peer: PeerId) -> CipherContext:
    """What turns plaintext into ciphertext and back, in order."""
    cipher_key = hmac.digest(key, run + round.to_bytes(4, "little") + peer, "sha256")
    return Cipher(AES(cipher_key), CTR(_NONCE)).encryptor()
