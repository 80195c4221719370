"""The plaintext of a submission (docs/protocol.md section 3): theta digest (32 bytes), then one record per chunk in
layout order (sparseloco/records.py has the bits), whose size follows from the layout alone. Behind it a run that
verifies work has the trace (sparseloco/trace.py), which the functions here are given apart.

`parse` and `parse_submission` take another node's bytes and return a value that is valid by construction, or raise
InvalidSubmission. Memory: the records once, plus one slab of chunks at a time.
"""

from dataclasses import dataclass

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import Layout
from murmur.protocol.types import DIGEST_BYTES, Digest, PeerId, Reason
from sparseloco.topk import slabs
from sparseloco.update import Records, Update


@dataclass(frozen=True, slots=True)
class Submission:
    """A peer's submission for a round, opened and valid. `theta` is the digest of the parameters that it claims to have
    trained from. `trace`: the bytes of its trace, which sparseloco/trace.py parses."""

    peer: PeerId
    round: int
    theta: Digest
    update: Update
    trace: Records = b""


def plaintext_bytes(layout: Layout) -> int:
    """Return the size of every plaintext of this layout."""
    return DIGEST_BYTES + layout.records_bytes


def encode(theta: Digest, update: Update, trace: bytes = b"") -> bytes:
    """Return the plaintext of an update computed from the parameters with digest `theta`, and of its trace."""
    return b"".join((theta, update.records, trace))


def require_size(plaintext: Records, layout: Layout) -> None:
    """Raise InvalidSubmission(MALFORMED) for a plaintext of any size but the layout's."""
    if len(plaintext) != plaintext_bytes(layout):
        raise InvalidSubmission(
            Reason.MALFORMED, f"plaintext of {len(plaintext)} bytes, the layout makes {plaintext_bytes(layout)}"
        )


def parse(plaintext: Records, layout: Layout) -> Update:
    """Parse the update in a plaintext. Raises InvalidSubmission(MALFORMED) for bytes that `encode` would not
    produce."""
    require_size(plaintext, layout)
    update = Update(layout, plaintext[DIGEST_BYTES:])
    for tensor in layout:
        for region in slabs(tensor):
            update.chunks(tensor, region)
    return update


def parse_submission(peer: PeerId, round: int, plaintext: Records, layout: Layout) -> Submission:
    """As `parse`, with the sender, the round, and the leading theta digest."""
    update = parse(plaintext, layout)
    return Submission(peer, round, Digest(bytes(plaintext[:DIGEST_BYTES])), update)
