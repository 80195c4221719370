"""Catch-up: from the run's genesis, a published checkpoint or our own older state to the newest agreed round.

Everything is authenticated from the chain backwards, so sources need not be trusted (docs/protocol.md section 8):
statements on chain for the newest decided round name theta at its start and the link to the last agreed record; each
record under its link names the one before; the chain of links has to end at a state we have; and the state that
results has to hash to the theta that the chain names.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loguru import logger

from gauntlet.agreement import claimed_start
from node import run as runs
from node.payloads import Sources, gather_pinned
from node.run import blob_fetcher
from node.state import Saved
from protocol import keys
from protocol.errors import (
    ChainError,
    CheckpointCorrupt,
    ConfigError,
    InvalidMessage,
    MurmurError,
    ObjectMissing,
    OutOfSync,
    StorageError,
)
from protocol.messages import encode_document, first_link, parse_document, parse_statement, record_link
from protocol.ports import Bucket
from protocol.types import DIGEST_BYTES, Attestation, Digest, Peer, PeerId, Record
from storage.exchange import publish
from training import checkpoint
from training.shards import Fetch

if TYPE_CHECKING:
    from node.node import Node

RECORD_BYTES = 101
PAIR_BYTES = 2 * DIGEST_BYTES
MANIFEST_MAX_BYTES = 1 << 16
LINK_MAX_BYTES = RECORD_BYTES + 256 * PAIR_BYTES
CHECKPOINTS_TRIED = 3
FETCH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Start:
    """A state to start from: our own, a checkpoint's or genesis. `state`: the checkpoint of theta and outer state, on
    disk or to be had through `fetch`. A published one is anybody's claim until the replayed theta has been compared
    with the chain's."""

    round: int
    link: Digest
    state: Digest
    origin: str
    fetch: Fetch | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One agreed record on the way: its round and the pairs it pins."""

    round: int
    link: Digest
    pairs: tuple[tuple[PeerId, Digest], ...]


def encode_link(statement: bytes, pairs: Sequence[tuple[PeerId, Digest]]) -> bytes:
    """An agreed record as validators store it under its link: the record as posted, then its sorted pairs."""
    return statement + b"".join(peer + envelope for peer, envelope in sorted(pairs))


def parse_link(data: bytes, link: Digest) -> tuple[Record, tuple[tuple[PeerId, Digest], ...]]:
    """Inverse of `encode_link`, checked against the link. Raises InvalidMessage."""
    statement, rest = data[:RECORD_BYTES], data[RECORD_BYTES:]
    if len(rest) % PAIR_BYTES:
        raise InvalidMessage("an agreed record with a torn list of peers")
    pairs = tuple(
        (PeerId(rest[at : at + DIGEST_BYTES]), Digest(rest[at + DIGEST_BYTES : at + PAIR_BYTES]))
        for at in range(0, len(rest), PAIR_BYTES)
    )
    record = parse_statement(statement)
    if not isinstance(record, Record) or record_link(statement, pairs) != link:
        raise InvalidMessage("an agreed record that does not hash to its link")
    return record, pairs


def genesis(node: "Node") -> Saved:
    """The state of a fresh folder: theta_0 when the run has no decided round yet, else the result of catch-up."""
    start = _genesis(node)
    node.load_consensus(start.state)
    node.saved = Saved(0, start.state, start.link)
    node.store.commit(node.saved)
    if _newest_decided(node) >= 0:
        catch_up(node)
    return node.saved


def catch_up(node: "Node") -> None:
    """Bring the node to the start of the newest decided round that any validator has stated something for.

    Returns when that succeeded, with the state saved. Rounds without any statement after that one are left to
    `Node.advance`; where our own state is newer than every statement, they are void, and skipped. Waits for the next
    round when no starting point leads there.
    """
    while True:
        newest = _newest_decided(node)
        peers = node.doors.chain.peers(node.clock.attest_by(newest)) if newest >= 0 else ()
        target = _newest_stated(node, newest, peers)
        if target < node.saved.round:
            if node.saved.round < newest:
                # Nobody has stated anything since: those rounds have no record, so they changed nothing.
                node.save(round=newest, own=_given_back(node, newest, set()))
            return
        commit = node.doors.chain.peers(node.clock.commit_by(target))
        theta, previous = claimed_start(node.run, target, commit, peers)[0]
        newcomers = node.doors.chain.peers(node.head())
        node.run = runs.refreshed(node.run, newcomers, node.doors)
        sources = Sources(newcomers, node.doors.open_pointer)
        for start in _starts(node, target, sources):
            try:
                _replay(node, start, target, theta, previous, sources)
                return
            except (StorageError, OutOfSync, InvalidMessage, CheckpointCorrupt) as fault:
                node.load_consensus(node.saved.consensus)
                node.store.commit(node.saved)  # and sweeps what the refused start left on the disk
                logger.warning("catch-up from {origin} failed: {fault}", origin=start.origin, fault=str(fault))
            except ChainError:
                node.load_consensus(node.saved.consensus)
                raise
        logger.warning("no source had all that round {round} needs: trying again in the next round", round=target)
        node.wait_for(node.clock.attest_by(newest + 1), f"the statements of round {newest + 1}")


def publish_checkpoint(node: "Node") -> None:
    """Put the state that we stand at into our bucket: its files as blobs, then the signed document that names them.
    What joiners no longer try is deleted: every checkpoint is as large as the model."""
    seconds = node.transfer_seconds(1) + node.run.layout.num_parameters * 32e-6 / node.run.first.clock.upload_mbps
    saved = node.saved
    files = checkpoint.blobs(node.store.files, saved.consensus)
    for digest, path in files:
        publish(node.doors.bucket, keys.blob(digest), path, timeout_seconds=seconds)
    names = [digest.hex() for digest, _ in files]
    body = {"link": saved.link.hex(), "state": saved.consensus.hex(), "files": names}
    document = encode_document("state", node.run.id, saved.round, body, node.doors.signer)
    publish(node.doors.bucket, keys.checkpoint(node.run.id, saved.round), document, timeout_seconds=seconds)
    _forget_checkpoint(node, saved.round - (CHECKPOINTS_TRIED + 1) * node.run.first.checkpoint_rounds, set(names))


def _forget_checkpoint(node: "Node", round: int, kept: Collection[str]) -> None:
    """Delete our checkpoint of `round`, if there is one, but for theta_0, the files that are `kept` and those of the
    checkpoint after it: while all rounds are void the state stays."""
    if round <= 0 or not (files := _published_files(node, round)):
        return
    after = _published_files(node, round + node.run.first.checkpoint_rounds)
    for name in files - after - {*kept, node.run.first.genesis_checkpoint}:
        node.doors.bucket.delete(keys.blob(Digest(bytes.fromhex(name))), timeout_seconds=FETCH_SECONDS)
    node.doors.bucket.delete(keys.checkpoint(node.run.id, round), timeout_seconds=FETCH_SECONDS)


def _published_files(node: "Node", round: int) -> set[str]:
    """Digests (hex) of the files of our own published checkpoint of `round`; none when there is no such document."""
    key = keys.checkpoint(node.run.id, round)
    try:
        raw = node.doors.bucket.get(key, max_bytes=MANIFEST_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
        body = parse_document(raw, "state", node.run.id, round, node.me, node.doors.verify)
    except (ObjectMissing, InvalidMessage):
        return set()
    return set(body["files"])


def _newest_decided(node: "Node") -> int:
    """The newest round whose attestations are final; -1 before the first."""
    head = node.head()
    round = node.clock.round_at(head)
    return round if head >= node.clock.attest_by(round) else round - 1


def _newest_stated(node: "Node", newest: int, peers: Sequence[Peer]) -> int:
    """The newest round up to `newest` with a statement made in time; -1 for none. `peers` as of X of `newest`: a slot
    keeps its last statement, however long its author has been silent."""
    stated = {
        peer.slot.statement.round
        for peer in peers
        if peer.slot is not None and isinstance(peer.slot.statement, Record | Attestation)
    }
    good = (r for r in sorted(stated, reverse=True) if r <= newest and claimed_start(node.run, r, (), peers))
    return next(good, -1)


def _genesis(node: "Node") -> Start:
    """theta_0 from the owner's bucket or a validator's. Its digest stands in the spec, so any source will do."""
    spec = node.run.first
    digest = Digest(bytes.fromhex(spec.genesis_checkpoint))
    sources = Sources(node.doors.chain.peers(node.head()), node.doors.open_pointer)
    faults: list[str] = []
    for holder in (spec.owner_id, *sources.validators()):
        opener = sources.bucket_of(holder)
        if opener is None:
            continue
        try:
            node.load_consensus(digest, _fetcher(node, opener()))
            return Start(0, first_link(node.run.id), digest, "genesis")
        except (StorageError, CheckpointCorrupt, ConfigError) as fault:
            faults.append(str(fault))
    raise ConfigError(
        "the run's first checkpoint theta_0 is in no bucket that this node can read: the owner's bucket is down or its "
        f"read key is wrong ({'; '.join(faults) or 'nobody has published a bucket'}); ask the run's owner"
    )


def _fetcher(node: "Node", bucket: Bucket) -> Fetch:
    return blob_fetcher(bucket, node.run.first.clock.download_mbps * 1e6 / 8 / 4)


def _starts(node: "Node", newest: int, sources: Sources) -> Iterator[Start]:
    """Candidate starting points, best first: our own state while it is fresh (the payloads since are fewer bytes than a
    model), checkpoints from the newest on, our own older state, genesis. Each only when those before it have failed."""
    saved = node.saved
    own = Start(saved.round, saved.link, saved.consensus, "our own state")
    fresh = saved.round <= newest <= saved.round + node.run.first.checkpoint_rounds
    if fresh:
        yield own
    yield from _checkpoints(node, newest, sources)
    if not fresh and saved.round <= newest:
        yield own
    if saved.round > 0:
        try:
            yield _genesis(node)
        except ConfigError as fault:
            logger.warning("{fault}", fault=str(fault))


def _checkpoints(node: "Node", newest: int, sources: Sources) -> Iterator[Start]:
    every = node.run.first.checkpoint_rounds
    last = newest - newest % every
    # Older ones than our own state too: ours may be wrong.
    for round in (r for r in range(last, last - CHECKPOINTS_TRIED * every, -every) if r > 0):
        for holder in sources.validators():
            opener = sources.bucket_of(holder)
            assert opener is not None
            try:
                start = _checkpoint(node, opener(), holder, round)
            except (StorageError, InvalidMessage, ConfigError) as fault:
                logger.debug("no checkpoint of round {round}: {fault}", round=round, fault=str(fault))
            else:
                # Tried and refused, it may still be had right from the next validator.
                yield start


def _checkpoint(node: "Node", bucket: Bucket, holder: PeerId, round: int) -> Start:
    """What a validator signed as the state at the start of `round`. The state itself is fetched only once its link has
    turned out to lie on the chain of records: it is as large as the model."""
    run = node.run
    raw = bucket.get(keys.checkpoint(run.id, round), max_bytes=MANIFEST_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
    body = parse_document(raw, "state", run.id, round, holder, node.doors.verify)
    try:
        link, state = Digest(bytes.fromhex(body["link"])), Digest(bytes.fromhex(body["state"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidMessage("a checkpoint document without link or state") from None
    if len(link) != DIGEST_BYTES or len(state) != DIGEST_BYTES:
        raise InvalidMessage("a checkpoint document whose link or state is no digest")
    return Start(round, link, state, f"the checkpoint of round {round}", _fetcher(node, bucket))


def _replay(node: "Node", start: Start, newest: int, theta: Digest, previous: Digest, sources: Sources) -> None:
    """Apply the records between `start` and `newest`; commits only a state that hashes to `theta`."""
    steps = _walk(node, start, previous, sources)
    node.load_consensus(start.state, start.fetch)
    began = time.monotonic()
    for done, step in enumerate(steps):
        spec = node.run.spec_at(step.round)
        opened = gather_pinned(
            spec,
            node.run.id,
            step.round,
            step.pairs,
            sources,
            node.doors.verify,
            node.transfer_seconds(len(step.pairs)),
        )
        node.replica.outer_step([o.update for o in opened], alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        left = (time.monotonic() - began) / (done + 1) * (len(steps) - done - 1)
        logger.info(
            "catching up: applied round {round}, {done} of {total}, about {left} s left",
            round=step.round,
            done=done + 1,
            total=len(steps),
            left=int(left),
        )
    if node.replica.digest() != theta:
        raise OutOfSync(f"replayed state does not hash to the theta that round {newest} names on chain")
    # Of rounds before a checkpoint's nobody tells us which were void. What may have been applied is not sent twice.
    own = _given_back(node, newest, {*range(start.round), *(step.round for step in steps)})
    node.save(round=newest, consensus=node.save_consensus(), link=previous, own=own)
    node.events.emit("caught_up", newest, origin=start.origin, applied=len(steps), theta=theta.hex())


def _given_back(node: "Node", newest: int, decided: Collection[int]) -> Digest | None:
    """Our own state after the rounds up to `newest`: where the one that we sealed for was void, with what we sent."""
    sealed = node.saved.sealed
    if sealed is None or not node.saved.round <= sealed.round < newest or sealed.round in decided:
        return node.saved.own
    mine = node.own_update(sealed.round)
    assert mine is not None
    node.replica.give_back(mine)
    return node.save_own()


def _walk(node: "Node", start: Start, previous: Digest, sources: Sources) -> list[Step]:
    """The agreed records from just after `start` to the one that `previous` names, oldest first."""
    steps: list[Step] = []
    link, below = previous, node.clock.round_at(node.head()) + 1
    while link != start.link:
        record, pairs = _record(node, link, sources)
        if not start.round <= record.round < below:
            raise OutOfSync(f"the chain of records does not lead back to {start.origin} (round {start.round})")
        steps.append(Step(record.round, link, pairs))
        link, below = record.previous, record.round
    return steps[::-1]


def _record(node: "Node", link: Digest, sources: Sources) -> tuple[Record, tuple[tuple[PeerId, Digest], ...]]:
    faults: list[str] = []
    for holder in sources.validators():
        opener = sources.bucket_of(holder)
        assert opener is not None
        try:
            data = opener().get(
                keys.statement(node.run.id, link), max_bytes=LINK_MAX_BYTES, timeout_seconds=FETCH_SECONDS
            )
            return parse_link(data, link)
        except (MurmurError, ConfigError) as fault:
            faults.append(str(fault))
    raise StorageError(f"the agreed record {link.hex()[:16]} is in no validator's bucket ({'; '.join(faults[:2])})")
