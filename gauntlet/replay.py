"""Recompute a reported round from public objects, as far as they are available. Each step uses the report's own
statements of the steps before it (docs/protocol.md section 9)."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import cast

from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.checks import Checked, Gathered
from gauntlet.commitment import commitment, is_late, who_committed
from gauntlet.evaluation import Evaluation
from gauntlet.facts import Facts, ValidatorFacts
from gauntlet.judge import Judge, Model
from gauntlet.report import Report
from gauntlet.selection import Ranking, standing
from gauntlet.verification import draw
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, PeerId, Reason, Rejection
from sparseloco.outer import OuterState
from sparseloco.wire import Submission

OBSERVED_BYTES = (Reason.MISSING, Reason.WRONG_SIZE)
"""Rejections that only the validator could see: it could not read the committed object correctly."""


class Replay:
    """One round of one validator. Everything that the audit's steps need is computed once, at the start.

    `judge`: by the book that the report states. `passed`: the judged peers that the report has seen and does not
    reject. `stated`: the fast checks as stated, `evaluated`: the scores. `drawn`: of the round's sample. `examined`:
    inputs of our fast checks, `checked`: their outcome. `ours`: our own evaluations of the drawn peers; `unscored`: why
    there are none.
    """

    def __init__(self, facts: Facts, claim: ValidatorFacts) -> None:
        self.facts, self.claim, self.report = facts, claim, claim.report
        self.spec = facts.spec
        registered = {peer.id: peer for peer in facts.log.commit}
        self.registered = registered
        self.rows = {peer: row for peer, row in claim.report.rows.items() if peer in registered}
        self.judge = judge_of(facts, claim.report)
        self.passed = sorted(claim.report.passed & self.rows.keys() & facts.judged.keys())
        self.stated = self._stated()
        self.ranking: Ranking = self.judge.rank(self.stated)
        self.evaluated = {p: row.evaluation for p, row in self.rows.items() if row.evaluation is not None}
        self.drawn = self.judge.draw(self.stated, self.ranking, facts.sample_hash, claim.validator)
        self.examined = self._examined()
        self.checked = self._checked()
        self.ours, self.unscored = self._evaluations()

    def _stated(self) -> Checked:
        facts, rows = self.facts, self.rows
        committed = who_committed(facts.judged.values(), facts.round, facts.run.clock.commit_deadline(facts.round))
        return Checked(
            # What follows from it looks at names only.
            cast("Mapping[PeerId, Submission]", dict.fromkeys(self.passed)),
            {peer: Rejection(peer, row.rejected, "") for peer, row in rows.items() if row.rejected is not None},
            frozenset(peer for peer in committed if not (peer in rows and rows[peer].unseen)),
            {peer: frozenset(row.twins) for peer, row in rows.items() if row.twins},
            {},
        )

    def _examined(self) -> dict[PeerId, Gathered]:
        """Return the peers whose verdict follows from our data: without a commitment from the chain alone, else from
        the bytes, together with the key that the validator says it read."""
        facts = self.facts
        at_reveal = {peer.id: peer for peer in facts.at_reveal}
        last, reveal_deadline = (
            facts.run.clock.commit_deadline(facts.round),
            facts.run.clock.reveal_deadline(facts.round),
        )
        examined: dict[PeerId, Gathered] = {}
        for peer in facts.judged.values():
            row = self.rows.get(peer.id)
            if row is None:
                continue
            if commitment(peer, facts.round, last) is None:
                late = is_late(peer, at_reveal.get(peer.id), facts.round, last, reveal_deadline)
                examined[peer.id] = Gathered(peer, late=late)
            elif row.unseen or row.rejected in OBSERVED_BYTES:
                continue
            elif facts.state is not None and peer.id in facts.payloads:
                examined[peer.id] = Gathered(peer, facts.payloads[peer.id], reveal=row.reveal)
        return examined

    def _checked(self) -> Checked:
        facts = self.facts
        unknown = Digest(bytes(32))
        model = Model(
            facts.theta,
            facts.state.sync_proof if facts.state is not None else lambda peer: unknown,
            facts.state.outer if facts.state is not None else OuterState.initial(self.spec.layout),
        )
        return self.judge.check(model, list(self.examined.values()), facts.functions, self.claim.sketches)

    @property
    def whole(self) -> bool:
        """Whether we have every payload with which the validator compared others."""
        have = {(sketch.round, sketch.peer) for sketch in self.claim.sketches}
        return all((past.round, past.peer) in have for past in self.judge.compared().names) and all(
            peer in self.examined or row.unseen or row.rejected in OBSERVED_BYTES
            for peer, row in self.rows.items()
            if peer in self.facts.judged
        )

    def _evaluations(self) -> tuple[Mapping[PeerId, Evaluation], str]:
        """Return our own evaluations of the drawn peers; none, and why, if they cannot be made."""
        facts = self.facts
        if facts.state is None:
            return {}, facts.stateless
        if facts.state.losses is None:
            return {}, "the run's data are not here (--data)"
        submissions = {peer: self.checked.passed[peer] for peer in self.passed if peer in self.checked.passed}
        if lacking := set(self.passed) - submissions.keys():
            return {}, f"{len(lacking)} of the payloads that passed are not to be had, or do not pass here"
        samples = self.judge.samples(self.drawn, facts.page_hash, facts.judged.keys())
        try:
            return self.judge.evaluate(self.drawn, samples, facts.state.losses, submissions, facts.state.outer), ""
        except ValueError as fault:
            return {}, str(fault)


def judge_of(facts: Facts, report: Report) -> Judge:
    """Return the round's rules by the book that the report states."""
    book = replace(_with_gone(report.before, report.gone), remembered=report.history)
    return Judge(facts.spec, facts.run.id, facts.round, facts.commit_hash, book)


def drawn_after(run: Run, validator: PeerId, report: Report, commit_hash: Digest, sample_hash: Digest) -> list[PeerId]:
    """Return whose steps of a report's round its validator has drawn to be repeated. The hashes: of the round's commit
    deadline and sample block."""
    rules, book = run.spec_at(report.round).gauntlet, _with_gone(report.before, report.gone)
    twins = {peer: frozenset(row.twins) for peer, row in report.rows.items() if row.twins}
    ranking = standing(book, report.passed, rules, report.round, commit_hash, twins)
    return draw(run.id, sample_hash, report.round, validator, ranking, twins, report.after, rules)


def _with_gone(book: ScoreBook, gone: int) -> ScoreBook:
    """Return the book as `pick` needs it, with `gone` more evaluated hotkeys that are not registered any more: it
    counts them."""
    absent = {
        PeerId(sha256(b"gone %d" % number).digest()): PeerRecord(first_seen=0, evaluations=1)
        for number in range(min(gone, 1024))
    }
    return replace(book, peers={**absent, **book.peers})
