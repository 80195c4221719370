"""Figures: one style for all, the same colour and mark for the same method everywhere, legible on light and on dark.

SVG without a background; text, axes and grid in greys that stand out from white and from near-black alike.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.evidence.view import Curve

INK, GRID = "#7b8794", "#7b879444"
COLOURS = {
    "DDP": "#9467bd",
    "DiLoCo, fp32": "#e08214",
    "DiLoCo, int8": "#c94f5d",
    "SparseLoCo": "#2a8fd8",
    "mean of whatever comes": "#9467bd",
    "mean, norms bounded by the median": "#2a8fd8",
    "filtered mean": "#1fa187",
    "trimmed mean": "#e08214",
    "Krum": "#c94f5d",
}
MARKS = {
    "DDP": "s",
    "DiLoCo, fp32": "^",
    "DiLoCo, int8": "v",
    "SparseLoCo": "o",
    "mean of whatever comes": "s",
    "mean, norms bounded by the median": "o",
    "filtered mean": "D",
    "trimmed mean": "^",
    "Krum": "v",
}
OTHER = "#1fa187"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "evidence",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
}
WIDE = (8.0, 3.1)

Draw = Callable[[Sequence[Axes]], None]


def saved(path: Path, panels: int, draw: Draw, height: float = WIDE[1]) -> None:
    """A row of panels, drawn and written as SVG: the same bytes for the same figures."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE[0] if panels > 1 else 5.6, height), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        draw(list(axes))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def colour(label: str) -> str:
    return COLOURS.get(label, OTHER)


def curves(axes: Axes, found: Iterable[Curve], over: str) -> None:
    """Loss by "tokens" or "sent", from the first point after the start on; the seeds' range is shaded."""
    for curve in found:
        x = curve.sent[1:] if over == "sent" else [tokens / 1e6 for tokens in curve.tokens[1:]]
        axes.plot(x, curve.mean[1:], color=colour(curve.label), marker=MARKS.get(curve.label, "o"), label=curve.label)
        axes.fill_between(x, curve.least[1:], curve.greatest[1:], color=colour(curve.label), alpha=0.2, linewidth=0)
    axes.set_ylabel("held-out loss, nats a byte")
    axes.margins(y=0.08)
    if over == "sent":
        axes.set_xscale("log")
        axes.set_xlabel("bytes sent by one peer")
    else:
        axes.set_xlabel("tokens of all peers, millions")


Group = tuple[str, Sequence[tuple[float, Sequence[float]]]]
"""A label, and at every x the values of the seeds."""


def lines(axes: Axes, groups: Iterable[Group], xlabel: str, ylabel: str, *, log: bool = False) -> None:
    """Means with bars from the least to the greatest seed."""
    ticks: set[float] = set()
    for label, at in groups:
        xs = [x for x, _ in at]
        means = [fmean(values) for _, values in at]
        below = [mean - min(values) for mean, (_, values) in zip(means, at, strict=True)]
        above = [max(values) - mean for mean, (_, values) in zip(means, at, strict=True)]
        axes.errorbar(
            xs, means, yerr=[below, above], color=colour(label), marker=MARKS.get(label, "o"), capsize=2, label=label
        )
        ticks |= set(xs)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if log and ticks:
        axes.set_xscale("log")
        axes.set_xticks(sorted(ticks), [f"{tick / 1e6:.2f} M" if tick > 1e5 else f"{tick:g}" for tick in sorted(ticks)])
        axes.minorticks_off()


def dots(axes: Axes, rows: Sequence[tuple[str, Sequence[float]]], xlabel: str) -> None:
    """A row for each label, with a dot for each seed and a bar at their mean; zero is marked."""
    for place, (label, values) in enumerate(reversed(rows)):
        axes.plot(values, [place] * len(values), "o", color=colour(label), alpha=0.7)
        axes.plot([fmean(values)], [place], "|", color=INK, markersize=14, markeredgewidth=1.6)
    axes.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlabel(xlabel)


def bars(axes: Axes, rows: Sequence[tuple[str, float]], xlabel: str, **options: Any) -> None:
    """Horizontal bars with their values behind them."""
    axes.barh([label for label, _ in reversed(rows)], [value for _, value in reversed(rows)], color=OTHER, **options)
    for place, (_, value) in enumerate(reversed(rows)):
        axes.text(value, place, f" {value:.3g}", va="center")
    axes.set_xlabel(xlabel)
    axes.margins(x=0.18)
