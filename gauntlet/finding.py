"""What an audit finds (gauntlet/audit.py)."""

from dataclasses import dataclass
from enum import StrEnum

from murmur.protocol.types import PeerId


class Topic(StrEnum):
    """The part of the round that was checked, in the order of the round."""

    REPORT = "report"
    HOTKEYS = "hotkeys"
    CHECKS = "checks"
    RANKING = "ranking"
    VOTE = "vote"
    SAMPLE = "sample"
    SCORES = "scores"
    WORK = "work"
    BOOK = "book"
    WEIGHTS = "weights"


class Verdict(StrEnum):
    """DIFFERS: the validator's statement does not follow. OBSERVED: only the validator could see it, and nothing
    contradicts it. UNCHECKED: the needed data is not available (any more)."""

    DIFFERS = "differs"
    OBSERVED = "observed"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement that does not simply agree, in our own words."""

    topic: Topic
    verdict: Verdict
    text: str
    peer: PeerId | None = None
