"""The rows as figures and sentences want them: losses of the lines of a plan, seed by seed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean, stdev

from benchmarks.evidence.plan import Command, Line, Plan, Scale
from benchmarks.evidence.rows import Row
from benchmarks.evidence.settings import Setting


@dataclass(frozen=True)
class Curve:
    """A line's mean over its seeds at every point, and the least and the greatest."""

    label: str
    tokens: list[float]
    sent: list[float]
    mean: list[float]
    least: list[float]
    greatest: list[float]


class View:
    """What the rows say of a scale's plan, on the corpus that most of them are of."""

    def __init__(self, scale: Scale, rows: Sequence[Row]) -> None:
        self.scale = scale
        self.rows = {row["id"]: row for row in rows}
        self.corpus = _usual(row for row in rows if "state" not in row["settings"])
        later = _usual(row for row in rows if "state" in row["settings"])
        self.corpus = self.corpus or later
        self.plan = Plan(scale, self.corpus, self.rows, later)
        self._lines = self.plan.lines()

    def lines(self, claim: int, panel: str) -> list[Line]:
        """Those with a row at least; what the plan has twice is one line with all of its seeds."""
        found: dict[tuple[str, float | None], Line] = {}
        for line in self._lines:
            if isinstance(line, Line) and (line.claim, line.panel) == (claim, panel) and self.finals(line):
                at = (line.label, line.x)
                if at not in found or len(line.runs) > len(found[at].runs):
                    found[at] = line
        return list(found.values())

    def line(self, claim: int, panel: str, label: str) -> Line | None:
        return next((line for line in self.lines(claim, panel) if line.label == label), None)

    def beside(self, label: str) -> Line | None:
        """The method's line with the seeds of all else: means beside one another are of the same seeds."""
        line = self.line(1, "main", label)
        return replace(line, runs=tuple(run for run in line.runs if run.seed in self.scale.seeds)) if line else None

    @property
    def base(self) -> Line | None:
        """SparseLoCo as built."""
        return self.line(1, "main", "SparseLoCo")

    def commands(self, claim: int) -> list[tuple[Command, Row]]:
        asked = [line for line in self._lines if isinstance(line, Command) and line.claim == claim]
        return [(line, self.rows[line.id]) for line in asked if line.id in self.rows]

    def final(self, run: Setting) -> float | None:
        """The last loss; infinite where the run diverged; None while it is not made."""
        row = self.rows.get(run.id)
        if row is None:
            return None
        loss = row["points"][-1]["loss"]
        return float("inf") if loss is None else float(loss)

    def finals(self, line: Line) -> list[float]:
        return [loss for run in line.runs if (loss := self.final(run)) is not None]

    def sent(self, line: Line) -> int:
        """Bytes that one peer has uploaded in the whole run."""
        row = next(self.rows[run.id] for run in line.runs if run.id in self.rows)
        return int(row["points"][-1]["sent"])

    def excess(self, line: Line, over: Line | None) -> list[float]:
        """Per cent of loss above another line, for each seed that both have."""
        if over is None:
            return []
        theirs = {run.seed: self.final(run) for run in over.runs}
        found = []
        for run in line.runs:
            mine, other = self.final(run), theirs.get(run.seed)
            if mine is not None and other is not None:
                found.append(100 * (mine / other - 1))
        return found

    def curve(self, line: Line) -> Curve:
        rows = [self.rows[run.id]["points"] for run in line.runs if run.id in self.rows]
        columns = [column for column in zip(*rows, strict=False) if all(p["loss"] is not None for p in column)]
        return Curve(
            line.label,
            [fmean(p["tokens"] for p in column) for column in columns],
            [fmean(p["sent"] for p in column) for column in columns],
            [fmean(p["loss"] for p in column) for column in columns],
            [min(p["loss"] for p in column) for column in columns],
            [max(p["loss"] for p in column) for column in columns],
        )

    def core_hours(self) -> float:
        return sum(row["seconds"] for row in self.rows.values()) / 3600


def _usual(rows: Iterable[Row]) -> str:
    """The corpus that most of these rows are of; "" of none."""
    corpora = Counter(row["settings"]["corpus"] for row in rows if row["settings"]["kind"] == "training")
    return corpora.most_common(1)[0][0] if corpora else ""


def told(values: Sequence[float], digits: int = 3, sign: bool = False, unit: str = "") -> str:
    """ "2.341 (2.330 to 2.352, 3 seeds)"."""
    shown = f"{{:{'+' if sign else ''}.{digits}f}}"
    if not values:
        return "not run yet"
    if not all(map(isfinite, values)):
        return f"diverged in {sum(not isfinite(value) for value in values)} of {len(values)} seeds"
    mean = f"{shown.format(fmean(values))}{unit}"
    if len(values) == 1:
        return f"{mean} (1 seed)"
    return f"{mean} ({shown.format(min(values))} to {shown.format(max(values))}, {len(values)} seeds)"


def verdict(excess: Sequence[float], better: str = "better", worse: str = "worse", same: str = "no different") -> str:
    """By seed-wise differences in per cent: beyond two standard errors, and of one seed never."""
    if not all(map(isfinite, excess)):
        return worse
    if len(excess) < 2:
        return f"{worse if fmean(excess) > 0 else better} with one seed"
    error = stdev(excess) / len(excess) ** 0.5
    mean = fmean(excess)
    if abs(mean) <= 2 * error:
        return f"{same} within two standard errors"
    return worse if mean > 0 else better


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(rise, intercept) of the least-squares straight line."""
    mean_x, mean_y = fmean(x), fmean(y)
    spread = sum((value - mean_x) ** 2 for value in x)
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    return rise, mean_y - rise * mean_x
