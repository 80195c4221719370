"""How well the proof of computation tells honest from lazy work: a whole run with the real gauntlet and the local
network's model and text, in one process, without a network. Prints a JSON line a seed, and one with all together.

    python benchmarks/proof_power.py --seeds 6 --rounds 12 --peers honest=3,lazy=1

A lazy peer trains on the same wrong page in every round, a wandering one on another wrong page each round, a half one
does half of the steps on its own page; noise posts random values of an honest peer's norm.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, pstdev

import torch

from gauntlet.book import RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked
from gauntlet.loss import bounded, evaluate
from gauntlet.sampling import Seed, references, samples
from gauntlet.selection import standing
from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import Draw, assigned, page_at
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Page, PeerId
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.probe import Prober
from murmur.training.replica import Replica, genesis_theta
from sparseloco import ops
from sparseloco.update import Update
from sparseloco.wire import Submission

Changes = dict[str, dict[str, object]]
KINDS = ("honest", "lazy", "wandering", "half", "noise")


def spec_with(changes: Changes, shards: Shards) -> RunSpec:
    table = presets.table("tiny")
    for name, fields in changes.items():
        table.setdefault(name, {}).update(fields)
    table["data"] |= {"index": shards.digest.hex(), "num_tokens": shards.train.num_tokens}
    clock = {"start_block": 9, "round_blocks": 400, "commit": 200, "reveal": 250, "words": 390}
    owner = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    head = {"name": "bench", "chain": "0" * 64, "netuid": 1, "owner": owner, "genesis_checkpoint": "0" * 64}
    return RunSpec.model_validate({**table, **head, "clock": clock})


def word(*parts: object) -> Digest:
    return Digest(Draw("bench", json.dumps(parts).encode()).words(32).to_bytes(32, "little"))


def pages_of(kind: str, peer: PeerId, round: int, own: tuple[Page, ...], spec: RunSpec) -> tuple[Page, ...]:
    """What a peer of this kind trains on."""
    if kind not in ("lazy", "wandering"):
        return own
    draw = Draw("lazy", peer) if kind == "lazy" else Draw("lazy", peer, round)
    return tuple(page_at(index, spec.page_tokens) for index in draw.distinct(spec.num_pages, len(own)))


def noise(replica: Replica, like: Update, seed: int) -> Update:
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for tensor in replica.layout:
        dense = like.dense(tensor.name)
        size = float(dense.norm()) / max(1.0, float((dense != 0).sum())) ** 0.5
        moved[tensor.name] = replica.theta[tensor.name] + size * torch.randn(tensor.shape, generator=generator)
    return ops.compress(replica.theta, moved, None, replica.layout, beta=0.0)[0]


def run(seed: int, rounds: int, kinds: list[str], spec: RunSpec, shards: Shards) -> list[dict[str, object]]:
    """One row a peer and round."""
    names = [f"{kind}-{kinds[:place].count(kind)}" for place, kind in enumerate(kinds)]
    peers = {name: PeerId(word("peer", seed, name)) for name in names}
    gauntlet, context = spec.gauntlet, spec.model.context
    half = spec.inner.model_copy(update={"steps": spec.inner.steps // 2})
    theta = genesis_theta(spec.model, seed)
    miners = {name: Replica(spec, theta) for name in names}
    judge = Replica(spec, theta)
    run_id, book, rows = word("run", seed), ScoreBook(), []
    for round in range(rounds):
        page_hash = word("page", seed, round)
        updates: dict[PeerId, Update] = {}
        for name, kind in zip(names, kinds, strict=True):
            miner, peer = miners[name], peers[name]
            own = assigned(
                run_id,
                page_hash,
                peer,
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            if kind == "noise":
                updates[peer] = noise(miner, next(iter(updates.values())), seed * 1000 + round)
                continue
            work = sequences(shards.train, pages_of(kind, peer, round, own, spec), context)
            miner.inner_round(work, inner=half if kind == "half" else None)
            updates[peer] = miner.compress()
        passed = {peer: Submission(peer, round, judge.digest(), updates[peer]) for peer in sorted(updates)}
        contributing = frozenset(standing(book, passed, gauntlet, round, word("commit", seed, round)).contributing)
        s = Seed(run_id, word("sample", seed, round), round, PeerId(word("validator")))
        drawn = samples(spec, page_hash, sorted(passed), set(passed), s)
        against = references(sorted(passed), set(passed), contributing, gauntlet, s)
        with Prober(judge, shards.train, gauntlet.probe_step) as prober:
            found = evaluate(prober.losses, passed, bounded(passed, judge.outer), drawn, against)
        checked = Checked(passed, {}, frozenset(passed), {}, {})
        book = fold(book, RoundOutcome(round, checked, found, contributing), gauntlet)
        for name in names:
            evaluation = found.get(peers[name])
            rows.append(
                {
                    "seed": seed,
                    "round": round,
                    "name": name,
                    "contributing": peers[name] in contributing,
                    "gap": evaluation.gap if evaluation else None,
                    "score": evaluation.score.unassigned if evaluation else None,
                    "proof": book.peers[peers[name]].proof,
                }
            )
        if contributing:
            chosen = [updates[peer] for peer in sorted(contributing)]
            for replica in (*miners.values(), judge):
                replica.outer_step(chosen, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        sys.stderr.write(f"seed {seed} round {round} loss {held_out_loss(judge, shards, 64):.3f}\n")
    return rows


def summary(rows: list[dict[str, object]], kinds: list[str], rounds: int) -> dict[str, object]:
    """Of each kind: the gap's mean (of honest peers in shares, of others in units of that) and deviation in units, by
    early and late rounds; and in how many peer-rounds of each round it contributed."""

    def gaps(kind: str, part: range) -> list[float]:
        return [row["gap"] for row in rows if row["name"].startswith(kind) and row["round"] in part and row["gap"]]

    line: dict[str, object] = {}
    for part in (range(min(4, rounds)), range(4, rounds)):
        unit = fmean(gaps("honest", part) or [float("nan")])
        for kind in sorted(set(kinds), key=kinds.index):
            found = gaps(kind, part)
            if found:
                mean = fmean(found) if kind == "honest" else fmean(found) / unit
                line[f"{kind} gap, rounds {part[0]}-{part[-1]}"] = [round(mean, 3), round(pstdev(found) / unit, 2)]
    for kind in sorted(set(kinds), key=kinds.index):
        mine = [row for row in rows if row["name"].startswith(kind)]
        line[f"{kind} contributing by round"] = [
            sum(row["contributing"] for row in mine if row["round"] == index) for index in range(rounds)
        ]
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--peers", default="honest=3,lazy=1", help="kinds: " + ", ".join(KINDS))
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--rows", type=Path, help="write every peer's round as a JSON line")
    options = parser.parse_args()
    changes: Changes = {}
    for text in options.set:
        where, value = text.split("=", 1)
        table, field = where.split(".")
        changes.setdefault(table, {})[field] = json.loads(value)
    kinds = [kind for part in options.peers.split(",") for kind in [part.split("=")[0]] * int(part.split("=")[1])]
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds of peers: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    shards = Shards.open(text_data(lambda line: None))
    spec = spec_with(changes, shards)
    rows: list[dict[str, object]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        found = run(seed, options.rounds, kinds, spec, shards)
        rows += found
        sets = dict.fromkeys((str(row["name"]) for row in found), "")
        for row in found:
            sets[str(row["name"])] += "C" if row["contributing"] else "."
        sys.stdout.write(json.dumps({"seed": seed} | sets) + "\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(summary(rows, kinds, options.rounds)) + "\n")
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
