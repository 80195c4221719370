"""Judging a validator's round again from public objects: what its signed report states, against what follows from the
chain, from the payloads and from the model (docs/protocol.md section 9; docs/audit.md for people).

Every step is judged by the report's own statements of the steps before it: checks from the bytes, ranking from the
book before, the sample from the ranking, scores from the model, the book after from the scores, pay from the book
after. So a lie shows where it was told, and from the published scores on everything is exact. What only the validator
could see, such as a key that was not readable in time, is told apart. Pure: whoever calls has fetched everything.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from math import isnan
from typing import Any, cast

from gauntlet.agreement import Agreed, Views, leader_order, posted_records, selected
from gauntlet.book import PeerRecord, RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked, Doors, Gathered, commitment, fast_checks, is_judged, is_late
from gauntlet.difference import body_of, first_difference, same
from gauntlet.loss import Evaluation, Losses, bounded, evaluate
from gauntlet.report import Report, Row
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import Ranking, standing
from gauntlet.sketch import Remembered, Sketch
from gauntlet.weights import weights
from protocol.messages import canonical_json, parse_json
from protocol.run import Run
from protocol.spec import GauntletSpec, RunSpec
from protocol.types import Attestation, Digest, Peer, PeerId, Reason, Record, Rejection, Uid, hotkey
from sparseloco.outer import OuterState
from sparseloco.wire import Submission

SCORE_TOLERANCE = 0.001
GAP_TOLERANCE = 0.02
"""How far a stated LossScore may lie from ours, in nats a token, and a gap, in shares of comparisons. The same device
gives the same bits; another one rounds otherwise, and bf16 coarsely: at most 0.0005 and 0.008 were measured
(docs/audit.md)."""
WEIGHT_STEPS = 1.5
"""Of 65,535: by so much a weight on chain may be rounded."""
_OBSERVED_BYTES = (Reason.MISSING, Reason.WRONG_SIZE)
_OF_OTHERS = {Reason.NORM, Reason.COPY}
"""Reasons that depend on other peers' payloads."""


class Topic(StrEnum):
    """What was looked at, in the order of the round."""

    REPORT = "report"
    HOTKEYS = "hotkeys"
    CHECKS = "checks"
    RANKING = "ranking"
    RECORD = "record"
    SAMPLE = "sample"
    SCORES = "scores"
    BOOK = "book"
    WEIGHTS = "weights"


class Verdict(StrEnum):
    """DIFFERS: what the validator states does not follow. OBSERVED: only the validator could see it, and nothing speaks
    against it. UNCHECKED: what is needed is not to be had (any more)."""

    DIFFERS = "differs"
    OBSERVED = "observed"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not simply agree, in our own words."""

    topic: Topic
    verdict: Verdict
    text: str
    peer: PeerId | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What follows from theta at the start of the round: the proof that a peer in sync gives, the slow averages, and
    losses as the validator evaluates them (None without the run's data)."""

    sync_proof: Callable[[PeerId], Digest]
    outer: OuterState
    losses: Losses | None


@dataclass(frozen=True)
class Facts:
    """A round as the chain and the buckets show it to everybody.

    `views` as for gauntlet.agreement; `at_reveal` as of V. `theta` and `previous`: at the round's start, by most stake
    of the statements. `payloads`: sealed objects that hash to what was committed to, of those that could be had.
    `height`: the final block from which we look. `state`: None when theta could not be rebuilt; `stateless` says why.
    """

    run: Run
    round: int
    commit_hash: Digest
    page_hash: Digest
    sample_hash: Digest
    views: Views
    at_reveal: Sequence[Peer]
    theta: Digest
    previous: Digest
    decision: Agreed
    payloads: Mapping[PeerId, bytes]
    doors: Doors
    height: int
    state: State | None = None
    stateless: str = ""

    @property
    def spec(self) -> RunSpec:
        return self.run.spec_at(self.round)

    @property
    def judged(self) -> dict[PeerId, Peer]:
        """Who counts as a miner."""
        return {peer.id: peer for peer in self.views.commit if is_judged(peer, self.spec.owner_id)}


@dataclass(frozen=True)
class Claim:
    """What one validator states, and what belongs to it.

    `shown`: the table of hotkeys as it stands in the document. `earlier`: its report of the round that its book before
    was made in, None when that is not to be had; `skipped`: a later round before this one that it reported all the
    same. `sketches`: by the round's sample, of those payloads of `compared` that could be had. `paid`: hotkeys as of
    `report.paid.block`, `set_weights`: what stood on chain for this validator at `report.paid.set_in` and one block
    before; None when the chain's node does not have it.
    """

    validator: PeerId
    report: Report
    shown: Mapping[str, Any]
    earlier: Report | None = None
    skipped: int | None = None
    sketches: tuple[Sketch, ...] = ()
    paid: Sequence[Peer] | None = None
    set_weights: tuple[Mapping[Uid, int], Mapping[Uid, int]] | None = None


def compared(report: Report, spec: GauntletSpec) -> tuple[Remembered, ...]:
    """The payloads of earlier rounds with which this round's were compared."""
    return tuple(past for past in report.history if past.round >= report.round - spec.copy_rounds)


def audit(facts: Facts, claim: Claim) -> list[Finding]:
    """Everything in a report that does not simply agree, in the order of the round. [] when all was checked and
    agrees."""
    judging = _Judging(facts, claim)
    steps = (
        judging.hotkeys,
        judging.checks,
        judging.ranks,
        judging.record,
        judging.sample,
        judging.scores,
        judging.before,
        judging.after,
        judging.pay,
        judging.numbers,
    )
    return [finding for step in steps for finding in step()]


class _Judging:
    """One audit; every method looks at one step. What several need is worked out once, at the start."""

    def __init__(self, facts: Facts, claim: Claim) -> None:
        self.facts, self.claim, self.report = facts, claim, claim.report
        self.spec = facts.spec
        registered = {peer.id: peer for peer in facts.views.commit}
        self.registered = registered
        self.rows = {peer: row for peer, row in claim.report.rows.items() if peer in registered}
        self.compared = compared(claim.report, self.spec.gauntlet)
        self.passed = sorted(p for p, row in self.rows.items() if p in facts.judged and row.rejected is None)
        self.book = _with_gone(claim.report.before, claim.report.gone)
        self.ranking: Ranking = standing(self.book, self.passed, self.spec.gauntlet, facts.round, facts.commit_hash)
        self.evaluated = {p: row.evaluation for p, row in self.rows.items() if row.evaluation is not None}
        seed = Seed(facts.run.id, facts.sample_hash, facts.round, claim.validator)
        contributing = set(self.ranking.contributing)
        self.seed = seed
        self.drawn = pick(self.book, self.passed, contributing, self.spec.gauntlet, seed)
        self.references = references(self.drawn, self.passed, contributing, self.spec.gauntlet, seed)
        self.examined = self._examined()
        self.checked = self._checked()
        self.ours, self.unscored = self._evaluations()

    # --- what follows from the bytes -------------------------------------------------------------------------

    def _examined(self) -> dict[PeerId, Gathered]:
        """Peers whose verdict follows from what we hold: without a commitment from the chain alone, else from the
        bytes, together with the key that the validator says it read."""
        facts = self.facts
        at_reveal = {peer.id: peer for peer in facts.at_reveal}
        last, reveal_by = facts.run.clock.commit_by(facts.round), facts.run.clock.reveal_by(facts.round)
        examined: dict[PeerId, Gathered] = {}
        for peer in facts.judged.values():
            row = self.rows.get(peer.id)
            if row is None:
                continue
            if commitment(peer, facts.round, last) is None:
                late = is_late(peer, at_reveal.get(peer.id), facts.round, last, reveal_by)
                examined[peer.id] = Gathered(peer, late=late)
            elif facts.state is not None and row.rejected not in _OBSERVED_BYTES and peer.id in facts.payloads:
                examined[peer.id] = Gathered(peer, facts.payloads[peer.id], reveal=row.reveal)
        return examined

    def _checked(self) -> Checked:
        facts = self.facts
        unknown = Digest(bytes(32))
        return fast_checks(
            self.spec,
            facts.run.id,
            facts.round,
            facts.theta,
            list(self.examined.values()),
            doors=facts.doors,
            clock=facts.run.clock,
            expected_proof=facts.state.sync_proof if facts.state is not None else lambda peer: unknown,
            outer_state=facts.state.outer if facts.state is not None else OuterState.initial(self.spec.layout),
            commit_hash=facts.commit_hash,
            history=self.claim.sketches,
            void_rounds=self.report.before.void_rounds,
        )

    @property
    def whole(self) -> bool:
        """Whether every payload that the validator compared others with is in our hands."""
        have = {(sketch.round, sketch.peer) for sketch in self.claim.sketches}
        return all((past.round, past.peer) in have for past in self.compared) and all(
            peer in self.examined or row.rejected in _OBSERVED_BYTES
            for peer, row in self.rows.items()
            if peer in self.facts.judged
        )

    def _evaluations(self) -> tuple[Mapping[PeerId, Evaluation], str]:
        """Our own evaluation of the drawn peers; none, and why, when it cannot be made."""
        facts = self.facts
        if facts.state is None:
            return {}, facts.stateless
        if facts.state.losses is None:
            return {}, "the run's data are not here (--data)"
        submissions = {peer: self.checked.passed[peer] for peer in self.passed if peer in self.checked.passed}
        if lacking := set(self.passed) - submissions.keys():
            return {}, f"{len(lacking)} of the payloads that passed are not to be had, or do not pass here"
        drawn = samples(self.spec, facts.page_hash, self.drawn, facts.judged.keys(), self.seed)
        try:
            return evaluate(
                facts.state.losses, submissions, bounded(submissions, facts.state.outer), drawn, self.references
            ), ""
        except ValueError as fault:
            return {}, str(fault)

    # --- the steps -------------------------------------------------------------------------------------------

    def hotkeys(self) -> Iterator[Finding]:
        """The report lists exactly the hotkeys that were registered at D, with their uids."""
        for peer in sorted(self.registered.keys() - self.report.rows.keys()):
            yield _differs(Topic.HOTKEYS, f"uid {self.registered[peer].uid} is left out of the report", peer)
        for peer in sorted(self.report.rows.keys() - self.registered.keys()):
            yield _differs(Topic.HOTKEYS, "is in the report, but was not registered at block D", peer)
        for peer, row in self.rows.items():
            if row.uid != self.registered[peer].uid:
                yield _differs(Topic.HOTKEYS, f"uid {row.uid} stated, {self.registered[peer].uid} on chain", peer)
            judged = peer in self.facts.judged
            outcome = row.rejected is not None or row.standing is not None or row.contributing
            if not judged and (outcome or row.evaluation is not None or row.payload is not None):
                yield _differs(Topic.HOTKEYS, "is judged, but is no miner of this round", peer)

    def checks(self) -> Iterator[Finding]:
        """Every rejection, and every pass, follows from the chain and the committed bytes."""
        ours = self.checked.rejected
        payloads = {kept.peer: kept.payload for kept in self.checked.remember}
        for peer, row in self.rows.items():
            if peer not in self.facts.judged:
                continue
            if peer not in self.examined:
                yield self._unexamined(peer, row)
                if row.rejected in _OBSERVED_BYTES and row.payload is not None:
                    yield _differs(Topic.CHECKS, "its bytes are said not to be had, yet are remembered", peer)
                continue
            found = ours[peer].reason if peer in ours else None
            if found != row.rejected:
                text = f"{row.rejected or 'passed'} stated, {found or 'passes'} by the public bytes"
                if peer in ours:
                    text += f": {ours[peer].detail}"
                doubtful = {found, row.rejected} & _OF_OTHERS and not self.whole
                if doubtful:
                    yield _unchecked(Topic.CHECKS, f"{text}; some payloads to compare with are gone", peer)
                else:
                    yield _differs(Topic.CHECKS, text, peer)
            elif found is Reason.UNREVEALED:
                yield Finding(Topic.CHECKS, Verdict.OBSERVED, "UNREVEALED: no key was readable by block V", peer)
            elif row.payload != payloads.get(peer):
                yield _differs(Topic.CHECKS, "another payload is remembered than the committed one", peer)
        lost = len(self.compared) - len(self.claim.sketches)
        if lost:
            yield _unchecked(Topic.CHECKS, f"{lost} payloads of earlier rounds are gone: copies of them go unseen")

    def _unexamined(self, peer: PeerId, row: Row) -> Finding:
        if row.rejected is Reason.LATE:
            return _differs(Topic.CHECKS, "LATE stated, but its commitment stood on chain at block D", peer)
        if row.rejected in _OBSERVED_BYTES:
            text = f"{row.rejected}: its committed object could not be read as it should be"
            return Finding(Topic.CHECKS, Verdict.OBSERVED, text, peer)
        why = self.facts.stateless or "its committed object is not to be had any more"
        return _unchecked(Topic.CHECKS, f"{row.rejected or 'passed'} stated; {why}", peer)

    def ranks(self) -> Iterator[Finding]:
        """Who contributes, and the standing of the others that passed, follow from the book before."""
        for peer in self.passed:
            row = self.rows[peer]
            stated = "contributing" if row.contributing else str(row.standing or "no outcome")
            found = str(self.ranking.standing.get(peer, "contributing"))
            if stated != found:
                yield _differs(Topic.RANKING, f"{stated} stated, {found} by the book before the round", peer)

    def record(self) -> Iterator[Finding]:
        """What the validator stated on chain names our theta, and in a record only peers that contribute for it."""
        facts, run = self.facts, self.facts.run
        order = leader_order(run, facts.round, facts.commit_hash, facts.views.commit)
        records = posted_records(run, facts.round, order, facts.views.slots)
        mine = [record for leader, record in zip(order, records, strict=False) if leader == self.claim.validator]
        statements: list[Record | Attestation] = [record for record in mine if record is not None]
        at_attest = next((peer for peer in facts.views.attest if peer.id == self.claim.validator), None)
        said = at_attest.slot.statement if at_attest is not None and at_attest.slot is not None else None
        if isinstance(said, Attestation) and said.round == facts.round:
            statements.append(said)
        uids = {peer.uid: peer.id for peer in facts.views.commit}
        for statement in statements:
            kind = "record" if isinstance(statement, Record) else "attestation"
            if (statement.theta, statement.previous) != (facts.theta, facts.previous):
                yield _differs(Topic.RECORD, f"its {kind} on chain starts from another state than the run's")
            if isinstance(statement, Record):
                named = {uids[uid] for uid in selected(statement) if uid in uids}
                for peer in sorted(named - set(self.ranking.contributing)):
                    yield _differs(Topic.RECORD, "its record on chain selects a peer that does not contribute", peer)

    def sample(self) -> Iterator[Finding]:
        """Exactly the drawn peers that have references were evaluated."""
        expected = {peer for peer in self.drawn if self.references[peer]}
        for peer in sorted(self.evaluated.keys() - expected):
            yield _differs(Topic.SAMPLE, "was evaluated, but not drawn (or has nobody to compare with)", peer)
        for peer in sorted(expected - self.evaluated.keys()):
            # Left out rightly where no reference has a finite loss: that takes the model to tell.
            if peer in self.ours:
                yield _differs(Topic.SAMPLE, "was drawn, but not evaluated", peer)
            elif self.unscored:
                yield _unchecked(Topic.SAMPLE, f"was drawn, but not evaluated; {self.unscored}", peer)
        for peer in sorted(self.evaluated.keys() & expected):
            if self.evaluated[peer].references > len(self.references[peer]):
                yield _differs(Topic.SAMPLE, "has more references than were drawn", peer)

    def scores(self) -> Iterator[Finding]:
        """Stated scores and gaps are within the tolerance of ours."""
        if self.evaluated and self.unscored:
            yield _unchecked(Topic.SCORES, f"scores were not evaluated again: {self.unscored}")
        for peer in sorted(self.evaluated.keys() & set(self.drawn)):
            if self.unscored:
                continue
            if peer not in self.ours:
                yield _differs(Topic.SCORES, "has scores, but no reference with a finite loss", peer)
                continue
            stated, found = self.evaluated[peer], self.ours[peer]
            for name, theirs, ours, allowed in (
                ("assigned LossScore", stated.score.assigned, found.score.assigned, SCORE_TOLERANCE),
                ("unassigned LossScore", stated.score.unassigned, found.score.unassigned, SCORE_TOLERANCE),
                ("gap", stated.gap, found.gap, GAP_TOLERANCE),
            ):
                if isnan(theirs) != isnan(ours) or abs(theirs - ours) > allowed:
                    text = f"{name} {theirs:.6g} stated, {ours:.6g} by the model ({allowed} apart would do)"
                    yield _differs(Topic.SCORES, text, peer)
            if stated.references != found.references:
                text = f"{stated.references} references stated, {found.references} have finite losses"
                yield _differs(Topic.SCORES, text, peer)

    def before(self) -> Iterator[Finding]:
        """The book before the round is the one that the report before left."""
        report, earlier = self.report, self.claim.earlier
        if self.claim.skipped is not None:
            text = f"goes on from the book of round {report.before.round}, but round {self.claim.skipped} was reported"
            yield _differs(Topic.BOOK, text)
        if report.before.round < 0:
            if report.before != ScoreBook() or report.history or report.gone:
                yield _differs(Topic.BOOK, "a book of no round before is not empty")
            return
        if earlier is None:
            text = f"the report of round {report.before.round} is not to be had: the book before is taken as stated"
            yield _unchecked(Topic.BOOK, text)
            return
        for name in ("unit", "usual_score", "void_rounds"):
            if getattr(report.before, name) != getattr(earlier.after, name):
                yield _differs(Topic.BOOK, f"{name} before the round is not what round {earlier.round} left")
        for peer in sorted(report.rows.keys()):
            then, now = earlier.after.peers.get(peer), report.before.peers.get(peer)
            if peer in earlier.rows and then != now:
                text = f"its record before the round is not what round {earlier.round} left"
                yield _differs(Topic.BOOK, f"{text}{first_difference(body_of(now), body_of(then))}", peer)
            elif peer not in earlier.rows and now is not None:
                text = f"was not registered in round {earlier.round}: its record before is taken as stated"
                yield _unchecked(Topic.BOOK, text, peer)
        if _rated(report.before) + report.gone != _rated(earlier.after) + earlier.gone:
            yield _differs(Topic.BOOK, "another number of hotkeys was ever evaluated than the round before left")
        since = earlier.round + 1 - self.facts.run.spec_at(earlier.round).gauntlet.copy_rounds
        kept = (*earlier.history, *_payloads(earlier))
        if report.history != tuple(sorted(past for past in kept if past.round >= since)):
            yield _differs(Topic.BOOK, f"the payloads remembered are not those that round {earlier.round} left")

    def after(self) -> Iterator[Finding]:
        """The book after is the fold of the book before and the stated outcome."""
        contributing = self.facts.decision.selection.contributing if self.facts.decision.selection else ()
        last = self.facts.run.clock.commit_by(self.facts.round)
        outcome = RoundOutcome(
            self.facts.round,
            Checked(
                # The fold looks at names only.
                cast("Mapping[PeerId, Submission]", dict.fromkeys(self.passed)),
                {p: Rejection(p, row.rejected, "") for p, row in self.rows.items() if row.rejected is not None},
                frozenset(p for p, peer in self.facts.judged.items() if commitment(peer, self.facts.round, last)),
                {},
            ),
            self.evaluated,
            frozenset(peer for peer, _ in contributing),
        )
        if len(self.evaluated) > self.spec.gauntlet.evaluations:
            return  # told already; and to fold hundreds of evaluations takes minutes
        expected, stated = fold(self.report.before, outcome, self.spec.gauntlet), self.report.after
        for name in ("unit", "usual_score"):
            theirs, ours = getattr(stated, name), getattr(expected, name)
            if not same([theirs.value, theirs.weight], [ours.value, ours.weight]):
                yield _differs(Topic.BOOK, f"{name} {theirs.value:.6g} stated, {ours.value:.6g} by the fold")
        if stated.void_rounds != expected.void_rounds:
            yield _differs(Topic.BOOK, "its void rounds are not those of the chain")
        for peer in sorted(expected.peers.keys() | stated.peers.keys()):
            theirs, ours = stated.peers.get(peer), expected.peers.get(peer)
            if not same(body_of(theirs), body_of(ours)):
                yield _differs(
                    Topic.BOOK, f"its record does not follow{first_difference(body_of(theirs), body_of(ours))}", peer
                )

    def pay(self) -> Iterator[Finding]:
        """The shares follow from the book after, and stand on chain."""
        paid, facts = self.report.paid, self.facts
        if not facts.run.clock.reveal_by(facts.round) <= paid.block <= min(facts.height, paid.set_in or facts.height):
            yield _differs(Topic.WEIGHTS, f"paid by block {paid.block}, set in {paid.set_in}: that cannot be")
            return
        if self.claim.paid is None:
            yield _unchecked(Topic.WEIGHTS, f"the chain's node does not have the uids of block {paid.block}")
            return
        uids = {peer.id: peer.uid for peer in self.claim.paid}
        shares = weights(self.report.after, self.ranking, uids, self.spec.owner_id, self.spec.gauntlet)
        for peer, row in self.rows.items():
            found = shares.get(uids[peer], 0.0) if peer in uids else 0.0
            if not same(row.weight, found):
                yield _differs(Topic.WEIGHTS, f"weight {row.weight:.6g} stated, {found:.6g} by the book", peer)
        if paid.set_in is None:
            due = bool(shares) and self.facts.round % self.spec.gauntlet.weight_rounds == 0
            if due:
                yield Finding(Topic.WEIGHTS, Verdict.OBSERVED, "the chain is said to have taken no weights")
        elif self.claim.set_weights is None:
            text = f"the weights of block {paid.set_in} are not final yet, or not to be had any more"
            yield _unchecked(Topic.WEIGHTS, text)
        else:
            yield from self._on_chain(shares, *self.claim.set_weights)

    def _on_chain(
        self, shares: Mapping[Uid, float], now: Mapping[Uid, int], before: Mapping[Uid, int]
    ) -> Iterator[Finding]:
        top, most = max(shares.values(), default=0.0), max(now.values(), default=0)
        names = {peer.uid: peer.id for peer in self.claim.paid or ()}
        wrong = [
            uid
            for uid in sorted({*shares, *now})
            if abs(shares.get(uid, 0.0) / (top or 1.0) - now.get(uid, 0) / (most or 1)) * 65535 > WEIGHT_STEPS
        ]
        if wrong and now == before:
            text = "the chain shows the weights of before: where a subnet conceals weights at first, look again later"
            yield _unchecked(Topic.WEIGHTS, text)
            return
        for uid in wrong:
            share = now.get(uid, 0) / (sum(now.values()) or 1)
            text = f"uid {uid} was set {share:.6g} on chain, {shares.get(uid, 0.0):.6g} is its share"
            yield _differs(Topic.WEIGHTS, text, names.get(uid))

    def numbers(self) -> Iterator[Finding]:
        """The numbers that people are shown follow from the book after."""
        expected = parse_json(canonical_json(self.report.named(self.spec.gauntlet)))
        for peer in self.rows:
            theirs, ours = self.claim.shown.get(hotkey(peer)), expected[hotkey(peer)]
            if not same(theirs, ours):
                text = f"shown numbers do not follow from its record{first_difference(theirs, ours)}"
                yield _differs(Topic.REPORT, text, peer)


def _differs(topic: Topic, text: str, peer: PeerId | None = None) -> Finding:
    return Finding(topic, Verdict.DIFFERS, text, peer)


def _unchecked(topic: Topic, text: str, peer: PeerId | None = None) -> Finding:
    return Finding(topic, Verdict.UNCHECKED, text, peer)


def _with_gone(book: ScoreBook, gone: int) -> ScoreBook:
    """The book as `pick` needs it, with so many evaluated hotkeys that are not registered any more: it counts them."""
    absent = {
        PeerId(sha256(b"gone %d" % number).digest()): PeerRecord(first_seen=0, evaluations=1)
        for number in range(min(gone, 1024))
    }
    return replace(book, peers={**absent, **book.peers})


def _rated(book: ScoreBook) -> int:
    return sum(record.evaluations > 0 for record in book.peers.values())


def _payloads(report: Report) -> Collection[Remembered]:
    return [Remembered(report.round, p, row.payload) for p, row in report.rows.items() if row.payload is not None]
