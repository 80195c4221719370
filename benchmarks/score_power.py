"""Does LossScore order half, full and double work? By probe step, sample size and way of bounding, on the arena's model
and on the local network's, with all of a score's real code. Prints a JSON line for each of these.

    python benchmarks/score_power.py --model arena --seeds 4 --rounds 24
    python benchmarks/score_power.py --model tiny --seeds 2 --rounds 12

In every round as many peers do half, full and double work from the same theta, each kind on pages of its own (half of
the steps; every sequence twice); those that do full work contribute. `full over half`: share of pairs in which the
peer of more work has the higher score on the same unassigned sequences; `of averages`: the same for the means of six
successive rounds. `positive`: share of full work with a score above 0.

Bounding: `product` is the protocol's, `once` is the whole's bound taken of the norms that the tensors' bounds leave, so
that the two do not multiply.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import median_low

import numpy as np
import numpy.typing as npt
import torch

from murmur.protocol.assignment import Draw, assigned, page_at
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Page, PeerId
from sparseloco.outer import OuterState, Scales, bound, bounds
from sparseloco.update import Norms, Update

WORK = {"half": 0.5, "full": 1.0, "double": 2.0}
STEPS = (0.1, 0.25, 0.5, 1.0)
SIZES = (16, 64, 160)
TOGETHER = 6
"""Rounds that an average spans; score_decay 0.75 remembers about as many."""

Losses = Callable[[Update | None, Scales, float, tuple[Page, ...]], Sequence[float]]
Changes = dict[str, dict[str, object]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """Updates by kind, each kind's peers always in the same order; losses at the round's theta."""

    updates: dict[str, list[Update]]
    outer: OuterState
    losses: Losses
    nobodys: tuple[Page, ...]


def product(norms: list[Norms], outer: OuterState) -> list[Scales]:
    return list(bounds(norms, outer)[0])


def once(norms: list[Norms], outer: OuterState) -> list[Scales]:
    limit, _ = bound(norms, outer)
    cut = [[min(1.0, b / n) if n else 0.0 for b, n in zip(limit.tensors, norm.tensors, strict=True)] for norm in norms]
    left = [
        sqrt(fsum((s * n) ** 2 for s, n in zip(factors, norm.tensors, strict=True)))
        for factors, norm in zip(cut, norms, strict=True)
    ]
    whole = median_low(left)
    return [tuple(s * min(1.0, whole / now) for s in factors) for factors, now in zip(cut, left, strict=True)]


BOUNDS = {"product": product, "once": once}
TRIED = (*(("product", step) for step in STEPS), ("once", 0.25))


def word(*parts: object) -> Digest:
    return Digest(Draw("bench", json.dumps(parts).encode()).words(32).to_bytes(32, "little"))


def scattered(spec: RunSpec, draw: Draw, count: int) -> tuple[Page, ...]:
    """One sequence each of `count` pages."""
    pages = [page_at(draw.below(spec.num_pages), spec.page_tokens) for _ in range(count)]
    context = spec.model.context
    return tuple(Page(p.first + context * draw.below(p.num_tokens // context), context) for p in pages)


def own_pages(spec: RunSpec, run: Digest, seed: int, round: int, name: str) -> tuple[Page, ...]:
    peer, count = PeerId(word("peer", seed, name)), spec.pages_per_round
    return assigned(
        run, word("page", seed, round), peer, num_pages=spec.num_pages, page_tokens=spec.page_tokens, count=count
    )


def on_arena(seed: int, rounds: int, each: int, changes: Changes) -> Iterator[Round]:
    from murmur.lab.arena.problem import Prober, Text, train, zero_theta
    from murmur.lab.arena.stage import make_spec
    from sparseloco import ops

    spec = make_spec(seed)
    text, theta, outer = Text(seed, spec.page_tokens), zero_theta(), OuterState.initial(spec.layout)
    errors: dict[tuple[str, int], dict[str, torch.Tensor] | None] = {}
    for number in range(rounds):
        updates: dict[str, list[Update]] = {kind: [] for kind in WORK}
        for kind, share in WORK.items():
            for place in range(each):
                pages = own_pages(spec, word("run", seed), seed, number, f"{kind}-{place}")
                lesson = text.sequences(pages)
                count, steps = round(len(lesson) * share), round(spec.inner.steps * share)
                lesson = lesson.repeat(2, 1)[:count]
                end = train([theta], lesson[None], steps, spec.inner.peak_lr)[0]
                update, errors[kind, place] = ops.compress(
                    theta, end, errors.get((kind, place)), spec.layout, spec.compression.decay
                )
                updates[kind].append(update)

        def losses(
            update: Update | None, scales: Scales, step: float, pages: tuple[Page, ...], theta: object = theta
        ) -> Sequence[float]:
            return Prober(text, theta, step)(update, scales, pages)

        yield Round(updates, outer, losses, scattered(spec, Draw("nobody", word("u", seed, number)), max(SIZES)))
        theta, outer, _ = ops.outer_step(theta, updates["full"], outer, alpha=1.0, aggregate="mean")


def on_tiny(seed: int, rounds: int, each: int, changes: Changes) -> Iterator[Round]:
    from benchmarks.proof_power import spec_with
    from murmur.data.shards import Shards
    from murmur.lab.localnet.training_text import text_data
    from murmur.training.loader import sequences
    from murmur.training.probe import Prober
    from murmur.training.replica import Replica, genesis_theta

    shards = Shards.open(text_data(lambda line: None))
    spec = spec_with(changes, shards)
    theta = genesis_theta(spec.model, seed)
    miners = {(kind, place): Replica(spec, theta) for kind in WORK for place in range(each)}
    judge = Replica(spec, theta)
    for number in range(rounds):
        updates: dict[str, list[Update]] = {kind: [] for kind in WORK}
        for (kind, place), miner in miners.items():
            pages = own_pages(spec, word("run", seed), seed, number, f"{kind}-{place}")
            lesson = sequences(shards.train, pages, spec.model.context)
            inner = spec.inner.model_copy(update={"steps": int(spec.inner.steps * WORK[kind])})
            miner.inner_round(torch.cat([lesson, lesson]), inner=inner)
            updates[kind].append(miner.compress())

        def losses(update: Update | None, scales: Scales, step: float, pages: tuple[Page, ...]) -> Sequence[float]:
            with Prober(judge, shards.train, step) as prober:
                return prober.losses(update, scales, pages)

        nobodys = scattered(spec, Draw("nobody", word("u", seed, number)), max(SIZES))
        yield Round(updates, judge.outer, losses, nobodys)
        sys.stderr.write(f"seed {seed} round {number} loss {np.mean(losses(None, (), 1.0, nobodys)):.3f}\n")
        for replica in (*miners.values(), judge):
            replica.outer_step(updates["full"], alpha=1.0, aggregate=spec.outer.aggregate)


MODELS = {"arena": on_arena, "tiny": on_tiny}


def falls(
    model: str, seeds: Sequence[int], rounds: int, each: int, changes: Changes
) -> dict[tuple[str, float], Floats]:
    """(bounding, step) -> each sequence's fall, [seed, round, kind, peer, sequence]."""
    found: dict[tuple[str, float], list[list[Floats]]] = {tried: [] for tried in TRIED}
    for seed in seeds:
        for runs in found.values():
            runs.append([])
        for round in MODELS[model](seed, rounds, each, changes):
            everyone = [update for kind in WORK for update in round.updates[kind]]
            before = np.array(round.losses(None, (), 1.0, round.nobodys))
            for how, step in TRIED:
                factors = BOUNDS[how]([update.norms for update in everyone], round.outer)
                after = [
                    round.losses(update, factor, step, round.nobodys)
                    for update, factor in zip(everyone, factors, strict=True)
                ]
                table = before - np.array(after)
                found[how, step][-1].append(table.reshape(len(WORK), each, -1))
    return {key: np.array(runs) for key, runs in found.items()}


def ahead(more: Floats, less: Floats) -> float:
    """Share of pairs [.., peers] x [.., peers] in which the first is larger."""
    return float((more[..., :, None] > less[..., None, :]).mean())


def power(table: Floats, size: int) -> dict[str, float]:
    """Of falls [seed, round, kind, peer, sequence], by samples of `size` sequences."""
    parts = table.shape[-1] // size
    scores = table[..., : parts * size].reshape(*table.shape[:-1], parts, size).mean(-1)
    scores = np.moveaxis(scores, -1, 1)  # [seed, part, round, kind, peer]
    windows = scores.shape[2] // TOGETHER
    means = scores[:, :, : windows * TOGETHER].reshape(*scores.shape[:2], windows, TOGETHER, *scores.shape[3:]).mean(3)
    half, full, double = (scores[..., place, :] for place in range(3))
    of_half, of_full, of_double = (means[..., place, :] for place in range(3))
    return {
        "full over half": ahead(full, half),
        "of averages": ahead(of_full, of_half),
        "double over full": ahead(double, full),
        "double over full of averages": ahead(of_double, of_full),
        "positive": float((full > 0).mean()),
        "full, nats": float(full.mean()),
        "half in full": float(half.mean() / full.mean()),
        "double in full": float(double.mean() / full.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="arena")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--each", type=int, default=4, help="peers of each kind (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change tiny's preset")
    options = parser.parse_args()
    if options.rounds < 2 * TOGETHER:
        parser.error(f"--rounds is {options.rounds}, expected at least {2 * TOGETHER}: half of them make an average")
    changes: Changes = {}
    for text in options.set:
        where, value = text.split("=", 1)
        table_name, field = where.split(".")
        changes.setdefault(table_name, {})[field] = json.loads(value)
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for (how, step), table in falls(options.model, seeds, options.rounds, options.each, changes).items():
        half = options.rounds // 2
        for part, chosen in (("first", table[:, :half]), ("second", table[:, half:])):
            for size in SIZES:
                line = {"model": options.model, "bounds": how, "probe step": step, "half of the rounds": part}
                numbers = {name: round(value, 5) for name, value in power(chosen, size).items()}
                sys.stdout.write(json.dumps(line | {"samples": size} | numbers) + "\n")


if __name__ == "__main__":
    main()
