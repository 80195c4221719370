"""The ScoreBook: all that a validator remembers of its peers, as one value (docs/protocol.md section 9).

`fold(book, outcome, spec)` is pure: the same outcomes in the same order give the same book, byte for byte in its JSON.
Everything is keyed by hotkey. A new hotkey on an old uid starts fresh, an old hotkey on a new uid keeps its record.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from gauntlet.average import NOTHING, Average, error
from gauntlet.evaluation import Evaluation
from gauntlet.proof import floor, proof, score_floor, usual, usual_variance
from gauntlet.rating import FRESH, Rating, rate
from gauntlet.remembered import Remembered, compared
from gauntlet.repetition import Repetition, work_after
from gauntlet.shapes import BookShape
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import canonical_json, from_hex, parse_as
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, PeerId

if TYPE_CHECKING:
    from gauntlet.checks import Checked

LARGEST_SCORE = 1.0
"""Nats a token: a LossScore counts as at most this to either side, a loss that was not finite as minus this."""

SHOWN = 0.5
"""Share of the honest gap that shows a twin's work on its own pages: half-way between honest work and none."""

SEEN_ENOUGH = 3
"""Evaluations after which a proof can make up for a score."""

PRESENCE_DECAY = 0.9
"""A round in which a peer is not there costs it 0.9 of one more: 0.09 of the next, and less of those after. Whoever
works in every second round alone is paid 0.53 in them, in every fifth 0.24, and never less than 0.1."""

REGAINED = 0.125
"""Of a round's patience (gauntlet/observed.py): what an observed round gives back."""


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What is known of one hotkey.

    Averages over the same evaluations: `gaps` and `units` its gap and the honest one, in shares of comparisons; in nats
    a token `scores` and `usual_scores` the LossScore on unassigned data and the honest one, `score_variances` by how
    much honest ones differ (squared), `assigned_scores` for display.
    `work`: the share of a round's work that it is known to do, as far as its steps were `repeated`, `unproven` times in
    vain (gauntlet/verification.py). `penalty` is taken off the proof in PeerScore: each fault adds, each clean round
    takes away a quarter of it.
    `presence`: in which share of the rounds what it sent passed, or was selected; 1 at first.
    """

    first_seen: int
    rating: Rating = FRESH
    gaps: Average = NOTHING
    units: Average = NOTHING
    scores: Average = NOTHING
    usual_scores: Average = NOTHING
    score_variances: Average = NOTHING
    assigned_scores: Average = NOTHING
    evaluations: int = 0
    last_evaluated: int | None = None
    contributed: int = 0
    faults: int = 0
    penalty: float = 0.0
    presence: float = 1.0
    work: float = 0.0
    repeated: int = 0
    unproven: int = 0

    @property
    def proof(self) -> float | None:
        """Averaged proof of computation in units of the honest gap; None while that is not known."""
        return proof(self.gaps, self.units)


@dataclass(frozen=True)
class ScoreBook:
    """`round` is the last one folded, -1 in a fresh book; `unit`, `usual_score` and `score_variance` the running honest
    gap, honest LossScore on unassigned data and how much honest ones differ (squared), for rounds in which too few are
    evaluated to tell; `remembered` names the payloads that later ones are compared with, whose records stand elsewhere;
    `unobserved` how many rounds were passed over because peers were unreadable, less what the observed ones since gave
    back (gauntlet/observed.py)."""

    round: int = -1
    peers: Mapping[PeerId, PeerRecord] = field(default_factory=dict)
    unit: Average = NOTHING
    usual_score: Average = NOTHING
    score_variance: Average = NOTHING
    remembered: tuple[Remembered, ...] = ()
    unobserved: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """Everything that a round taught: the fast checks, the evaluations, who was selected (empty for a void round), who
    committed and was not looked at (we know nothing of it), and what was found of the steps of the round before that
    were repeated."""

    round: int
    checked: "Checked"
    evaluations: Mapping[PeerId, Evaluation]
    contributing: frozenset[PeerId] = frozenset()
    unseen: frozenset[PeerId] = frozenset()
    repetitions: Mapping[PeerId, Repetition] = field(default_factory=dict)


def eligible(record: PeerRecord, spec: GauntletSpec) -> bool:
    """Evaluated, with averaged unassigned LossScore and averaged gap above their floors."""
    if not record.evaluations or record.scores.value <= least_score(record, spec):
        return False
    return record.gaps.value > least_gap(record, spec)


def least_score(record: PeerRecord, spec: GauntletSpec) -> float:
    """The averaged LossScore on unassigned data that an eligible peer exceeds, nats a token: `score_floor` of the
    honest one, and 0. Less where honest scores differ so much that this says little, for a peer seen a few times whose
    gap is above the whole of its floor: what the score does not show, the proof has to."""
    lenient = score_floor(record.usual_scores, record.score_variances, record.evaluations, spec)
    clear = record.gaps.value > spec.proof_floor * record.units.value > 0
    if clear and record.evaluations >= SEEN_ENOUGH:
        return lenient
    return max(0.0, lenient, spec.score_floor * record.usual_scores.value)


def least_gap(record: PeerRecord, spec: GauntletSpec) -> float:
    """The averaged gap that an eligible peer exceeds, in shares of comparisons."""
    return floor(record.units, record.evaluations, spec)


def in_doubt(record: PeerRecord, spec: GauntletSpec) -> bool:
    """Whether the next evaluation may well change what `eligible` says: the averaged gap is nearer to its floor than it
    errs, or the score's average is below its floor while the gap's is not."""
    if not record.evaluations:
        return False
    errs = spec.proof_allowance * error(record.evaluations, spec.proof_decay)
    margin = record.gaps.value - least_gap(record, spec)
    return abs(margin) < errs or (margin > 0 and record.scores.value <= least_score(record, spec))


def trusted(book: ScoreBook, peers: Iterable[PeerId], spec: GauntletSpec) -> list[PeerId]:
    """Of these peers the eligible ones, sorted: who shows what is usual."""
    return [peer for peer in sorted(peers) if peer in book.peers and eligible(book.peers[peer], spec)]


def fold(book: ScoreBook, outcome: RoundOutcome, spec: GauntletSpec) -> ScoreBook:
    """The book after a round. A twin whose own pages do not show the work has copied: a fault like those of the fast
    checks. Raises ValueError for a round that is not later than the book's: evaluations would count
    twice."""
    if outcome.round <= book.round:
        raise ValueError(f"round {outcome.round} cannot be folded into a book of round {book.round}")
    found = _findings(book, outcome, spec)
    peers = _folded(book, outcome, found, spec)
    usual_score, score_variance = found.scores.push(book.usual_score, book.score_variance, spec.unit_decay)
    remembered = compared({*book.remembered, *outcome.checked.remember}, outcome.round + 1, spec.copy_rounds)
    return ScoreBook(
        outcome.round,
        {peer: peers[peer] for peer in sorted(peers)},
        book.unit.push(found.unit, spec.unit_decay) if found.evaluated else book.unit,
        usual_score,
        score_variance,
        tuple(sorted(remembered)),
        max(0.0, book.unobserved - REGAINED),
    )


@dataclass(frozen=True, slots=True)
class _Track:
    """One measurement of a round: of each peer, the usual one of the honest, and how much theirs differ (squared)."""

    mine: Mapping[PeerId, float]
    usual: float
    variance: float

    def push(self, usual: Average, variance: Average, decay: float) -> tuple[Average, Average]:
        """The averages of what is usual, with this round in them where it measured anybody."""
        if not self.mine:
            return usual, variance
        return usual.push(self.usual, decay), variance.push(self.variance, decay)


@dataclass(frozen=True, slots=True)
class _Findings:
    """A round's result for the peers. unit: the honest gap. failed: the peers at fault."""

    evaluated: Mapping[PeerId, Evaluation]
    unit: float
    scores: _Track
    failed: frozenset[PeerId]


def _findings(book: ScoreBook, outcome: RoundOutcome, spec: GauntletSpec) -> _Findings:
    checked = outcome.checked
    evaluated = {peer: outcome.evaluations[peer] for peer in sorted(outcome.evaluations)}
    gaps = {peer: evaluation.gap for peer, evaluation in evaluated.items()}
    scores = {peer: _score(evaluation.score.unassigned) for peer, evaluation in evaluated.items()}
    # Of twins at most one did the work: they do not show what is usual.
    alone = [peer for peer in evaluated if peer not in checked.twins]
    good = trusted(book, alone, spec)
    unit = usual([gaps[peer] for peer in good], [gaps[peer] for peer in alone], book.unit)
    trusted_scores = [scores[peer] for peer in good]
    usual_score = usual(trusted_scores, [scores[peer] for peer in alone], book.usual_score)
    copies = {peer for peer in evaluated if peer in checked.twins and gaps[peer] < SHOWN * unit}
    return _Findings(
        evaluated,
        unit,
        _Track(scores, usual_score, usual_variance(trusted_scores, book.score_variance)),
        frozenset(checked.committed & set(checked.rejected) | copies),
    )


def _folded(
    book: ScoreBook, outcome: RoundOutcome, found: _Findings, spec: GauntletSpec
) -> Mapping[PeerId, PeerRecord]:
    """Every record after the round."""
    checked, evaluated = outcome.checked, found.evaluated
    seen = sorted({*checked.passed, *checked.committed, *evaluated, *outcome.contributing})
    peers = dict(book.peers) | {p: PeerRecord(first_seen=outcome.round) for p in seen if p not in book.peers}
    ratings = rate(
        {peer: peers[peer].rating for peer in sorted({*evaluated, *found.failed})},
        {peer: evaluation.score.unassigned for peer, evaluation in evaluated.items()},
        found.failed,
        spec.rating_band,
    )
    for peer in seen:
        record = peers[peer]
        if peer in found.failed:
            record = replace(record, faults=record.faults + 1, penalty=min(1.0, record.penalty + spec.fault_penalty))
        elif peer in checked.passed:
            record = replace(record, penalty=record.penalty * 0.75)
        peers[peer] = replace(
            _measured(record, peer, outcome.round, found, spec),
            rating=ratings.get(peer, record.rating),
            contributed=record.contributed + (peer in outcome.contributing),
        )
    for peer in sorted(outcome.repetitions):
        if peer in peers:
            peers[peer] = _repeated(peers[peer], outcome.repetitions[peer])
    present = {*checked.passed, *outcome.contributing}
    unknown = outcome.unseen - present
    if present:  # else something kept everybody out
        peers = {p: record if p in unknown else _there(record, p in present) for p, record in peers.items()}
    return peers


def _measured(record: PeerRecord, peer: PeerId, round: int, found: _Findings, spec: GauntletSpec) -> PeerRecord:
    """The record with what the round measured of its peer."""
    if peer not in found.evaluated:
        return record
    evaluation, scores = found.evaluated[peer], found.scores
    usual_scores, variances = scores.push(record.usual_scores, record.score_variances, spec.score_decay)
    return replace(
        record,
        gaps=record.gaps.push(evaluation.gap, spec.proof_decay),
        units=record.units.push(found.unit, spec.proof_decay),
        scores=record.scores.push(scores.mine[peer], spec.score_decay),
        usual_scores=usual_scores,
        score_variances=variances,
        assigned_scores=record.assigned_scores.push(_score(evaluation.score.assigned), spec.score_decay),
        evaluations=record.evaluations + 1,
        last_evaluated=round,
    )


def _repeated(record: PeerRecord, found: Repetition) -> PeerRecord:
    return replace(
        record,
        work=work_after(record.work, found),
        repeated=record.repeated + 1,
        unproven=record.unproven + found.failed,
    )


def _there(record: PeerRecord, present: bool) -> PeerRecord:
    return replace(record, presence=PRESENCE_DECAY * record.presence + (1 - PRESENCE_DECAY) * present)


def _score(value: float) -> float:
    return max(-LARGEST_SCORE, min(LARGEST_SCORE, value)) if isfinite(value) else -LARGEST_SCORE


# --- JSON ----------------------------------------------------------------------------------------------------

_VERSION = 8


def to_body(book: ScoreBook) -> dict[str, Any]:
    """Return plain JSON values, of BookShape."""
    return {
        "version": _VERSION,
        "round": book.round,
        "unit": _average_body(book.unit),
        "usual_score": _average_body(book.usual_score),
        "score_variance": _average_body(book.score_variance),
        "peers": {peer.hex(): _record_body(record) for peer, record in book.peers.items()},
        "remembered": [[past.round, past.peer.hex(), past.payload.hex()] for past in book.remembered],
        "unobserved": book.unobserved,
    }


def to_json(book: ScoreBook) -> bytes:
    """Canonical JSON; floats keep every bit."""
    return canonical_json(to_body(book))


def from_json(data: bytes) -> ScoreBook:
    """Inverse of `to_json`. Raises InvalidMessage for anything that `to_json` would not have written."""
    return from_body(parse_as(data, BookShape))


def from_body(body: dict[str, Any]) -> ScoreBook:
    """Inverse of `to_body`, for values of BookShape. Raises InvalidMessage."""
    try:
        return ScoreBook(
            body["round"],
            {PeerId(from_hex(key)): _record(value) for key, value in body["peers"].items()},
            Average(*body["unit"]),
            Average(*body["usual_score"]),
            Average(*body["score_variance"]),
            _remembered(body["remembered"]),
            body["unobserved"],
        )
    except ValueError:
        raise InvalidMessage("book: a hotkey or digest that is not hex, or payloads that are not in order") from None


def _average_body(average: Average) -> list[float]:
    return [average.value, average.weight]


def _record_body(record: PeerRecord) -> dict[str, Any]:
    return {
        "first_seen": record.first_seen,
        "mu": record.rating.mu,
        "sigma": record.rating.sigma,
        "gaps": _average_body(record.gaps),
        "units": _average_body(record.units),
        "scores": _average_body(record.scores),
        "usual_scores": _average_body(record.usual_scores),
        "score_variances": _average_body(record.score_variances),
        "assigned_scores": _average_body(record.assigned_scores),
        "evaluations": record.evaluations,
        "last_evaluated": record.last_evaluated,
        "contributed": record.contributed,
        "faults": record.faults,
        "penalty": record.penalty,
        "presence": record.presence,
        "work": record.work,
        "repeated": record.repeated,
        "unproven": record.unproven,
    }


def _record(body: dict[str, Any]) -> PeerRecord:
    return PeerRecord(
        first_seen=body["first_seen"],
        rating=Rating(body["mu"], body["sigma"]),
        gaps=Average(*body["gaps"]),
        units=Average(*body["units"]),
        scores=Average(*body["scores"]),
        usual_scores=Average(*body["usual_scores"]),
        score_variances=Average(*body["score_variances"]),
        assigned_scores=Average(*body["assigned_scores"]),
        evaluations=body["evaluations"],
        last_evaluated=body["last_evaluated"],
        contributed=body["contributed"],
        faults=body["faults"],
        penalty=body["penalty"],
        presence=body["presence"],
        work=body["work"],
        repeated=body["repeated"],
        unproven=body["unproven"],
    )


def _remembered(body: list[Any]) -> tuple[Remembered, ...]:
    found = [Remembered(round, PeerId(from_hex(peer)), Digest(from_hex(payload))) for round, peer, payload in body]
    if found != sorted(set(found)):
        raise ValueError("not in order")
    return tuple(found)
