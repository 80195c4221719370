"""Claims 1 to 6: each one's answer as sentences that are computed from the rows, and its figure.

A sentence says "better" or "worse" only where the seeds' paired differences say so (view.verdict).
"""

from collections.abc import Iterator, Sequence
from math import isfinite, log10
from pathlib import Path
from statistics import fmean

from benchmarks.evidence import figures
from benchmarks.evidence.plan import Line
from benchmarks.evidence.view import Curve, View, slope, told, verdict

Answer = list[str]
"""Sentences; none while the rows lack."""


def compared(view: View, line: Line, over: Line, what: str) -> str:
    """ "SparseLoCo +3.1 % (...) over DDP: worse"."""
    excess = view.excess(line, over)
    return f"{line.label} against {what}: {told(excess, 1, sign=True, unit=' %')}, {verdict(excess)}"


# --- 1 -------------------------------------------------------------------------------------------------------


def bytes_and_loss(view: View) -> Answer:
    base = view.base
    if base is None:
        return []
    others = [line for line in view.lines(1, "main") if line is not base and view.excess(base, line)]
    if not others:
        return []
    said = [
        f"Against {other.label} it is {verdict(view.excess(base, other))}, "
        f"{told(view.excess(base, other), 1, True, ' %')}, with {view.sent(other) / view.sent(base):.0f} times fewer "
        "bytes sent."
        for other in others
    ]
    found = [f"SparseLoCo's loss at equal tokens: {' '.join(said)}"]
    losses = ", ".join(f"{line.label} {told(view.finals(line))}" for line in view.lines(1, "main"))
    found.append(f"Final held-out loss: {losses}.")
    final = view.curve(base).mean[-1]
    for other in others:
        at = reached(view.curve(other), final)
        if at is not None:
            found.append(
                f"{other.label} has SparseLoCo's final loss after {100 * at[0] / view.curve(base).tokens[-1]:.0f} % of "
                f"the tokens, with {at[1] / view.sent(base):.0f} times the bytes."
            )
    long_base = view.line(1, "longer", "SparseLoCo")
    for other in view.lines(1, "longer"):
        if long_base is not None and other is not long_base and view.excess(long_base, other):
            before = told(
                view.excess(view.beside(base.label) or base, view.beside(other.label)), 1, sign=True, unit=" %"
            )
            after = told(view.excess(long_base, other), 1, sign=True, unit=" %")
            found.append(
                f"With {view.scale.longer} times the tokens its difference from {other.label} goes from {before} "
                f"to {after}."
            )
    return found + _kept(view, view.beside(base.label) or base) + _inner_steps(view, view.beside(base.label) or base)


def reached(curve: Curve, loss: float) -> tuple[float, float] | None:
    """(tokens, bytes sent) at which a curve comes down to this loss, by straight lines between its points."""
    for place in range(1, len(curve.mean)):
        above, below = curve.mean[place - 1], curve.mean[place]
        if above >= loss >= below and above > below:
            share = (above - loss) / (above - below)
            tokens, sent = (
                values[place - 1] + share * (values[place] - values[place - 1]) for values in (curve.tokens, curve.sent)
            )
            return tokens, sent
    return None


def _kept(view: View, base: Line) -> Answer:
    at = [(float(line.x or 0), view.finals(line)) for line in view.lines(1, "k")]
    at = sorted([*at, (float(view.scale.base.k), view.finals(base))])
    if len(at) < 2:
        return []
    shown = ", ".join(f"k = {k:.0f}: {told(losses)}" for k, losses in at)
    return [f"By values kept of 4096: {shown}."]


def _inner_steps(view: View, base: Line) -> Answer:
    found = []
    for label, panel in (("SparseLoCo", base), ("DiLoCo, fp32", view.beside("DiLoCo, fp32"))):
        at = [(float(line.x or 0), view.finals(line)) for line in view.lines(1, "H") if line.label == label]
        if at and panel is not None:
            at = sorted([*at, (float(view.scale.base.inner_steps), view.finals(panel))])
            found.append(f"{label} by H: " + ", ".join(f"{h:.0f}: {told(losses)}" for h, losses in at) + ".")
    return found


def draw_bytes_and_loss(view: View, folder: Path) -> list[str]:
    found = [view.curve(line) for line in view.lines(1, "main")]
    longer = [view.curve(line) for line in view.lines(1, "longer")]

    def draw(axes: Sequence[figures.Axes]) -> None:
        figures.curves(axes[0], found, "tokens")
        figures.curves(axes[1], found, "sent")
        axes[0].legend()
        if longer:
            figures.curves(axes[2], longer, "tokens")
            axes[2].set_title(f"{view.scale.longer} times the steps")

    figures.saved(folder / "claim_1.svg", 2 + bool(longer), draw)
    names = ["claim_1.svg"]
    kept = sorted((float(line.x or 0), view.finals(line)) for line in view.lines(1, "k"))
    groups = []
    for label in ("SparseLoCo", "DiLoCo, fp32"):
        main = view.beside(label)
        at = [(float(line.x or 0), view.finals(line)) for line in view.lines(1, "H") if line.label == label]
        if at and main is not None:
            groups.append((label, sorted([*at, (float(view.scale.base.inner_steps), view.finals(main))])))
    if kept and (built := view.beside("SparseLoCo")) is not None:
        kept = sorted([*kept, (float(view.scale.base.k), view.finals(built))])

        def draw_more(axes: Sequence[figures.Axes]) -> None:
            figures.lines(axes[0], [("SparseLoCo", kept)], "k, values kept of 4096", "final loss", log=True)
            if groups:
                figures.lines(axes[1], groups, "H, inner steps a round", "final loss", log=True)
                axes[1].legend()

        figures.saved(folder / "claim_1_k_and_h.svg", 1 + bool(groups), draw_more)
        names.append("claim_1_k_and_h.svg")
    return names


# --- 2, 3 and 5: what one change costs -----------------------------------------------------------------------


def changes(view: View, claim: int, panel: str) -> Iterator[tuple[str, list[float]]]:
    """Of every changed run the excess over SparseLoCo as built, in per cent, for each seed."""
    for line in view.lines(claim, panel):
        if excess := view.excess(line, view.base):
            yield line.label, excess


def costs(view: View, claim: int, panel: str) -> Answer:
    found = [
        f"{label}: loss {told(excess, 1, sign=True, unit=' %')} over SparseLoCo as built, {verdict(excess)}."
        for label, excess in changes(view, claim, panel)
    ]
    return [line[0].upper() + line[1:] for line in found]


def draw_costs(view: View, claim: int, panel: str, folder: Path) -> list[str]:
    rows = [(label, excess) for label, excess in changes(view, claim, panel) if all(map(isfinite, excess))]
    if not rows:
        return []

    def draw(axes: Sequence[figures.Axes]) -> None:
        figures.dots(axes[0], rows, "final loss over\nSparseLoCo as built, %")

    name = f"claim_{claim}_{panel}.svg"
    figures.saved(folder / name, 1, draw, height=0.9 + 0.4 * len(rows))
    return [name]


def parts(view: View) -> Answer:
    return costs(view, 2, "parts")


def draw_parts(view: View, folder: Path) -> list[str]:
    return draw_costs(view, 2, "parts", folder)


def waiting(view: View) -> Answer:
    return costs(view, 5, "waiting")


def draw_waiting(view: View, folder: Path) -> list[str]:
    return draw_costs(view, 5, "waiting", folder)


# --- 3 -------------------------------------------------------------------------------------------------------


def by_peers(view: View) -> list[figures.Group]:
    groups = []
    for label in ("SparseLoCo", "DiLoCo, fp32"):
        at = [(float(line.x or 0), view.finals(line)) for line in view.lines(3, "peers") if line.label == label]
        main = view.beside(label)
        if at and main is not None:
            groups.append((label, sorted([*at, (float(view.scale.base.peers), view.finals(main))])))
    return groups


def peers(view: View) -> Answer:
    found = []
    for label, at in by_peers(view):
        shown = ", ".join(f"{count:.0f} peers: {told(losses)}" for count, losses in at)
        first, last = fmean(at[0][1]), fmean(at[-1][1])
        change = f"{100 * (last / first - 1):+.1f} % from {at[0][0]:.0f} to {at[-1][0]:.0f} peers"
        found.append(f"{label} at equal tokens: {shown}; {change}.")
    return found + costs(view, 3, "trouble")


def draw_peers(view: View, folder: Path) -> list[str]:
    groups = by_peers(view)
    names = draw_costs(view, 3, "trouble", folder)
    if not groups:
        return names

    def draw(axes: Sequence[figures.Axes]) -> None:
        figures.lines(axes[0], groups, "peers, equal tokens", "final loss", log=True)
        axes[0].legend()

    figures.saved(folder / "claim_3.svg", 1, draw)
    return ["claim_3.svg", *names]


# --- 4 -------------------------------------------------------------------------------------------------------


def gaps(view: View) -> list[tuple[str, list[tuple[float, list[float]]]]]:
    """SparseLoCo's and DiLoCo's loss over DDP's, in per cent, by parameters."""
    found = []
    for label in ("SparseLoCo", "DiLoCo, fp32"):
        at = []
        main, ddp = view.beside(label), view.beside("DDP")
        if main is not None and view.excess(main, ddp):
            at.append((float(main.runs[0].num_parameters), view.excess(main, ddp)))
        for line in view.lines(4, "sizes"):
            if line.label == label and line.x is not None:
                against = next((o for o in view.lines(4, "sizes") if (o.label, o.x) == ("DDP", line.x)), None)
                if view.excess(line, against):
                    at.append((line.x, view.excess(line, against)))
        if len(at) > 1:
            found.append((label, sorted(at)))
    return found


def sizes_and_optimizers(view: View) -> Answer:
    found = []
    for label, at in gaps(view):
        rise, _ = slope([log10(x) for x, values in at for _ in values], [v for _, values in at for v in values])
        shown = ", ".join(f"{x / 1e6:.2g} M: {told(values, 1, sign=True, unit=' %')}" for x, values in at)
        found.append(f"{label} over DDP by parameters: {shown}; a tenfold size moves it by {rise:+.1f} points.")
    for line in view.lines(4, "muon"):
        main = view.beside(line.label)
        if view.excess(line, main):
            found.append(f"Muon inside, {compared(view, line, main or line, 'AdamW inside')}.")
    return found


def draw_sizes(view: View, folder: Path) -> list[str]:
    names = []
    groups = gaps(view)
    if groups:

        def draw(axes: Sequence[figures.Axes]) -> None:
            figures.lines(axes[0], groups, "parameters", "final loss over DDP's, %", log=True)
            for label, at in groups:
                xs = [x for x, values in at for _ in values]
                rise, start = slope([log10(x) for x in xs], [v for _, values in at for v in values])
                ends = [min(xs), max(xs)]
                fit = [start + rise * log10(x) for x in ends]
                axes[0].plot(ends, fit, ":", color=figures.colour(label))
            axes[0].legend()

        figures.saved(folder / "claim_4.svg", 1, draw)
        names.append("claim_4.svg")
    rows = [(f"{o.label}", view.excess(o, view.line(1, "main", o.label))) for o in view.lines(4, "muon")]
    rows = [(label, excess) for label, excess in rows if excess]
    if rows:

        def draw_muon(axes: Sequence[figures.Axes]) -> None:
            figures.dots(axes[0], rows, "final loss with Muon over AdamW, %")

        figures.saved(folder / "claim_4_muon.svg", 1, draw_muon, height=0.9 + 0.4 * len(rows))
        names.append("claim_4_muon.svg")
    return names


# --- 10 ------------------------------------------------------------------------------------------------------

FRESH, KEPT = "Muon, fresh", "Muon, kept"


def carried(view: View) -> Answer:
    """Fresh Muon beside kept Muon, both at their own best rates; kept AdamW beside them."""
    found = []
    for panel, unit in (("main", "H"), ("H", "H"), ("sizes", "parameters")):
        lines = view.lines(10, panel)
        for fresh in [line for line in lines if line.label == FRESH]:
            kept = next((line for line in lines if (line.label, line.x) == (KEPT, fresh.x)), None)
            if kept is None or not (excess := view.excess(fresh, kept)):
                continue
            where = f"H = {fresh.x:.0f}" if unit == "H" else f"{(fresh.x or 0) / 1e6:.2f} M parameters"
            rounds = fresh.runs[0].rounds
            found.append(
                f"{where}, {rounds} rounds: fresh {told(view.finals(fresh))}, kept {told(view.finals(kept))}: "
                f"{told(excess, 1, sign=True, unit=' %')}, {verdict(excess)}."
            )
    found += [
        f"AdamW, kept: {told(view.finals(line))}." for line in view.lines(10, "main") if line.label == "AdamW, kept"
    ]
    return found


def draw_carried(view: View, folder: Path) -> list[str]:
    found = [view.curve(line) for line in view.lines(10, "main")]
    if not found:
        return []

    def draw(axes: Sequence[figures.Axes]) -> None:
        figures.curves(axes[0], found, "tokens")
        axes[0].legend()

    figures.saved(folder / "claim_10.svg", 1, draw)
    return ["claim_10.svg"]


# --- 6 -------------------------------------------------------------------------------------------------------


def by_rule(view: View) -> list[figures.Group]:
    found: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for line in view.lines(6, "rules"):
        losses = [loss for loss in view.finals(line) if isfinite(loss)]
        if losses:
            found.setdefault(line.label, []).append((100 * float(line.x or 0), losses))
    return [(label, sorted(at)) for label, at in found.items()]


def robust(view: View) -> Answer:
    groups = by_rule(view)
    found = []
    for share in sorted({x for _, at in groups for x, _ in at}):
        losses = {label: fmean(values) for label, at in groups for x, values in at if x == share}
        best, *others = sorted(losses, key=lambda label: losses[label])
        of = {label: values for label, at in groups for x, values in at if x == share}
        clear = all(max(of[best]) < min(of[other]) for other in others)
        least = f"least with the {best}" if others and clear else "no clear least"
        shown = ", ".join(f"{label} {loss:.3f}" for label, loss in sorted(losses.items(), key=lambda item: item[1]))
        found.append(f"With {share:.0f} % colluders: {shown}; {least}.".replace("the Krum", "Krum"))
    if not found:
        return []
    seeds = sorted({len(values) for _, at in groups for _, values in at})
    return [*found, f"These are means of {' or '.join(map(str, seeds))} seeds; the plot has their ranges."]


def draw_robust(view: View, folder: Path) -> list[str]:
    groups = by_rule(view)
    if not groups:
        return []

    def draw(axes: Sequence[figures.Axes]) -> None:
        figures.lines(axes[0], groups, "colluders, % of the peers", "final loss")
        axes[0].legend()

    figures.saved(folder / "claim_6.svg", 1, draw, height=3.6)
    return ["claim_6.svg"]
