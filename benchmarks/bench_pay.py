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
steps each.

Prints, of each kind, pay of all the hotkeys of one worker over the mean of a full one, cumulated over all rounds:
median, smallest and largest over seeds; `work`, what it did in full workers; `score`, a hotkey's mean LossScore over a
full one's. `gini_10` and `gini_30`: Gini coefficient of the equal workers' pay up to that round. `swarm_80`: `share` of
all pay, and `progress`, the fall of the held-out loss over that of the equal network with the same seed. `vtrust`:
mean share of a validator's weights that the others' leave, from the sixth round on.

--rows FILE: a line for every network and seed as soon as it has been played; what stands there already is not played
again. --model larger: 3.2 M parameters, some thirty times the cost of `local`, 0.12 M.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from pay_trainers import Rule
from pay_workers import WORKERS, View, Worker
from proof_power import Changes, spec_with, word
from score_rules import RULES, SEQUENCES, RuleScores

from arena.agree import consensus, pooled
from gauntlet.book import RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked
from gauntlet.evaluation import Evaluation
from gauntlet.loss import bounded, evaluate
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import Ranking, standing
from gauntlet.weights import weights
from localnet.text import text_data
from protocol.assignment import Draw
from protocol.spec import RunSpec
from protocol.types import Digest, Page, PeerId, Uid
from sparseloco.update import Update
from sparseloco.wire import Submission
from training.evaluate import held_out_loss
from training.loader import sequences
from training.probe import Prober
from training.replica import Replica, genesis_theta
from training.shards import Shards

Line = dict[str, Any]
"""What is kept of one network and seed, as JSON."""

MODELS: dict[str, Changes] = {
    "local": {},
    "larger": {
        "model": {"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "ffn": 768},
        "inner": {"peak_lr": 2e-3, "final_lr": 2e-4},
    },
}
NETWORKS: dict[str, tuple[int, tuple[str, ...]]] = {
    "equal": (8, ()),
    "split": (6, ("split_in_two", "half_work")),
    "more": (6, ("double_steps", "double_batch")),
    "shaped": (6, ("half_rate", "double_rate", "inflate_1_25", "deflate_0_85")),
    "cheats": (6, ("copier_39", "on_off", "thin_margin", "frozen_layers")),
    "swarm_80": (4, ("swarm_80",)),
    "study": (4, ("half_work", "double_steps", "half_rate")),
}
"""Number of full workers, and who is with them. `study` is for comparing rules, and not part of the bench."""

EVALUATING = 3
"""Validators of the equal network that evaluate; the last one copies."""

SETTLED = 5
"""Rounds after which a copying validator's trust counts: before, there is little to copy."""

OWNER = PeerId(word("owner"))


class Validator:
    """One that evaluates: its book, and its weights of the last round."""

    def __init__(self, name: str, run: Digest, spec: RunSpec) -> None:
        self.peer, self.run, self.spec = PeerId(word(name)), run, spec
        self.book, self.weights = ScoreBook(), dict[Uid, float]()

    def ranking(self, round: int, passed: Mapping[PeerId, Submission]) -> Ranking:
        """By the book of before the round."""
        return standing(self.book, passed, self.spec.gauntlet, round, word("commit", self.run.hex(), round))

    def judge(
        self,
        view: View,
        passed: Mapping[PeerId, Submission],
        contributing: frozenset[PeerId],
        replica: Replica,
        uids: Mapping[PeerId, Uid],
    ) -> dict[PeerId, Evaluation]:
        """Evaluate, fold and pay one round."""
        gauntlet, ranking = self.spec.gauntlet, self.ranking(view.round, passed)
        seed = Seed(self.run, word("sample", self.run.hex(), view.round), view.round, self.peer)
        picked = pick(self.book, passed, contributing, gauntlet, seed)
        drawn = samples(self.spec, view.page_hash, picked, set(passed), seed)
        against = references(picked, passed, contributing, gauntlet, seed)
        with Prober(replica, view.train, gauntlet.probe_step) as prober:
            found = evaluate(prober.losses, passed, bounded(passed, replica.outer), drawn, against)
        checked = Checked(passed, {}, frozenset(passed), {}, {})
        self.book = fold(self.book, RoundOutcome(view.round, checked, found, contributing), gauntlet)
        self.weights = weights(self.book, ranking, uids, OWNER, gauntlet)
        return found


@dataclass(frozen=True)
class Plan:
    """One network to play. `changes`: of the preset, beyond the model's."""

    model: str
    network: str
    full: int
    rounds: int
    changes: Changes
    rule: Rule
    rules: bool = False

    def key(self, seed: int) -> Line:
        """What a line has to say to be this plan's."""
        full = self.full or NETWORKS[self.network][0]
        named = {"model": self.model, "network": self.network, "full": full, "rounds": self.rounds}
        return named | {"set": self.changes, "rule": vars(self.rule), "rules": self.rules, "seed": seed}

    def spec(self, shards: Shards) -> RunSpec:
        tables = {name: dict(fields) for name, fields in MODELS[self.model].items()}
        for name, fields in self.changes.items():
            tables.setdefault(name, {}).update(fields)
        return spec_with(tables, shards)


def play(plan: Plan, seed: int, shards: Shards) -> Line:
    """One network with one seed, from its first round to its last."""
    spec, key = plan.spec(shards), plan.key(seed)
    theta, run = genesis_theta(spec.model, seed), word("run", seed)
    kinds = ["full"] * key["full"] + list(NETWORKS[plan.network][1])
    workers = [
        WORKERS[kind](f"{kind}-{kinds[:place].count(kind)}", seed, spec, theta, plan.rule)
        for place, kind in enumerate(kinds)
    ]
    hotkeys = [peer for worker in workers for peer in worker.hotkeys]
    uids = {peer: Uid(place) for place, peer in enumerate(hotkeys)}
    validators = [Validator(f"validator-{place}", run, spec) for place in range(_validators(plan.network))]
    stakes = dict.fromkeys([*(validator.peer for validator in validators), PeerId(word("copying"))], 1)
    judge, copied, step = Replica(spec, theta), dict[Uid, float](), None
    updates: dict[PeerId, Update] = {}
    by_rule = RuleScores(spec) if plan.rules else None
    rounds: list[Line] = []
    first_loss = held_out_loss(judge, shards, spec.data.held_out_sequences)
    for number in range(plan.rounds):
        page_hash = word("page", seed, number)
        view = View(number, spec, run, page_hash, shards.train, step, updates, judge.outer, validators[0].book)
        updates = {peer: update for worker in workers for peer, update in worker.send(view).items()}
        passed = {peer: Submission(peer, number, judge.digest(), updates[peer]) for peer in sorted(updates)}
        contributing = frozenset(validators[0].ranking(number, passed).contributing)
        found = [validator.judge(view, passed, contributing, judge, uids) for validator in validators]
        posted = {validator.peer: validator.weights for validator in validators}
        paid = pooled(posted, stakes)
        trust = trusted(posted | {PeerId(word("copying")): copied}, stakes)
        copied = paid
        before, outer = {name: tensor.clone() for name, tensor in judge.theta.items()}, judge.outer
        chosen = [updates[peer] for peer in sorted(contributing)]
        for worker in workers:
            worker.decided(chosen)
        if chosen:
            judge.outer_step(chosen, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        step = {name: before[name] - tensor for name, tensor in judge.theta.items()}
        loss = held_out_loss(judge, shards, spec.data.held_out_sequences)
        rounds.append({"loss": loss, "trust": list(trust.values())})
        for worker in workers:
            rounds[-1][worker.name] = _seen(worker, updates, contributing, paid, uids, found[0])
        if by_rule is not None:
            text = Draw("rules", run, number).distinct(spec.num_pages, SEQUENCES)
            some = sequences(
                shards.train, [Page(page * spec.page_tokens, spec.model.context) for page in text], spec.model.context
            )
            scores = by_rule(before, judge.theta, updates, outer, some)
            for worker in workers:
                rounds[-1][worker.name]["rules"] = {
                    name: [scores[peer][name] for peer in worker.hotkeys if peer in scores] for name in RULES
                }
        sys.stderr.write(f"{plan.network} seed {seed} round {number} loss {loss:.3f}\n")
    return key | {
        "workers": {worker.name: {"kind": worker.kind, "work": worker.work / plan.rounds} for worker in workers},
        "first_loss": first_loss,
        "by_round": rounds,
    }


def _validators(network: str) -> int:
    return EVALUATING if network == "equal" else 1


def _seen(
    worker: Worker,
    updates: Mapping[PeerId, Update],
    contributing: frozenset[PeerId],
    paid: Mapping[Uid, float],
    uids: Mapping[PeerId, Uid],
    found: Mapping[PeerId, Evaluation],
) -> Line:
    """A worker's round: pay and places of all its hotkeys; norm, score and gap of each that was evaluated."""
    mine = [peer for peer in worker.hotkeys if peer in found]
    return {
        "pay": sum(paid.get(uids[peer], 0.0) for peer in worker.hotkeys),
        "places": len(contributing.intersection(worker.hotkeys)),
        "norm": [updates[peer].norms.whole for peer in mine],
        "score": [found[peer].score.unassigned for peer in mine],
        "gap": [found[peer].gap for peer in mine],
    }


def trusted(posted: Mapping[PeerId, Mapping[Uid, float]], stakes: Mapping[PeerId, int]) -> dict[PeerId, float]:
    """The share of every validator's weights that the consensus leaves: what the chain calls its trust."""
    limits = consensus(posted, stakes)
    return {
        peer: sum(min(weight, limits.get(uid, 0.0)) for uid, weight in given.items()) for peer, given in posted.items()
    }


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
    """Digits that mean something."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


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


def changes_of(texts: Iterable[str]) -> Changes:
    """Of TABLE.FIELD=JSON."""
    changes: Changes = {}
    for text in texts:
        where, value = text.split("=", 1)
        table, field = where.split(".")
        changes.setdefault(table, {})[field] = json.loads(value)
    return changes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="local")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--population", nargs="+", choices=tuple(NETWORKS), default=tuple(NETWORKS)[:-1])
    parser.add_argument("--full", type=int, default=0, help="full workers of a network (default: NETWORKS)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--index-power", type=float, default=0.0, help="miners choose values by |acc| sqrt(v)^POWER")
    parser.add_argument("--muon-everywhere", action="store_true", help="miners train every matrix by Muon")
    parser.add_argument(
        "--rules", action="store_true", help="keep scores by other rules too (benchmarks/score_rules.py)"
    )
    parser.add_argument("--rows", type=Path, help="JSON lines file to go on with")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rule, changes = Rule(options.index_power, options.muon_everywhere), changes_of(options.set)
    plans = [
        Plan(options.model, network, options.full, options.rounds, changes, rule, options.rules)
        for network in options.population
    ]
    found = figures(plans, range(options.first_seed, options.first_seed + options.seeds), options.rows)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, value in found.items():
        sys.stdout.write(f"{name:14} {json.dumps(value)}\n")


if __name__ == "__main__":
    main()
