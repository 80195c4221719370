"""Does honest work pay? Whole runs of the real judging over a transformer that is really trained, with workers who do
more, less or other than they should; what each is paid, over what a full worker of the same network is paid.

    python benchmarks/bench_pay.py --model local --seeds 3 --json --rows pay.jsonl
    python benchmarks/bench_pay.py --population split --full 4 --rounds 8 --set inner.optimizer='"muon"'

Real: training, compression with error feedback and restraint, bounds, samples, references, probes, fold, standing,
weights and the outer step, as a validator and a miner call them. Not here: payloads as bytes and their checks (nothing
here would fail one), the chain's block hashes (hashes of names).

A network is six full workers and a few others, who share it because together they are a minority of it and the judging
compares each with the full ones; who shares one is in NETWORKS. Nothing of a run is another network's but its theta_0:
after the first outer step no computation is the same. `equal` has eight full workers, three validators and one that
posts the weights of the round before; `swarm_80` four full ones and sixteen hotkeys of one owner with a tenth of the
steps each; `leaning` has who would live on the run's momentum or make half of the work look whole, `crowding` two
hotkeys of one owner that share a direction of their own or deal out the values of one work.

Prints, of each kind, pay of all the hotkeys of one worker over the mean of a full one, cumulated over all rounds:
median, smallest and largest over seeds; `work`, what it did in full workers; `score`, a hotkey's mean LossScore over a
full one's. `gini_10` and `gini_30`: Gini coefficient of the equal workers' pay up to that round; `least_honest`: the
least of their pay over the mean, of all seeds. `swarm_80`: `share` of
all pay, and `progress`, the fall of the held-out loss over that of the equal network with the same seed. `vtrust`:
mean share of a validator's weights that the others' leave, from the sixth round on.

--rows FILE: a line for every network and seed as soon as it has been played; what stands there already is not played
again. --model larger: 3.2 M parameters, some thirty times the cost of `local`, 0.12 M.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from pay_network import MODELS, NETWORKS, Line, Plan, play
from pay_trainers import Rule
from tiny_spec import changes_of

from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data

SETTLED = 5
"""Rounds after which a copying validator's trust counts: before, there is little to copy."""


def gini(values: Sequence[float]) -> float:
    """0 when all are equal, towards 1 when one has all."""
    total, count = sum(values), len(values)
    if not total:
        return 0.0
    ranked = sum((2 * place - count - 1) * value for place, value in enumerate(sorted(values), 1))
    return ranked / (count * total)


def earned(line: Line, name: str, rounds: int | None = None) -> float:
    """A worker's pay up to a round."""
    return float(sum(row[name]["pay"] for row in line["by_round"][:rounds]))


def of_kind(line: Line, kind: str) -> list[str]:
    return [name for name, worker in line["workers"].items() if worker["kind"] == kind]


def over_full(line: Line, kind: str) -> Line:
    """One worker of a kind over the full ones of its network."""
    full, (name,) = of_kind(line, "full"), of_kind(line, kind)
    pay = fmean([earned(line, other) for other in full])
    usual = fmean([scored(line, other) for other in full])
    return {
        "ratio": earned(line, name) / pay if pay else float("inf"),
        "work": line["workers"][name]["work"],
        "score": scored(line, name) / usual if usual else float("nan"),
    }


def scored(line: Line, name: str) -> float:
    """Mean LossScore of a worker's hotkeys."""
    return fmean([value for row in line["by_round"] for value in row[name]["score"]] or [0.0])


def summary(lines: Iterable[Line]) -> Line:
    """The figures of all seeds. Of one model and number of rounds."""
    by_network: dict[str, list[Line]] = {}
    for line in lines:
        by_network.setdefault(line["network"], []).append(line)
    found: Line = {}
    for network, played in by_network.items():
        for kind in NETWORKS[network][1]:
            each = [over_full(line, kind) for line in played]
            ratios = [one["ratio"] for one in each]
            found[kind] = {
                "ratio_median": median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "work": fmean([one["work"] for one in each]),
                "score": median([one["score"] for one in each]),
            }
    equal = by_network.get("equal", [])
    for end in (10, 30):
        ginis = [gini([earned(line, name, end) for name in line["workers"]]) for line in equal]
        if ginis and all(line["rounds"] >= end for line in equal):
            found[f"gini_{end}"], found[f"gini_{end}_max"] = median(ginis), max(ginis)
    if equal:
        shares = [[earned(line, name) for name in line["workers"]] for line in equal]
        found["least_honest"] = min(min(pay) / (fmean(pay) or 1.0) for pay in shares)
    if equal and all(line["rounds"] > SETTLED for line in equal):
        settled = [row["trust"] for line in equal for row in line["by_round"][SETTLED:]]
        evaluating = fmean([value for trust in settled for value in trust[:-1]])
        found["vtrust"] = {"evaluating": evaluating, "copying": fmean([trust[-1] for trust in settled])}
    if "swarm_80" in by_network:
        found["swarm_80"] |= swarm(by_network["swarm_80"], {line["seed"]: line for line in equal})
    return found


def swarm(played: Sequence[Line], equal: Mapping[int, Line]) -> Line:
    shares = []
    for line in played:
        pay = {name: earned(line, name) for name in line["workers"]}
        shares.append(sum(pay[name] for name in of_kind(line, "swarm_80")) / (sum(pay.values()) or 1.0))
    progress = [fall(line) / fall(equal[line["seed"]]) for line in played if line["seed"] in equal]
    return {"share": median(shares), "share_max": max(shares), "progress": median(progress) if progress else None}


def fall(line: Line) -> float:
    """Of the held-out loss over the whole run, nats a token."""
    return float(line["first_loss"] - line["by_round"][-1]["loss"])


def rounded(value: Any) -> Any:
    """Digits that mean something; null for what is not finite."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if isfinite(value) else None
    return value


def kept(file: Path) -> list[Line]:
    """The lines of a file; one that was cut off does not count."""
    lines: list[Line] = []
    for text in file.read_text().splitlines() if file.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def matching(lines: Iterable[Line], key: Line) -> Line | None:
    return next((line for line in lines if all(line.get(name) == value for name, value in key.items())), None)


def figures(plans: Sequence[Plan], seeds: Sequence[int], rows: Path | None) -> Line:
    """Play what is not in the file yet, and sum up."""
    shards = Shards.open(text_data(lambda line: None))
    before, lines = kept(rows) if rows else [], []
    for seed in seeds:
        for plan in plans:
            line = matching(before, plan.key(seed))
            if line is None:
                line = rounded(play(plan, seed, shards))
                if rows:
                    with rows.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            lines.append(line)
    found: Line = rounded(summary(lines))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="local")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--population", nargs="+", choices=tuple(NETWORKS), default=tuple(NETWORKS))
    parser.add_argument("--full", type=int, default=0, help="full workers of a network (default: NETWORKS)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--index-power", type=float, default=0.0, help="miners choose values by |acc| g^POWER")
    parser.add_argument("--rows", type=Path, help="JSON lines file to go on with")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rule, changes = Rule(options.index_power), changes_of(options.set)
    plans = [
        Plan(options.model, network, options.full, options.rounds, changes, rule) for network in options.population
    ]
    found = figures(plans, range(options.first_seed, options.first_seed + options.seeds), options.rows)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, value in found.items():
        sys.stdout.write(f"{name:14} {json.dumps(value)}\n")


if __name__ == "__main__":
    main()
