"""What going on with the next round's inner steps while the payloads of this one travel does to the held-out loss, at
equal tokens and bytes: honest peers, all of them applied, the real codec and outer step, text that is really learned.

    python benchmarks/bench_overlap.py --rounds 16 --seeds 2 --rows overlap.jsonl
    python benchmarks/bench_overlap.py --rounds 16 --seeds 2 --rows overlap.jsonl --delay 0.5
    python benchmarks/bench_overlap.py --table --rows overlap.jsonl

Overlapped, a peer begins a round before it knows theta, from a guess at it. After the share `--delay` of the inner
steps theta is there, and the weights move by theta - guess; what is compressed at the end is theta - theta_r, as ever.
So a payload is still made and judged against a theta that everybody has, and only gradients are taken elsewhere.

Guesses: `own`, the last theta moved by the peer's own update alone, in full; `share`, by its part of the mean; `mix`,
by that and half of what the others sent in the round before; `lacking`, that of a miner that expects a selection and
has all of it but one peer, another one in every round (docs/decisions/0059-a-round-in-which-no-gpu-waits.md); `none`,
the last theta; `last`, moved as the last outer step moved it; `kept`, the peer's own theta_r, as it stands. --blend B:
only 1 - B of theta - guess at once, the rest at the end. --void N: every N-th round is void: theta stays, and every
peer takes its update back. --join N: in round N another peer begins, from theta, with neither error feedback nor
moments nor a guess of its own.

--table: mean loss of the last rounds of every line of --rows, how much more that is than the synchronous line of the
same seed has at that side's best rate, and after how many rounds that one had come so far.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import torch
from pay_network import MODELS
from pay_network import Plan as Network
from pay_trainers import Rule
from tiny_spec import Changes, changes_of, word
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
from sparseloco.update import Update

Guess = Literal["own", "share", "none", "last", "kept", "mix", "lacking"]
Line = dict[str, Any]

LAST = 4
"""Rounds over whose losses a line is compared: a single round's swings by 2 %."""


@dataclass(frozen=True)
class Case:
    """One run: `changes` of the preset, `delay` as a share of the inner steps (0: synchronous), and what befalls it."""

    model: str
    full: int
    rounds: int
    changes: Changes
    delay: float = 0.0
    guess: Guess = "own"
    blend: float = 0.0
    void: int = 0
    join: int = 0

    def spec(self, shards: Shards) -> RunSpec:
        return Network(self.model, "equal", self.full, self.rounds, self.changes, Rule()).spec(shards)

    def is_void(self, round: int) -> bool:
        return self.void > 0 and round % self.void == self.void - 1


class Peer:
    """One miner: its replica, and where it will begin its next round while it waits for theta (None: at theta)."""

    def __init__(self, name: str, seed: int, replica: Replica) -> None:
        self.hotkey = PeerId(word("peer", seed, name, 0))
        self.replica = replica
        self.guess: dict[str, Tensor] | None = None
        self.heard: Sequence[Update] = ()
        """What the others sent in the round before."""

    def train(self, work: Tensor, case: Case) -> Update:
        """One round on `work`: the replica's theta is this round's, and arrives when the case says."""
        steps = self.replica.spec.inner.steps
        arrival = round(case.delay * steps)
        if not arrival or self.guess is None:
            self.replica.inner_round(work)
            return self.replica.compress()
        weights = {name: weight.detach() for name, weight in self.replica.model.named_parameters()}
        lacking = {name: self.replica.theta[name] - guess for name, guess in self.guess.items()}

        def arrive(step: int, _: float) -> None:
            share = (1.0 - case.blend) * (step == arrival - 1) + case.blend * (step == steps - 1)
            if share:
                for name, weight in weights.items():
                    weight.add_(share * lacking[name])

        self.replica.reset()  # the inner round finds it at theta and leaves the weights alone
        for name, weight in weights.items():
            weight.copy_(self.guess[name])
        self.replica.inner_round(work, on_step=arrive)
        return self.replica.compress()

    def wait(
        self, case: Case, own: Update, before: Mapping[str, Tensor] | None, others: Sequence[Update], lacks: int
    ) -> None:
        """Before the round is settled: guess at the next theta. `before`: the theta before the one that is held.
        `others`: what they send; a miner that expects a selection has that, but for the one that it `lacks`."""
        replica, outer = self.replica, self.replica.spec.outer
        theta = replica.theta

        def stepped(updates: Sequence[Update]) -> Mapping[str, Tensor]:
            return ops.outer_step(theta, updates, replica.outer, alpha=outer.alpha, aggregate=outer.aggregate)[0]

        if case.guess == "none":
            self.guess = {name: tensor.clone() for name, tensor in theta.items()}
        elif case.guess == "kept":
            self.guess = {name: weight.detach().clone() for name, weight in replica.model.named_parameters()}
        elif case.guess == "last":
            earlier = theta if before is None else before
            self.guess = {name: tensor + (tensor - earlier[name]) for name, tensor in theta.items()}
        elif case.guess == "lacking":
            there = [update for place, update in enumerate(others) if place != lacks % len(others)]
            self.guess = dict(stepped([own, *there]))
        elif case.guess == "mix":
            share, said = stepped([own]), stepped(self.heard) if self.heard else theta
            rest = 0.5 * (case.full - 1) / case.full
            self.guess = {
                name: theta[name] + (share[name] - theta[name]) / case.full + rest * (said[name] - theta[name])
                for name in theta
            }
        else:
            moved = stepped([own])
            part = 1.0 if case.guess == "own" else 1.0 / case.full
            self.guess = {name: torch.lerp(theta[name], tensor, part) for name, tensor in moved.items()}


def losses(case: Case, seed: int, shards: Shards) -> list[float]:
    """Nats a token after each round."""
    spec = case.spec(shards)
    theta, run = genesis_theta(spec.model, seed), word("run", seed)
    peers = [Peer(f"full-{place}", seed, Replica(spec, theta)) for place in range(case.full)]
    before: dict[str, Tensor] | None = None
    found: list[float] = []
    for number in range(case.rounds):
        held = peers[0].replica
        if case.join and number == case.join:
            peers.append(Peer("joiner", seed, Replica(spec, held.theta, held.outer)))
        updates = []
        for peer in peers:
            pages = assigned(
                run,
                word("page", seed, number),
                peer.hotkey,
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            updates.append(peer.train(sequences(shards.train, pages, spec.model.context), case))
        if case.delay:
            for peer, update in zip(peers, updates, strict=True):
                others = [other for other in updates if other is not update]
                peer.wait(case, update, before, others, number)
                peer.heard = others
        if case.is_void(number):
            for peer, update in zip(peers, updates, strict=True):
                peer.replica.restore_to_error_feedback(update)
        else:
            if case.guess == "last":
                before = {name: tensor.clone() for name, tensor in held.theta.items()}
            for peer in peers:
                peer.replica.outer_step(updates, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        found.append(round(held_out_loss(held, shards, spec.data.held_out_sequences), 4))
        sys.stderr.write(f"seed {seed} round {number} loss {found[-1]}\n")
    return found


def kept(rows: Path | None) -> list[Line]:
    """The lines of a file that an earlier run has begun."""
    return [json.loads(line) for line in rows.read_text().splitlines()] if rows and rows.exists() else []


def settled(line: Line) -> float:
    """What a line is compared by."""
    return fmean(line["losses"][-LAST:])


def worth(line: Line, loss: float) -> float:
    """After how many rounds the mean of `line`'s last ones was down to `loss`, between rounds by a straight line."""
    means = [fmean(line["losses"][end - LAST : end]) for end in range(LAST, len(line["losses"]) + 1)]
    for at, (above, below) in enumerate(pairwise(means), LAST):
        if above >= loss >= below and above > below:
            return at + (above - loss) / (above - below)
    return float("nan")


def table(lines: Iterable[Line]) -> list[str]:
    """Markdown: a row for every case, with each seed's loss and its excess over the synchronous line of the same seed,
    optimizer, rounds and troubles, at the rate at which that is best over the seeds that both have; and after how many
    rounds that had the loss."""
    groups: dict[str, dict[int, Line]] = {}
    for line in lines:
        groups.setdefault(json.dumps(line["case"], sort_keys=True), {})[line["seed"]] = line
    rows = [
        "| model, rounds | changes | delay, guess | seeds: loss | over synchronous, % | mean | worth rounds |",
        "|" + "---|" * 7,
    ]
    for key, group in sorted(groups.items()):
        case = json.loads(key)
        against = [
            other
            for name, other in groups.items()
            if _comparable(json.loads(name), case) and group.keys() <= other.keys()
        ]
        best = min(against, key=lambda other: fmean(settled(other[seed]) for seed in group), default=None)
        excess = (
            [100 * (settled(line) / settled(best[seed]) - 1) for seed, line in sorted(group.items())] if best else []
        )
        told = f"{case['delay']}, {case['guess']}" if case["delay"] else "synchronous"
        troubles = "".join(f", {name} {case[name]}" for name in ("blend", "void", "join") if case[name])
        rows.append(
            f"| {case['model']}, {case['rounds']}{troubles} | {json.dumps(case['changes'])} | {told} | "
            + " ".join(f"{seed}: {settled(line):.3f}" for seed, line in sorted(group.items()))
            + f" | {' '.join(f'{value:+.1f}' for value in excess)} | "
            + (f"{fmean(excess):+.1f} | " if excess else "| ")
            + " ".join(f"{worth(best[seed], settled(line)):.1f}" for seed, line in sorted(group.items()) if best)
            + " |"
        )
    return rows


def _comparable(one: Line, case: Line) -> bool:
    """Whether `one` is the synchronous side of `case`, at any rate."""

    def fixed(of: Line) -> Line:
        inner = {name: value for name, value in of["changes"].get("inner", {}).items() if not name.endswith("_lr")}
        return {name: of[name] for name in ("model", "full", "rounds", "void", "join")} | {
            "changes": of["changes"] | {"inner": inner}
        }

    return not one["delay"] and fixed(one) == fixed(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="local")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--full", type=int, default=4, help="peers (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--delay", type=float, default=0.0, help="share of the steps until theta is there")
    parser.add_argument("--guess", choices=get_args(Guess), default="own")
    parser.add_argument("--blend", type=float, default=0.0, help="share of theta - guess that waits for the end")
    parser.add_argument("--void", type=int, default=0, metavar="N", help="every N-th round is void")
    parser.add_argument("--join", type=int, default=0, metavar="ROUND", help="another peer begins then")
    parser.add_argument("--rows", type=Path, help="JSON lines file to go on with")
    parser.add_argument("--table", action="store_true", help="compare what --rows holds")
    options = parser.parse_args()
    if options.table:
        sys.stdout.write("\n".join(table(kept(options.rows))) + "\n")
        return
    torch.set_num_threads(1)
    case = Case(
        options.model, options.full, options.rounds, changes_of(options.set), options.delay, options.guess,
        options.blend, options.void, options.join,
    )  # fmt: skip
    there = [(line["case"], line["seed"]) for line in kept(options.rows)]
    shards = Shards.open(text_data(lambda line: None))
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        if (asdict(case), seed) in there:
            continue
        line = json.dumps({"case": asdict(case), "seed": seed, "losses": losses(case, seed, shards)})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if options.rows:
            with options.rows.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
