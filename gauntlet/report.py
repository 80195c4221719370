"""The body of a validator's signed report: what it found of every hotkey, in numbers (docs/protocol.md section 6).

A convenience for people and a mirror: nothing is ever decided on it.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from gauntlet.book import ScoreBook, eligible
from gauntlet.checks import Checked
from gauntlet.loss import Evaluation
from gauntlet.selection import Ranking, peer_score
from protocol.spec import GauntletSpec
from protocol.types import Peer, PeerId, Uid, hotkey


def round_report(
    round: int,
    peers: Iterable[Peer],
    checked: Checked,
    ranking: Ranking,
    evaluations: Mapping[PeerId, Evaluation],
    book: ScoreBook,
    weights: Mapping[Uid, float],
    spec: GauntletSpec,
) -> dict[str, Any]:
    """Body for protocol.messages.encode_document. `peers`: everyone registered at D; `book`: after this round's fold.

    Each hotkey has its uid, one of rejected, standing or contributing, and its numbers: losses in nats a token, proof
    in units of the honest gap. What was not finite or not measured is null.
    """
    rows: dict[str, Any] = {}
    for peer in sorted(peers, key=lambda peer: peer.uid):
        row: dict[str, Any] = {"uid": peer.uid, "weight": weights.get(peer.uid, 0.0)}
        rejection = checked.rejected.get(peer.id)
        if rejection is not None:
            row |= {"rejected": str(rejection.reason), "detail": rejection.detail}
        elif peer.id in ranking.standing:
            row["standing"] = str(ranking.standing[peer.id])
        elif peer.id in ranking.contributing:
            row["contributing"] = True
        record = book.peers.get(peer.id)
        if record is not None:
            row |= {
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
            }
        evaluation = evaluations.get(peer.id)
        if evaluation is not None:
            row["loss_score"] = {
                "assigned": _finite(evaluation.score.assigned),
                "unassigned": _finite(evaluation.score.unassigned),
                "references": evaluation.references,
            }
            row["gap"] = evaluation.gap
        rows[hotkey(peer.id)] = row
    return {"round": round, "unit": book.unit.value, "peers": rows}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
