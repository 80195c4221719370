"""How well the proof of computation tells honest from lazy work, by sample size: the localnet's model and text, in one
process, without a network. Prints one JSON line a (seed, samples) pair, and every gap with --gaps FILE.

    python benchmarks/proof_power.py --seeds 3 --rounds 12 --samples 64,160

Peers: 4 honest miners, 1 lazy (trains on pages that it was not assigned), 1 noise. Everybody honest contributes.
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from statistics import fmean, pstdev

import torch

from gauntlet.loss import bounded, evaluate
from gauntlet.proof import gap
from gauntlet.sampling import Seed, references, samples
from localnet.network import PRESET, text_data
from protocol.assignment import Draw, assigned, page_at
from protocol.spec import RunSpec
from protocol.types import Digest, PeerId
from sparseloco import ops
from sparseloco.wire import Submission
from training.evaluate import held_out_loss
from training.loader import sequences
from training.probe import Prober
from training.replica import Replica, genesis_theta
from training.shards import Shards

HONEST = 4


def spec_with(changes: dict[str, dict[str, object]], shards: Shards) -> RunSpec:
    table = tomllib.loads(PRESET.read_text())
    for name, fields in changes.items():
        table.setdefault(name, {}).update(fields)
    table["data"] |= {"index": shards.digest.hex(), "num_tokens": shards.train.num_tokens}
    clock = {"start_block": 9, "round_blocks": 400, "commit": 200, "reveal": 250, "leader_slot": 40, "attest": 390}
    owner = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    head = {"name": "bench", "chain": "0" * 64, "netuid": 1, "owner": owner, "genesis_checkpoint": "0" * 64}
    return RunSpec.model_validate({**table, **head, "clock": clock | {"leader_slots": 1}})


def word(*parts: object) -> Digest:
    return Digest(Draw("bench", json.dumps(parts).encode()).words(32).to_bytes(32, "little"))


Changes = dict[str, dict[str, object]]


def run(
    seed: int, rounds: int, sizes: list[int], changes: Changes, shards: Shards, dump: list[dict[str, object]]
) -> None:
    spec = spec_with(changes, shards)
    names = [f"honest-{i}" for i in range(HONEST)] + ["lazy", "noise"]
    peers = {name: PeerId(word("peer", name)) for name in names}
    name_of = {peer: name for name, peer in peers.items()}
    theta = genesis_theta(spec.model, seed)
    miners = {name: Replica(spec, theta) for name in names}
    judge = Replica(spec, theta)
    run_id = word("run", seed)
    for round in range(rounds):
        page_hash, sample_hash = word("page", seed, round), word("sample", seed, round)
        updates = {}
        for name, miner in miners.items():
            pages = assigned(
                run_id,
                page_hash,
                peers[name],
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            if name == "lazy":
                pages = (page_at(Draw("lazy", seed, round).below(spec.num_pages), spec.page_tokens),)
            if name == "noise":
                like = updates[peers["honest-0"]]
                moved = {}
                generator = torch.Generator().manual_seed(seed * 1000 + round)
                for t in miner.layout:
                    dense = like.dense(t.name)
                    size = float(dense.norm()) / max(1.0, float((dense != 0).sum())) ** 0.5
                    moved[t.name] = miner.theta[t.name] + size * torch.randn(t.shape, generator=generator)
                updates[peers[name]], _ = ops.compress(miner.theta, moved, None, miner.layout, beta=0.0)
            else:
                miner.inner_round(sequences(shards.train, pages, spec.model.context))
                updates[peers[name]] = miner.compress()
        passed = {peer: Submission(peer, round, judge.digest(), update) for peer, update in updates.items()}
        for size in sizes:
            sized = spec.model_copy(update={"gauntlet": spec.gauntlet.model_copy(update={"sample_sequences": size})})
            s = Seed(run_id, sample_hash, round, word("validator"))
            honest = {peers[n] for n in names[:HONEST]}
            drawn = samples(sized, page_hash, sorted(passed), set(passed), s)
            with Prober(judge, shards.train, spec.gauntlet.probe_step) as prober:
                others = references(sorted(passed), set(passed), honest, spec.gauntlet, s)
                found = evaluate(prober.loss, passed, bounded(passed, judge.outer), drawn, others)
            for peer, e in found.items():
                row = {"seed": seed, "round": round, "samples": size, "name": name_of[peer], "gap": gap(e)}
                dump.append({**row, "assigned": e.score.assigned, "unassigned": e.score.unassigned})
        chosen = sorted(peers[n] for n in names[:HONEST])
        for replica in (*miners.values(), judge):
            replica.outer_step([updates[p] for p in chosen], alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        sys.stderr.write(f"seed {seed} round {round} loss {held_out_loss(judge, shards, 64):.3f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--samples", default="64,160")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--gaps", type=Path)
    options = parser.parse_args()
    changes: dict[str, dict[str, object]] = {}
    for text in options.set:
        where, value = text.split("=", 1)
        table, field = where.split(".")
        changes.setdefault(table, {})[field] = json.loads(value)
    shards = Shards.open(text_data(lambda line: None))
    dump: list[dict[str, object]] = []
    sizes = [int(size) for size in options.samples.split(",")]
    for seed in range(options.seeds):
        run(seed, options.rounds, sizes, changes, shards, dump)
    for size in sizes:
        rows = [row for row in dump if row["samples"] == size and row["round"] >= 1]
        honest = [float(row["gap"]) for row in rows if str(row["name"]).startswith("honest")]
        unit = fmean(honest)
        line: dict[str, object] = {"samples": size, "unit": unit, "honest_sd": pstdev(honest) / unit}
        line["honest_positive"] = fmean(g > 0 for g in honest)
        for other in ("lazy", "noise"):
            gaps = [float(row["gap"]) for row in rows if row["name"] == other]
            line |= {f"{other}_mean": fmean(gaps) / unit, f"{other}_sd": pstdev(gaps) / unit}
        sys.stdout.write(json.dumps(line) + "\n")
    if options.gaps:
        options.gaps.write_text("".join(json.dumps(row) + "\n" for row in dump))


if __name__ == "__main__":
    main()
