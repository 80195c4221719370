"""Differences between two records or JSON values, in words: numbers only, never another node's text."""

from math import isclose
from typing import Any

from gauntlet.book import PeerRecord, ScoreBook, to_body
from murmur.protocol.types import PeerId

CLOSE = 1e-9
"""Tolerance, relative, and absolute near 0: libraries differ in the last bits of exp and log, on which ratings
depend."""


def body_of(record: PeerRecord | None) -> Any:
    """Return a record as plain JSON values."""
    if record is None:
        return None
    peer = PeerId(bytes(32))
    return to_body(ScoreBook(peers={peer: record}))["peers"][peer.hex()]


def same(theirs: Any, ours: Any) -> bool:
    """Whether JSON values of equal types are equal; floats up to their last bits."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return isclose(theirs, ours, rel_tol=CLOSE, abs_tol=CLOSE)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(theirs[name], value) for name, value in ours.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, theirs, ours))
    return type(theirs) is type(ours) and bool(theirs == ours)


def first_difference(theirs: Any, ours: Any) -> str:
    """Return the first field in which two tables differ, with both values, as the end of a sentence."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return ": there should be none" if ours is None else ": it is missing, or no table"
    if lacking := sorted(ours.keys() - theirs.keys()):
        return f": {lacking[0]} is missing"
    if theirs.keys() - ours.keys():
        return ": it has fields that it should not have"
    for name, value in ours.items():
        if not same(theirs[name], value):
            return f": {name} {_number(theirs[name])} stated, {_number(value)} follows"
    return ""


def _number(value: Any) -> str:
    """Return a JSON value for people; an average ([value, weight]) as its value."""
    if isinstance(value, list):
        return _number(value[0]) if value else "nothing"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.9g}" if isinstance(value, int | float) else "something else"
