"""Opening the pinned submissions of a round, whose sealed objects and keys are here (murmur/node/fetch/payloads.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.threads import OPEN_THREADS
from murmur.protocol.errors import InvalidMessage, InvalidSubmission
from murmur.protocol.layout import Layout
from murmur.protocol.messages import ENVELOPE_BYTES, parse_envelope
from murmur.protocol.ports import Time
from murmur.protocol.spec import TrainingSpec
from murmur.protocol.types import Digest, PeerId, Reason
from sparseloco import ops
from sparseloco.update import Update
from storage.exchange import Data, FetchFault
from storage.s3 import PART_BYTES
from storage.seal import unseal


@dataclass(frozen=True, slots=True)
class Opened:
    """A pinned submission. envelope: the digest that pins its sealed object. key: what opens it. `key` and `update` are
    None when the pinned bytes are not a valid one (counts with s = 0)."""

    peer: PeerId
    envelope: Digest
    key: bytes | None
    update: Update | None


def open_pinned(
    spec: TrainingSpec,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sealed: Mapping[PeerId, Data | FetchFault],
    keys: Mapping[PeerId, bytes],
    time: Time,
) -> list[Opened]:
    """The pinned submissions, whose sealed objects are here, opened with these keys, in PeerId order."""
    ordered = sorted(pairs)

    def opened(at: int) -> Opened:
        peer, pinned = ordered[at]
        data, key = sealed[peer], keys.get(peer)
        if key is None or isinstance(data, FetchFault):
            return Opened(peer, pinned, None, None)
        try:
            layout = spec.layout.part(at, len(ordered))
            return Opened(peer, pinned, key, open_payload(layout, peer, round, key, data, spec.trace.num_bytes))
        except InvalidSubmission:
            return Opened(peer, pinned, None, None)

    return parallel_map(opened, range(len(ordered)), open_threads(spec), time)


def open_threads(spec: TrainingSpec) -> int:
    """How many payloads are opened or checked in parallel: a small one is not worth a thread."""
    return OPEN_THREADS if spec.object_bytes > PART_BYTES else 1


def open_payload(layout: Layout, peer: PeerId, round: int, key: bytes, data: Data, trace_bytes: int = 0) -> Update:
    """The update in a sealed object whose bytes were checked. Raises InvalidSubmission. Only validators look at the
    form of the trace: what is applied does not depend on it."""
    try:
        envelope = parse_envelope(data[:ENVELOPE_BYTES])
    except InvalidMessage as fault:
        raise InvalidSubmission(Reason.UNSIGNED, str(fault)) from None
    plaintext = unseal(envelope, key, memoryview(data)[ENVELOPE_BYTES:])
    return ops.parse_submission(peer, round, plaintext, layout, trace_bytes).update
