"""What less than a third of colluding contributors do to a run, by aggregation rule: the local network's model and text
in one process, every contributor selected, as if all judges were fooled. Prints a JSON line a run.

    python benchmarks/collusion.py --honest 6 --colluding 2 --rounds 9

Colluders know everything and send values of the honest norm: against the honest mean (flipped), the same with noise of
each one's own (perturbed), or one random direction for ever (constant).
"""

import argparse
import json
import sys
from collections.abc import Mapping

import torch
from tiny_spec import spec_with, word
from torch import Tensor

from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import assigned
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import PeerId
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from sparseloco import ops
from sparseloco.outer import Aggregate, bounds
from sparseloco.spectral import gram, trust
from sparseloco.update import Update

ATTACKS = ("none", "flipped", "perturbed", "constant")
RULES: tuple[Aggregate, ...] = ("mean", "filtered_mean")


def direction(attack: str, honest: list[Update], replica: Replica, generator: torch.Generator) -> dict[str, Tensor]:
    """What one colluder pushes along; any length."""
    names = [tensor.name for tensor in replica.layout]
    if attack == "constant":
        return {tensor.name: torch.randn(tensor.shape, generator=generator) for tensor in replica.layout}
    against = {name: -sum(update.dense(name) for update in honest) / len(honest) for name in names}
    if attack == "perturbed":
        size = norm(against) / replica.layout.num_parameters**0.5
        return {name: part + size * torch.randn(part.shape, generator=generator) for name, part in against.items()}
    return against


def norm(parts: Mapping[str, Tensor]) -> float:
    return sum(float((part.double() ** 2).sum()) for part in parts.values()) ** 0.5


def sent(parts: Mapping[str, Tensor], length: float, replica: Replica) -> Update:
    """The update of these directions whose decoded values have this length."""
    zeros = {name: torch.zeros_like(part) for name, part in parts.items()}
    for _ in range(2):  # Top-k takes a part of the length away, so it is measured once and made up for
        update, _ = ops.compress(parts, zeros, None, replica.layout, beta=0.0)
        scale = length / update.norms.whole
        parts = {name: part * scale for name, part in parts.items()}
    return ops.compress(parts, zeros, None, replica.layout, beta=0.0)[0]


def run(
    attack: str, rule: Aggregate, spec: RunSpec, shards: Shards, seed: int, honest: int, colluding: int, rounds: int
) -> dict[str, object]:
    peers = [PeerId(word("peer", seed, place)) for place in range(honest + colluding)]
    theta = genesis_theta(spec.model, seed)
    miners = {peer: Replica(spec, theta) for peer in peers[:honest]}
    judge = Replica(spec, theta)
    run_id, losses, weights = word("run", seed), [], []
    for round in range(rounds):
        updates: dict[PeerId, Update] = {}
        for peer, miner in miners.items():
            pages = assigned(
                run_id,
                word("page", seed, round),
                peer,
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            miner.inner_round(sequences(shards.train, pages, spec.model.context))
            updates[peer] = miner.compress()
        if attack != "none":
            mine = list(updates.values())
            usual = sorted(update.norms.whole for update in mine)[len(mine) // 2]
            for place, peer in enumerate(peers[honest:]):
                own = seed if attack == "constant" else seed * 1000 + round * 10 + place
                generator = torch.Generator().manual_seed(own)
                updates[peer] = sent(direction(attack, mine, judge, generator), usual, judge)
        order = sorted(updates)
        factors, _ = bounds([updates[peer].norms for peer in order], judge.outer)
        trusted = dict(zip(order, trust(gram([updates[peer] for peer in order], factors)), strict=True))
        weights.append([round_of(trusted[peer]) for peer in peers if peer in trusted])
        for replica in (*miners.values(), judge):
            replica.outer_step([updates[peer] for peer in order], alpha=spec.outer.alpha, aggregate=rule)
        losses.append(round_of(held_out_loss(judge, shards, 64)))
        sys.stderr.write(f"{attack} {rule} round {round} loss {losses[-1]}\n")
    return {"attack": attack, "rule": rule, "seed": seed, "losses": losses, "weights": weights}


def round_of(value: float) -> float:
    return round(value, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--honest", type=int, default=6)
    parser.add_argument("--colluding", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    shards = Shards.open(text_data(lambda line: None))
    spec = spec_with({}, shards)
    for attack in options.attacks.split(","):
        for rule in RULES:
            counts = options.honest, options.colluding if attack != "none" else 0
            found = run(attack, rule, spec, shards, options.seed, *counts, options.rounds)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
