"""The plan, the driver, the corpus and the report of the evidence: the report says what the rows say."""

import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from math import log2
from pathlib import Path

import pytest

from benchmarks.evidence import corpus, drive, report, rows
from benchmarks.evidence.plan import (
    FULL,
    OUTER,
    QUICK,
    TRIALS,
    Command,
    Line,
    Plan,
    Rate,
    Scale,
    next_trial,
    runs_of,
    trials,
)
from benchmarks.evidence.settings import Setting, payload_bytes
from benchmarks.evidence.view import verdict

ROOT = Path(__file__).parents[2]


# --- plan ----------------------------------------------------------------------------------------------------


def valley(method: str, best: Rate) -> dict[Rate, float]:
    """All trials of a method whose losses grow with the distance from its best rate."""
    done: dict[Rate, float] = {}
    while (rate := next_trial(method, "adamw", done)) is not None:
        assert rate not in done
        done[rate] = abs(log2(rate[0] / best[0])) + abs(rate[1] - best[1])
    return done


@pytest.mark.parametrize("method", ["ddp", "diloco", "sparseloco"])
@pytest.mark.parametrize("peak", [1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2])
def test_every_method_has_equally_many_trials_and_finds_its_valley(method: str, peak: float) -> None:
    outer = OUTER[method][-1]
    done = valley(method, (peak, outer))
    assert len(done) == TRIALS
    found = min(done, key=lambda rate: done[rate])
    assert abs(log2(found[0] / peak)) < 0.6
    if peak > 1.5e-3:
        assert found[1] == outer


def is_trial(line: Line | Command) -> bool:
    return line.claim == 0 or line.panel == "trials"


def answered(plan: Plan) -> dict[str, rows.Row]:
    """Rows of the trials that a plan asks for next."""
    asked = [run for line in plan.lines() if is_trial(line) for run in runs_of(line) if run.id not in plan.rows]
    points = [{"loss": 3.0}]
    return {run.id: {"id": run.id, "settings": run.key(), "points": points, "seconds": 1} for run in asked}


@pytest.mark.parametrize(
    ("method", "outer"), [("diloco", 0.25), ("diloco", 0.4), ("diloco", 0.7), ("sparseloco", 0.7), ("sparseloco", 1.4)]
)
def test_the_best_outer_rate_stands_between_two_others(method: str, outer: float) -> None:
    done = valley(method, (6e-3, outer))
    found = min(done, key=lambda rate: done[rate])[1]
    tried = [rate[1] for rate in done]
    assert min(tried) < found < max(tried)
    assert abs(log2(found / outer)) < 0.5


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_a_plan_tunes_first_and_then_uses_what_won(scale: Scale) -> None:
    known: dict[str, rows.Row] = {}
    while more := answered(Plan(scale, "c", known)):
        known |= more
    trials = [row["settings"] for row in known.values()]
    assert {run["part"] for run in trials} == {"validation"}
    counts = Counter((run["method"], run["optimizer"], run.get("state")) for run in trials)
    assert set(counts.values()) == {TRIALS}
    plan = Plan(scale, "c", known)
    finals = [run for line in plan.lines() if not is_trial(line) for run in runs_of(line) if isinstance(run, Setting)]
    assert {run.part for run in finals} == {"held_out"}
    assert not {run.seed for run in finals} & {run["seed"] for run in trials}
    for line in plan.lines():
        if isinstance(line, Line) and line.panel == "main" and line.claim == 1:
            assert {(run.peak_lr, run.outer_lr) for run in line.runs} == {plan.rate(line.runs[0].method)}
    assert {line.claim for line in plan.lines()} >= {0, 1, 2, 3, 5, 6, 8, 9, 10}
    assert all(isinstance(line, Command) for line in plan.lines() if line.claim in (8, 9))


def test_nothing_is_judged_on_held_out_text_before_its_rates_are_known() -> None:
    runs = [run for line in Plan(FULL, "c", {}).lines() for run in runs_of(line) if isinstance(run, Setting)]
    assert runs
    assert {run.part for run in runs} == {"validation"}


def test_one_claim_alone_has_its_lines_the_trials_and_sparseloco_as_built() -> None:
    known: dict[str, rows.Row] = {}
    while found := answered(Plan(FULL, "0" * 16, known)):
        known |= found
    assert trials(known.values()) == list(known.values())
    whole = Plan(FULL, "0" * 16, known).lines()
    alone = Plan(replace(FULL, claims=(2,)), "0" * 16, known).lines()
    assert [line for line in alone if line.claim == 2] == [line for line in whole if line.claim == 2]
    assert [line.label for line in alone if line.claim not in (0, 2)] == ["SparseLoCo"]


def test_a_drive_makes_what_lacks_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: which runs are asked for, in which order, and that a second drive asks for none."""
    made: list[str] = []

    class Here:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, _: object, work: Setting | Command, device: str) -> "Future[rows.Row]":
            made.append(work.id)
            done: Future[rows.Row] = Future()
            points = [{"round": 1, "tokens": 1, "sent": 1, "loss": 2.0}]
            done.set_result({"id": work.id, "settings": work.key(), "points": points, "seconds": 1.0})
            return done

    monkeypatch.setattr(drive, "ProcessPoolExecutor", Here)
    path = tmp_path / "rows.jsonl"
    wanted = {"corpus": "c", "processes": 2, "seconds": 60.0, "say": lambda line: None}
    drive.drive(QUICK, path, drive.Place(True), **wanted)
    assert len(made) == len(set(made)) == len(rows.read([path]))
    assert len(made) > 40
    once, last = len(made), rows.read([path])[-1]["id"]
    path.write_bytes(path.read_bytes()[:-5])
    drive.drive(QUICK, path, drive.Place(True), **wanted)
    assert made[once:] == [last]


# --- report --------------------------------------------------------------------------------------------------

LOSSES = {"ddp": 2.0, "diloco": 2.1, "diloco-int8": 2.1, "sparseloco": 2.2}


def invented(scale: Scale, path: Path) -> None:
    """Rows of all runs of a plan, with losses that follow from the method and its switches."""
    known: dict[str, rows.Row] = {}
    with rows.writing(path) as writer:
        while lacking := {
            w.id: w for line in Plan(scale, "c", known).lines() for w in runs_of(line) if w.id not in known
        }:
            for work in lacking.values():
                row: rows.Row = {"id": work.id, "settings": work.key(), "seconds": 1.0, "commit": "c", "machine": "m"}
                if isinstance(work, Setting):
                    loss = LOSSES[work.method] * (1.1 if not work.feedback else 1.0) + 0.001 * (work.seed % 7)
                    size = payload_bytes(work)
                    row["points"] = [
                        {"round": n, "tokens": n, "sent": n * size, "loss": loss + 3 / (n + 1)} for n in range(3)
                    ]
                    row["points"].append({"round": 3, "tokens": 3, "sent": 3 * size, "loss": loss})
                else:
                    row["result"] = {"failed": "invented"}
                writer.append(row)
                known[work.id] = row


def test_the_report_says_what_the_rows_say(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    invented(FULL, path)
    text = report.write(FULL, path, tmp_path).read_text()
    assert "DDP 2.002 (2.000 to 2.004, 5 seeds)" in text
    assert "equal tokens: Against DDP it is worse, +10.0 % (+10.0 to +10.0, 5 seeds), with" in text
    assert "Without error feedback: loss +10.0 %" in text
    assert (
        "Kept values not quantised: loss +0.0 % (+0.0 to +0.0, 3 seeds) over SparseLoCo as built, no different" in text
    )
    pictures = set(re.findall(r"\(evidence/([^)]*)\)", text))
    assert pictures == {picture.name for picture in (tmp_path / "evidence").glob("*.svg")}
    assert {"claim_1.svg", "claim_4.svg", "claim_6.svg", "claim_7.svg"} <= pictures
    assert sum(picture.stat().st_size for picture in (tmp_path / "evidence").iterdir()) < 2_000_000
    assert all(source.licence in text for source in corpus.SOURCES)


def test_a_claim_without_rows_says_so(tmp_path: Path) -> None:
    text = report.write(FULL, tmp_path / "none.jsonl", tmp_path).read_text()
    for number in (1, 2, 3, 4, 5, 6, 8):
        part = text.partition(f"## {number}. ")[2].partition("\n## ")[0]
        assert report.NOT_YET in part, number
        assert "svg" not in part


def test_a_plan_cut_short_reports_the_first_rule_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    alone = replace(QUICK, claims=(6,))
    invented(alone, path)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    attacked = [row for row in found if row["settings"].get("part") == "held_out"][1:]
    left_out = {row["id"] for row in attacked[1:]}
    path.write_text("".join(json.dumps(row) + "\n" for row in found if row["id"] not in left_out))
    part = report.write(alone, path, tmp_path).read_text().partition("## 6. ")[2]
    assert "no clear least" in part.partition("\n## ")[0]


def test_a_run_that_diverged_is_no_mean(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    invented(QUICK, path)
    lines = path.read_text().splitlines()
    changed = []
    for line in lines:
        row = json.loads(line)
        if row["settings"].get("feedback") is False:
            row["points"][-1]["loss"] = None
        changed.append(json.dumps(row))
    path.write_text("\n".join(changed) + "\n")
    assert "diverged" in report.write(QUICK, path, tmp_path).read_text()


def test_better_and_worse_are_said_of_clear_differences_only() -> None:
    assert "no different" in verdict([1.0, -0.5, 0.2])
    assert verdict([1.0, 1.1, 0.9]) == "worse"
    assert verdict([-1.0, -1.1, -0.9]) == "better"
    assert "one seed" in verdict([5.0])


# --- corpus --------------------------------------------------------------------------------------------------


def test_documents_are_split_by_what_they_say_and_taken_once(tmp_path: Path) -> None:
    import zipfile

    source = next(s for s in corpus.SOURCES if s.package == "networkx")
    archive = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as packed:
        for number in range(200):
            packed.writestr(f"a/{number}.py", f"print({number})\n" * 10)
            packed.writestr(f"b/{number}.py", f"print({number})\n" * 10)
        packed.writestr("a/data.bin", "no text")
    written = corpus.spread(source, archive, tmp_path / "text")
    files = {part: {p.read_text() for p in (tmp_path / "text" / part).rglob("*.txt")} for part in corpus.PARTS}
    assert sum(len(texts) for texts in files.values()) == 200
    assert not files["train"] & files["held_out"]
    assert not files["train"] & files["validation"]
    assert written["train"] > 10 * written["held_out"]


def test_a_long_file_is_cut_at_line_ends() -> None:
    text = "".join(f"line {number}\n" for number in range(50_000))
    cut = list(corpus.pieces(text))
    assert "".join(cut) == text
    assert len(cut) > 3
    assert all(piece.endswith("\n") for piece in cut)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quick_plan_runs(tmp_path: Path) -> None:
    """The whole of `make evidence ARGS=--quick`, which fetches its small corpus from the registry."""
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.evidence", "--quick", "--rows", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1700)
    made = path.read_text().splitlines()
    assert len(made) > 40
    report = (ROOT / "runs/evidence-quick/evidence.md").read_text()
    assert "quick" in report
    assert all(json.loads(line)["id"] for line in made)
