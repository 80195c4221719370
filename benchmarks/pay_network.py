"""One network of benchmarks/bench_pay.py from its first round to its last: workers train, validators judge and pay, the
outer step is applied. Bounds, samples, probes, book, selection and weights are those that nodes call.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pay_skippers import SKIPPERS
from pay_trainers import Rule
from pay_workers import WORKERS, View, Worker
from tiny_spec import Changes, spec_with, word

from gauntlet.book import RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked
from gauntlet.evaluation import Evaluation
from gauntlet.loss import bounded, evaluate
from gauntlet.remembered import NO_TWINS
from gauntlet.repetition import Repetition
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import Ranking, standing
from gauntlet.verification import compare, draw
from gauntlet.weights import weights
from murmur.data.shards import Shards
from murmur.lab.arena.agree import consensus, pooled
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId, Uid
from murmur.training.evaluate import held_out_loss
from murmur.training.inner import never
from murmur.training.model import genesis_theta
from murmur.training.probe import Prober
from murmur.training.recorder import TraceOf
from murmur.training.replica import Replica
from sparseloco.trace import Trace, encode, parse
from sparseloco.update import Update
from sparseloco.wire import Submission

Line = dict[str, Any]
"""What is kept of one network and seed, as JSON."""

MODELS: dict[str, Changes] = {
    "local": {},
    "larger": {
        "model": {"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "ffn": 768},
        "inner": {"peak_lr": 4e-3, "final_lr": 4e-4},
    },
}
NETWORKS: dict[str, tuple[int, tuple[str, ...]]] = {
    "equal": (8, ()),
    "split": (6, ("split_in_two", "half_work")),
    "thin": (6, ("thin_in_four", "half_declared")),
    "thinner": (6, ("thin_in_eight", "half_undeclared")),
    "skipping": (6, ("tenth_skipped",)),
    "batch": (6, ("split_batch", "half_batch")),
    "more": (6, ("double_steps", "double_batch")),
    "shaped": (6, ("half_rate", "double_rate", "index_by_gradient")),
    "scaled": (6, ("inflate_1_25", "deflate_0_85")),
    "leavers": (6, ("adamw", "adamw_half_work")),
    "cheats": (6, ("copier_39", "on_off", "thin_margin", "frozen_layers")),
    "leaning": (6, ("split_inflated", "momentum", "half_momentum")),
    "crowding": (6, ("private_direction", "split_values")),
    "swarm_80": (4, ("swarm_80",)),
}
"""Number of full workers, and who is with them."""

EVALUATING = 3
"""Validators of the equal network that evaluate; the last one copies."""

OWNER = PeerId(word("owner"))
NOTHING_SHOWN = Trace(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32))


Executed = dict[tuple[int, PeerId, int, bool], Trace]
"""What executions of a hotkey's steps of a round came to, in either split: here all validators' are the same bits."""


class Validator:
    """One that evaluates: its book, and its weights of the last round."""

    def __init__(self, name: str, run: Digest, spec: RunSpec, executed: Executed) -> None:
        self.executed = executed
        self.peer, self.run, self.spec = PeerId(word(name)), run, spec
        self.book, self.weights = ScoreBook(), dict[Uid, float]()
        self.found: dict[PeerId, Repetition] = {}
        """What was found of the last round's steps."""

    def ranking(self, round: int, passed: Mapping[PeerId, Submission]) -> Ranking:
        """By the book of before the round."""
        return standing(self.book, passed, self.spec.gauntlet, round, word("commit", self.run.hex(), round))

    def judge(
        self,
        view: View,
        passed: Mapping[PeerId, Submission],
        contributing: frozenset[PeerId],
        replica: Replica,
        uids: Mapping[PeerId, Uid],
        traces: Mapping[PeerId, Trace],
    ) -> dict[PeerId, Evaluation]:
        """Evaluate, fold and pay one round, and repeat steps of it. traces: what hotkeys show."""
        gauntlet, ranking = self.spec.gauntlet, self.ranking(view.round, passed)
        seed = Seed(self.run, word("sample", self.run.hex(), view.round), view.round, self.peer)
        picked = pick(self.book, passed, contributing, gauntlet, seed)
        drawn = samples(self.spec, view.page_hash, picked, set(passed), seed)
        against = references(picked, passed, contributing, gauntlet, seed)
        with Prober(replica, view.train, gauntlet.probe_step) as prober:
            found = evaluate(prober.losses, passed, bounded(passed, replica.outer), drawn, against)
        checked = Checked(passed, {}, frozenset(passed), {}, {})
        outcome = RoundOutcome(view.round, checked, found, contributing, repetitions=self.found)
        self.book = fold(self.book, outcome, gauntlet)
        self.weights = weights(self.book, ranking, uids, OWNER, gauntlet)
        self.found = self.repeat(view, ranking, traces, replica)
        return found

    def repeat(
        self, view: View, ranking: Ranking, traces: Mapping[PeerId, Trace], replica: Replica
    ) -> dict[PeerId, Repetition]:
        """Repeat drawn hotkeys' steps, as murmur/rounds/verify.py does."""
        spec = self.spec
        if not spec.trace.places:
            return {}
        block_hash = word("sample", self.run.hex(), view.round)
        found: dict[PeerId, Repetition] = {}
        for peer in draw(self.run, block_hash, view.round, self.peer, ranking, NO_TWINS, self.book, spec.gauntlet):
            shown = traces.get(peer, NOTHING_SHOWN)
            shown = parse(encode(shown, spec.trace), spec.trace) if shown.steps else shown
            one = self._repeat(view, peer, shown, replica, split=False)
            if one.failed:
                again = self._repeat(view, peer, shown, replica, split=True)
                one = again if again.passed else one
            found[peer] = one
        return found

    def _repeat(self, view: View, peer: PeerId, shown: Trace, replica: Replica, *, split: bool) -> Repetition:
        inner, steps = self.spec.inner, shown.steps
        of = view.trace_of(peer)
        if not steps or of is None:
            return Repetition(view.round, inner.steps, 0, (), ())
        key = (view.round, peer, steps, split)
        own = self.executed.get(key) or self._execute(view, peer, steps, of, replica, split=split)
        self.executed[key] = own
        return compare(view.round, inner.steps, shown, own)

    def _execute(self, view: View, peer: PeerId, steps: int, of: TraceOf, replica: Replica, *, split: bool) -> Trace:
        inner = self.spec.inner
        own = replica.repeat(
            view.sequences(view.pages(peer))[: steps * inner.sequences],
            inner=inner.model_copy(update={"steps": steps}),
            rounds=replica.outer.rounds,
            first_step=replica.outer.rounds * inner.steps,
            trace_of=of,
            on_step=lambda step, loss: None,
            stopped=never,
            split=split,
        )
        assert own is not None
        return own


@dataclass(frozen=True)
class Plan:
    """One network to play. `changes`: of the preset, beyond the model's."""

    model: str
    network: str
    full: int
    rounds: int
    changes: Changes
    rule: Rule

    def key(self, seed: int) -> Line:
        """What a line has to say to be this plan's."""
        full = self.full or NETWORKS[self.network][0]
        named = {"model": self.model, "network": self.network, "full": full, "rounds": self.rounds}
        return named | {"set": self.changes, "rule": vars(self.rule), "seed": seed}

    def spec(self, shards: Shards) -> RunSpec:
        tables = {name: dict(fields) for name, fields in MODELS[self.model].items()}
        for name, fields in self.changes.items():
            tables.setdefault(name, {}).update(fields)
        return spec_with(tables, shards)


def play(plan: Plan, seed: int, shards: Shards) -> Line:
    """One network with one seed, from its first round to its last."""
    spec, key = plan.spec(shards), plan.key(seed)
    theta, run = genesis_theta(spec.model, seed), word("run", seed)
    kinds = ["full"] * key["full"] + list(NETWORKS[plan.network][1])
    workers = [
        (WORKERS | SKIPPERS)[kind](f"{kind}-{kinds[:place].count(kind)}", seed, spec, theta, plan.rule)
        for place, kind in enumerate(kinds)
    ]
    hotkeys = [peer for worker in workers for peer in worker.hotkeys]
    uids = {peer: Uid(place) for place, peer in enumerate(hotkeys)}
    executed: Executed = {}
    validators = [Validator(f"validator-{place}", run, spec, executed) for place in range(_validators(plan.network))]
    stakes = dict.fromkeys([*(validator.peer for validator in validators), PeerId(word("copying"))], 1)
    judge, copied, step = Replica(spec, theta), dict[Uid, float](), None
    updates: dict[PeerId, Update] = {}
    rounds: list[Line] = []
    first_loss = held_out_loss(judge, shards, spec.data.held_out_sequences)
    for number in range(plan.rounds):
        page_hash = word("page", seed, number)
        view = View(number, spec, run, page_hash, shards.train, step, updates, judge.outer, validators[0].book)
        updates = {peer: update for worker in workers for peer, update in worker.send(view).items()}
        passed = {peer: Submission(peer, number, judge.digest(), updates[peer]) for peer in sorted(updates)}
        contributing = frozenset(validators[0].ranking(number, passed).contributing)
        traces = {peer: trace for worker in workers for peer, trace in worker.traces.items()}
        judged = [validator.judge(view, passed, contributing, judge, uids, traces) for validator in validators]
        posted = {validator.peer: validator.weights for validator in validators}
        paid = pooled(posted, stakes)
        trust = left(posted | {PeerId(word("copying")): copied}, stakes)
        copied = paid
        before = {name: tensor.clone() for name, tensor in judge.theta.items()}
        chosen = [updates[peer] for peer in sorted(contributing)]
        for worker in workers:
            worker.decided(chosen)
        if chosen:
            judge.outer_step(chosen, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        step = {name: before[name] - tensor for name, tensor in judge.theta.items()}
        loss = held_out_loss(judge, shards, spec.data.held_out_sequences)
        rounds.append({"loss": loss, "trust": list(trust.values())})
        for worker in workers:
            rounds[-1][worker.name] = _seen(worker, updates, contributing, paid, uids, judged[0])
        sys.stderr.write(f"{plan.network} seed {seed} round {number} loss {loss:.3f}\n")
    return key | {
        "workers": {worker.name: {"kind": worker.kind, "work": worker.work / plan.rounds} for worker in workers},
        "first_loss": first_loss,
        "by_round": rounds,
    }


def _validators(network: str) -> int:
    return EVALUATING if network == "equal" else 1


def _seen(
    worker: Worker,
    updates: Mapping[PeerId, Update],
    contributing: frozenset[PeerId],
    paid: Mapping[Uid, float],
    uids: Mapping[PeerId, Uid],
    found: Mapping[PeerId, Evaluation],
) -> Line:
    """A worker's round: pay and places of all its hotkeys; norm, score and gap of each that was evaluated."""
    mine = [peer for peer in worker.hotkeys if peer in found]
    return {
        "pay": sum(paid.get(uids[peer], 0.0) for peer in worker.hotkeys),
        "places": len(contributing.intersection(worker.hotkeys)),
        "norm": [updates[peer].norms.whole for peer in mine],
        "score": [found[peer].score.unassigned for peer in mine],
        "gap": [found[peer].gap for peer in mine],
    }


def left(posted: Mapping[PeerId, Mapping[Uid, float]], stakes: Mapping[PeerId, int]) -> dict[PeerId, float]:
    """The share of every validator's weights that the consensus leaves: what the chain calls its trust."""
    limits = consensus(posted, stakes)
    return {
        peer: sum(min(weight, limits.get(uid, 0.0)) for uid, weight in given.items()) for peer, given in posted.items()
    }
