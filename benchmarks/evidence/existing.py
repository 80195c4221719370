"""Results that are in benchmarks/results/ already, which the report shows and does not make again."""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.evidence.rows import ROOT

RESULTS = ROOT / "benchmarks/results"
ARENA = RESULTS / "arena_2vcpu_2026-11-30.md"
PAY = RESULTS / "pay-verified_2vcpu_2026-11-30.jsonl"
LINKS = RESULTS / "links_2vcpu_2026-11-27.jsonl"


def cells(path: Path, heading: str) -> list[list[str]]:
    """The rows of the table of a document whose head begins with this cell."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"| {heading} |".replace("  ", " ")))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def numbers(cell: str) -> list[float]:
    """ "0.11, 0.07" as numbers; "never" and the like are none."""
    return [float(value) for value in re.findall(r"-?\d+(?:\.\d+)?", cell)]


def arena() -> list[dict[str, Any]]:
    """Every attack of the arena's table: its class, rounds until it was out, pay and work, for each seed."""
    found = []
    for attack, kind, out, pay, work, progress, within in cells(ARENA, "attack"):
        seeds = [part.split(" / ")[0] for part in out.split(", ")]
        found.append(
            {
                "attack": attack,
                "class": kind,
                "out": [float("inf") if seed == "never" else float(seed) for seed in seeds],
                "pay": numbers(pay),
                "work": numbers(work),
                "progress": numbers(progress),
                "within": within,
            }
        )
    return found


def wrongly_excluded() -> list[float]:
    """Per cent of honest peers' rounds in which they were thrown out, as the arena's document says it."""
    text = re.sub(r"\s+", " ", ARENA.read_text(encoding="utf-8"))
    said = re.search(r"wrongly excluded in (.*?)\.(?: |$)(?!\d)", text)
    return [float(value) for value in re.findall(r"\d\.\d", said[1])] if said else []


def paid() -> dict[str, list[tuple[float, float]]]:
    """(work, pay) of every kind of worker over a full worker's, for each seed: summed over a run."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in PAY.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        pay = {name: sum(turn.get(name, {}).get("pay", 0.0) for turn in row["by_round"]) for name in row["workers"]}
        full = [pay[name] for name, worker in row["workers"].items() if worker["kind"] == "full"]
        usual = sum(full) / len(full)
        for name, worker in row["workers"].items():
            if worker["kind"] != "full" and usual:
                found.setdefault(worker["kind"], []).append((worker["work"], pay[name] / usual))
    return found


def links(tree: str) -> list[dict[str, Any]]:
    """Runs of benchmarks/bench_links.py, a network whose bytes and compute have the 72B round's ratio. tree: "this", or
    "before" for the release that waited for every decision."""
    rows = [json.loads(line) for line in LINKS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["tree"] == tree]
