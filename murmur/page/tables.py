"""A run's rounds as tables: one row per round for a spreadsheet, one peer's rounds, and a cluster's members in one
round."""

import csv
import io
from typing import Any

from murmur.page.round import PHASES, Round
from murmur.page.rounds import Rounds

COLUMNS = ("round", "time", "void", "decided", "active", "contributing", "rejected", "loss", "train_loss", "computed")
LAST = ("payload_bytes", "sent_bytes", "why_void", "steps", "tokens", "length", "theta", "closed_by")


def as_csv(rounds: Rounds) -> bytes:
    """Return every round, by number, as CSV: `time` in Unix seconds, losses in nats per token, phases in seconds; empty
    for unknown values."""
    into = io.StringIO()
    writer = csv.writer(into, lineterminator="\n")
    writer.writerow([*COLUMNS, *PHASES, *LAST])
    for one in rounds:
        body = rounds.body(one)
        body |= {"contributing": len(body["contributing"]), "rejected": len(body["rejected"])}
        row = [body[name] for name in COLUMNS] + [body["seconds"][phase] for phase in PHASES]
        row += [body[name] for name in LAST]
        writer.writerow(["" if value is None else value for value in row])
    return into.getvalue().encode()


def peer_rounds(rounds: Rounds, peer: str) -> list[dict[str, Any]]:
    """Return the peer's outcome in every round that mentions it, by number.

    outcome: `contributing`, its standing, or why it was rejected. pay: its share, None where the round was void, since
    a later one settles it. evaluations: their number so far. Also the numbers of `work`.
    """
    node = next((node for node, hotkey in rounds.hotkeys.items() if hotkey == peer), peer)
    return [row for one in rounds if (row := _row(rounds, one, peer, node)) is not None]


def members(rounds: Rounds, number: int) -> list[dict[str, Any]]:
    """Return what each member of a cluster did in the round: `member` (its id), `outcome` as in `peer_rounds`, and the
    numbers of `work`. Empty for a network on a chain."""
    one = rounds.get(number)
    if one is None:
        return []
    outcomes = _outcomes(rounds.body(one))
    rows = [(rounds.hotkeys.get(node, node), node) for node in one.steps]
    return [{"member": peer, "outcome": outcomes.get(peer), **work(one, node)} for peer, node in sorted(rows)]


def work(one: Round, node: str) -> dict[str, Any]:
    """Return what a node did in the round, None where unknown: `loss` in training, `steps`, the `seconds` of training
    and of `sending`, and the share of the round's time in which it trained (`computed`)."""
    seconds = one.seconds.get(node, {})
    return {
        "loss": one.trained.get(node),
        "steps": one.steps.get(node),
        "seconds": seconds.get("compute"),
        "sending": seconds.get("upload"),
        "computed": one.computed.get(node),
    }


def _row(rounds: Rounds, one: Round, peer: str, node: str) -> dict[str, Any] | None:
    body = rounds.body(one)
    outcome = _outcomes(body).get(peer)
    if outcome is None and peer not in body["pay"]:
        return None
    paid = body["pay"].get(peer, 0.0) if body["pay"] and not body["void"] else None
    told = {"round": one.number, "outcome": outcome, "pay": paid, "evaluations": one.evaluations.get(peer)}
    return {**told, "void": body["void"], **work(one, node)}


def _outcomes(body: dict[str, Any]) -> dict[str, str]:
    """Peer -> what became of its update."""
    return {**body["standing"], **body["rejected"], **dict.fromkeys(body["contributing"], "contributing")}
