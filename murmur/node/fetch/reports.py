"""Fetch validators' signed reports of rounds from their buckets. Reports are claims, which an audit checks. Each is
read once, several concurrently."""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any

from gauntlet.report import Report, parse_report
from murmur.node.config.ports import Ports
from murmur.node.fetch.sources import Sources
from murmur.protocol import keys
from murmur.protocol.errors import InvalidMessage, ObjectMissing
from murmur.protocol.messages import DOCUMENT_MAX_BYTES, parse_signed
from murmur.protocol.run import Run
from murmur.protocol.types import PeerId
from storage.collect import gather
from storage.deadline import deadline
from storage.exchange import Data, FetchFault, Wanted

FETCH_SECONDS = 30.0
LOOK_BACK_ROUNDS = 8
_THREADS = 8

Found = tuple[Report, dict[str, Any]]
"""A report and its body."""


class UnreadReason(StrEnum):
    """Why a validator's report cannot be read. MALFORMED: the object is no report of this round signed by the
    validator."""

    MISSING = "MISSING"
    MALFORMED = "MALFORMED"
    TOO_LARGE = "TOO_LARGE"
    REFUSED = "REFUSED"
    UNAVAILABLE = "UNAVAILABLE"


_CODES = {
    "missing": UnreadReason.MISSING,
    "mismatch": UnreadReason.MALFORMED,
    "wrong_size": UnreadReason.TOO_LARGE,
    "refused": UnreadReason.REFUSED,
    "unavailable": UnreadReason.UNAVAILABLE,
    "left_out": UnreadReason.UNAVAILABLE,
}
SILENT = {UnreadReason.REFUSED, UnreadReason.UNAVAILABLE}
"""Codes of a bucket that does not answer, or whose pointer leads nowhere: its other objects cannot be read either."""


class Reports:
    """The reports of one run, from the buckets of validators that `sources` gives."""

    def __init__(self, run: Run, ports: Ports, sources: Sources) -> None:
        self._run, self._ports, self._sources = run, ports, sources
        self._read: dict[tuple[PeerId, int], Found] = {}

    def read(self, validator: PeerId, round: int) -> Found:
        """Return one report. Raises ObjectMissing, StorageError, ConfigError for a bucket that cannot be opened,
        InvalidMessage for a malformed report."""
        known = self._read.get((validator, round))
        if known is not None:
            return known
        opener = self._sources.bucket_of(validator)
        if opener is None:
            raise ObjectMissing("it has published no bucket")
        key = keys.report(self._run.id, round)
        with deadline(FETCH_SECONDS):  # opening resolves the host name of another node
            bucket = opener()
        return self._parsed(
            validator, round, bucket.get(key, max_bytes=DOCUMENT_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
        )

    def of(self, round: int, validators: Collection[PeerId], seconds: float = FETCH_SECONDS) -> dict[PeerId, Report]:
        """Return the reports of one round that can be read within `seconds`, in the order of `validators`."""
        found = self.look(round, validators, seconds)
        return {one: report for one, report in found.items() if isinstance(report, Report)}

    def look(self, round: int, validators: Collection[PeerId], seconds: float) -> dict[PeerId, Report | UnreadReason]:
        """Return the same, and for each of the other validators why its report cannot be read."""
        unread = self._ask(round, validators, seconds)
        return {one: unread[one] if one in unread else self._read[one, round][0] for one in validators}

    def newest(self, round: int, validators: Collection[PeerId]) -> dict[PeerId, Report]:
        """Return each validator's newest report up to `round`, of the last LOOK_BACK_ROUNDS rounds, in the order of
        `validators`. A bucket that does not answer is not asked again."""
        found: dict[PeerId, Report] = {}
        lacking = list(validators)
        for number in range(round, max(-1, round - LOOK_BACK_ROUNDS), -1):
            unread = self._ask(number, lacking, FETCH_SECONDS)
            found |= {one: self._read[one, number][0] for one in lacking if one not in unread}
            lacking = [one for one in lacking if one in unread and unread[one] not in SILENT]
            if not lacking:
                break
        return {one: found[one] for one in validators if one in found}

    def _ask(self, round: int, validators: Collection[PeerId], seconds: float) -> dict[PeerId, UnreadReason]:
        """Read the reports of this round. Return, for each validator whose report cannot be read, why."""

        def accept(validator: PeerId) -> Callable[[Data], bool]:
            def check(data: Data) -> bool:
                try:
                    self._parsed(validator, round, bytes(data))
                except InvalidMessage:
                    return False
                return True

            return check

        key = keys.report(self._run.id, round)
        answers: Mapping[PeerId, Data | FetchFault] = gather(
            [
                Wanted(one, self._sources.own(one, key), DOCUMENT_MAX_BYTES, accept(one), exact=False)
                for one in validators
                if (one, round) not in self._read
            ],
            timeout_seconds=seconds,
            max_threads=_THREADS,
            time=self._ports.time,
        )
        return {one: _CODES[answer.kind] for one, answer in answers.items() if isinstance(answer, FetchFault)}

    def _parsed(self, validator: PeerId, round: int, data: bytes) -> Found:
        text = parse_signed(data, "report", self._run.id, round, validator, self._ports.verify)
        self._read[validator, round] = parse_report(text, round)
        return self._read[validator, round]
