"""Does the proof of computation see skipped work? Gaps of peers that skip a part of it, by size of page and by how the
gap is taken: over the whole assignment, or over its early and late parts apart. Real training, compression, bounds and
probes on the local network's model and text, in one process.

    python benchmarks/proof_parts.py --seeds 2 --rounds 8 --pages 160 40 8 1

Four full workers, whose updates are applied and who are each other's references, and one of each kind that skips:
`first` half of the steps on the first half of the assignment, `spread` half of the steps on every second sequence,
`thin` all steps with half of the sequences each, `wandering` all the work on other pages. Of each: its mean gap over
the full workers', and in brackets d', the distance of the two means in their common standard deviation. `drawn`: a gap
over `sample_sequences` drawn ones, as validators take it; `early`, `late`: over as many of one half of the assignment;
`worse`: of half as many from each half, so that all take equally many losses. `apart`: gaps over all sequences that a
peer trained on, and over all that it skipped, which no validator can tell apart; of a full worker over every other one.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, pvariance

import torch
from bench_pay import changes_of
from pay_network import MODELS
from proof_power import pages_of, spec_with, word

from gauntlet.loss import bounded
from gauntlet.proof import gap, leads
from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.assignment import Draw, assigned, page_at
from murmur.protocol.spec import InnerSpec, RunSpec
from murmur.protocol.types import Page, PeerId
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.probe import Prober
from murmur.training.replica import Replica, genesis_theta
from sparseloco.wire import Submission

KINDS = ("full", "full", "full", "full", "first", "spread", "thin", "wandering")
UNASSIGNED = 128
"""Sequences, each of another page."""
GAPS = ("drawn", "early", "late", "worse")
DRAWS = 8
"""Of a sample, from the same losses: its own noise is averaged out of the means, not out of the deviations."""

Row = dict[str, object]


def cut(kind: str, lesson: torch.Tensor, spec: RunSpec) -> tuple[torch.Tensor, InnerSpec]:
    """What a kind trains on, and in which steps."""
    inner = spec.inner
    whole, steps, batch = lesson[: inner.steps * inner.sequences], inner.steps, inner.sequences
    if kind in ("spread", "thin"):
        whole = whole[::2]
    if kind in ("first", "spread"):
        steps //= 2
    if kind == "thin":
        batch //= 2
    # The schedule follows the rounds: its step is the round times the steps of one.
    scale = steps / inner.steps
    changes = {
        "steps": steps,
        "sequences": batch,
        "warmup_steps": int(inner.warmup_steps * scale),
        "decay_steps": int(inner.decay_steps * scale),
    }
    return whole, inner.model_copy(update=changes)


def each_sequence(pages: Sequence[Page], context: int) -> tuple[Page, ...]:
    """In the order in which they are trained on."""
    return tuple(Page(page.first + at, context) for page in pages for at in range(0, page.num_tokens, context))


def run(seed: int, rounds: int, spec: RunSpec, shards: Shards) -> list[Row]:
    """Of every peer and round its leads: on its assigned sequences in order, and on nobody's."""
    names = [f"{kind}-{KINDS[:place].count(kind)}" for place, kind in enumerate(KINDS)]
    peers = {name: PeerId(word("peer", seed, name)) for name in names}
    full = [name for name in names if name.startswith("full")]
    context, theta, run_id = spec.model.context, genesis_theta(spec.model, seed), word("run", seed)
    miners = {name: Replica(spec, theta) for name in names}
    judge, rows = Replica(spec, theta), list[Row]()
    trained = spec.inner.steps * spec.inner.sequences
    for round in range(rounds):
        own, updates = {}, {}
        for name, kind in zip(names, KINDS, strict=True):
            peer = peers[name]
            own[name] = assigned(
                run_id,
                word("page", seed, round),
                peer,
                num_pages=spec.num_pages,
                page_tokens=spec.page_tokens,
                count=spec.pages_per_round,
            )
            taken = pages_of(kind, peer, round, own[name], spec)
            lesson, inner = cut(kind, sequences(shards.train, taken, context), spec)
            miners[name].inner_round(lesson, inner=inner)
            updates[name] = miners[name].compress()
        passed = {peers[name]: Submission(peers[name], round, judge.digest(), updates[name]) for name in names}
        scales = bounded(passed, judge.outer)
        pages = Draw("unassigned", run_id, round).distinct(spec.num_pages, UNASSIGNED)
        nobodys = tuple(Page(page_at(page, spec.page_tokens).first, context) for page in sorted(pages))
        parts = {name: each_sequence(own[name], context)[:trained] for name in names}
        wanted = [(by, name, parts[name]) for by in names for name in names if by == name or by in full]
        wanted += [(name, "", nobodys) for name in names]
        with Prober(judge, shards.train, spec.gauntlet.probe_step) as prober:
            before = {where: prober.losses(None, (), where) for where in (nobodys, *parts.values())}
            after = {
                (by, name): prober.losses(updates[by], scales[peers[by]], where)
                for by, name, where in sorted(wanted, key=lambda one: one[0])
            }
        found = {
            (by, name): [was - now for was, now in zip(before[where], after[by, name], strict=True)]
            for by, name, where in wanted
        }
        rows += [{"seed": seed, "round": round} | row for row in compared(names, full, found)]
        chosen = [updates[name] for name in full]
        for replica in (*miners.values(), judge):
            replica.outer_step(chosen, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        sys.stderr.write(f"seed {seed} round {round} loss {held_out_loss(judge, shards, 64):.3f}\n")
    return rows


def compared(
    names: Sequence[str], full: Sequence[str], found: Mapping[tuple[str, str], Sequence[float]]
) -> Iterator[Row]:
    """Every peer against the full workers. found: by peer, by how much the losses of a lesson fell; "": nobody's."""
    for name, kind in zip(names, KINDS, strict=True):
        against = [other for other in full if other != name][:3]
        yield {
            "kind": kind,
            "score": fmean(found[name, ""]),
            "assigned": leads(found[name, name], [found[other, name] for other in against]),
            "unassigned": leads(found[name, ""], [found[other, ""] for other in against]),
        }


def gaps(row: Row, count: int, random: Random) -> dict[str, float]:
    """One evaluation's gap in every way."""
    own, nobodys = list(row["assigned"]), random.sample(list(row["unassigned"]), count)
    middle = len(own) // 2
    early, late = own[:middle], own[middle:]

    def of(values: Sequence[float], number: int) -> float:
        return gap(random.sample(list(values), min(number, len(values))), nobodys)

    apart = of(early, count // 2), of(late, count // 2)
    return {
        "drawn": of(own, count),
        "early": of(early, count),
        "late": of(late, count),
        "worse": min(apart),
    }


def apart(row: Row) -> tuple[float, float]:
    """Gaps over what was trained on and what was skipped."""
    own, nobodys = list(row["assigned"]), list(row["unassigned"])
    if row["kind"] == "first":
        return gap(own[: len(own) // 2], nobodys), gap(own[len(own) // 2 :], nobodys)
    return gap(own[::2], nobodys), gap(own[1::2], nobodys)


def summary(rows: Sequence[Row], count: int, part: range) -> dict[str, object]:
    """Of the rounds of `part`."""
    random = Random(0)
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["round"] in part:
            for _ in range(DRAWS):
                for way, value in gaps(row, count, random).items():
                    found.setdefault((str(row["kind"]), way), []).append(value)
    line: dict[str, object] = {}
    for way in GAPS:
        honest = found["full", way]
        unit, spread = fmean(honest), pvariance(honest)
        line[f"full {way}"] = f"{unit:.3f} sd {spread**0.5:.3f}"
        for kind in dict.fromkeys(KINDS[4:]):
            theirs = found[kind, way]
            common = ((spread + pvariance(theirs)) / 2) ** 0.5
            line[f"{kind} {way}"] = f"{fmean(theirs) / unit:.2f} ({(unit - fmean(theirs)) / common:.1f})"
    for kind in ("full", "first", "spread", "thin"):
        pairs = [apart(row) for row in rows if row["kind"] == kind and row["round"] in part]
        line[f"{kind} apart"] = [round(fmean(values), 3) for values in zip(*pairs, strict=True)]
    scores = {k: fmean(float(r["score"]) for r in rows if r["kind"] == k and r["round"] in part) for k in KINDS}
    line["score"] = {kind: round(value / scores["full"], 2) for kind, value in scores.items()}
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="local")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pages", type=int, nargs="+", default=[160], help="sequences of a page, one run for each")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.FIELD=JSON", help="change the preset")
    parser.add_argument("--rows", type=Path, help="write every peer's round as a JSON line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shards = Shards.open(text_data(lambda line: None))
    for size in options.pages:
        changes = changes_of([*options.set, f"data.page_sequences={size}"])
        merged = {name: dict(fields) for name, fields in MODELS[options.model].items()}
        for name, fields in changes.items():
            merged.setdefault(name, {}).update(fields)
        spec, rows = spec_with(merged, shards), list[Row]()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            rows += run(seed, options.rounds, spec, shards)
        if options.rows:
            with options.rows.open("a") as file:
                file.writelines(json.dumps({"page_sequences": size} | row) + "\n" for row in rows)
        for part in (range(min(3, options.rounds)), range(3, options.rounds)):
            if part:
                found = summary(rows, spec.gauntlet.sample_sequences, part)
                line = {"page_sequences": size, "rounds": f"{part[0]}-{part[-1]}"} | found
                sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
