"""Checkpoints of the run's state in validators' buckets: what joiners start from (docs/protocol.md section 8).

A checkpoint is its files (training/checkpoint.py) as blobs, and a signed document of one round that names them. It is
anybody's claim until the theta that follows from it has been compared with the chain's (node/catchup.py).
"""

from collections.abc import Collection
from dataclasses import dataclass

from node.follower import Follower
from node.held import Held
from node.run import blob_fetcher
from protocol import keys
from protocol.errors import InvalidMessage, ObjectMissing
from protocol.messages import encode_document, parse_document
from protocol.ports import Bucket
from protocol.types import DIGEST_BYTES, Digest, PeerId
from storage.exchange import publish
from training import checkpoint
from training.shards import Fetch

DOCUMENT_MAX_BYTES = 1 << 16
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


def publish_checkpoint(follower: Follower, held: Held) -> None:
    """Put the state that we stand at into our bucket: its files as blobs, then the signed document that names them.
    What joiners no longer try is deleted: every checkpoint is as large as the model."""
    run, saved, bucket = follower.run, held.saved, follower.doors.bucket
    seconds = follower.transfer_seconds(1) + run.layout.num_parameters * 32e-6 / run.first.clock.upload_mbps
    files = checkpoint.blobs(held.store.files, saved.consensus)
    for digest, path in files:
        publish(bucket, keys.blob(digest), path, timeout_seconds=seconds, time=follower.time)
    names = [digest.hex() for digest, _ in files]
    body = {"link": saved.link.hex(), "state": saved.consensus.hex(), "files": names}
    document = encode_document("state", run.id, saved.round, body, follower.doors.signer)
    publish(bucket, keys.checkpoint(run.id, saved.round), document, timeout_seconds=seconds, time=follower.time)
    _forget_checkpoint(follower, saved.round - (CHECKPOINTS_TRIED + 1) * run.first.checkpoint_rounds, set(names))


def _forget_checkpoint(follower: Follower, round: int, kept: Collection[str]) -> None:
    """Delete our checkpoint of `round`, if there is one, but for theta_0, the files that are `kept` and those of the
    checkpoint after it: while all rounds are void the state stays."""
    if round <= 0 or not (files := _published_files(follower, round)):
        return
    after = _published_files(follower, round + follower.run.first.checkpoint_rounds)
    for name in files - after - {*kept, follower.run.first.genesis_checkpoint}:
        follower.doors.bucket.delete(keys.blob(Digest(bytes.fromhex(name))), timeout_seconds=FETCH_SECONDS)
    follower.doors.bucket.delete(keys.checkpoint(follower.run.id, round), timeout_seconds=FETCH_SECONDS)


def _published_files(follower: Follower, round: int) -> set[str]:
    """Digests (hex) of the files of our own published checkpoint of `round`; none when there is no such document."""
    key = keys.checkpoint(follower.run.id, round)
    try:
        raw = follower.doors.bucket.get(key, max_bytes=DOCUMENT_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
        body = parse_document(raw, "state", follower.run.id, round, follower.me, follower.doors.verify)
    except (ObjectMissing, InvalidMessage):
        return set()
    return set(body["files"])


def fetcher(follower: Follower, bucket: Bucket) -> Fetch:
    """A fetch hook for the files of a checkpoint in this bucket."""
    return blob_fetcher(bucket, follower.run.first.clock.download_mbps * 1e6 / 8 / 4)


def fetch_checkpoint(follower: Follower, bucket: Bucket, holder: PeerId, round: int) -> Start:
    """What a validator signed as the state at the start of `round`. The state itself is fetched only once its link has
    turned out to lie on the chain of records: it is as large as the model."""
    run = follower.run
    raw = bucket.get(keys.checkpoint(run.id, round), max_bytes=DOCUMENT_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
    body = parse_document(raw, "state", run.id, round, holder, follower.doors.verify)
    try:
        link, state = Digest(bytes.fromhex(body["link"])), Digest(bytes.fromhex(body["state"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidMessage("a checkpoint document without link or state") from None
    if len(link) != DIGEST_BYTES or len(state) != DIGEST_BYTES:
        raise InvalidMessage("a checkpoint document whose link or state is no digest")
    return Start(round, link, state, f"the checkpoint of round {round}", fetcher(follower, bucket))
