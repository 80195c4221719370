"""The table as text, and its plot."""

from pathlib import Path

from murmur.lab.arena.attack import Expected
from murmur.lab.arena.measure import AttackResult
from murmur.lab.arena.suite import Table

HEADINGS = ("attack", "expected", "policy", "out after", "pay", "work", "progress", "verdict")
RIGHT = {3, 4, 5, 6}
WIDTH = 128
"""Columns of a terminal that hold the widest row."""

LABELS = {
    Expected.AT_ONCE: "at once",
    Expected.SOON: "10 rounds",
    Expected.NEVER: "never",
    Expected.UNPAID: "nothing",
    Expected.PROPORTION: "its work",
}


def cells(table: Table, one: AttackResult) -> tuple[str, ...]:
    """Return one row as text: `out after` is the median / 90th percentile of rounds, `pay` in honest peers' pay,
    `progress` in shares of the clean run's."""
    verdict = "as expected" if one.meets else "NOT AS EXPECTED"
    if not one.is_fair and one.expected is not Expected.PROPORTION:
        verdict += ", OVERPAID"
    return (
        one.attack,
        LABELS[one.expected],
        one.policy,
        f"{_rounds(one.ejection_median)} / {_rounds(one.ejection_p90)}",
        f"{one.share:.2f}",
        f"{one.work:.2f}",
        f"{table.kept(one):.3f}",
        verdict,
    )


def summary(table: Table) -> list[str]:
    """Return a few lines for below the table."""
    lines = []
    for policy, progress in table.clean.items():
        rows = [one for one in table.rows if one.policy == policy]
        lines.append(
            f"{policy}: clean progress {progress:.3f} nats a token; honest peer-rounds wrongly excluded "
            f"{table.excluded[policy]:.2%}; {sum(one.meets for one in rows)} of {len(rows)} attacks as expected; "
            f"{sum(one.is_fair for one in rows)} earn at most their work's worth; "
            f"{sum(table.kept(one) >= 0.95 for one in rows)} leave 95 % of the progress"
        )
    for one in table.rows:
        if note := table.notes(one):
            lines.append(f"{one.attack}: worse than the published formulas: {note}")
    return lines


def markdown(table: Table) -> str:
    """Return the whole table as Markdown."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(table, one)) + " |" for one in table.rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in summary(table))]) + "\n"


def draw(table: Table, path: Path) -> None:
    """Plot each attack's pay and remaining share of the clean run's progress, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attacks = list(dict.fromkeys(one.attack for one in table.rows))
    policies = list(table.clean)
    figure = Figure(figsize=(12, 1.5 + 0.32 * len(attacks)), layout="constrained")
    FigureCanvasAgg(figure)
    pay, kept = figure.subplots(1, 2, sharey=True)
    height = 0.8 / len(policies)
    for place, policy in enumerate(policies):
        rows = {one.attack: one for one in table.rows if one.policy == policy}
        at = [index + (place - (len(policies) - 1) / 2) * height for index in range(len(attacks))]
        pay.barh(at, [rows[name].share for name in attacks], height, label=policy)
        kept.barh(at, [table.kept(rows[name]) for name in attacks], height, label=policy)
        if place == 0:
            work = [rows[name].work for name in attacks]
            pay.plot(work, range(len(attacks)), "k|", markersize=9, label="work done")
    pay.set_yticks(range(len(attacks)), attacks)
    pay.invert_yaxis()
    pay.set_xlabel("pay of one attacker, in honest peers' pay")
    kept.set_xlabel("progress, in shares of the clean run's")
    kept.axvline(0.95, color="0.5", linestyle=":")
    figure.legend(*pay.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=110)


def _rounds(value: float) -> str:
    return "never" if value == float("inf") else f"{value:g}"
