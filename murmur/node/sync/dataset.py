"""The run's data set: opened from the operator's folder, or fetched from other nodes' buckets as needed.

The run's owner has all of it; validators may keep copies, under the same names. The index that the run spec names
(murmur/data/index.py) verifies all bytes. So the fastest sources are asked, several concurrently.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from loguru import logger

from murmur.data.index import INDEX
from murmur.data.remote_files import BlobRange, File
from murmur.data.shards import Shards
from murmur.homes import expanded
from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig
from murmur.node.fetch.sources import sources_as_of
from murmur.node.fetch.threads import FETCH_THREADS, PART_THREADS
from murmur.node.sync.amendments import owner_slot
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, PeerId, hotkey
from storage.collect import gather
from storage.exchange import Data, FetchFault, Source, Wanted, cached
from storage.resume import keep
from storage.s3 import RangedBucket

FETCH_SECONDS = 60.0
LOOK_SECONDS = 10.0
_SHOWN_BYTES = 256
"""Bytes of the index that a validator has to show before it is asked for shards."""
_COMING = "coming"
DATA = "data"
"""Folder below the state folder for fetched data sets."""


def open_data(config: NetworkConfig, run: Run, ports: Ports, home: Path) -> Shards:
    """Open the run's shards: the configured folder, or `home`/data, filled from others' buckets as pages are needed.

    Raises ConfigError, StorageError if no source has the index, ChainError.
    """
    spec = run.first
    index = spec.data.index_digest
    if config.data is not None:
        shards = Shards.open(expanded(config.data), index_digest=index)
    else:
        folder = home / DATA / spec.data.index[:16]
        slot = owner_slot(spec.owner_id, ports.chain.peers(ports.chain.finalized().block))
        if (slot is None or slot.pointer is None) and not (folder / INDEX).exists():
            raise ConfigError(
                f"the run's owner {hotkey(spec.owner_id)} has published no bucket on this subnet: check --owner and "
                "--netuid, or use --spec and --data"
            )
        max_bytes = int(config.data_gigabytes * 1e9)
        remote = RemoteShards(run, ports, folder / INDEX)
        shards = Shards.open(folder, index_digest=index, remote=remote, max_bytes=max_bytes)
        needed = shards.train.most_bytes(spec.pages_per_round, spec.page_tokens)
        if needed > max_bytes:
            raise ConfigError(
                f"data_gigabytes is {config.data_gigabytes:g}, but one round's pages may lie in "
                f"{needed / 1e9:.1f} GB of shards: set --data_gigabytes to at least that"
            )
    shards.check(spec)
    return shards


@dataclass(frozen=True, slots=True)
class _Holder:
    peer: PeerId
    open: Callable[[], RangedBucket]


class RemoteShards:
    """All nodes' copies of the data set (murmur/data/remote_files.py, Remote). Sources that fail are asked after the
    others. Thread-safe."""

    def __init__(self, run: Run, ports: Ports, index: Path) -> None:
        """index: the path of the stored index, which may not exist yet."""
        self._run, self._ports, self._index = run, ports, index
        self._slowest = run.first.clock.download_mbps * 1e6 / 8 / 4
        """Bytes per second: a quarter of the planned link's."""
        self._holders: tuple[_Holder, ...] = ()
        self._faults: Counter[PeerId] = Counter()

    def read(self, parts: Sequence[BlobRange]) -> list[bytes]:
        """See Remote."""
        holders = self._in_order()
        names = [_name(part.blob, part.first, part.num_bytes) for part in parts]
        wanted = {
            name: self._wanted(
                holders(number), name, part.blob, part.blob_bytes, part.accept, part=(part.first, part.num_bytes)
            )
            for number, (name, part) in enumerate(zip(names, parts, strict=True))
        }
        found = self._gather(list(wanted.values()), sum(part.num_bytes for part in parts), PART_THREADS)
        return [bytes(found[name]) for name in names]

    def fetch(self, files: Sequence[File]) -> None:
        """See Remote. A download that was interrupted resumes."""
        for folder in sorted({file.path.parent for file in files}):
            self._fetch(folder, [file for file in files if file.path.parent == folder])

    def _fetch(self, folder: Path, files: Sequence[File]) -> None:
        coming = folder / _COMING
        coming.mkdir(exist_ok=True)
        names = {cached(coming, PeerId(file.blob), keys.blob(file.blob)).name for file in files}
        for left in coming.iterdir():  # left by a killed process; wanted files resume
            if left.name.split(".")[0] not in names:
                left.unlink()
        holders = self._in_order()
        wanted = [
            self._wanted(
                holders(number), PeerId(file.blob), file.blob, file.num_bytes, _hashes_to(file.blob), exact=file.exact
            )
            for number, file in enumerate(files)
        ]
        found = self._gather(wanted, sum(file.num_bytes for file in files), FETCH_THREADS, coming)
        for file in files:
            place = cached(coming, PeerId(file.blob), keys.blob(file.blob))
            if not place.exists():  # it did not come through the disk
                keep(place, bytes(found[PeerId(file.blob)]))
            os.replace(place, file.path)
        rmtree(coming, ignore_errors=True)

    def _wanted(
        self,
        holders: Sequence[_Holder],
        name: PeerId,
        blob: Digest,
        num_bytes: int,
        accept: Callable[[Data], bool],
        *,
        exact: bool = True,
        part: tuple[int, int] | None = None,
    ) -> Wanted:
        """Return a request for one object. A collection fetches one object of every peer; here the object's own name
        replaces the peer."""

        def failed(index: int, fault: FetchFault) -> None:
            holder = holders[index].peer
            self._faults[holder] += 1
            logger.warning(
                "the data set: {holder} did not give {blob}: {reason} ({detail}); asking others first from now on",
                holder=hotkey(holder),
                blob=blob.hex()[:16],
                reason=fault.kind,
                detail=fault.detail,
            )

        sources = tuple(Source(holder.open, keys.blob(blob)) for holder in holders)
        return Wanted(name, sources, num_bytes, accept, exact, part, failed=failed)

    def _gather(
        self, wanted: Sequence[Wanted], num_bytes: int, threads: int, cache: Path | None = None
    ) -> dict[PeerId, Data]:
        """Fetch all of it, or raise StorageError."""
        seconds = FETCH_SECONDS + num_bytes / self._slowest
        outcome = gather(wanted, timeout_seconds=seconds, max_threads=threads, cache=cache, time=self._ports.time)
        found = {name: data for name, data in outcome.items() if not isinstance(data, FetchFault)}
        faults = [fault.detail for fault in outcome.values() if isinstance(fault, FetchFault)]
        if faults:
            self._holders = ()  # others may have it by the next time
            raise StorageError(
                f"{len(faults)} of {len(wanted)} pieces of the run's data set could not be fetched ({faults[0]})"
            )
        return found

    # --- holders -----------------------------------------------------------------------------------------------

    def _in_order(self) -> Callable[[int], Sequence[_Holder]]:
        """Return the order of holders for the i-th of several objects: those with the fewest failures first, each of
        them first for an equal number of objects."""
        if not self._holders:
            self._holders = self._look()
        order = sorted(self._holders, key=lambda holder: self._faults[holder.peer])
        best = [holder for holder in order if self._faults[holder.peer] == self._faults[order[0].peer]]

        def turned(number: int) -> Sequence[_Holder]:
            at = number % max(1, len(best))
            return *best[at:], *best[:at], *order[len(best) :]

        return turned

    def _look(self) -> tuple[_Holder, ...]:
        """Return the owner, and the validators that show the run's index; all validators while we have no index
        ourselves."""
        chain, run = self._ports.chain, self._run
        block = chain.finalized().block
        peers = chain.peers(block)
        sources = sources_as_of(run, block, peers, self._ports.open_pointer)
        owner = run.first.owner_id
        others = [peer for peer in sources.validators() if peer not in (owner, self._ports.signer.peer)]
        if self._index.exists():
            others = self._showing(others, sources.bucket_of)
        return tuple(
            _Holder(peer, opener) for peer in (owner, *others) if (opener := sources.bucket_of(peer)) is not None
        )

    def _showing(
        self, peers: Sequence[PeerId], bucket_of: Callable[[PeerId], Callable[[], RangedBucket] | None]
    ) -> list[PeerId]:
        """Return the peers whose bucket has the index, by its size and its first bytes. That proves nothing, but spares
        asking validators that keep no copy."""
        size = self._index.stat().st_size
        with self._index.open("rb") as file:
            begin = file.read(_SHOWN_BYTES)
        key = keys.blob(self._run.first.data.index_digest)
        wanted = [
            Wanted(peer, (Source(opener, key),), size, lambda data: data == begin, part=(0, len(begin)))
            for peer in peers
            if (opener := bucket_of(peer)) is not None
        ]
        shown = gather(wanted, timeout_seconds=LOOK_SECONDS, max_threads=FETCH_THREADS, time=self._ports.time)
        return [peer for peer in peers if not isinstance(shown.get(peer, _NONE), FetchFault)]


_NONE = FetchFault("missing", "no bucket")


def _name(blob: Digest, first: int, num_bytes: int) -> PeerId:
    return PeerId(sha256(blob + first.to_bytes(8, "little") + num_bytes.to_bytes(8, "little")).digest())


def _hashes_to(blob: Digest) -> Callable[[Data], bool]:
    return lambda data: sha256(data).digest() == blob
