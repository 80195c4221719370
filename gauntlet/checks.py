"""The fast checks: what came back from each peer becomes a Submission or a Rejection (docs/protocol.md section 5).

Every peer is judged by itself and in the stated order; the first check that fails is the reason. Only NORM (in a
first round whose norms nobody has measured) and COPY look at other peers, and they look at valid submissions only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePath
from traceback import extract_tb

from gauntlet.commitment import commitment, who_committed
from gauntlet.remembered import Remembered, Twins
from gauntlet.sketch import Sample, Sketch, find_copies
from murmur.protocol.clock import Clock
from murmur.protocol.errors import InvalidMessage, InvalidSubmission
from murmur.protocol.merkle import sections_root
from murmur.protocol.messages import ENVELOPE_BYTES, Envelope, Reveal, parse_envelope, parse_reveal
from murmur.protocol.ports import Verify
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import DIGEST_BYTES, Digest, Peer, PeerId, Reason, Rejection
from sparseloco import ops, trace
from sparseloco.outer import OuterState
from sparseloco.update import Records
from sparseloco.wire import Submission

Unseal = Callable[[Envelope, bytes, bytes | memoryview], bytes | memoryview]
"""(envelope, key, ciphertext) -> plaintext of the same length (storage/seal.py)."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """One peer's objects as we read them.

    `peer` as of the commit deadline. `late`: its slot had no commitment for this round at the commit deadline, but one
    at the reveal deadline. `payload`: the object whose envelope it committed to, from any source, or that envelope
    alone where it is not the peer's own; None when it could not be had. It may be a view of a file, and is not read as
    a whole but by the section. `wrong_size`: the size its server claims, when that differs from the only right one
    (nothing was read then). `reveal`: None when no key could be read while our finalised head was below the reveal
    deadline.
    """

    peer: Peer
    payload: bytes | memoryview | None = None
    wrong_size: int | None = None
    reveal: bytes | None = None
    late: bool = False


Each = Callable[[Callable[[Gathered], Submission | Rejection], Sequence[Gathered]], Iterable[Submission | Rejection]]


@dataclass(frozen=True, slots=True)
class CheckFunctions:
    """What the checks need from the chain's and the storage's side. each: judges every peer, one after the other or
    in parallel, and gives what it found in the peers' order."""

    verify: Verify
    unseal: Unseal
    each: Each = map


@dataclass(frozen=True, slots=True)
class Checked:
    """`committed`: peers that had committed by the commit deadline, passed or not: a fault of theirs was not a mere
    absence. `twins`: of those that passed, who sent (nearly) the same as whom: one of them at most may contribute, and
    who did the work shows in the evaluation. `remember`: this round's payloads with their records, to compare those of
    later rounds with. `broken`: whose bytes a check of ours broke on, and where: a bug to be told of, whatever sent
    them."""

    passed: Mapping[PeerId, Submission]
    rejected: Mapping[PeerId, Rejection]
    committed: frozenset[PeerId]
    twins: Twins
    remember: Mapping[Remembered, Records]
    broken: Mapping[PeerId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """The values with which an honest submission of the round agrees.

    theta: our digest at the round's start. sync_proof: the proof of being in sync that follows from our theta. outer:
    the outer state at the round's start. commit_hash: of the commit deadline."""

    spec: RunSpec
    run: Digest
    round: int
    theta: Digest
    clock: Clock
    sync_proof: Callable[[PeerId], Digest]
    outer: OuterState
    commit_hash: Digest

    @property
    def commit_deadline(self) -> int:
        """The commit deadline."""
        return self.clock.commit_deadline(self.round)


def fast_checks(
    expected: Expected, gathered: Sequence[Gathered], functions: CheckFunctions, history: Iterable[Sketch] = ()
) -> Checked:
    """Judge every peer of the round. `history`: earlier payloads, by the sample that the hash of the commit deadline's
    block draws. Nothing that a peer sent raises or changes another peer's result."""
    spec, round = expected.spec, expected.round
    broken: dict[PeerId, str] = {}
    opened: dict[PeerId, Submission] = {}
    rejected: dict[PeerId, Rejection] = {}
    by_hotkey = sorted(gathered, key=lambda item: item.peer.id)
    for found in functions.each(lambda item: _judged(item, expected, functions, broken), by_hotkey):
        if isinstance(found, Rejection):
            rejected[found.peer] = found
        else:
            opened[found.peer] = found
    for peer, detail in _out_of_bounds(opened, expected.outer.whole, spec.gauntlet.norm_factor).items():
        rejected[peer] = Rejection(peer, Reason.NORM, detail)
    valid = {peer: submission for peer, submission in opened.items() if peer not in rejected}
    sample = Sample(spec.layout, expected.commit_hash)
    updates = {peer: submission.update for peer, submission in valid.items()}
    sketches = {p: Sketch(p, round, update.digest, sample.excerpt(update.records)) for p, update in updates.items()}
    copies = find_copies(sample, sketches, history, spec.gauntlet)
    for peer, detail in copies.reposted.items():
        rejected[peer] = Rejection(peer, Reason.COPY, detail)
    return Checked(
        passed={peer: submission for peer, submission in valid.items() if peer not in rejected},
        rejected={item.peer.id: rejected[item.peer.id] for item in by_hotkey if item.peer.id in rejected},
        committed=frozenset(who_committed((item.peer for item in gathered), round, expected.commit_deadline)),
        twins=copies.twins,
        # A re-posted payload is known already; kept under a second name it would pass for its poster's own.
        remember={
            sketch.name: updates[peer].records for peer, sketch in sketches.items() if peer not in copies.reposted
        },
        broken=broken,
    )


def _judged(
    item: Gathered, expected: Expected, functions: CheckFunctions, broken: dict[PeerId, str]
) -> Submission | Rejection:
    """One peer by itself. A check that its bytes break goes into `broken`."""
    peer = item.peer.id
    try:
        envelope, ciphertext = _sealed(item, expected, functions)
        plaintext = _unsealed(item, envelope, ciphertext, expected, functions)
        shape = expected.spec.trace
        submission = ops.parse_submission(peer, expected.round, plaintext, expected.spec.layout, shape.num_bytes)
        if shape.num_bytes:
            trace.parse(submission.trace, shape)
        submission.update.digest  # noqa: B018 - hashed here, where peers may be judged in parallel
        return submission
    except InvalidSubmission as fault:
        return Rejection(peer, fault.reason, fault.detail)
    except Exception as fault:  # noqa: BLE001
        # The one place that isolates a hostile peer: bytes that break a check must not end the round for others.
        detail = f"a check of ours failed on these bytes with {type(fault).__name__}"
        *_, last = extract_tb(fault.__traceback__)
        broken[peer] = f"{type(fault).__name__} in {last.name}, {PurePath(last.filename).name}:{last.lineno}"
        return Rejection(peer, Reason.MALFORMED, detail)


def _sealed(item: Gathered, expected: Expected, functions: CheckFunctions) -> tuple[Envelope, memoryview]:
    """The envelope that the peer committed to and signed, and the ciphertext that belongs to it (without a copy)."""
    promise, object_bytes = commitment(item.peer, expected.round, expected.commit_deadline), expected.spec.object_bytes
    if promise is None:
        if item.late:
            raise InvalidSubmission(Reason.LATE, f"committed after block {expected.commit_deadline}")
        raise InvalidSubmission(Reason.MISSING, f"no commitment by block {expected.commit_deadline}")
    size = item.wrong_size if item.payload is None else len(item.payload)
    wrong_size = InvalidSubmission(Reason.WRONG_SIZE, f"{size} bytes, expected {object_bytes}")
    if size not in (None, object_bytes, ENVELOPE_BYTES):
        raise wrong_size
    if item.payload is None:
        raise InvalidSubmission(Reason.MISSING, "the committed object could not be read")
    head, ciphertext = item.payload[:ENVELOPE_BYTES], memoryview(item.payload)[ENVELOPE_BYTES:]
    if sha256(head).digest() != promise.envelope:
        raise InvalidSubmission(Reason.MISSING, "the object is not the one committed to on chain")
    try:
        envelope = parse_envelope(head)
    except InvalidMessage:
        raise InvalidSubmission(Reason.UNSIGNED, "the object does not begin with an envelope") from None
    if envelope.peer != item.peer.id:
        raise InvalidSubmission(Reason.UNSIGNED, "the envelope names another hotkey")
    if not functions.verify(item.peer.id, envelope.signed_part, envelope.signature):
        raise InvalidSubmission(Reason.UNSIGNED, "the envelope's signature is not the hotkey's")
    if size != object_bytes:
        raise wrong_size
    if sections_root(ciphertext) != envelope.root:
        raise InvalidSubmission(Reason.MISSING, "the ciphertext is not the one that the committed envelope names")
    return envelope, ciphertext


def _unsealed(
    item: Gathered, envelope: Envelope, ciphertext: memoryview, expected: Expected, functions: CheckFunctions
) -> Records:
    """The plaintext of a peer that is in sync."""
    run, round, theta = expected.run, expected.round, expected.theta
    if envelope.run != run:
        raise InvalidSubmission(Reason.WRONG_RUN, "the envelope is made for another run")
    if envelope.round != round:
        raise InvalidSubmission(Reason.WRONG_RUN, f"the envelope is made for round {envelope.round}, not {round}")
    reveal = _reveal(item, run, round, functions)
    if sha256(reveal.key).digest() != envelope.key_hash:
        raise InvalidSubmission(Reason.BAD_KEY, "the revealed key is not the one that the envelope names")
    plaintext = functions.unseal(envelope, reveal.key, ciphertext)
    if plaintext[:DIGEST_BYTES] != theta:
        raise InvalidSubmission(Reason.OUT_OF_SYNC, f"trained from theta {plaintext[:4].hex()}, not {theta[:4].hex()}")
    if reveal.proof != expected.sync_proof(item.peer.id):
        raise InvalidSubmission(Reason.OUT_OF_SYNC, "the proof of being in sync is wrong")
    return plaintext


def _reveal(item: Gathered, run: Digest, round: int, functions: CheckFunctions) -> Reveal:
    """The peer's signed key for this run and round. Bytes that are not that reveal nothing: UNREVEALED."""
    if item.reveal is None:
        # reports are signed with this sentence in them: it keeps its letter for the reveal deadline
        raise InvalidSubmission(Reason.UNREVEALED, "no key before block V was final")
    try:
        reveal = parse_reveal(item.reveal)
    except InvalidMessage:
        raise InvalidSubmission(Reason.UNREVEALED, "the reveal cannot be parsed") from None
    if (reveal.run, reveal.round, reveal.peer) != (run, round, item.peer.id):
        raise InvalidSubmission(Reason.UNREVEALED, "the reveal is made for another run, round or hotkey")
    if not functions.verify(item.peer.id, reveal.signed_part, reveal.signature):
        raise InvalidSubmission(Reason.UNREVEALED, "the reveal's signature is not the hotkey's")
    return reveal


def _out_of_bounds(opened: Mapping[PeerId, Submission], average: float, factor: float) -> dict[PeerId, str]:
    """Peers whose update's norm is more than `factor` times, or less than 1 / `factor` of, the slow average; before
    there is one, of the lower median of this round's. An update of zeros fails whatever the others sent."""
    norms = {peer: submission.update.norms.whole for peer, submission in opened.items()}
    usual = average or sorted(norms.values())[(len(norms) - 1) // 2] if norms else 0.0
    return {
        peer: f"norm {norm:.3g}, allowed {usual / factor:.3g} to {usual * factor:.3g}"
        for peer, norm in norms.items()
        if not (usual / factor <= norm <= usual * factor) or norm == 0.0
    }
