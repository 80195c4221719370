"""Claims 7 to 9: from results that other programs of the project have written, and from rows of commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.evidence import existing, figures
from benchmarks.evidence.answers import Answer
from benchmarks.evidence.view import View
from murmur.plan import presets
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import Plan

CHEATS = {
    "half_declared": "half of the steps, declared",
    "half_undeclared": "half of the steps, shown as all",
    "tenth_skipped": "rounds skipped by chance",
    "split_in_two": "two hotkeys with half of the steps each",
    "thin_in_four": "four hotkeys with a quarter of each batch",
    "thin_in_eight": "eight hotkeys with an eighth",
}
WHOLE = ("split_in_two", "thin_in_four", "thin_in_eight")


def gauntlet(view: View) -> Answer:
    attacks = existing.arena()
    within = [attack for attack in attacks if attack["within"] == "yes"]
    at_once = [attack["attack"] for attack in attacks if max(attack["out"]) == 0]
    overpaid = [a["attack"] for a in attacks if fmean(a["pay"]) > max(1.0, fmean(a["work"]))]
    never = [a["attack"] for a in attacks if median(a["out"]) == float("inf") and a["attack"] not in overpaid]
    unpaid = [a["attack"] for a in attacks if a["attack"] in never and max(a["pay"]) == 0.0]
    paid = [name for name in never if name not in unpaid]
    missed = [
        attack["attack"] + (f" ({attack['within']})" if attack["within"] != "no" else "")
        for attack in attacks
        if attack not in within
    ]
    wrong = existing.wrongly_excluded()
    found = [
        f"In the arena {len(within)} of {len(attacks)} attacks stay within what their class allows, with every seed; "
        f"{len(at_once)} never get in. Those that do not: {', '.join(missed)}.",
        f"Never out, paid no more than their work: {', '.join(paid)}. Never out and never paid: {', '.join(unpaid)}. "
        f"Paid more than honest peers with their work: {', '.join(overpaid) or 'none'}.",
        f"Honest peers are excluded wrongly in {min(wrong)} to {max(wrong)} % of their rounds.",
    ]
    pay = existing.paid()
    shown = " ".join(
        f"{name.capitalize()}: {fmean(p for _, p in pay[kind]):.2f} for {fmean(w for w, _ in pay[kind]):.2g}."
        for kind, name in CHEATS.items()
        if kind in pay
    )
    return [*found, f"Pay, and for how much work, of a full worker's on the transformer (1 or 2 seeds): {shown}"]


def draw_gauntlet(view: View, folder: Path) -> list[str]:
    attacks = [a for a in existing.arena() if max(a["pay"]) <= 2]
    pay = existing.paid()

    def draw(axes: Sequence[figures.Axes]) -> None:
        axes[0].plot([0, 2], [0, 2], color=figures.INK, linewidth=0.8)
        for attack in attacks:
            work = fmean(attack["work"])
            axes[0].plot([work] * len(attack["pay"]), attack["pay"], "o", color=figures.OTHER, alpha=0.6)
        axes[0].set_title("arena, all that are paid at most double")
        for kind, values in pay.items():
            if max(p for _, p in values) <= 2.2:
                axes[1].plot(*zip(*values, strict=True), "o", color=figures.colour("SparseLoCo"), alpha=0.6)
                if kind in CHEATS:
                    work, paid = max(values, key=lambda value: value[1])
                    # Three earn nothing for a worker's whole work: their names stand above one another.
                    above = 2 + 8 * WHOLE.index(kind) if kind in WHOLE else 4
                    axes[1].annotate(CHEATS[kind], (work, paid), (5, above), textcoords="offset points", fontsize=6)
        axes[1].plot([0, 2], [0, 2], color=figures.INK, linewidth=0.8)
        axes[1].set_title("transformer of 0.12 M parameters")
        for panel in axes:
            panel.set_xlabel("work, in an honest peer's")
            panel.set_ylabel("pay, in an honest peer's")

    figures.saved(folder / "claim_7.svg", 2, draw, height=3.6)
    return ["claim_7.svg"]


def codec(view: View) -> Answer:
    rows = [row for _, row in view.commands(8) if "compress" in row["result"]]
    if not rows:
        return []
    result = rows[0]["result"]
    compress, aggregate = result["compress"], result["aggregate"]
    quality = result["quality"]["real"]
    return [
        f"A full chunk of 4096 values is {result['bytes_per_chunk']} bytes, {result['ratio_fp32']:.0f} times fewer "
        f"than fp32.",
        f"Compression takes {compress['ms']:.1f} ms for {result['params'] / 1e6:.0f} M parameters, "
        f"{compress['ratio_torch']:.1f} times as fast as torch operators, at {100 * compress['stream_share']:.0f} % of "
        f"the speed of a memory stream of the same traffic.",
        f"Aggregation of {aggregate['peers']} payloads from bytes takes {aggregate['ms']:.1f} ms, "
        f"{aggregate['ratio_torch']:.1f} times as fast, at {100 * aggregate['stream_share']:.0f} % of its stream.",
        f"Relative error of the kept values on real pseudo-gradients: {quality['kept_error']:.3f}, with the public "
        f"code's quantiser {quality['public_kept_error']:.3f}.",
    ]


def draw_codec(view: View, folder: Path) -> list[str]:
    rows = [row for _, row in view.commands(8) if "compress" in row["result"]]
    if not rows:
        return []
    result = rows[0]["result"]

    def draw(axes: Sequence[figures.Axes]) -> None:
        sides = ("ours", "ms"), ("torch operators", "torch_ms"), ("memory stream", "stream_ms")
        for panel, part in zip(axes, ("compress", "aggregate"), strict=False):
            figures.bars(panel, [(name, result[part][key]) for name, key in sides], f"{part}, ms")

    figures.saved(folder / "claim_8.svg", 2, draw, height=1.9)
    return ["claim_8.svg"]


PARTS = {
    "inner steps": ("inner steps",),
    "margin": ("margin",),
    "moves and the outer step": ("swap", "open payloads", "outer step", "load weights", "compress"),
}
"""Phases of a miner's plan that follow one another; the rest of a round its GPUs wait."""


def hour(plan: Plan) -> dict[str, float]:
    """Minutes of an hour of a miner's GPUs, by part."""
    timed = {timed.phase.name: timed.seconds for timed in plan.timeline("miner")}
    share = 60 / max(plan.round_seconds, plan.compute_seconds / plan.utilization)
    found = {part: share * sum(timed[name] for name in names) for part, names in PARTS.items()}
    return found | {"waiting": 60 - sum(found.values())}


def _planned(preset: str, result: Mapping[str, Any]) -> Plan:
    """Return the plan that `murmur plan` has made."""
    rates = Rates(compute=Rate(result["gpu_flops"]))
    return Plan(presets.read(preset).first, result["gpus"], result["gpu_memory_bytes"], rates)


def rounds(view: View) -> Answer:
    found = []
    for command, row in view.commands(9):
        result = row["result"]
        if "utilization" in result:
            found.append(
                f"{command.label}: by plan {100 * result['utilization']:.0f} % of a round of "
                f"{result['round_seconds'] / 60:.0f} min is compute; {result['payload_bytes'] / 1e9:.2f} GB up in "
                f"{result['upload_seconds']:.0f} s, {result['download_bytes'] / 1e9:.1f} GB down in "
                f"{result['download_seconds']:.0f} s. An hour of its GPUs has "
                + ", ".join(
                    f"{minutes:.1f} minutes of {part}"
                    for part, minutes in hour(_planned(command.label, result)).items()
                )
                + "."
            )
    runs, before = existing.links("this"), existing.links("before")
    found.append(
        f"A small network with as many bytes to its compute as a 72B run: {_shares(runs, 'planned')} % was planned and "
        f"{_shares(runs, 'measured')} % measured, in {len(runs)} runs. The release that waited for each decision "
        f"planned {_shares(before, 'planned')} % and had {_shares(before, 'measured')} %."
    )
    return found


def _shares(runs: Sequence[Mapping[str, Any]], side: str) -> str:
    return ", ".join(f"{100 * run[side]['utilization']:.1f}" for run in runs)


def draw_rounds(view: View, folder: Path) -> list[str]:
    rows = [
        (f"{command.label}, by plan", 100 * row["result"]["utilization"])
        for command, row in view.commands(9)
        if "utilization" in row["result"]
    ]
    for place, run in enumerate(existing.links("this"), 1):
        rows += [(f"small network, {s}, run {place}", 100 * run[s]["utilization"]) for s in ("planned", "measured")]
    for run in existing.links("before"):
        rows.append(("small network, the release before, measured", 100 * run["measured"]["utilization"]))

    def draw(axes: Sequence[figures.Axes]) -> None:
        figures.bars(axes[0], rows, "share of a round in compute, %")

    figures.saved(folder / "claim_9.svg", 1, draw, height=0.9 + 0.32 * len(rows))
    return ["claim_9.svg"]
