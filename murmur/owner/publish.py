"""Publication of a run: its objects into the owner's bucket, then one digest into the owner's slot on chain.

Objects are stored under their own digests, so existing ones stay, and an interrupted publication resumes where it was.
The slot is written last: whatever it names can already be read.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from hashlib import sha256
from pathlib import Path
from threading import Lock

from murmur.data.index import INDEX
from murmur.data.shards import Shards
from murmur.node.config.ports import Ports
from murmur.node.sync.amendments import owner_slot
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, ConfigError, ObjectMissing, StorageError
from murmur.protocol.messages import encode_slot
from murmur.protocol.ports import Bucket
from murmur.protocol.types import Digest, Slot
from murmur.training import checkpoint
from storage.transport import TRAFFIC

BESIDE = 4
"""Concurrent objects; a large one has several parts in flight by itself."""
TRIES = 6
FIRST_PAUSE_SECONDS = 1.0
LEAST_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 125_000.0
"""An object may take as long as at 1 Mb/s."""
TELL_SECONDS = 0.5
"""Interval of progress reports."""
FINAL_SECONDS = 300.0
"""Time-out for an existing block to become final."""

Tell = Callable[[int, int], None]
"""tell(bytes uploaded, bytes in all)."""
Blob = tuple[Digest, Path]


def theta_blobs(folder: Path, digest: Digest) -> list[Blob]:
    """Return all files of theta_0's checkpoint, its manifest last. Raises CheckpointCorrupt."""
    return list(checkpoint.blobs(folder, digest))


def data_blobs(folder: Path, data: Shards, *, whole: bool) -> list[Blob]:
    """Return the tokenizer's files and the index, and before them, when `whole`, all shards with their lists of leaves:
    a node that publishes the index is asked for the rest."""
    index = data.index
    shards: list[Blob] = []
    if whole:
        for entry in (*index.train, *index.held_out):
            shards += [(entry.leaves_digest, folder / entry.leaves_file), (entry.digest, folder / entry.file)]
    named = [(digest, folder / name) for name, digest in index.tokenizer_files.items()]
    return [*shards, *named, (data.digest, folder / INDEX)]


def upload(bucket: Bucket, blobs: Sequence[Blob], tell: Tell = lambda done, total: None) -> None:
    """Upload missing blobs, the last one after all others. Raises StorageError when the store keeps rejecting one, and
    ConfigError when it may not be written."""
    sizes = [path.stat().st_size for _, path in blobs]
    way = _Way(sum(sizes))

    def put(blob: Blob, size: int) -> None:
        _insist(lambda: _put(bucket, blob, size, way))

    with ThreadPoolExecutor(BESIDE) as pool:
        for pairs in (zip(blobs[:-1], sizes[:-1], strict=True), zip(blobs[-1:], sizes[-1:], strict=True)):
            open_ones: set[Future[None]] = {pool.submit(put, *pair) for pair in pairs}
            while open_ones:
                ended, open_ones = wait(open_ones, TELL_SECONDS)
                tell(way.done, way.total)
                for future in ended:
                    future.result()


class _Way:
    """The progress of an upload, also within an object, by the bytes that this process has sent. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = Lock()
        self._up = 0
        """Bytes of finished objects."""
        self._travelling: dict[Digest, int] = {}
        self._sent = 0
        """Bytes that this process had sent before any of the objects in flight."""

    @property
    def done(self) -> int:
        with self._lock:
            return self._up + min(TRAFFIC.moved()[0] - self._sent, sum(self._travelling.values()))

    def begin(self, digest: Digest, size: int) -> None:
        with self._lock:
            if not self._travelling:
                self._sent = TRAFFIC.moved()[0]
            self._travelling[digest] = size

    def end(self, digest: Digest, size: int, *, sent: bool = True) -> None:
        """Mark an object as finished; without `sent`, it is to be sent again."""
        with self._lock:
            if self._travelling.pop(digest, 0):
                self._sent = min(self._sent + size, TRAFFIC.moved()[0])
            self._up += size * sent


def _put(bucket: Bucket, blob: Blob, size: int, way: _Way) -> None:
    digest, path = blob
    key = keys.blob(digest)
    there = bucket.head(key, timeout_seconds=LEAST_SECONDS)
    if there is None or there.size_bytes != size:
        way.begin(digest, size)
        try:
            bucket.put(key, path, timeout_seconds=LEAST_SECONDS + size / SLOWEST_BYTES_PER_SECOND)
        except BaseException:
            way.end(digest, size, sent=False)
            raise
    way.end(digest, size)


def _insist(work: Callable[[], None]) -> None:
    """Run `work`, retried a few times with growing pauses."""
    for tried in range(TRIES):
        try:
            return work()
        except (AccessDenied, ObjectMissing) as fault:
            raise ConfigError(f"cannot upload to the bucket: {fault}. Check its name and keys") from None
        except StorageError:
            if tried == TRIES - 1:
                raise
            time.sleep(FIRST_PAUSE_SECONDS * 2**tried)


def own_slot(ports: Ports) -> Slot | None:
    """Return the owner's slot as of the final head. Raises ConfigError for a hotkey that is not registered."""
    peers = ports.chain.peers(ports.chain.finalized().block)
    if all(peer.id != ports.signer.peer for peer in peers):
        raise ConfigError(
            "the owner's hotkey is not registered on this subnet, so it has no slot to name a run in: btcli subnet "
            "register, or name another wallet or netuid"
        )
    return owner_slot(ports.signer.peer, peers)


def announce(ports: Ports, document: bytes, require: Callable[[], None] = lambda: None) -> int:
    """Upload a spec or an amendment and name it in the owner's slot; return the block that has it.

    The rest of the slot stays: the owner may be a miner or a validator too. `require` is called in between, since a
    bucket may take minutes. Raises the errors of `require` and of the ports.
    """
    digest = put(ports, document)
    require()
    return name(ports, digest)


def put(ports: Ports, document: bytes) -> Digest:
    """Upload a spec or an amendment; return its digest. Raises StorageError and ConfigError, as `upload`."""
    digest = Digest(sha256(document).digest())
    _insist(lambda: ports.bucket.put(keys.blob(digest), document, timeout_seconds=LEAST_SECONDS))
    return digest


def name(ports: Ports, digest: Digest) -> int:
    """Name an uploaded document in the owner's slot; return the block that has it."""
    slot = own_slot(ports)
    return ports.chain.publish(encode_slot(ports.pointer, slot.statement if slot else None, digest))


def await_named(ports: Ports, digest: Digest, block: int) -> None:
    """Wait until `block` is final, and raise ConfigError unless the owner's slot names the document then."""
    ports.chain.wait(block, FINAL_SECONDS)
    slot = own_slot(ports)
    if slot is None or slot.amendment != digest:
        raise ConfigError(
            f"the owner's slot does not name the post of block {block}: another program with this hotkey has "
            "overwritten it, or a fork has dropped it. Run the same command again"
        )


def blobs_of(*parts: Iterable[Blob]) -> list[Blob]:
    """Return each object once, in order."""
    return list({digest: (digest, path) for part in parts for digest, path in part}.values())
