"""Playing a situation: until its cause is told, what each surface says of it, and until its end is over."""

import json
import os
import time
from pathlib import Path
from typing import Any

from murmur.node.telemetry.causes import CAUSES
from tests.stuck.stage import ROUND_SECONDS, Stage, names

TABLE = "STUCK_TABLE"
"""Environment variable: a file to which each row that was played is added, as a JSON line (tests/stuck/table.py)."""
SURFACES = {"log", "status", "doctor", "explain", "page", "metrics"}
TOLD_ROUNDS = 2.0
SLACK_SECONDS = 150.0
"""For a machine that does other work beside: how soon it was is in the table, which a test holds to two rounds."""
JUDGED = ("contributing", "NOT_ELIGIBLE", "LOW_SCORE", "NOT_SELECTED")
"""Outcomes of a miner whose work arrived in time."""


def until_told(
    stage: Stage, awaited: dict[str, str], marks: dict[str, int], rounds: float = TOLD_ROUNDS
) -> dict[str, float]:
    """Wait until each of these nodes has told its cause in its log, after `marks`; return the seconds."""
    began, found = time.monotonic(), dict[str, float]()

    def look() -> bool:
        for node, cause in awaited.items():
            if node not in found and CAUSES[cause].says in stage.log(node)[marks[node] :]:
                found[node] = round(time.monotonic() - began, 1)
        return len(found) == len(awaited)

    stage.wait_for(f"word of {awaited} but {found}", look, rounds * ROUND_SECONDS + SLACK_SECONDS)
    return found


def marks_of(stage: Stage) -> dict[str, int]:
    """Return where each node's log ends now."""
    return {node: len(stage.log(node)) for node in stage.nodes}


def surfaces_naming(stage: Stage, node: str, cause: str) -> set[str]:
    """Return the surfaces that name the cause, whose it is, what it costs and what to do."""
    of = CAUSES[cause]
    texts = stage.surfaces(node)
    told = set.intersection(*(names(texts.items(), words) for words in (of.says, of.do)))
    return told


def assert_told_everywhere(stage: Stage, node: str, cause: str, surfaces: set[str] = SURFACES) -> set[str]:
    told = surfaces_naming(stage, node, cause)
    if not surfaces <= told:
        texts = stage.surfaces(node)
        lacking = {name: texts[name][-3000:] for name in surfaces - told if name != "metrics"}
        raise AssertionError(f"{node}, {cause}: only {sorted(told)} say so, not {lacking}")
    return told


def until_back(stage: Stage, miners: list[str], since: float, rounds: float) -> dict[str, float]:
    """Wait until the work of each of these miners has arrived again in a round that began after `since`; return the
    seconds until its outcome was told."""
    began, found = time.monotonic(), dict[str, float]()

    def look() -> bool:
        for node in miners:
            if node in found:
                continue
            revealed = {event["round"] for event in stage.events(node, "revealed", since)}
            outcomes = stage.events(node, "round_outcome", since)
            if any(event["outcome"] in JUDGED and event["round"] in revealed for event in outcomes):
                found[node] = round(time.monotonic() - began, 1)
        return len(found) == len(miners)

    stage.wait_for(f"return of {miners} but {found}", look, rounds * ROUND_SECONDS + SLACK_SECONDS)
    return found


def record(name: str, cause: str, seconds: float | None, told: set[str], back: float | None = None) -> None:
    """Add a row to the table, if one is asked for."""
    path = os.environ.get(TABLE)
    if path is None:
        return
    row: dict[str, Any] = {"name": name, "cause": cause, "seconds": seconds, "told": sorted(told), "back": back}
    with Path(path).open("a") as file:
        file.write(json.dumps(row) + "\n")
