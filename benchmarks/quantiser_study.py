"""Which quantiser of the kept values is worth its bytes: errors on real pseudo-gradients, and what they do to training.

    python benchmarks/quantiser_study.py errors --seeds 3 --rounds 20
    python benchmarks/quantiser_study.py losses --seeds 3 --rounds 16
    python benchmarks/quantiser_study.py save --rounds 6 --file pseudo_gradient.npz

Every run is the local network's model and text, four honest miners with error feedback and the real norm bounds and
mean, in one process. A candidate stands in for the codec: it turns the values that Top-k kept into those that a
receiver decodes, without packing bits; its bytes a full chunk are counted with the present index code. `errors` trains
with the present quantiser and tries every candidate on the same kept values; `losses` trains with each candidate;
`save` writes beta * e + Delta of the first miner by tensor. Prints a JSON line a row.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
import torch_ops
from proof_power import spec_with, word
from torch import Tensor

from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import assigned
from murmur.protocol.layout import CHUNK, Layout, TensorLayout, index_bits
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import PeerId
from murmur.training.checkpoint import Saved
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.replica import Replica, genesis_theta
from sparseloco.feedback import accumulate
from sparseloco.floats import fp32
from sparseloco.outer import bounds
from sparseloco.quantize import fit
from sparseloco.topk import blocks, top_k, write_blocks
from sparseloco.update import Norms

PEERS = 4
EVALUATED_ROUNDS = 4
EVALUATED_SEQUENCES = 1024
SMALLEST = 2.0**-29
"""Levels below are zero: one byte of 3 mantissa bits reaches from here to 7.5."""

Tensors = dict[str, Tensor]
Kept = list[Tensor]
"""What Top-k kept of one tensor: signed values, fp32 [chunks, k'], a tensor for each region."""
Quantiser = Callable[[Kept], Kept]
"""Kept values to decoded values of the same shapes."""
Pair = tuple[Tensor, Tensor]
"""Levels lo <= hi, float64, of one shape."""
Rounding = Callable[[Tensor, Tensor], Pair]
"""A pair of means to the pair of levels that the format can hold."""


def exact(lo: Tensor, hi: Tensor) -> Pair:
    return lo, hi


def floating(lo: Tensor, hi: Tensor, bits: int) -> Pair:
    """Two floating-point numbers of so many mantissa bits."""
    return _floating(lo, bits), _floating(hi, bits)


def logarithmic(lo: Tensor, hi: Tensor, per_octave: int) -> Pair:
    """Two powers of 2^(1 / per_octave)."""
    return _logarithmic(lo, per_octave), _logarithmic(hi, per_octave)


def ratio(lo: Tensor, hi: Tensor, bits: int, ratio_bits: int) -> Pair:
    """hi with so many mantissa bits, and lo as hi * j / 2^ratio_bits, j from 1."""
    hi = _floating(hi, bits)
    j = (lo / hi.clamp(min=SMALLEST) * 2**ratio_bits).round().clamp(1, 2**ratio_bits)
    return hi * j / 2**ratio_bits, hi


def stepped(lo: Tensor, hi: Tensor, bits: int, steps: int) -> Pair:
    """Two of the numbers with so many mantissa bits: hi, and lo less than so many numbers below it, or else zero."""
    lo, hi = _floating(lo, bits), _floating(hi, bits)
    places = (hi.float().view(torch.int32) - lo.float().view(torch.int32)) >> (23 - bits)
    return torch.where(places < steps, lo, 0.0), hi


def _floating(levels: Tensor, bits: int) -> Tensor:
    """Halves up, on the bits, as the codec does it."""
    dropped = 23 - bits
    codes = (levels.float().view(torch.int32) + (1 << (dropped - 1))) >> dropped
    return torch.where(levels < SMALLEST, 0.0, (codes << dropped).view(torch.float32).double())


def _logarithmic(levels: Tensor, per_octave: int) -> Tensor:
    rounded = torch.exp2((torch.log2(levels.clamp(min=SMALLEST)) * per_octave).round() / per_octave)
    return torch.where(levels < SMALLEST, 0.0, rounded)


def best_split(magnitudes: Tensor, rounding: Rounding, weights: Tensor | None = None) -> Pair:
    """The rounded pair with the least squared error over all splits of each row's magnitudes, float64 [chunks, k'].

    Nothing does better with levels that are rounded to nearest: the best level of a side is the one nearest its mean.
    """
    ordered, order = magnitudes.sort(dim=1)
    counts = torch.ones_like(ordered) if weights is None else weights.gather(1, order)
    low_count, low_sum = counts.cumsum(1), (counts * ordered).cumsum(1)
    high_count, high_sum = low_count[:, -1:] - low_count, low_sum[:, -1:] - low_sum
    high_count[:, -1] = high_sum[:, -1] = 0.0  # the whole row on the low side, exactly
    low_mean = low_sum / low_count
    lo, hi = rounding(low_mean, torch.where(high_count > 0, high_sum / high_count, low_mean))
    error = low_count * lo**2 - 2 * low_sum * lo + high_count * hi**2 - 2 * high_sum * hi
    best = error.argmin(dim=1, keepdim=True)
    return lo.gather(1, best), hi.gather(1, best)


def lloyd(magnitudes: Tensor, rounding: Rounding) -> Pair:
    """The codec's fit, but for the rounding: four Lloyd steps from the least and the greatest magnitude."""
    lo, hi = magnitudes.amin(dim=1, keepdim=True), magnitudes.amax(dim=1, keepdim=True)
    for _ in range(4):
        high = magnitudes > (lo + hi) * 0.5
        lo = torch.where(~high, magnitudes, 0.0).sum(1, keepdim=True) / (~high).sum(1, keepdim=True)
        hi = torch.where(
            high.any(1, keepdim=True),
            torch.where(high, magnitudes, 0.0).sum(1, keepdim=True) / high.sum(1, keepdim=True),
            hi,
        )
    return rounding(lo, hi)


def one_level(magnitudes: Tensor, rounding: Rounding) -> Pair:
    mean = magnitudes.mean(dim=1, keepdim=True)
    return rounding(mean, mean)


def decode(values: Tensor, levels: Pair) -> Tensor:
    """Each value as its sign and the nearer level; fp32."""
    lo, hi = levels
    magnitudes = values.abs().double()
    return torch.where(magnitudes > (lo + hi) * 0.5, hi, lo).float().copysign(values)


def per_chunk(kept: Kept, fit_pair: Callable[[Tensor, Rounding], Pair], rounding: Rounding) -> Kept:
    return [decode(values, fit_pair(values.abs().double(), rounding)) for values in kept]


def per_tensor(kept: Kept) -> Kept:
    """Two levels for all chunks of a tensor."""
    levels = best_split(_pooled(kept).abs().double()[None], exact)
    return [decode(values, levels) for values in kept]


def shared_ratios(kept: Kept, rounding: Rounding, passes: int = 4) -> Kept:
    """A scale for each chunk, and two multiples of it for all chunks of a tensor; fitted in turns."""
    magnitudes = [values.abs().double() for values in kept]
    scales = [rounding(mean, mean)[0] for mean in (part.mean(dim=1, keepdim=True) for part in magnitudes)]
    for _ in range(passes):
        ratios = [part / scale.clamp(min=SMALLEST) for part, scale in zip(magnitudes, scales, strict=True)]
        weights = [(scale**2).expand_as(part) for part, scale in zip(magnitudes, scales, strict=True)]
        lo, hi = best_split(_pooled(ratios)[None], exact, _pooled(weights)[None] + SMALLEST**2)
        nearest = [torch.where(part > (lo + hi) * 0.5, hi, lo) for part in ratios]
        fitted = [
            (part * near).sum(1, keepdim=True) / (near**2).sum(1, keepdim=True)
            for part, near in zip(magnitudes, nearest, strict=True)
        ]
        scales = [rounding(scale, scale)[0] for scale in fitted]
    return [decode(values, (scale * lo, scale * hi)) for values, scale in zip(kept, scales, strict=True)]


def public(kept: Kept) -> Kept:
    """The public 4-bin quantiser. A tensor of one kept value is sent as it is: the public code sends vectors dense."""
    pooled = _pooled(kept)
    if pooled.numel() == 1:
        return kept
    codes, lookup = torch_ops.quantise(pooled)
    parts = torch.split(lookup[codes.long()], [values.numel() for values in kept])
    return [part.view_as(values) for part, values in zip(parts, kept, strict=True)]


def present(kept: Kept) -> Kept:
    """The codec's."""
    return [fit(values).values() for values in kept]


def whole(kept: Kept) -> Kept:
    return kept


def _pooled(parts: Kept) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


@dataclass(frozen=True)
class Candidate:
    """`code_bits` a value beside its index and `level_bytes` a chunk. What is shared by a tensor is not counted."""

    quantise: Quantiser
    level_bytes: int
    k: int = 64
    code_bits: int = 2
    trained: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of a full chunk's record."""
        return (index_bits(CHUNK, self.k) + self.code_bits * self.k + 7) // 8 + self.level_bytes


def _chunks(fit_pair: Callable[[Tensor, Rounding], Pair], rounding: Rounding) -> Quantiser:
    return partial(per_chunk, fit_pair=fit_pair, rounding=rounding)


E5M3 = partial(floating, bits=3)
BF16 = partial(floating, bits=7)
CANDIDATES = {
    "public 4 bins, tensor": Candidate(public, 0, trained=True),
    "one level E5M3": Candidate(_chunks(one_level, E5M3), 1, code_bits=1, trained=True),
    "two levels, tensor": Candidate(per_tensor, 0),
    "two E5M3 (present)": Candidate(present, 2, trained=True),
    "two E5M3, best split": Candidate(_chunks(best_split, E5M3), 2),
    "two powers of 2^(1/8)": Candidate(_chunks(best_split, partial(logarithmic, per_octave=8)), 2),
    "two E4M4, any range": Candidate(_chunks(best_split, partial(floating, bits=4)), 2),
    "two E3M5, any range": Candidate(_chunks(best_split, partial(floating, bits=5)), 2),
    "E5M3 and 8-bit ratio": Candidate(_chunks(best_split, partial(ratio, bits=3, ratio_bits=8)), 2),
    "E5M5 and 6-bit ratio": Candidate(_chunks(best_split, partial(ratio, bits=5, ratio_bits=6)), 2, trained=True),
    "E5M5 and 6-bit ratio, Lloyd": Candidate(_chunks(lloyd, partial(ratio, bits=5, ratio_bits=6)), 2),
    "E5M4, lo 7 bits below, Lloyd": Candidate(_chunks(lloyd, partial(stepped, bits=4, steps=127)), 2),
    "E5M5, lo 6 bits below, Lloyd": Candidate(_chunks(lloyd, partial(stepped, bits=5, steps=63)), 2),
    "scale 2^(1/8) and shared ratios": Candidate(
        partial(shared_ratios, rounding=partial(logarithmic, per_octave=8)), 1, trained=True
    ),
    "bf16 scale and shared ratios": Candidate(partial(shared_ratios, rounding=BF16), 2),
    "two bf16": Candidate(_chunks(best_split, BF16), 4),
    "two fp32, Lloyd": Candidate(_chunks(lloyd, exact), 8),
    "two fp32, best split": Candidate(_chunks(best_split, exact), 8),
    "one level E5M3, k = 74": Candidate(_chunks(one_level, E5M3), 1, k=74, code_bits=1, trained=True),
    "two E5M3, k = 94": Candidate(present, 2, k=94, trained=True),
    "kept values whole": Candidate(whole, 0, code_bits=32, trained=True),
}
PRESENT, PUBLIC = "two E5M3 (present)", "public 4 bins, tensor"


def kept_values(acc: Tensors, layout: Layout) -> Iterator[tuple[TensorLayout, list[Tensor], Kept]]:
    """Of each tensor what Top-k keeps: indices and values of every region's chunks."""
    for tensor in layout:
        found = [blocks(acc[tensor.name], tensor, region) for region in tensor.regions]
        indices = [top_k(chunks, region.k) for chunks, region in zip(found, tensor.regions, strict=True)]
        yield tensor, indices, [chunks.gather(1, where) for chunks, where in zip(found, indices, strict=True)]


def compress(acc: Tensors, layout: Layout, quantise: Quantiser) -> tuple[Tensors, Tensors]:
    """Delta_hat in full and the new error: reference.compress with another quantiser."""
    sent, error = {}, {}
    for tensor, indices, kept in kept_values(acc, layout):
        dense = torch.zeros(tensor.shape)
        for region, where, values in zip(tensor.regions, indices, quantise(kept), strict=True):
            empty = torch.zeros(region.down * region.across, region.n)
            write_blocks(dense, tensor, region, empty.scatter_(1, where, values))
        sent[tensor.name], error[tensor.name] = dense, acc[tensor.name] - dense
    return sent, error


def outer_step(replica: Replica, sent: list[Tensors]) -> Saved:
    """The consensus state after the round: outer.outer_step, its "mean", on updates in full."""
    by_peer = [[float(update[tensor.name].double().norm()) for tensor in replica.layout] for update in sent]
    norms = [Norms(tuple(parts), sum(part**2 for part in parts) ** 0.5) for parts in by_peer]
    scales, state = bounds(norms, replica.outer)
    theta = {}
    for index, tensor in enumerate(replica.layout):
        mean = torch.zeros(tensor.shape)
        for update, scale in zip(sent, scales, strict=True):
            mean = mean + update[tensor.name] * fp32(replica.spec.outer.alpha * scale[index] / len(sent))
        theta[tensor.name] = replica.theta[tensor.name] - mean
    averages = [average.hex() for average in state.averages]
    return Saved(theta, {"rounds": state.rounds, "averages": averages, "whole": state.whole.hex()})


def play(
    candidate: Candidate, spec: RunSpec, shards: Shards, seed: int, rounds: int
) -> Iterator[tuple[Replica, list[Tensors]]]:
    """After each round: a miner's replica at the new theta, and every miner's beta * e + Delta of the round."""
    peers = sorted(PeerId(word("peer", seed, number)) for number in range(PEERS))
    start = genesis_theta(spec.model, seed)
    miners = [Replica(spec, start) for _ in peers]
    layout = miners[0].layout
    errors: list[Tensors] = [{} for _ in peers]
    for round in range(rounds):
        accs, sent = [], []
        for number, (peer, miner) in enumerate(zip(peers, miners, strict=True)):
            pages = assigned(
                word("run", seed),
                word("page", seed, round),
                peer,
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            miner.inner_round(sequences(shards.train, pages, spec.model.context))
            acc = {
                name: accumulate(miner.theta[name] - end.detach(), errors[number].get(name), spec.compression.decay)
                for name, end in miner.model.named_parameters()
            }
            update, errors[number] = compress(acc, layout, candidate.quantise)
            accs.append(acc)
            sent.append(update)
        consensus = outer_step(miners[0], sent)
        for miner in miners:
            miner.load_consensus(consensus)
        yield miners[0], accs


def errors_of(acc: Tensors, layout: Layout, quantise: Quantiser) -> tuple[float, float]:
    """Relative L2 error of all kept values, and the share of them that is decoded with the wrong sign."""
    size = missed = 0.0
    count = wrong = 0
    for _, _, kept in kept_values(acc, layout):
        for values, found in zip(kept, quantise(kept), strict=True):
            size += float(values.double().square().sum())
            missed += float((values.double() - found.double()).square().sum())
            count += values.numel()
            wrong += int((values * found < 0).sum())
    return (missed / size) ** 0.5, wrong / count


def measure_errors(shards: Shards, seeds: int, rounds: int) -> Iterator[dict[str, object]]:
    """Every candidate of k = 64 on the pseudo-gradients of all miners in all rounds but the first, which has no error
    feedback. `ratio`: the candidate's error over the public quantiser's on the same values."""
    spec = spec_with({}, shards)
    names = [name for name, candidate in CANDIDATES.items() if candidate.k == 64 and candidate.quantise is not whole]
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in names}
    for seed in range(seeds):
        for number, (_, accs) in enumerate(play(CANDIDATES[PRESENT], spec, shards, seed, rounds)):
            for acc in accs if number else ():
                for name in names:
                    found[name].append((number, *errors_of(acc, spec.layout, CANDIDATES[name].quantise)))
    for name in names:
        ratios = [error / other for (_, error, _), (_, other, _) in zip(found[name], found[PUBLIC], strict=True)]
        at_round = [
            [place for place, (number, _, _) in enumerate(found[name]) if number == at] for at in range(1, rounds)
        ]
        yield {
            "candidate": name,
            "bytes": CANDIDATES[name].num_bytes,
            "kept_error": fmean(error for _, error, _ in found[name]),
            "ratio": fmean(ratios),
            "wrong_signs": fmean(wrong for _, _, wrong in found[name]),
            "kept_error_by_round": [fmean(found[name][place][1] for place in places) for places in at_round],
            "ratio_by_round": [fmean(ratios[place] for place in places) for places in at_round],
        }


def measure_losses(names: list[str], shards: Shards, seeds: int, rounds: int) -> Iterator[dict[str, object]]:
    """Held-out loss by round of every candidate and seed, and then a row of each candidate: means over the seeds, their
    deviation, and the differences from the present quantiser, seed by seed. Seeds share theta_0 and pages."""
    found: dict[str, list[dict[int, float]]] = {name: [] for name in names}
    for seed in range(seeds):
        for name in names:
            spec = spec_with({"compression": {"k": CANDIDATES[name].k}}, shards)
            losses = {}
            for number, (replica, _) in enumerate(play(CANDIDATES[name], spec, shards, seed, rounds), 1):
                if number % EVALUATED_ROUNDS == 0 or number == rounds:
                    losses[number] = held_out_loss(replica, shards, EVALUATED_SEQUENCES)
            found[name].append(losses)
            yield {"candidate": name, "seed": seed, "losses": losses}
    for name in names:
        yield {
            "candidate": name,
            "bytes": CANDIDATES[name].num_bytes,
            "loss": {at: fmean(losses[at] for losses in found[name]) for at in found[name][0]},
            "deviation": {at: pstdev(losses[at] for losses in found[name]) for at in found[name][0]},
            "difference": {
                at: [losses[at] - others[at] for losses, others in zip(found[name], found[PRESENT], strict=True)]
                for at in found[name][0]
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("errors", "losses", "save"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--only", nargs="+", choices=CANDIDATES, metavar="CANDIDATE", help="losses of these and the present one alone"
    )
    parser.add_argument("--file", type=Path, default=Path("pseudo_gradient.npz"), help="what `save` writes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shards = Shards.open(text_data(lambda line: None))
    if options.what == "save":
        *_, (_, accs) = play(CANDIDATES[PRESENT], spec_with({}, shards), shards, 0, options.rounds)
        np.savez(options.file, **{name: values.numpy() for name, values in accs[0].items()})
        return
    if options.what == "errors":
        rows = measure_errors(shards, options.seeds, options.rounds)
    else:
        trained = [name for name, candidate in CANDIDATES.items() if candidate.trained]
        others = [name for name in options.only or trained if name != PRESENT]
        rows = measure_losses([PRESENT, *others], shards, options.seeds, options.rounds)
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
