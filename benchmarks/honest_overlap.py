"""How much honest payloads have in common: positions with signs, as a share of a payload's values. The limit of COPY
comes from here (docs/decisions/0012-sampled-sketches.md). Prints a JSON line for each kind of pair.

    python benchmarks/honest_overlap.py --world arena --seeds 4 --rounds 30 --peers 24
    python benchmarks/honest_overlap.py --world local --seeds 3 --rounds 6 --peers 8

`arena`: the arena's honest players with their churn and trouble. `local`: the local network's model and text, everybody
contributing; peer 1 draws the page of peer 0 in the first round, peer 3 that of peer 2 in rounds 1, 2, 4 and 5.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from statistics import fmean, pstdev

import numpy as np
import numpy.typing as npt
import torch
from proof_power import spec_with, word

from murmur.data.shards import Shards
from murmur.lab.arena.game import Game, Scenario
from murmur.lab.arena.policies import Ours
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import assigned
from murmur.protocol.types import PeerId
from murmur.training.loader import sequences
from murmur.training.replica import Replica, genesis_theta
from sparseloco.update import Update

OPENING_ROUNDS = 4
LOOK_BACK_ROUNDS = 8

Positions = dict[str, npt.NDArray[np.int64]]
Round = tuple[Positions, set[frozenset[str]]]
"""Positions by peer, and the pairs that had one page."""


def in_the_arena(seed: int, rounds: int, peers: int) -> Iterator[Round]:
    game = Game(Scenario(seed, rounds, peers, validators=1))
    for number in range(rounds):
        game.round(number)
        judge = next(iter(game.judges.values()))
        assert isinstance(judge, Ours)
        kept = {past.peer.hex(): records for past, records in judge.records.items() if past.round == number}
        yield {peer: Update(game.spec.layout, records).positions for peer, records in kept.items()}, set()


def on_the_local_model(seed: int, rounds: int, peers: int) -> Iterator[Round]:
    shards = Shards.open(text_data(lambda line: None))
    spec = spec_with({}, shards)
    names = [str(number) for number in range(peers)]
    miners = {name: Replica(spec, genesis_theta(spec.model, seed)) for name in names}
    for number in range(rounds):
        pages, updates = {}, {}
        for name, miner in miners.items():
            pages[name] = assigned(
                word("run", seed),
                word("page", seed, number),
                PeerId(word("peer", seed, name)),
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            if (name, number) == ("1", 0) or (name == "3" and number % 3):
                pages[name] = pages[str(int(name) - 1)]
            miner.inner_round(sequences(shards.train, pages[name], spec.model.context))
            updates[name] = miner.compress()
        shared = {frozenset((a, b)) for a in names for b in names if a != b and pages[a] == pages[b]}
        yield {name: update.positions for name, update in updates.items()}, shared
        for miner in miners.values():
            miner.outer_step(list(updates.values()), alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)


def overlaps(played: Iterator[Round]) -> Iterator[tuple[str, float]]:
    """Kind of pair and its share, for every pair of a round and with the rounds before."""
    past: list[Positions] = []
    for number, (now, shared) in enumerate(played):
        when = "opening" if number < OPENING_ROUNDS else "later"
        for peer, mine in now.items():
            for other, theirs in now.items():
                if peer < other:
                    page = "one page, first round" if number == 0 else "one page, later"
                    kind = page if frozenset((peer, other)) in shared else f"same round, {when}"
                    yield kind, np.intersect1d(mine, theirs, assume_unique=True).size / mine.size
            for earlier in past:
                for other, theirs in earlier.items():
                    kind = "own earlier" if peer == other else "another's earlier"
                    yield kind, np.intersect1d(mine, theirs, assume_unique=True).size / mine.size
        past = [*past, now][-LOOK_BACK_ROUNDS:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", choices=("arena", "local"), default="arena")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--peers", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    play = in_the_arena if options.world == "arena" else on_the_local_model
    shares: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for kind, share in overlaps(play(seed, options.rounds, options.peers)):
            shares.setdefault(kind, []).append(share)
    for kind, found in sorted(shares.items()):
        told = {"mean": fmean(found), "sd": pstdev(found), "most": max(found)}
        line = {"world": options.world, "kind": kind, "pairs": len(found)} | {k: round(v, 4) for k, v in told.items()}
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
