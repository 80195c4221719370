"""Sealing: a payload stays encrypted until all miners have committed (docs/protocol.md sections 3 and 4).

AES-256-CTR under HMAC-SHA256(key, run id | round | PeerId) with a nonce of zeros. The cipher key is used once; a
ciphertext or key moved to another run, round or hotkey decrypts to garbage. CTR does not authenticate; the signed
envelope's Merkle root does. May not parse the plaintext (sparseloco/wire.py does).
"""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from murmur.protocol.errors import InvalidMessage, InvalidSubmission
from murmur.protocol.merkle import SECTION_BYTES, leaf, leaves, root, sections_root
from murmur.protocol.messages import ENVELOPE_BYTES, KEY_BYTES, Envelope, parse_envelope
from murmur.protocol.ports import Signer, Verify
from murmur.protocol.types import DIGEST_BYTES, SIGNATURE_BYTES, Digest, PeerId, Reason

_BLOCK_BYTES = 16
_PIECE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 18
"""256 KiB, by which parts of a sealed object are read and checked: less than a Merkle section, since parts may be
small."""
_BLOCKS = b"murmur blocks"
_SPARE_BYTES = _BLOCK_BYTES - 1
"""One byte less than a block: spare room that the cipher requires behind its output."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The data that a miner saves before it publishes anything. `envelope` (204 bytes) and `ciphertext` travel as one
    object; `key` stays here until the block of the commit deadline is final."""

    envelope: bytes
    ciphertext: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def object(self) -> bytes:
        """The sealed object: envelope, then ciphertext."""
        return self.envelope + self.ciphertext

    @property
    def digest(self) -> Digest:
        """The digest committed on chain: sha256 of the envelope."""
        return Digest(sha256(self.envelope).digest())


class Sealing:
    """A payload that is encrypted and hashed section by section, by any threads in any order, so that finished sections
    can be uploaded early (storage/upload.py).

    `object` is the sealed object under construction. Its first `num_final` bytes are final, except for the envelope,
    which comes last. `key` opens it.
    """

    def __init__(
        self,
        plaintext: bytes | memoryview,
        *,
        key: bytes | None = None,
        run: Digest,
        round: int,
        signer: Signer,
    ) -> None:
        """`key`: 32 secret bytes never used before; None draws them."""
        self.key = secrets.token_bytes(KEY_BYTES) if key is None else key
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a sealing key has {KEY_BYTES} bytes, not {len(self.key)}")
        self.object = bytearray(ENVELOPE_BYTES + len(plaintext))
        self.num_final = ENVELOPE_BYTES
        self._plaintext = memoryview(plaintext)
        self._run, self._round, self._signer = run, round, signer
        self._leaves: list[Digest | None] = [None] * -(-len(plaintext) // SECTION_BYTES)
        self._lock = threading.Lock()

    @property
    def sections(self) -> range:
        return range(len(self._leaves))

    def add(self, section: int) -> int:
        """Encrypt and hash this section. Returns `num_final`, which counts the finished sections up to the first
        gap."""
        first = section * SECTION_BYTES
        plaintext = self._plaintext[first : first + SECTION_BYTES]
        into = memoryview(self.object)[ENVELOPE_BYTES + first :][: len(plaintext)]
        _through(_stream(self.key, self._run, self._round, self._signer.peer, first), plaintext, into)
        hashed = leaf(into)
        with self._lock:
            self._leaves[section] = hashed
            done = self._leaves.index(None) if None in self._leaves else len(self._leaves)
            self.num_final = ENVELOPE_BYTES + min(done * SECTION_BYTES, len(self._plaintext))
            return self.num_final

    def finish(self) -> None:
        """Sign the envelope and put it in front, after all sections were added."""
        leaves = [one for one in self._leaves if one is not None]
        if len(leaves) != len(self._leaves):
            raise ValueError(f"{len(self._leaves) - len(leaves)} sections of the payload were never added")
        hashed = Digest(sha256(self.key).digest())
        envelope = Envelope(self._run, self._round, self._signer.peer, hashed, root(leaves))
        signed = replace(envelope, signature=self._signer.sign(envelope.signed_part))
        self.object[:ENVELOPE_BYTES] = signed.encode()


def seal(plaintext: bytes, *, key: bytes | None = None, run: Digest, round: int, signer: Signer) -> Sealed:
    """Encrypt and sign a whole payload. `key`: 32 secret bytes that were never used before; None draws them."""
    sealing = Sealing(plaintext, key=key, run=run, round=round, signer=signer)
    for section in sealing.sections:
        sealing.add(section)
    sealing.finish()
    return Sealed(bytes(sealing.object[:ENVELOPE_BYTES]), bytes(sealing.object[ENVELOPE_BYTES:]), sealing.key)


def unseal(envelope: Envelope, key: bytes, ciphertext: bytes | memoryview) -> memoryview:
    """Decrypt the ciphertext of an envelope whose signature and root were checked. Returns a read-only view of new
    memory.

    Raises InvalidSubmission(BAD_KEY) when `key` is not the envelope's key.
    """
    return unseal_from(0, envelope, key, ciphertext)


def unseal_from(first: int, envelope: Envelope, key: bytes, ciphertext: bytes | memoryview) -> memoryview:
    """As `unseal`, of the part of the ciphertext from byte `first` on: a multiple of 16."""
    if len(key) != KEY_BYTES or not hmac.compare_digest(sha256(key).digest(), envelope.key_hash):
        raise InvalidSubmission(Reason.BAD_KEY, "the revealed key does not hash to the envelope's key_hash")
    plaintext = np.empty(len(ciphertext), dtype=np.uint8)
    _through(_stream(key, envelope.run, envelope.round, envelope.peer, first), ciphertext, plaintext.data)
    return plaintext.data.toreadonly()


def blocks_of(data: bytes | memoryview, signer: Signer, threads: int = 1) -> bytes:
    """Return a sealed object's envelope, our signature, and the leaves of its ciphertext's blocks: with them a part of
    the object can be read and checked alone."""
    envelope, ciphertext = bytes(data[:ENVELOPE_BYTES]), memoryview(data)[ENVELOPE_BYTES:]
    hashes = b"".join(leaves(blocks(ciphertext), threads))
    return envelope + signer.sign(_BLOCKS + envelope + hashes) + hashes


def parse_blocks(data: bytes, pinned: Digest, peer: PeerId, verify: Verify) -> tuple[Envelope, list[bytes]]:
    """Return the envelope with this digest, and the leaves of its ciphertext's blocks, as `peer` signed them. Raises
    InvalidMessage."""
    envelope, rest = data[:ENVELOPE_BYTES], data[ENVELOPE_BYTES:]
    signature, hashes = rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:]
    if sha256(envelope).digest() != pinned:
        raise InvalidMessage("blocks: they belong to another envelope")
    if not verify(peer, _BLOCKS + envelope + hashes, signature):
        raise InvalidMessage("blocks: their member has not signed them")
    return parse_envelope(envelope), [hashes[at : at + DIGEST_BYTES] for at in range(0, len(hashes), DIGEST_BYTES)]


def blocks(data: bytes | memoryview) -> Iterator[memoryview]:
    """Yield the data's blocks, the last one shorter."""
    view = memoryview(data)
    return (view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES))


def open_sealed(data: bytes | memoryview) -> tuple[Envelope, memoryview]:
    """Return envelope and ciphertext of a sealed object; the ciphertext is a view of `data`.

    Raises InvalidMessage when the object does not begin with an envelope. The caller verifies the signature.
    """
    return parse_envelope(data[:ENVELOPE_BYTES]), memoryview(data)[ENVELOPE_BYTES:]


def matches(committed: Digest) -> Callable[[bytes | memoryview], bool]:
    """Return the test for `gather`: whether the bytes have the envelope digest that was committed on chain.

    Committed bytes that are no envelope pass: the checks judge them, alike on every node.
    """

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
    """Return the test for an object that is fetched before the peer commits to it: whether it is whole and signed by
    the peer for this round.

    `matches` checks later whether it is the committed object.
    """

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


def _stream(key: bytes, run: Digest, round: int, peer: PeerId, first: int = 0) -> CipherContext:
    """Return the cipher stream that encrypts and decrypts, in order, from byte `first` on: a multiple of the cipher's
    block of 16 bytes."""
    cipher_key = hmac.digest(key, run + round.to_bytes(4, "little") + peer, "sha256")
    counter = (first // _BLOCK_BYTES).to_bytes(_BLOCK_BYTES, "big")
    return Cipher(AES(cipher_key), CTR(counter)).encryptor()


def _through(stream: CipherContext, data: bytes | memoryview, into: memoryview) -> None:
    """Pass `data` through the cipher into as many bytes, in pieces that stay in the processor's cache.

    Neither the cipher nor the copy holds the interpreter's lock: several threads share the work
    (benchmarks/bench_seal.py).
    """
    data, target = memoryview(data), np.frombuffer(into, dtype=np.uint8)
    piece = np.empty(_PIECE_BYTES + _SPARE_BYTES, dtype=np.uint8)
    for first in range(0, len(data), _PIECE_BYTES):
        made = stream.update_into(data[first : first + _PIECE_BYTES], piece.data)
        target[first : first + made] = piece[:made]
