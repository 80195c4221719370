"""Validators' signed reports of rounds, from their buckets: claims, which an audit checks. Each is read once, several
beside each other."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gauntlet.report import Report, parse_report
from node.adapters import Doors
from node.sources import Sources
from protocol import keys
from protocol.errors import InvalidMessage, MurmurError, ObjectMissing
from protocol.messages import DOCUMENT_MAX_BYTES, parse_document
from protocol.run import Run
from protocol.types import PeerId
from storage.transport import deadline

FETCH_SECONDS = 30.0
LOOK_BACK_ROUNDS = 8
_THREADS = 8

Found = tuple[Report, dict[str, Any]]
"""A report and its body."""


class Reports:
    """Those of one run, from wherever `sources` says that their validators' buckets are."""

    def __init__(self, run: Run, doors: Doors, sources: Sources) -> None:
        self._run, self._doors, self._sources = run, doors, sources
        self._read: dict[tuple[PeerId, int], Found] = {}
        self._lock = threading.Lock()

    def read(self, validator: PeerId, round: int) -> Found:
        """Raises ObjectMissing, StorageError, ConfigError for a bucket that cannot be followed, InvalidMessage for a
        report that is none."""
        known = self._read.get((validator, round))
        if known is not None:
            return known
        opener = self._sources.bucket_of(validator)
        if opener is None:
            raise ObjectMissing("it has published no bucket")
        key = keys.report(self._run.id, round)
        with deadline(FETCH_SECONDS):  # opening resolves a stranger's host name
            bucket = opener()
        data = bucket.get(key, max_bytes=DOCUMENT_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
        body = parse_document(data, "report", self._run.id, round, validator, self._doors.verify)
        found = parse_report(body, round), body
        with self._lock:
            self._read[validator, round] = found
        return found

    def newest(self, validator: PeerId, round: int) -> Report | None:
        """The validator's newest readable report up to `round`, of the last rounds."""
        for number in range(round, max(-1, round - LOOK_BACK_ROUNDS), -1):
            try:
                return self.read(validator, number)[0]
            except (ObjectMissing, InvalidMessage):
                continue
            except MurmurError:
                return None  # a bucket that does not answer is not asked again
        return None

    def newest_of(self, wanted: Iterable[tuple[PeerId, int]]) -> Mapping[tuple[PeerId, int], Report]:
        """`newest` of each validator up to each round, of those that have one."""
        pairs = list(dict.fromkeys(wanted))
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda pair: self.newest(*pair), pairs)
            return {pair: report for pair, report in zip(pairs, found, strict=True) if report is not None}
