"""One validator's judgement of one round: which function follows on which, and with what (docs/protocol.md sections 5
and 9). The validator, the arena and the audit judge by it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gauntlet.book import RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked, CheckFunctions, Expected, Gathered, fast_checks
from gauntlet.commitment import is_judged
from gauntlet.evaluation import Evaluation, Samples
from gauntlet.loss import Losses, bounded, evaluate
from gauntlet.remembered import Remembered, compared
from gauntlet.repetition import Repetition
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import Ranking, standing
from gauntlet.sketch import Sample, Sketch
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from sparseloco.outer import OuterState
from sparseloco.wire import Submission


@dataclass(frozen=True, slots=True)
class Model:
    """The values that a submission is compared with, at the round's start: theta's digest, the proof of a peer that
    holds theta, and the outer state."""

    theta: Digest
    sync_proof: Callable[[PeerId], Digest]
    outer: OuterState


@dataclass(frozen=True, slots=True)
class Earlier:
    """Payloads of earlier rounds by name, and the sample of their values at which they are looked at."""

    names: tuple[Remembered, ...]
    sample: Sample


@dataclass(frozen=True, slots=True)
class Drawn:
    """The peers that are evaluated, sorted, and the reference peers of each."""

    seed: Seed
    picked: tuple[PeerId, ...]
    references: Mapping[PeerId, tuple[PeerId, ...]]


@dataclass(frozen=True)
class Judge:
    """`book`: of before the round, with the payloads that it remembers. `commit_hash`: of the commit deadline. Where a
    method takes a `Checked` it looks at names and twins only."""

    spec: RunSpec
    run: Digest
    round: int
    commit_hash: Digest
    book: ScoreBook

    # --- the fast checks ---------------------------------------------------------------------------------------

    def compared(self) -> Earlier:
        """Return the payloads with which this round's are compared for copies."""
        past = compared(self.book.remembered, self.round, self.spec.gauntlet.copy_rounds)
        return Earlier(past, Sample(self.spec.layout, self.commit_hash))

    def check(
        self, model: Model, gathered: Sequence[Gathered], functions: CheckFunctions, history: Iterable[Sketch]
    ) -> Checked:
        """Judge all that count as miners. history: of `compared`, as far as they are there."""
        expected = Expected(
            self.spec,
            self.run,
            self.round,
            model.theta,
            self.spec.rounds_clock,
            model.sync_proof,
            model.outer,
            self.commit_hash,
        )
        miners = [item for item in gathered if is_judged(item.peer, self.spec.owner_id)]
        return fast_checks(expected, miners, functions, history)

    # --- ranking and evaluation --------------------------------------------------------------------------------

    def rank(self, checked: Checked) -> Ranking:
        """Rank the peers that passed."""
        return standing(self.book, checked.passed, self.spec.gauntlet, self.round, self.commit_hash, checked.twins)

    def draw(self, checked: Checked, ranking: Ranking, sample_hash: Digest, validator: PeerId) -> Drawn:
        """Draw the peers that are evaluated, and their reference peers. `sample_hash`: of the round's sample block."""
        seed, rules = Seed(self.run, sample_hash, self.round, validator), self.spec.gauntlet
        passed, contributing = set(checked.passed), set(ranking.contributing)
        picked = pick(self.book, passed, contributing, rules, seed, checked.twins)
        return Drawn(seed, picked, references(picked, passed, contributing, rules, seed, checked.twins))

    def samples(self, drawn: Drawn, page_hash: Digest, miners: Collection[PeerId]) -> Samples:
        """Draw the sequences. `page_hash`: of the round's page block. miners: all that count as such, as of the commit
        deadline."""
        return samples(self.spec, page_hash, drawn.picked, miners, drawn.seed)

    def evaluate(
        self,
        drawn: Drawn,
        samples: Samples,
        losses: Losses,
        submissions: Mapping[PeerId, Submission],
        outer: OuterState,
    ) -> Mapping[PeerId, Evaluation]:
        """Return the LossScores and gaps of the drawn peers. submissions: of all that passed."""
        return evaluate(losses, submissions, bounded(submissions, outer), samples, drawn.references)

    # --- the fold ----------------------------------------------------------------------------------------------

    def outcome(
        self,
        checked: Checked,
        committed: Collection[PeerId],
        evaluations: Mapping[PeerId, Evaluation],
        selected: Iterable[PeerId],
        repetitions: Mapping[PeerId, Repetition],
    ) -> RoundOutcome:
        """Return what the round taught. committed: all that had committed by the commit deadline, seen or not.
        selected: by the votes. repetitions: of steps of the round before."""
        unseen = frozenset(committed) - checked.passed.keys() - checked.rejected.keys()
        return RoundOutcome(self.round, checked, evaluations, frozenset(selected), unseen, repetitions)

    def fold(self, outcome: RoundOutcome) -> ScoreBook:
        """Return the book after the round."""
        return fold(self.book, outcome, self.spec.gauntlet)
