"""A member's first steps: read the run's spec and the data set from the shared bucket, and its own identity from its
home."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from murmur import files
from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.group_keys import Group, Token
from murmur.cluster.ledger import Ledger
from murmur.cluster.store_outage import KEY_REPLACED
from murmur.data.remote_files import BlobRange, File
from murmur.data.shards import Shards
from murmur.homes import expanded
from murmur.node.config.settings import ClusterConfig
from murmur.node.state.store import StateStore
from murmur.node.sync.amendments import fetch_blob
from murmur.node.sync.run_discovery import SPEC_MAX_BYTES
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, ClusterSpec, parse_cluster
from murmur.protocol.errors import AccessDenied, ConfigError, ObjectMissing, ObjectTooLarge, StorageError
from murmur.protocol.types import Digest, PeerId
from storage.realtime import REAL
from storage.resume import download_to
from storage.s3 import RangedBucket, SharedBucket, open_bucket

_MEMBER = "member"
OWN_GROUP = (
    "Ask for the token again (murmur cluster invite). If other members run with this same token, the object is "
    "damaged: delete it"
)
FILE_SECONDS = 24 * 3600.0
"""Time-out of one file of the data set; long, since a slow download is better than none."""


def data_folder(home: Path, index: Digest) -> Path:
    """Return the folder into which the data set is fetched."""
    folder = home / "data" / index.hex()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_shared(token: Token) -> SharedBucket:
    """Open the token's bucket. Raises ConfigError for an address that cannot be a bucket's."""
    return open_bucket(token.endpoint, token.bucket, token.access_key, token.secret_key, local=token.local)


def find_spec(bucket: RangedBucket, run: Digest) -> ClusterSpec:
    """Fetch the run's spec by its own digest. Raises ConfigError, also if the store does not know the token's key, and
    StorageError."""
    try:
        return parse_cluster(fetch_blob(bucket, run, SPEC_MAX_BYTES, CALL_SECONDS), run)
    except ObjectMissing:
        raise ConfigError(
            f"the bucket holds no run {run.hex()[:16]}: the token belongs to another bucket, or the run was deleted"
        ) from None
    except AccessDenied as fault:
        if fault.code is None:
            raise
        raise ConfigError(f"the store refuses the token's key ({fault}). {KEY_REPLACED}") from None


def require_group(bucket: RangedBucket, run: Digest, group: Group) -> None:
    """Raise ConfigError if this run is another group's: the two could not read each other's claims and records."""
    if not bucket.create(keys.group(run), group.mark, timeout_seconds=CALL_SECONDS):
        raise ConfigError(f"{another_group(run)}. {OWN_GROUP}")


def another_group(run: Digest) -> str:
    """Return what is wrong where `wrong_group` holds."""
    return f"the run in this bucket belongs to another group than this token ({keys.group(run)} says so)"


def wrong_group(bucket: RangedBucket, run: Digest, group: Group) -> bool:
    """Whether this run is another group's. Without a mark it may be ours: the next member to start puts it back. Writes
    nothing. Raises StorageError."""
    try:
        mark = bucket.get(keys.group(run), max_bytes=len(group.mark), timeout_seconds=CALL_SECONDS)
    except ObjectMissing:
        return False
    except ObjectTooLarge:
        return True
    return mark != group.mark


def open_ledger(token: Token) -> tuple[Ledger, ClusterSpec]:
    """Open the run that the token leads to, without being one of its members: its documents, and its first spec. Writes
    nothing. Raises ConfigError, StorageError."""
    bucket, run, group = open_shared(token), token.run_id, Group(token.secret)
    spec = find_spec(bucket, run)
    if wrong_group(bucket, run, group):
        raise ConfigError(f"{another_group(run)}. {OWN_GROUP}")
    return Ledger(bucket, run, group, GROUP, REAL), spec


def open_data(config: ClusterConfig, spec: ClusterSpec, bucket: RangedBucket, home: Path) -> Shards:
    """Open the run's data set: the configured folder, or a cache in the home that is filled from the bucket. Raises
    ConfigError, StorageError."""
    index = spec.data.index_digest
    shards = (
        Shards.open(expanded(config.data), index_digest=index)
        if config.data is not None
        else Shards.open(
            data_folder(home, index),
            index_digest=index,
            remote=SharedData(bucket),
            max_bytes=int(config.data_gigabytes * 1e9),
        )
    )
    shards.check(spec)
    return shards


def is_member(home: Path, run: Digest) -> bool:
    """Whether this home has been a member of the run: `doctor` draws a member id, but keeps no state."""
    return StateStore.exists(home, run)


def member_id(run: Digest, name: str) -> PeerId:
    """Return the id of the run's member of this name. A home that is lost comes back as the same member, and processes
    of one name have one place in the bucket, however often they start."""
    return PeerId(sha256(b"member" + run + name.encode()).digest())


def member_of(home: Path, run: Digest, name: str) -> PeerId:
    """Return our id in this run, which is kept in the home. Raises ConfigError if the home is another member's: what it
    has sealed would be sent as ours."""
    folder, member = home / run.hex()[:16], member_id(run, name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / _MEMBER
    if not path.exists():
        files.write(path, member.hex().encode())
    if path.read_bytes() != member.hex().encode():
        raise ConfigError(
            f"this home has taken part under another name than {name} ({path} says so, or is damaged): start it with "
            "the name that it had, or give this member another --home"
        )
    return member


class SharedData:
    """The data set's files in the cluster's bucket (murmur/data/remote_files.py, Remote)."""

    def __init__(self, bucket: RangedBucket) -> None:
        self._bucket = bucket

    def read(self, parts: Sequence[BlobRange]) -> list[bytes]:
        """See Remote."""
        return [self._part(part) for part in parts]

    def fetch(self, files: Sequence[File]) -> None:
        """See Remote."""
        for file in files:
            self._file(file)

    def _part(self, part: BlobRange) -> bytes:
        key = keys.blob(part.blob)
        facts = self._bucket.head(key, timeout_seconds=CALL_SECONDS)
        if facts is None:
            raise StorageError(f"the data set's file {part.blob.hex()[:16]} is not in the bucket")
        data = self._bucket.get_range(
            key, first=part.first, num_bytes=part.num_bytes, etag=facts.etag, timeout_seconds=FILE_SECONDS
        )
        if not part.accept(data):
            raise StorageError(f"the data set's file {part.blob.hex()[:16]} is damaged in the bucket")
        return data

    def _file(self, file: File) -> None:
        key = keys.blob(file.blob)
        facts = self._bucket.head(key, timeout_seconds=CALL_SECONDS)
        if facts is None or facts.size_bytes > file.num_bytes or (file.exact and facts.size_bytes != file.num_bytes):
            raise StorageError(
                f"the data set's file {file.blob.hex()[:16]} is missing in the bucket, or has another size"
            )
        coming = file.path.with_name(f"{file.path.name}.coming")
        download_to(self._bucket, key, coming, facts.size_bytes, timeout_seconds=FILE_SECONDS)
        digest = sha256()
        with coming.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
        if digest.digest() != file.blob:
            coming.unlink()
            raise StorageError(f"the data set's file {file.blob.hex()[:16]} is damaged in the bucket")
        os.replace(coming, file.path)
