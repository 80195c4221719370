"""What other rules of pay would have paid in rounds that benchmarks/bench_pay.py has kept.

    python benchmarks/pay_rules.py pay.jsonl

Every hotkey's scores and gaps stand in the lines; the book is folded from them anew by the real code, and a rule says
what a peer has earned by its record there. Which updates were applied stays as it was played: rules that select others
have to be played. Prints, for every network, its settings and every rule, pay over that of a full worker (median,
smallest and largest over seeds) and the Gini coefficients of the full workers' pay after 10 and 30 rounds. Of a network
with several validators it is what the first one pays.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from math import hypot, sqrt
from pathlib import Path
from statistics import median
from typing import cast

from bench_pay import earned, gini, kept, of_kind, over_full, rounded
from pay_network import Line
from proof_power import word

from gauntlet.book import PeerRecord, RoundOutcome, ScoreBook, eligible, fold
from gauntlet.checks import Checked
from gauntlet.evaluation import Evaluation
from gauntlet.selection import peer_score, standing
from gauntlet.weights import RESERVE_SHARE, merit, proven, worth
from murmur.configs import presets
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import LossScore, PeerId
from sparseloco.wire import Submission

Pay = Callable[[PeerRecord], float]


def whole_proof(record: PeerRecord) -> float:
    """The proof, at most 1, less its penalty."""
    return max(0.0, min(1.0, record.proof or 0.0) - record.penalty)


def score(record: PeerRecord) -> float:
    """Averaged LossScore in honest ones, as it was paid before progress (docs/decisions/0048-honest-work-pays.md)."""
    unit = hypot(record.usual_scores.value, sqrt(record.score_variances.value))
    return max(0.0, record.scores.value) / unit if unit else 0.0


RULES: dict[str, Pay] = {
    "merit": merit,
    "proven times progress": lambda record: proven(record) * worth(record),
    "proven times progress squared": lambda record: proven(record) * worth(record) ** 2,
    "proven times progress to the 2.5": lambda record: proven(record) * worth(record) ** 2.5,
    "proven times progress cubed": lambda record: proven(record) * worth(record) ** 3,
    "progress cubed": lambda record: worth(record) ** 3,
    "a whole proof times progress cubed": lambda record: whole_proof(record) * worth(record) ** 3,
    "proven times score squared": lambda record: proven(record) * score(record) ** 2,
    "by rank": lambda record: peer_score(record) ** 2,
    "proven": proven,
}
"""`merit` is what is paid; `proven times score squared` what was before, `by rank` before that."""


def hotkeys(line: Line, name: str, count: int) -> list[PeerId]:
    """As benchmarks/pay_workers.py names them."""
    return [PeerId(word("peer", line["seed"], name, index)) for index in range(count)]


def went_on(seen: Line) -> list[float | None]:
    """Progress of a worker's hotkeys; none of it stands in lines of before 0056."""
    return seen.get("progress", [])


def replayed(line: Line, pay: Pay) -> Line:
    """The line with what the rule pays."""
    table = presets.table("tiny")["gauntlet"]
    gauntlet = GauntletSpec.model_validate(table | line["set"].get("gauntlet", {}))
    run, book, rows = word("run", line["seed"]), ScoreBook(), []
    for number, row in enumerate(line["by_round"]):
        mine = {name: hotkeys(line, name, len(row[name]["score"])) for name in line["workers"]}
        found = {
            peer: Evaluation(LossScore(score, score), gap, 1)
            for name, peers in mine.items()
            for peer, score, gap in zip(peers, row[name]["score"], row[name]["gap"], strict=True)
        }
        ranking = standing(book, found, gauntlet, number, word("commit", run.hex(), number))
        # The fold looks at names only.
        checked = Checked(cast("Mapping[PeerId, Submission]", dict.fromkeys(found)), {}, frozenset(found), {}, {})
        moved = {
            peer: value
            for name, worker in line["workers"].items()
            for peer, value in zip(hotkeys(line, name, len(went_on(row[name]))), went_on(row[name]), strict=True)
            if value is not None
        }
        outcome = RoundOutcome(number, checked, found, frozenset(ranking.contributing), moved)
        book = fold(book, outcome, gauntlet)
        parts = dict.fromkeys(ranking.contributing, 1.0) | dict.fromkeys(ranking.reserve, RESERVE_SHARE)
        shares = {
            peer: part * pay(book.peers[peer]) for peer, part in parts.items() if eligible(book.peers[peer], gauntlet)
        }
        whole = sum(shares.values()) or 1.0
        paid = {name: {"pay": sum(shares.get(peer, 0.0) for peer in peers) / whole} for name, peers in mine.items()}
        rows.append(row | {name: row[name] | paid[name] for name in paid})
    return line | {"by_round": rows}


def table(lines: Iterable[Line]) -> list[Line]:
    """A row for every network, its settings and rule."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(json.dumps([line[name] for name in ("model", "network", "full", "set", "rule")]), []).append(
            line
        )
    found: list[Line] = []
    for key, played in groups.items():
        for name, pay in RULES.items():
            again = [replayed(line, pay) for line in played]
            row: Line = {"network": key, "seeds": len(again), "rule": name}
            for kind in sorted({worker["kind"] for worker in again[0]["workers"].values()} - {"full"}):
                ratios = [over_full(line, kind)["ratio"] for line in again]
                row[kind] = [median(ratios), min(ratios), max(ratios)]
            for end in (10, 30):
                if all(line["rounds"] >= end for line in again):
                    row[f"gini_{end}"] = median(
                        gini([earned(line, name, end) for name in of_kind(line, "full")]) for line in again
                    )
            found.append(rounded(row))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="+")
    options = parser.parse_args()
    for row in table(line for file in options.rows for line in kept(file)):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
