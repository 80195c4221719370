"""A validator's signed report: its findings for every hotkey, and all that is needed to judge the round again from
public objects (docs/protocol.md section 6; gauntlet/audit.py does so).

No decision uses it. Another node's report is a claim: `parse_report` accepts any bytes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from gauntlet.average import Average
from gauntlet.book import PeerRecord, RoundOutcome, ScoreBook, eligible, from_body, to_body
from gauntlet.evaluation import Evaluation
from gauntlet.observed import PATIENCE_ROUNDS, Unobserved
from gauntlet.remembered import Remembered
from gauntlet.repetition import NOTHING_ALIKE, Repetition
from gauntlet.selection import Ranking, peer_score
from gauntlet.shapes import ReportShape
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import from_hex, parse_as
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import (
    Digest,
    LossScore,
    Peer,
    PeerId,
    Reason,
    Standing,
    Uid,
    hotkey,
    peer_id,
)

if TYPE_CHECKING:
    from gauntlet.checks import Gathered

_LARGEST = 1e6
"""Bound of a book's numbers, far beyond any correct value: arithmetic on them cannot overflow."""
_LARGEST_SCORE = 1e30
"""Bound of a measured LossScore: the book takes it at most as 1."""
_LARGEST_RATING = 1000.0
_KINDS = ("moves", "gradients")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """The round's results for one hotkey. At most one of `rejected`, `standing` and `contributing`; none of them for a
    hotkey that is not judged.

    `twins`: others that passed with (nearly) the same payload.

    `repetition`: what was found of its steps of the round before, if they were repeated.

    `contributing`: in this validator's own order, whatever the chain agreed on. `weight`: its share of the pay that the
    validator computed. `reveal`: the signed key that the validator read, whatever the outcome. `payload`: sha256 of the
    records, if they are remembered for later rounds.
    """

    uid: Uid
    weight: float = 0.0
    rejected: Reason | None = None
    detail: str = ""
    standing: Standing | None = None
    contributing: bool = False
    evaluation: Evaluation | None = None
    reveal: bytes | None = None
    payload: Digest | None = None
    twins: tuple[PeerId, ...] = ()
    repetition: Repetition | None = None

    @property
    def unseen(self) -> bool:
        """Whether the validator did not examine it: neither rejected nor passed."""
        stands = self.standing is not None or self.contributing
        return self.rejected is None and self.payload is None and not stands


@dataclass(frozen=True, slots=True)
class Paid:
    """`block`: the finalised block whose uids were paid. `set_in`: the block of the set_weights, None if none was due
    or the chain refused. `shares`: the intended share of each hotkey."""

    block: int
    set_in: int | None
    shares: Mapping[PeerId, float]


@dataclass(frozen=True)
class Report:
    """One round of one validator.

    `rows`: every hotkey registered at the commit deadline. `before`, `after`: the book by which the round was judged
    and the one after its fold; of these hotkeys only, and without `remembered`. `gone`: how many hotkeys of the book
    that were ever evaluated are not registered any more. `history`: the payloads that the book before remembered.
    `unobserved`: why nothing was evaluated, folded and paid, None in an observed round.
    """

    round: int
    rows: Mapping[PeerId, ReportRow]
    before: ScoreBook
    after: ScoreBook
    gone: int
    history: tuple[Remembered, ...]
    paid: Paid
    unobserved: Unobserved | None = None

    @property
    def passed(self) -> frozenset[PeerId]:
        """Hotkeys that it has seen and does not reject."""
        return frozenset(peer for peer, row in self.rows.items() if row.rejected is None and not row.unseen)

    def named(self, spec: GauntletSpec) -> dict[str, Any]:
        """Return the table for people: hotkey -> uid, outcome and numbers after the round. Losses in nats a token, the
        proof in units of the honest gap; values not finite or not measured are null."""
        return {
            hotkey(peer): _row_body(row, self.before.peers.get(peer), self.after.peers.get(peer), spec)
            for peer, row in self.rows.items()
        }

    def to_body(self, spec: GauntletSpec) -> dict[str, Any]:
        """Return the body for murmur.protocol.messages.encode_document."""
        return {
            "round": self.round,
            "peers": self.named(spec),
            "before": to_body(self.before),
            "after": to_body(self.after),
            "gone": self.gone,
            "history": [[past.round, past.peer.hex(), past.payload.hex()] for past in self.history],
            "reveals": {hotkey(peer): row.reveal.hex() for peer, row in self.rows.items() if row.reveal is not None},
            "payloads": {hotkey(p): row.payload.hex() for p, row in self.rows.items() if row.payload is not None},
            "paid": {"block": self.paid.block, "set_in": self.paid.set_in},
            "unobserved": self.unobserved,
        }


def round_report(
    outcome: RoundOutcome,
    peers: Iterable[Peer],
    gathered: "Iterable[Gathered]",
    ranking: Ranking,
    before: ScoreBook,
    after: ScoreBook,
    paid: Paid,
    unobserved: Unobserved | None = None,
) -> Report:
    """Return the report of a round as it was played. `peers`: all registered at the commit deadline; `before` and
    `after` its fold."""
    checked = outcome.checked
    reveals = {item.peer.id: item.reveal for item in gathered}
    payloads = {kept.peer: kept.payload for kept in checked.remember}
    rows: dict[PeerId, ReportRow] = {}
    for peer in sorted(peers, key=lambda peer: peer.uid):
        rejection = checked.rejected.get(peer.id)
        rows[peer.id] = ReportRow(
            peer.uid,
            weight=paid.shares.get(peer.id, 0.0),
            rejected=rejection.reason if rejection is not None else None,
            detail=rejection.detail if rejection is not None else "",
            standing=ranking.standing.get(peer.id),
            contributing=peer.id in ranking.contributing,
            evaluation=outcome.evaluations.get(peer.id),
            reveal=reveals.get(peer.id),
            payload=payloads.get(peer.id),
            twins=tuple(sorted(checked.twins.get(peer.id, ()))),
            repetition=outcome.repetitions.get(peer.id),
        )
    gone = sum(record.evaluations > 0 for peer, record in before.peers.items() if peer not in rows)
    return Report(outcome.round, rows, _of(before, rows), _of(after, rows), gone, before.remembered, paid, unobserved)


def _of(book: ScoreBook, peers: Collection[PeerId]) -> ScoreBook:
    return replace(book, peers={p: record for p, record in book.peers.items() if p in peers}, remembered=())


def _row_body(
    row: ReportRow, before: PeerRecord | None, record: PeerRecord | None, spec: GauntletSpec
) -> dict[str, Any]:
    body: dict[str, Any] = {"uid": row.uid, "weight": row.weight}
    if row.rejected is not None:
        body |= {"rejected": str(row.rejected), "detail": row.detail}
    elif row.standing is not None:
        body["standing"] = str(row.standing)
    elif row.contributing:
        body["contributing"] = True
    if row.twins:
        body["twins"] = [hotkey(peer) for peer in row.twins]
        body["copied"] = record is not None and record.faults > (before.faults if before is not None else 0)
    if record is not None:
        body |= {
            "mu": record.rating.mu,
            "sigma": record.rating.sigma,
            "proof": record.proof,
            "score": record.scores.value,
            "assigned_score": record.assigned_scores.value,
            "evaluations": record.evaluations,
            "contributed": record.contributed,
            "faults": record.faults,
            "penalty": record.penalty,
            "eligible": eligible(record, spec),
            "peer_score": peer_score(record),
            "presence": record.presence,
        }
        if spec.trace_values:
            body |= {"work": record.work, "repeated": record.repeated, "unproven": record.unproven}
    if row.evaluation is not None:
        body["loss_score"] = {
            "assigned": _finite(row.evaluation.score.assigned),
            "unassigned": _finite(row.evaluation.score.unassigned),
            "references": row.evaluation.references,
        }
        body["gap"] = row.evaluation.gap
    if (one := row.repetition) is not None:
        body["repetition"] = {**asdict(one), "moves": list(one.moves), "gradients": list(one.gradients)}
    return body


def _finite(value: float) -> float | None:
    return max(-_LARGEST_SCORE, min(_LARGEST_SCORE, value)) if isfinite(value) else None


# --- parsing -------------------------------------------------------------------------------------------------


def parse_report(text: bytes, round: int) -> tuple[Report, dict[str, Any]]:
    """Parse the text of another node's report of `round`; return its body too, as plain JSON values. Raises
    InvalidMessage for a text that no validator of this release would write: missing or unknown fields, other types,
    numbers out of any sensible range.

    The numbers that `Report.named` derives from the book are ignored; the audit checks them.
    """
    body = parse_as(text, ReportShape)
    try:
        return _report(body, round), body
    except (KeyError, ValueError):
        raise InvalidMessage("report: a field is missing or out of range, or a hotkey is not listed") from None


def _report(body: dict[str, Any], round: int) -> Report:
    if body["round"] != round:
        raise InvalidMessage("report: of another round")
    listed = {name: peer_id(name) for name in body["peers"]}
    """An address takes 20 us to read, and 65,000 twins may be named."""
    reveals = {listed[name]: from_hex(value) for name, value in body["reveals"].items()}
    payloads = {listed[name]: Digest(from_hex(value)) for name, value in body["payloads"].items()}
    rows = {
        peer: _row(body["peers"][name], listed, reveals.get(peer), payloads.get(peer)) for name, peer in listed.items()
    }
    before, after = _book(body["before"], rows), _book(body["after"], rows)
    unobserved = None if body["unobserved"] is None else Unobserved(body["unobserved"])
    if not before.round < round or after.round != (round if unobserved is None else before.round):
        raise InvalidMessage("report: its books are not those before and after the round")
    history = tuple(
        Remembered(past, PeerId(from_hex(peer)), Digest(from_hex(payload))) for past, peer, payload in body["history"]
    )
    if list(history) != sorted(set(history)) or any(past.round >= round for past in history):
        raise InvalidMessage("report: its payloads of earlier rounds are not earlier, not sorted, or one comes twice")
    shares = {peer: row.weight for peer, row in rows.items() if row.weight}
    paid = Paid(body["paid"]["block"], body["paid"]["set_in"], shares)
    return Report(round, rows, before, after, body["gone"], history, paid, unobserved)


def _row(body: dict[str, Any], listed: Mapping[str, PeerId], reveal: bytes | None, payload: Digest | None) -> ReportRow:
    if len({"rejected", "standing", "contributing"} & body.keys()) > 1:
        raise InvalidMessage("report: a hotkey with two outcomes")
    if body.get("contributing", True) is not True:
        raise InvalidMessage("report: a hotkey's contributing is stated only where it is true")
    detail = body["detail"] if "rejected" in body else ""
    if not (detail.isascii() and (not detail or detail.isprintable())):
        raise InvalidMessage("report: a detail that is not one short line of printable ASCII")
    evaluation = None
    if "loss_score" in body:
        scores = body["loss_score"]
        score = LossScore(*(_nan(scores[kind]) for kind in ("assigned", "unassigned")))
        evaluation = Evaluation(score, _number(body["gap"], -0.5, 0.5), scores["references"])
    twins = tuple(listed[name] for name in body.get("twins", ()))
    if list(twins) != sorted(set(twins)):
        raise InvalidMessage("report: a hotkey's twins are not sorted, or one comes twice")
    return ReportRow(
        Uid(body["uid"]),
        _number(body["weight"], 0.0, 2.0),
        Reason(body["rejected"]) if "rejected" in body else None,
        detail,
        Standing(body["standing"]) if "standing" in body else None,
        "contributing" in body,
        evaluation,
        reveal,
        payload,
        twins,
        _repetition(body["repetition"]) if "repetition" in body else None,
    )


def _repetition(body: dict[str, Any]) -> Repetition:
    moves, gradients = (tuple(_number(value, 0.0, NOTHING_ALIKE) for value in body[kind]) for kind in _KINDS)
    if not len(moves) == len(gradients) == body["declared"] <= body["steps"]:
        raise ValueError("other steps repeated than declared, or more declared than there are")
    found = Repetition(body["round"], body["steps"], body["declared"], moves, gradients, body["confirmed"])
    if found.passed and not found.confirmed:
        raise ValueError("steps that are as shown need no second look")
    return found


def _book(body: dict[str, Any], peers: Collection[PeerId]) -> ScoreBook:
    """Parse a book whose numbers are in range, of these hotkeys only."""
    book = from_body(body)
    if book.remembered or not book.peers.keys() <= set(peers):
        raise InvalidMessage("report: a book that remembers payloads, or with hotkeys that the report does not list")
    for average in (book.unit, book.usual_score):
        _check(average)
    _check(book.score_variance, least=0.0)
    _number(book.unobserved, 0.0, PATIENCE_ROUNDS)
    for record in book.peers.values():
        for average in (record.gaps, record.units, record.scores, record.usual_scores, record.assigned_scores):
            _check(average)
        _check(record.score_variances, least=0.0)
        _number(record.penalty, 0.0, 1.0)
        _number(record.presence, 0.0, 1.0)
        _number(record.work, 0.0, 1.0)
        _number(record.rating.mu, -_LARGEST_RATING, _LARGEST_RATING)
        _number(record.rating.sigma, 1e-3, _LARGEST_RATING)
    return book


def _check(average: Average, least: float = -_LARGEST) -> None:
    _number(average.value, least, _LARGEST)
    _number(average.weight, 0.0, 1.0)


def _number(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError("out of range")
    return value


def _nan(value: float | None) -> float:
    return nan if value is None else _number(value, -_LARGEST_SCORE, _LARGEST_SCORE)
