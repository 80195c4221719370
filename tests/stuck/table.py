"""The tables of the documents that follow from what the programs say: of all causes, and of all situations that were
played. `python -m tests.stuck.table [FILE]` writes both; FILE: what STUCK_TABLE collected (play.py)."""

import json
import sys
from pathlib import Path

from murmur.node.telemetry.causes import CAUSES, Owner

ROOT = Path(__file__).parent.parent.parent
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
PLAYED = ROOT / "docs" / "evidence" / "stuck.md"
BEGIN, END = "<!-- causes: python -m tests.stuck.table -->\n", "<!-- end of causes -->\n"
SHORT = {Owner.EITHER: "you, or a provider", Owner.PROVIDER: "the provider"}


def causes() -> str:
    """Return the table of all causes."""
    lines = ["| it says | whose | do |", "|---|---|---|"]
    lines += [f"| `{of.says}` | {SHORT.get(of.owner, of.owner)} | {of.do} |" for of in CAUSES.values()]
    return "\n".join(lines) + "\n"


def played(rows: list[dict[str, object]]) -> str:
    """Return the table of the situations that were played."""
    lines = [
        "| situation | cause | whose | told after | by | back after |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        of = CAUSES[str(row["cause"])]
        told, back = (f"{row[name]} s" if row[name] is not None else "" for name in ("seconds", "back"))
        surfaces = ", ".join(map(str, row["told"] if isinstance(row["told"], list) else ()))
        lines.append(f"| {row['name']} | {of.says} | {of.owner} | {told or 'at once'} | {surfaces} | {back} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    text = TROUBLESHOOTING.read_text()
    before, _, rest = text.partition(BEGIN)
    TROUBLESHOOTING.write_text(before + BEGIN + causes() + END + rest.partition(END)[2])
    if len(sys.argv) > 1:
        found: dict[str, dict[str, object]] = {}
        for line in Path(sys.argv[1]).read_text().splitlines():
            row = json.loads(line)
            found[f"{row['name']} {row['cause']}"] = row
        head = PLAYED.read_text().partition("| situation")[0]
        PLAYED.write_text(head + played(list(found.values())))


if __name__ == "__main__":
    main()
