"""Judging policies: our code, and the published formulas, behind one small interface.

A policy is all the memory of one validator. The game calls `check`, `rank`, `learn`, `pay` and `verify` in this order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

import torch

from gauntlet.book import ScoreBook
from gauntlet.checks import Checked, Gathered
from gauntlet.commitment import commitment
from gauntlet.judge import Earlier, Judge, Model
from gauntlet.loss import bounded
from gauntlet.rating import BETA, FRESH, TAU, Rating
from gauntlet.remembered import Remembered
from gauntlet.repetition import Repetition
from gauntlet.sampling import Seed, samples
from gauntlet.selection import Ranking
from gauntlet.sketch import Sketch
from gauntlet.verification import compare, draw
from gauntlet.weights import weights
from murmur.lab.arena.problem import Prober, Text, Theta, train
from murmur.lab.arena.stage import FUNCTIONS, OWNER, generator, pages_of, sync_proof
from murmur.lab.arena.traces import cut
from murmur.protocol.assignment import Draw
from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.messages import ENVELOPE_BYTES, parse_envelope, parse_reveal
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId, Reason, Rejection, Standing, Uid
from sparseloco import ops, trace
from sparseloco.outer import OuterState
from sparseloco.trace import Trace
from sparseloco.update import Records
from sparseloco.wire import Submission


@dataclass(frozen=True)
class Round:
    """A validator's knowledge of a round. `digests`: theta's digest at the start of every round so far."""

    number: int
    spec: RunSpec
    run: Digest
    theta: Theta
    digests: Sequence[Digest]
    outer: OuterState
    text: Text
    page_hash: Digest
    commit_hash: Digest
    sample_hash: Digest
    gathered: Sequence[Gathered]
    uids: Mapping[PeerId, Uid]
    validator: PeerId

    @property
    def seed(self) -> Seed:
        return Seed(self.run, self.sample_hash, self.number, self.validator)


class Policy(Protocol):
    """`sealed`: this round's payloads are hidden until all peers have committed. `book`: the book that its reports
    publish. `found`: what repeating the last round's steps has shown, which the next `learn` counts."""

    sealed: bool
    book: ScoreBook
    found: Mapping[PeerId, Repetition]

    def check(self, round: Round) -> Checked:
        """Return the peers that pass. Every validator finds the same."""
        ...

    def rank(self, round: Round, checked: Checked) -> Ranking:
        """Return the contributors, by the knowledge from before this round."""
        ...

    def learn(self, round: Round, checked: Checked, ranking: Ranking, contributing: frozenset[PeerId]) -> set[PeerId]:
        """Evaluate and remember; return the evaluated peers. `contributing`: the agreed contributors."""
        ...

    def pay(self, round: Round, ranking: Ranking) -> dict[Uid, float]:
        """Return this validator's weights."""
        ...

    def verify(self, round: Round, checked: Checked, ranking: Ranking) -> None:
        """Repeat drawn miners' steps."""
        ...


APART = 2.0**-9
"""How far each gradient of one machine is from another's, at most, as a share of it."""


class Ours:
    """gauntlet/, as the validator calls it."""

    sealed = True

    def __init__(self) -> None:
        self.book = ScoreBook()
        self.records: Mapping[Remembered, Records] = {}
        self.found: Mapping[PeerId, Repetition] = {}

    def check(self, round: Round) -> Checked:
        judge, theta = self._judge(round), round.digests[-1]
        earlier, model = judge.compared(), Model(theta, lambda peer: sync_proof(theta, peer), round.outer)
        return judge.check(model, round.gathered, FUNCTIONS, self._sketches(earlier))

    def rank(self, round: Round, checked: Checked) -> Ranking:
        return self._judge(round).rank(checked)

    def learn(self, round: Round, checked: Checked, ranking: Ranking, contributing: frozenset[PeerId]) -> set[PeerId]:
        judge, losses = self._judge(round), Prober(round.text, round.theta, round.spec.gauntlet.probe_step)
        drawn = judge.draw(checked, ranking, round.sample_hash, round.validator)
        drawn_samples = judge.samples(drawn, round.page_hash, set(round.uids))
        evaluations = judge.evaluate(drawn, drawn_samples, losses, checked.passed, round.outer)
        self.book = judge.fold(judge.outcome(checked, checked.committed, evaluations, contributing, self.found))
        known = {**self.records, **checked.remember}
        self.records = {past: known[past] for past in self.book.remembered}
        return set(evaluations)

    def _judge(self, round: Round) -> Judge:
        return Judge(round.spec, round.run, round.number, round.commit_hash, self.book)

    def _sketches(self, earlier: Earlier) -> list[Sketch]:
        return [
            Sketch(past.peer, past.round, past.payload, earlier.sample.excerpt(self.records[past]))
            for past in earlier.names
        ]

    def pay(self, round: Round, ranking: Ranking) -> dict[Uid, float]:
        return weights(self.book, ranking, round.uids, OWNER, round.spec.gauntlet)

    def verify(self, round: Round, checked: Checked, ranking: Ranking) -> None:
        spec = round.spec
        drawn = draw(
            round.run,
            round.sample_hash,
            round.number,
            round.validator,
            ranking,
            checked.twins,
            self.book,
            spec.gauntlet,
        )
        shown = {peer: trace.parse(checked.passed[peer].trace, spec.trace) for peer in drawn}
        self.found = {
            peer: compare(round.number, spec.inner.steps, shown[peer], own)
            for peer, own in _repeated(round, {peer: one.steps for peer, one in shown.items()}).items()
        }


def _repeated(round: Round, declared: Mapping[PeerId, int]) -> dict[PeerId, Trace]:
    """Return what a validator's own execution of the peers' declared steps shows."""
    if not declared:
        return {}
    spec = round.spec
    text = torch.stack([round.text.sequences(pages_of(spec, round.run, round.page_hash, peer)) for peer in declared])
    batches = [spec.inner.sequences] * spec.inner.steps
    trained = train([round.theta] * len(declared), text, batches, spec.inner.peak_lr)
    found = {}
    for (peer, steps), each in zip(declared.items(), trained, strict=True):
        exact = cut(spec, round.run, round.page_hash, peer, each)
        random = generator(Draw("arena kernels", round.run, round.validator, peer, round.number))
        factors = (1.0 + APART * (2.0 * torch.rand(exact.moves.shape, generator=random) - 1.0)).numpy()
        found[peer] = Trace((exact.gradients * factors)[:steps], (exact.moves * factors)[:steps])
    return found


CONTRIBUTORS = 15
EVALUATIONS = 20
SEQUENCES = 8
PROBE_STEP = 0.5
SIGN_TAKES = 0.05
MISSING_KEEPS = 0.75
STEPS_BEHIND = 3
SYNC_POWER = 2.5
PAY_POWER = 2.0
FEWEST = 5


@dataclass(slots=True)
class _Score:
    rating: Rating = FRESH
    sign: float = 0.0
    final: float = 0.0
    evaluations: int = 0


@dataclass
class Published:
    """The published formulas with their constants: final = ordinal x sign average x sync score, squared and normalised
    into weights; the 15 best contribute.

    Only the formulas: the public code's other checks are left out, and the bounded outer step is the same as ours, so
    that the comparison is of the judging. Payloads are readable as soon as they are uploaded. Where fewer than five
    peers have a positive score, others fill the places in an order drawn from a hash.
    """

    sealed = False
    scores: dict[PeerId, _Score] = field(default_factory=dict)
    book: ScoreBook = field(default_factory=ScoreBook)
    found: Mapping[PeerId, Repetition] = field(default_factory=dict)

    def check(self, round: Round) -> Checked:
        passed: dict[PeerId, Submission] = {}
        rejected: dict[PeerId, Rejection] = {}
        clock, committed = round.spec.rounds_clock, set()
        for item in round.gathered:
            peer = item.peer.id
            if commitment(item.peer, round.number, clock.commit_deadline(round.number)) is not None:
                committed.add(peer)
            if peer not in committed or item.payload is None or item.reveal is None:
                rejected[peer] = Rejection(peer, Reason.LATE if item.late else Reason.MISSING, "nothing in time")
                continue
            envelope, key = parse_envelope(item.payload[:ENVELOPE_BYTES]), parse_reveal(item.reveal).key
            try:
                plaintext = FUNCTIONS.unseal(envelope, key, item.payload[ENVELOPE_BYTES:])
                trace_bytes = round.spec.trace.num_bytes
                passed[peer] = ops.parse_submission(peer, round.number, plaintext, round.spec.layout, trace_bytes)
            except InvalidSubmission as fault:
                rejected[peer] = Rejection(peer, fault.reason, fault.detail)
        return Checked(passed, rejected, frozenset(committed), {}, {})

    def rank(self, round: Round, checked: Checked) -> Ranking:
        def final(peer: PeerId) -> float:
            return self.scores[peer].final if peer in self.scores else 0.0

        good = sorted((peer for peer in checked.passed if final(peer) > 0), key=lambda peer: (-final(peer), peer))
        order = good[:CONTRIBUTORS]
        if len(order) < FEWEST:
            rest = sorted(set(checked.passed) - set(order))
            order += Draw("fill", round.commit_hash).sample(rest, CONTRIBUTORS - len(order))
        standings = {
            peer: Standing.NOT_SELECTED
            if final(peer) > 0
            else Standing.LOW_SCORE
            if peer in self.scores and self.scores[peer].evaluations
            else Standing.NOT_ELIGIBLE
            for peer in sorted(checked.passed)
            if peer not in order
        }
        return Ranking(tuple(order), tuple(order), (), standings)

    def learn(self, round: Round, checked: Checked, ranking: Ranking, contributing: frozenset[PeerId]) -> set[PeerId]:
        for peer in sorted(checked.rejected):
            if peer in self.scores and self.scores[peer].final > 0:
                self.scores[peer].final *= MISSING_KEEPS
                self.scores[peer].sign *= MISSING_KEEPS
        picked = sorted(round.seed.draw("evaluate").sample(sorted(checked.passed), EVALUATIONS))
        drawn = samples(round.spec, round.page_hash, picked, set(round.uids), round.seed)
        losses = Prober(round.text, round.theta, PROBE_STEP)
        factors = bounded(checked.passed, round.outer)
        random = drawn.unassigned[:SEQUENCES]
        before_random = fmean(losses(None, (), random))
        before_own = {peer: fmean(losses(None, (), drawn.assigned[peer][:SEQUENCES])) for peer in picked}
        improvement: dict[PeerId, float] = {}
        for peer in picked:
            update, factor = checked.passed[peer].update, factors[peer]
            after_random = fmean(losses(update, factor, random))
            after_own = fmean(losses(update, factor, drawn.assigned[peer][:SEQUENCES]))
            improvement[peer] = (before_random - after_random) / before_random
            own = (before_own[peer] - after_own) / before_own[peer]
            score = self.scores.setdefault(peer, _Score())
            score.sign += SIGN_TAKES * ((1.0 if own > improvement[peer] else -1.0) - score.sign)
            score.evaluations += 1
        if len(picked) > 1:
            self._rate(improvement)
        for peer in picked:
            score = self.scores[peer]
            ordinal = score.rating.mu - 3 * score.rating.sigma
            score.final = ordinal * max(0.0, score.sign) * _sync_score(checked.passed[peer].theta, round.digests)
        return set(picked)

    def pay(self, round: Round, ranking: Ranking) -> dict[Uid, float]:
        earned = {
            uid: self.scores[peer].final ** PAY_POWER
            for peer, uid in round.uids.items()
            if peer in self.scores and self.scores[peer].final > 0
        }
        total = sum(earned.values())
        return {uid: value / total for uid, value in sorted(earned.items())} if total else {}

    def verify(self, round: Round, checked: Checked, ranking: Ranking) -> None:
        """The published formulas repeat nobody's steps."""

    def _rate(self, improvement: Mapping[PeerId, float]) -> None:
        from openskill.models import PlackettLuce

        model, order = PlackettLuce(beta=BETA, tau=TAU), sorted(improvement)
        teams = [[model.rating(self.scores[p].rating.mu, self.scores[p].rating.sigma)] for p in order]
        rated = model.rate(teams, scores=[improvement[peer] for peer in order])
        for peer, team in zip(order, rated, strict=True):
            self.scores[peer].rating = Rating(team[0].mu, team[0].sigma)


def _sync_score(claimed: Digest, digests: Sequence[Digest]) -> float:
    """Return the score of the rounds by which the claimed theta is behind; the public code reads that from some values
    that a peer posts."""
    behind = digests[::-1].index(claimed) if claimed in digests else STEPS_BEHIND
    score: float = max(0.0, 1.0 - behind / STEPS_BEHIND) ** SYNC_POWER
    return score


POLICIES: Mapping[str, type[Ours] | type[Published]] = {"ours": Ours, "published": Published}
