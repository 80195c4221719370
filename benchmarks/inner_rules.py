"""Held-out loss by round with what miners may choose for themselves: inner optimizer, rate, and what they send. Equal
tokens and equal bytes; honest peers only, all of them applied, the real codec and outer step.

    python benchmarks/inner_rules.py --seeds 3 --rounds 24 --index-power 0.5
    python benchmarks/inner_rules.py --set inner.optimizer='"muon"' --set inner.peak_lr=0.012

Prints a JSON line a seed.
"""

import argparse
import json
import sys

import torch
from bench_pay import changes_of
from pay_network import MODELS, Plan
from pay_trainers import Rule, ruled
from proof_power import word

from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import assigned
from murmur.protocol.types import PeerId
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.replica import genesis_theta


def losses(plan: Plan, seed: int, shards: Shards) -> list[float]:
    """Nats a token after each round."""
    spec = plan.spec(shards)
    theta, run = genesis_theta(spec.model, seed), word("run", seed)
    peers = [PeerId(word("peer", seed, f"full-{place}", 0)) for place in range(plan.full)]
    replicas = [ruled(plan.rule)(spec, theta) for _ in peers]
    found: list[float] = []
    for number in range(plan.rounds):
        updates = []
        for peer, replica in zip(peers, replicas, strict=True):
            pages = assigned(
                run,
                word("page", seed, number),
                peer,
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            replica.inner_round(sequences(shards.train, pages, spec.model.context))
            updates.append(replica.compress())
        for replica in replicas:
            replica.outer_step(updates, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        found.append(round(held_out_loss(replicas[0], shards, spec.data.held_out_sequences), 4))
        sys.stderr.write(f"seed {seed} round {number} loss {found[-1]}\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="local")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--full", type=int, default=4, help="peers (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--index-power", type=float, default=0.0, help="values are chosen by |acc| g^POWER")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rule, changes = Rule(options.index_power), changes_of(options.set)
    plan = Plan(options.model, "equal", options.full, options.rounds, changes, rule)
    shards = Shards.open(text_data(lambda line: None))
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        line = {"model": plan.model, "set": changes, "rule": vars(rule), "full": plan.full, "seed": seed}
        sys.stdout.write(json.dumps(line | {"losses": losses(plan, seed, shards)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
