"""How far executions of one inner round are apart: honest ones by what machines vary, dishonest ones by what they skip.

    python benchmarks/bench_verified.py [--rounds 2 6] [--steps 20] [--seed 0] [--json]

A tiny network trains by the product's inner loop, codec and outer step. In each of the rounds one miner's steps are
executed anew by each variant, and compared with the plain execution as a validator does (gauntlet/verification.py).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from tiny_spec import spec_with, word
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gauntlet.repetition import LIMITS, Repetition
from gauntlet.verification import compare
from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import assigned
from murmur.protocol.spec import InnerSpec, RunSpec
from murmur.protocol.types import PeerId
from murmur.training import inner
from murmur.training.inner import inner_round
from murmur.training.loader import batches, sequences
from murmur.training.model import Transformer, genesis_theta
from murmur.training.optimizer import make_optimizer
from murmur.training.parallel import ALONE
from murmur.training.recorder import Recorder
from murmur.training.replica import Replica
from sparseloco.trace import Trace, places

WORKERS = 4
PLACES = 512

Batches = tuple[Tensor, ...]
Tensors = dict[str, Tensor]


@dataclass
class Round:
    """What a miner's round follows from. `before`: theta of the round before."""

    spec: RunSpec
    number: int
    theta: Tensors
    before: Tensors
    batches: Batches
    others: Batches
    peer: PeerId

    @property
    def inner(self) -> InnerSpec:
        return self.spec.inner


Execute = Callable[[Round], Trace]


def execute(
    round: Round,
    *,
    given: Batches | None = None,
    theta: Tensors | None = None,
    micro: int | None = None,
    around: Callable[[Transformer], AbstractContextManager[object]] = lambda model: nullcontext(),
    compiled: bool = False,
) -> Trace:
    """One execution of the round's steps, recorded."""
    model = Transformer(round.spec.model)
    model.load_state_dict(theta or round.theta, strict=False)
    if compiled:
        model.compile()
    given = given or round.batches
    drawn = places(word("run"), word("page", round.number), round.peer, round.spec.layout, PLACES)
    recorder = Recorder(dict(model.named_parameters()), drawn, round.spec.layout, len(given), ALONE)
    spec = round.inner.model_copy(update={"steps": len(given)})
    first = round.number * round.inner.steps
    with around(model):
        inner_round(
            model, make_optimizer(model, spec), given, spec, first_step=first, micro_sequences=micro, recorder=recorder
        )
    return recorder.trace(len(given))


# --- what machines vary --------------------------------------------------------------------------------------------


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@contextmanager
def in_bf16(model: Transformer) -> Iterator[None]:
    """Matrix products in bf16, as on a GPU."""
    before = inner.autocast
    inner.autocast = lambda device: torch.autocast("cpu", dtype=torch.bfloat16)  # type: ignore[assignment]
    yield
    inner.autocast = before


@contextmanager
def noisy(model: Transformer, share: float) -> Iterator[None]:
    """Gradients that differ by a relative noise: other kernels' rounding."""
    draw = torch.Generator().manual_seed(5)
    hooks = [
        p.register_hook(lambda grad: grad * (1 + share * (2 * torch.rand(grad.shape, generator=draw) - 1)))
        for p in model.parameters()
    ]
    yield
    for hook in hooks:
        hook.remove()


HONEST: dict[str, Execute] = {
    "split in 2": lambda r: execute(r, micro=r.inner.sequences // 2),
    "split in 8": lambda r: execute(r, micro=1),
    "two threads": lambda r: execute(r, around=lambda m: threads(2)),
    "another attention": lambda r: execute(r, around=lambda m: sdpa_kernel(SDPBackend.MATH)),
    "compiled": lambda r: execute(r, compiled=True),
    "bf16": lambda r: execute(r, around=in_bf16),
    "bf16, split in 4": lambda r: execute(r, around=in_bf16, micro=r.inner.sequences // 4),
    "gradients 2^-9 apart": lambda r: execute(r, around=lambda m: noisy(m, 2**-9)),
    "gradients 2^-8 apart": lambda r: execute(r, around=lambda m: noisy(m, 2**-8)),
}


# --- what is skipped -------------------------------------------------------------------------------------------------


def thin(share: float) -> Execute:
    """Each step on a share of its sequences."""
    return lambda r: execute(r, given=tuple(batch[: max(1, round(share * len(batch)))] for batch in r.batches))


def short(share: float) -> Execute:
    """Each sequence cut."""
    return lambda r: execute(r, given=tuple(b[:, : round(share * (b.shape[1] - 1)) + 1] for b in r.batches))


def without_last(r: Round) -> Trace:
    """The last step is not made: the one before is shown twice."""
    made = execute(r, given=r.batches[:-1])
    return Trace(*(np.concatenate([part, part[-1:]]) for part in (made.gradients, made.moves)))


def extrapolated(share: float) -> Execute:
    """The last steps are the mean of those before, each with the next one's size."""

    def run(r: Round) -> Trace:
        made = execute(r, given=r.batches[: len(r.batches) - round(share * len(r.batches))])
        lacking = len(r.batches) - made.steps
        parts = []
        for part in (made.gradients, made.moves):
            usual = part[made.steps // 2 :].mean(axis=0)
            usual *= np.linalg.norm(part[-1]) / np.linalg.norm(usual)
            parts.append(np.concatenate([part, np.repeat(usual[None], lacking, axis=0)]))
        return Trace(*parts)

    return run


def frozen(names: str) -> Execute:
    """No gradient for some tensors."""

    @contextmanager
    def around(model: Transformer) -> Iterator[None]:
        hooks = [p.register_hook(torch.zeros_like) for name, p in model.named_parameters() if name.startswith(names)]
        yield
        for hook in hooks:
            hook.remove()

    return lambda r: execute(r, around=around)


def by_memory(every: int) -> Execute:
    """Every so many gradients are not computed: the one before is taken again."""

    @contextmanager
    def around(model: Transformer) -> Iterator[None]:
        kept: dict[str, tuple[int, Tensor]] = {}

        def hook(name: str, grad: Tensor) -> Tensor:
            step, before = kept.get(name, (0, grad))
            kept[name] = step + 1, grad
            return before if step % every == every - 1 else grad

        hooks = [p.register_hook(partial(hook, name)) for name, p in model.named_parameters()]
        yield
        for one in hooks:
            one.remove()

    return lambda r: execute(r, around=around)


CHEATS: dict[str, Execute] = {
    "the last step skipped": without_last,
    "last eighth extrapolated": extrapolated(1 / 8),
    "last half extrapolated": extrapolated(1 / 2),
    "1/8 of the sequences left out": thin(7 / 8),
    "half of the sequences": thin(1 / 2),
    "a quarter of the sequences": thin(1 / 4),
    "7/8 of each sequence": short(7 / 8),
    "half of each sequence": short(1 / 2),
    "one layer frozen": frozen("layers.0."),
    "embedding frozen": frozen("embedding"),
    "every 4th gradient again": by_memory(4),
    "stale theta": lambda r: execute(r, theta=r.before),
    "another's pages": lambda r: execute(r, given=r.others),
    "other order": lambda r: execute(r, given=r.batches[::-1]),
}


# --- the network ---------------------------------------------------------------------------------------------------


def rounds(wanted: Sequence[int], steps: int, seed: int) -> Iterator[Round]:
    """A miner's rounds of these numbers, of a network of honest workers."""
    shards = Shards.open(text_data(lambda line: None))
    page = steps * 8
    changes = {"steps": steps}, {"page_sequences": page}, {"trace_values": PLACES * steps}
    spec = spec_with(dict(zip(("inner", "data", "gauntlet"), changes, strict=True)), shards)
    theta = genesis_theta(spec.model, seed)
    workers = [Replica(spec, theta) for _ in range(WORKERS)]
    peers = [PeerId(word("peer", seed, place)) for place in range(WORKERS)]
    before = {name: tensor.clone() for name, tensor in workers[0].theta.items()}
    for number in range(max(wanted) + 1):
        texts = [
            sequences(
                shards.train,
                assigned(
                    word("run"),
                    word("page", number),
                    peer,
                    num_pages=spec.num_pages,
                    page_tokens=spec.page_tokens,
                    count=spec.pages_per_round,
                ),
                spec.model.context,
            )
            for peer in peers
        ]
        if number in wanted:
            theta = {name: tensor.clone() for name, tensor in workers[0].theta.items()}
            work = [batches(text, steps, spec.inner.sequences) for text in texts]
            yield Round(spec, number, theta, before, work[0], work[1], peers[0])
        before = {name: tensor.clone() for name, tensor in workers[0].theta.items()}
        updates = []
        for worker, text in zip(workers, texts, strict=True):
            worker.inner_round(text)
            updates.append(worker.compress())
        for worker in workers:
            worker.outer_step(updates, alpha=1.0, aggregate="mean")


def row(name: str, kind: str, found: Repetition) -> dict[str, Any]:
    return {
        "what": name,
        "kind": kind,
        "round": found.round,
        "moves": list(found.distances[:2]),
        "gradients": list(found.distances[2:]),
        "passed": found.passed,
    }


def measure(round: Round, honest: Sequence[str], cheats: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of these variants of one round."""
    own = execute(round)
    for kind, names, variants in (("honest", honest, HONEST), ("cheat", cheats, CHEATS)):
        for name in names:
            yield row(name, kind, compare(round.number, round.inner.steps, variants[name](round), own))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=[2, 6, 20])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for found in rounds(options.rounds, options.steps, options.seed):
        for one in measure(found, list(HONEST), list(CHEATS)):
            said(json.dumps(one | {"steps": options.steps, "seed": options.seed}) if options.json else told(one))
    if not options.json:
        said(f"limits, median and largest: moves {LIMITS[0]}, {LIMITS[1]}; gradients {LIMITS[2]}, {LIMITS[3]}")


def told(one: dict[str, Any]) -> str:
    values = " ".join(f"{value:7.4f}" for value in (*one["moves"], *one["gradients"]))
    return f"round {one['round']:3} {one['kind']:7} {one['what']:30} {values} {'passes' if one['passed'] else 'fails'}"


def said(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
