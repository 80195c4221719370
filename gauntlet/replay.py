"""Recompute a reported round from public objects, as far as they are available. Each step uses the report's own
statements of the steps before it (docs/protocol.md section 9)."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.checks import Checked, Expected, Gathered, fast_checks
from gauntlet.commitment import commitment, is_late
from gauntlet.evaluation import Evaluation
from gauntlet.facts import Claim, Facts
from gauntlet.loss import bounded, evaluate
from gauntlet.progress import MEASURED_VALUES, progress, shown
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import Ranking, standing
from gauntlet.sketch import Sample
from protocol.types import Digest, PeerId, Reason
from sparseloco.outer import OuterState

OBSERVED_BYTES = (Reason.MISSING, Reason.WRONG_SIZE)
"""Rejections that only the validator could see: it could not read the committed object correctly."""


class Replay:
    """One round of one validator. Everything that the audit's steps need is computed once, at the start.

    `passed`: the judged peers that the report has seen and does not reject. `twins`, `evaluated`: as stated. `drawn`,
    `references`: of the round's sample. `examined`: inputs of our fast checks, `checked`: their outcome. `ours`: our
    own evaluations of the drawn peers; `unscored`: why there are none. `progress`, `unmeasured`: the same for progress.
    """

    def __init__(self, facts: Facts, claim: Claim) -> None:
        self.facts, self.claim, self.report = facts, claim, claim.report
        self.spec = facts.spec
        registered = {peer.id: peer for peer in facts.log.commit}
        self.registered = registered
        self.rows = {peer: row for peer, row in claim.report.rows.items() if peer in registered}
        self.compared = claim.report.compared(self.spec.gauntlet)
        self.passed = sorted(claim.report.passed & self.rows.keys() & facts.judged.keys())
        self.book = _with_gone(claim.report.before, claim.report.gone)
        self.twins = {peer: frozenset(row.twins) for peer, row in self.rows.items() if row.twins}
        self.ranking: Ranking = standing(
            self.book, self.passed, self.spec.gauntlet, facts.round, facts.commit_hash, self.twins
        )
        self.evaluated = {p: row.evaluation for p, row in self.rows.items() if row.evaluation is not None}
        seed = Seed(facts.run.id, facts.sample_hash, facts.round, claim.validator)
        contributing = set(self.ranking.contributing)
        self.seed = seed
        self.drawn = pick(self.book, self.passed, contributing, self.spec.gauntlet, seed, self.twins)
        self.references = references(self.drawn, self.passed, contributing, self.spec.gauntlet, seed, self.twins)
        self.examined = self._examined()
        self.checked = self._checked()
        self.ours, self.unscored = self._evaluations()
        self.progress, self.unmeasured = self._progress()

    def _examined(self) -> dict[PeerId, Gathered]:
        """Return the peers whose verdict follows from our data: without a commitment from the chain alone, else from
        the bytes, together with the key that the validator says it read."""
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
            elif row.unseen or row.rejected in OBSERVED_BYTES:
                continue
            elif facts.state is not None and peer.id in facts.payloads:
                examined[peer.id] = Gathered(peer, facts.payloads[peer.id], reveal=row.reveal)
        return examined

    def _checked(self) -> Checked:
        facts = self.facts
        unknown = Digest(bytes(32))
        expected = Expected(
            self.spec,
            facts.run.id,
            facts.round,
            facts.theta,
            facts.run.clock,
            facts.state.sync_proof if facts.state is not None else lambda peer: unknown,
            facts.state.outer if facts.state is not None else OuterState.initial(self.spec.layout),
            facts.commit_hash,
        )
        return fast_checks(expected, list(self.examined.values()), facts.doors, self.claim.sketches)

    @property
    def whole(self) -> bool:
        """Whether we have every payload with which the validator compared others."""
        have = {(sketch.round, sketch.peer) for sketch in self.claim.sketches}
        return all((past.round, past.peer) in have for past in self.compared) and all(
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
        drawn = samples(self.spec, facts.page_hash, self.drawn, facts.judged.keys(), self.seed)
        try:
            return evaluate(
                facts.state.losses, submissions, bounded(submissions, facts.state.outer), drawn, self.references
            ), ""
        except ValueError as fault:
            return {}, str(fault)

    def _progress(self) -> tuple[Mapping[PeerId, float], str]:
        """Return progress as we measure it; nothing, and why, if we cannot."""
        if self.report.unobserved is not None:
            return {}, ""
        leading = [peer for peer in self.report.guides(self.spec.gauntlet) if peer in self.passed]
        named = self.report.measured(self.spec.gauntlet)
        lacking = sum(peer not in self.checked.passed for peer in leading) + len(named) - len(self.claim.measured)
        if lacking:
            return {}, f"{lacking} of the payloads that it follows from are not to be had, or do not pass here"
        sample = Sample(self.spec.layout, self.facts.commit_hash, MEASURED_VALUES)
        return progress(sample, shown(sample, leading, self.checked.passed), self.claim.measured, named), ""


def _with_gone(book: ScoreBook, gone: int) -> ScoreBook:
    """Return the book as `pick` needs it, with `gone` more evaluated hotkeys that are not registered any more: it
    counts them."""
    absent = {
        PeerId(sha256(b"gone %d" % number).digest()): PeerRecord(first_seen=0, evaluations=1)
        for number in range(min(gone, 1024))
    }
    return replace(book, peers={**absent, **book.peers})
