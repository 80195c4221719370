"""Decide which of the owner's amendments are in force, from the chain: alike for a running node, a restarted one and a
joiner (docs/protocol.md section 0).

Two things on chain show it. The owner's slot, as of the block that decides about an amendment, says whether it came in
time. Every agreed selection's link digests the amendments that were in force in its round. A node cannot read the slot
if its chain node has pruned that block, or cannot read the bytes; then the selections decide.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from loguru import logger

from murmur.node.config.ports import Ports
from murmur.node.fetch.sources import Sources, sources_as_of
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol import keys
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError, InvalidMessage, OutOfSync, StorageError
from murmur.protocol.ports import Bucket, Chain, Time
from murmur.protocol.run import Amendment, Run, parse_amendment
from murmur.protocol.spec import parse_spec
from murmur.protocol.types import Digest, Peer, PeerId, Slot
from storage.realtime import REAL

if TYPE_CHECKING:
    from murmur.node.chain.follower import Follower
    from murmur.node.state.node_state import NodeState

AMENDMENT_MAX_BYTES = 1 << 16
MAX_AMENDMENTS = 256
FETCHES_A_LOOK = 8
LOOK_SECONDS = 30.0
MIRRORS_ASKED = 2
"""If the owner's bucket fails, this many validators are asked; they keep the amendments that they have adopted."""


def fetch_blob(bucket: Bucket, digest: Digest, max_bytes: int, timeout_seconds: float) -> bytes:
    """Fetch content-addressed bytes from a bucket. Raises StorageError if they are missing or do not match their
    digest."""
    data = bucket.get(keys.blob(digest), max_bytes=max_bytes, timeout_seconds=timeout_seconds)
    if sha256(data).digest() != digest:
        raise StorageError(f"an object does not hash to its name {digest.hex()}: its bucket serves other bytes")
    return data


class AnotherRun(InvalidMessage):
    """The owner's slot leads to the spec of another run."""


class Reader:
    """Reads small blobs of the owner, from its bucket or the first sources of `sources`: a limited number, within one
    deadline for all. Blobs that were read stay in `read`, so the next reader continues from there."""

    def __init__(self, owner: PeerId, sources: Sources, read: dict[Digest, bytes], fetches: int, time: Time) -> None:
        openers = (sources.bucket_of(peer) for peer in (owner, *sources.validators()[:MIRRORS_ASKED]))
        self._openers = [opener for opener in openers if opener is not None]
        self._read, self._left, self._time = read, fetches, time
        self._until = time.now() + LOOK_SECONDS
        if len(read) > 2 * MAX_AMENDMENTS:
            read.clear()

    def blob(self, digest: Digest, max_bytes: int) -> bytes:
        """Return the blob. Raises StorageError if no source has it, or if this reader's time or number is used up."""
        if digest not in self._read:
            self._read[digest] = self._fetched(digest, max_bytes)
        return self._read[digest]

    def chain(self, named: Digest, known: Iterable[Digest]) -> tuple[Digest, list[Amendment]]:
        """Return the first digest in `known` on the way back from `named`, and the amendments after it up to `named`,
        oldest first. Raises StorageError, AnotherRun, and InvalidMessage if the chain leads to something else."""
        known, found = set(known), list[Amendment]()
        while named not in known:
            if len(found) == MAX_AMENDMENTS:
                raise InvalidMessage(f"the run has more than {MAX_AMENDMENTS} amendments")
            data = self.blob(named, AMENDMENT_MAX_BYTES)
            try:
                found.append(parse_amendment(data, named))
            except InvalidMessage:
                if _is_spec(data, named):
                    raise AnotherRun(f"run {named.hex()[:16]}") from None
                raise
            named = Digest(bytes.fromhex(found[-1].previous))
        return named, found[::-1]

    def _fetched(self, digest: Digest, max_bytes: int) -> bytes:
        fault: Exception = StorageError("the owner has published no bucket")
        for at, opener in enumerate(self._openers):
            left = self._until - self._time.now()
            if self._left == 0 or left <= 0:
                raise StorageError("not all of it could be read at once; the next try continues there")
            self._left -= 1
            try:
                # A bucket that stalls leaves time for the others.
                return fetch_blob(opener(), digest, max_bytes, left / (len(self._openers) - at))
            except (StorageError, ConfigError) as found:
                fault = found
        raise StorageError(f"neither the bucket of the run's owner nor a validator's serves it: {fault}")


def settled(
    run: Run,
    undecided: int,
    ports: Ports,
    read: dict[Digest, bytes],
    time: Time = REAL,
    tell: Callable[[Trouble | None], None] = lambda trouble: None,
) -> Run:
    """Return the run with the amendments that are settled by now. Save it (`RunFile.save`) before following it.

    `undecided`: the first round that this node has not decided. Its earlier decisions stay, so an amendment whose bytes
    came only later has to come through the chain of selections (`adopted`). An amendment that cannot be read or is not
    valid changes nothing: one account must not be able to stop every node. Raises ChainError if the chain does not
    answer; then nothing is adopted. `read`: see Reader. `tell` gets what is wrong with what the owner's slot names, or
    None.
    """
    owner, clock = run.first.owner_id, run.clock
    head = ports.chain.finalized().block
    if head < clock.start(0):
        return run
    last = clock.start(clock.round_at(head)) - 1
    peers = ports.chain.peers(head)
    known = {run.id, *(amendment.digest for amendment in run.amendments)}
    try:
        named = _named(owner, last, peers, ports.chain)
    except ChainError as fault:
        if fault.code != STATE_PRUNED:
            raise
        return run
    if named is None or named in known:
        tell(None)
        return run
    reader = Reader(owner, sources_as_of(run, head, peers, ports.open_pointer), read, FETCHES_A_LOOK, time)
    try:
        previous, fresh = reader.chain(named, known)
    except (StorageError, InvalidMessage) as fault:
        tell(_unusable(fault))
        return run
    if previous != run.head:
        tell(Trouble("amendment_invalid", "it does not continue the known run"))
        return run
    tell(None)
    followed = run
    for amendment in fresh:
        refusal = _refusal(run, undecided, last, amendment, reader, peers, ports.chain)
        if refusal is None:
            try:
                followed = followed.amended([amendment])
                continue
            except ConfigError as fault:
                refusal = str(fault)
        logger.error(
            "the owner's amendment for round {round} is ignored: {why}", round=amendment.from_round, why=refusal
        )
        break
    # Before its deciding block the owner may withdraw an amendment, unless one that builds on it is settled.
    while followed.head not in known and followed.settled_by(followed.amendments[-1]) > last:
        followed = Run(followed.first, followed.amendments[:-1])
    _mirror(followed.amendments[len(run.amendments) :], ports)
    return followed


def adopted(
    run: Run, heads: Sequence[tuple[int, Digest]], ports: Ports, read: dict[Digest, bytes], time: Time = REAL
) -> Run:
    """Return the run that the chain of agreed selections implies, given (round, head) of its links, oldest first. It is
    ours if they agree. Save it (`RunFile.save`) once the state that follows from it has been reproduced.

    Raises OutOfSync if those heads are not of one run, or if one of them names an amendment that the owner's slot did
    not name in time; StorageError if an amendment cannot be read; ChainError.
    """
    if all(run.head_at(round) == head for round, head in heads):
        return run
    owner, first = run.first.owner_id, Run(run.first)
    head = ports.chain.finalized().block
    peers = ports.chain.peers(head)
    read.update({amendment.digest: amendment.to_bytes() for amendment in run.amendments})
    reader = Reader(owner, sources_as_of(run, head, peers, ports.open_pointer), read, MAX_AMENDMENTS, time)
    try:
        _, chain = reader.chain(heads[-1][1], [run.id])
        told = first.amended(chain)
    except (InvalidMessage, ConfigError) as fault:
        raise OutOfSync(f"the chain of selections names amendments that are not the run's: {fault}") from None
    if any(told.head_at(round) != head for round, head in heads):
        raise OutOfSync("the chain of selections names other amendments than those in force in its rounds")
    for amendment in chain:
        if run.settled_by(amendment) <= head and _stood(run, amendment, reader, peers, ports.chain) is False:
            raise OutOfSync(
                f"the chain of selections names an amendment for round {amendment.from_round} that came late"
            )
    logger.info("the chain of selections says which amendments are in force: {count}", count=len(chain))
    return told


def settle(follower: "Follower", state: "NodeState") -> None:
    """Adopt the amendments that are settled by now."""
    read, round = state.store.run.read, state.saved.round
    tell = partial(follower.troubles.look, round, About.RUN)
    follow(follower, state, settled(follower.run, round, follower.ports, read, follower.time, tell))


def follow(follower: "Follower", state: "NodeState", run: Run) -> None:
    """Follow the run that `settled` or `adopted` returned: it is saved first, so that a restart follows it too."""
    if run.head != follower.run.head:
        state.store.run.save(run)
    follower.run = run


def _unusable(fault: StorageError | InvalidMessage) -> Trouble:
    """Return why what the owner's slot names is not followed."""
    if isinstance(fault, AnotherRun):
        return Trouble("run_replaced", str(fault))
    return Trouble("owner_unread", str(fault)) if isinstance(fault, StorageError) else Trouble("amendment_invalid")


def _is_spec(data: bytes, digest: Digest) -> bool:
    try:
        parse_spec(data, digest)
    except (InvalidMessage, ConfigError):
        return False
    return True


def owner_slot(owner: PeerId, peers: Iterable[Peer]) -> Slot | None:
    """Return the slot of the run's owner; None if it is not registered or has published nothing."""
    return next((peer.slot for peer in peers if peer.id == owner), None)


def _refusal(
    run: Run, undecided: int, last: int, amendment: Amendment, reader: Reader, peers: Sequence[Peer], chain: Chain
) -> str | None:
    """Return why an amendment is not adopted to which the owner's slot leads as of block `last`; None to adopt it."""
    if amendment.from_round < undecided:
        return "its bytes could not be fetched before that round was decided"
    block = run.settled_by(amendment)
    if block >= last:
        return None
    stood = _stood(run, amendment, reader, peers, chain)
    if stood is None:
        return f"this node cannot see whether it was on chain in block {block}; the chain of selections will show it"
    return None if stood else f"it came after block {block}"


def _stood(run: Run, amendment: Amendment, reader: Reader, peers: Sequence[Peer], chain: Chain) -> bool | None:
    """Whether the owner's slot, as of the deciding block, named the amendment or one that builds on it. None if this
    chain node has pruned that block, or if the named amendment cannot be read."""
    try:
        named = _named(run.first.owner_id, run.settled_by(amendment), peers, chain)
        return named is not None and reader.chain(named, [amendment.digest, run.id])[0] == amendment.digest
    except ChainError as fault:
        if fault.code != STATE_PRUNED:
            raise
        return None
    except StorageError:
        return None
    except InvalidMessage:
        return False


def _named(owner: PeerId, block: int, peers: Sequence[Peer], chain: Chain) -> Digest | None:
    """Return the digest in the owner's slot as of `block`. `peers` as of now: if the slot was not written since, the
    old block need not be read."""
    slot = owner_slot(owner, peers)
    if slot is None or slot.block > block:
        slot = owner_slot(owner, chain.peers(block))
    return slot.amendment if slot is not None else None


def _mirror(amendments: Sequence[Amendment], ports: Ports) -> None:
    """Copy the adopted amendments to our own bucket, so that other nodes do not depend on the owner's."""
    for amendment in amendments:
        with suppress(StorageError):
            ports.bucket.put(
                keys.blob(amendment.digest), amendment.to_bytes(), timeout_seconds=LOOK_SECONDS / len(amendments)
            )
