"""Verification of a published run from a stranger's side: with the owner's address alone, through the slot on chain and
the published key. A node that can read all of this can join."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from murmur.data.index import INDEX, ShardEntry, leaves_bytes
from murmur.data.shards import Shards, Split
from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig
from murmur.node.fetch.sources import Sources
from murmur.node.observe import reader
from murmur.node.sync.dataset import RemoteShards, open_data
from murmur.owner.publish import SLOWEST_BYTES_PER_SECOND
from murmur.protocol import keys
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, StorageError
from murmur.protocol.run import Run
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from storage.s3 import RangedBucket

READ_SECONDS = 120.0
TOKENIZER_MAX_BYTES = 256 << 20
BESIDE = 16
"""Concurrent requests: a large data set has tens of thousands of objects."""

Tell = Callable[[int, int], None]
"""tell(bytes read, bytes in all)."""


def read_back(config: NetworkConfig, expected: Digest, home: Path, tell: Tell, *, with_data: bool) -> Iterator[str]:
    """Yield one line for each verified thing: the spec by the owner's slot, theta_0 byte for byte, and of the data its
    index, the size of every file, and pages from both ends of both splits.

    home: an empty folder. with_data: whether the shards were uploaded; without, only the index is checked. Raises
    ConfigError for faults that would stop a joiner, StorageError, ChainError.
    """
    ports, run = reader.open_run(config, home)
    if run.id != expected:
        raise ConfigError(
            f"the owner's slot leads to run {run.id.hex()[:16]}, but {expected.hex()[:16]} was published: "
            "another program with this hotkey has overwritten the slot. Run the same command again"
        )
    yield f"spec: the owner's slot leads to run {run.first.name} ({run.id.hex()[:16]})"
    bucket = _bucket(run, ports)
    num_bytes = _theta(run, bucket, home, tell)
    yield f"theta_0: {num_bytes:,} bytes, all correct"
    copies = RemoteShards(run, ports, home / INDEX)
    shards = (
        open_data(config, run, ports, home)
        if with_data
        else Shards.open(home / "index", index_digest=run.first.data.index_digest, remote=copies)
    )
    shards.check(run.first)
    for name, digest in shards.index.tokenizer_files.items():
        _whole(bucket, digest, name, TOKENIZER_MAX_BYTES)
    if not with_data:
        yield "data: the index; shards were not uploaded, so every node needs --data"
        return
    _sizes(shards, bucket)
    for split in (shards.train, shards.held_out):
        _ends(split, run.first.model.context)
    entries = len(shards.index.train) + len(shards.index.held_out)
    yield f"data: the index, {entries} shards of the right size, pages at both ends of both splits verified"


def _bucket(run: Run, ports: Ports) -> RangedBucket:
    peers = ports.chain.peers(ports.chain.finalized().block)
    opener = Sources(peers, ports.open_pointer).bucket_of(run.first.owner_id)
    if opener is None:
        raise ConfigError("the owner's slot names no bucket: publish the run again")
    return opener()


def _theta(run: Run, bucket: RangedBucket, home: Path, tell: Tell) -> int:
    """Verify every file of theta_0 while reading it; return the number of bytes."""
    spec, folder = run.first, home / "theta_0"
    digest = spec.genesis_digest
    folder.mkdir()
    checkpoint.manifest_path(folder, digest).write_bytes(
        _whole(bucket, digest, "theta_0's manifest", checkpoint.MAX_MANIFEST_BYTES)
    )
    try:
        files = [found for found, _ in checkpoint.blobs(folder, digest)][:-1]
    except CheckpointCorrupt as fault:
        raise ConfigError(f"theta_0 cannot be used: {fault}") from None
    total, done = 4 * spec.layout.num_parameters, 0
    for found in files:
        done += _hashed(bucket, found, done, total, tell)
    return done


def _hashed(bucket: RangedBucket, digest: Digest, before: int, total: int, tell: Tell) -> int:
    """Verify a large object against its digest while reading it; return its size. `before`: bytes of other objects
    already counted in `total`."""
    key, state, have = keys.blob(digest), sha256(), 0

    def take(block: bytes) -> None:
        nonlocal have
        state.update(block)
        have += len(block)
        tell(before + have, total)

    facts = bucket.head(key, timeout_seconds=READ_SECONDS)
    if facts is None:
        raise ConfigError(f"a file of theta_0 is not in the bucket ({digest.hex()[:16]}): publish the run again")
    seconds = READ_SECONDS + facts.size_bytes / SLOWEST_BYTES_PER_SECOND
    bucket.stream(key, take, first=0, num_bytes=facts.size_bytes, etag=facts.etag, timeout_seconds=seconds)
    if state.digest() != digest:
        raise ConfigError(
            f"a file of theta_0 in the bucket does not match its name ({digest.hex()[:16]}): delete that "
            f"object ({key}) and publish the run again"
        )
    return have


def _whole(bucket: RangedBucket, digest: Digest, what: str, max_bytes: int) -> bytes:
    """Return a small object, verified by its digest."""
    data = bucket.get(keys.blob(digest), max_bytes=max_bytes, timeout_seconds=READ_SECONDS)
    if sha256(data).digest() != digest:
        raise ConfigError(f"{what} in the bucket does not match its name: delete {keys.blob(digest)} and publish again")
    return data


def _sizes(shards: Shards, bucket: RangedBucket) -> None:
    index = shards.index

    def look(entry: ShardEntry) -> None:
        size = index.file_bytes(entry)
        for digest, num_bytes in ((entry.digest, size), (entry.leaves_digest, leaves_bytes(size))):
            facts = bucket.head(keys.blob(digest), timeout_seconds=READ_SECONDS)
            if facts is None or facts.size_bytes != num_bytes:
                raise ConfigError(f"{keys.blob(digest)}, of {entry.file}, is not complete: publish the run again")

    with ThreadPoolExecutor(BESIDE) as pool:
        for _ in pool.map(look, (*index.train, *index.held_out)):
            pass


def _ends(split: Split, num_tokens: int) -> None:
    count = min(num_tokens, split.num_tokens)
    try:
        split.read([(0, count), (split.num_tokens - count, count)])
    except StorageError as fault:
        raise StorageError(f"a page cannot be read from the bucket as a validator would: {fault}") from None
