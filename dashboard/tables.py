"""A run's rounds as tables: one row per round for a spreadsheet, and one peer's rounds."""

import csv
import io
from typing import Any

from dashboard.rounds import PHASES, Round, Rounds

COLUMNS = ("round", "time", "void", "decided", "active", "contributing", "rejected", "loss", "train_loss", "computed")
LAST = ("payload_bytes", "sent_bytes", "why_void")


def as_csv(rounds: Rounds) -> bytes:
    """Return every round, by number, as CSV: `time` in Unix seconds, losses in nats per token, phases in seconds; empty
    for unknown values."""
    into = io.StringIO()
    writer = csv.writer(into, lineterminator="\n")
    writer.writerow([*COLUMNS, *PHASES, *LAST])
    for one in rounds:
        body = one.body(())
        body |= {"contributing": len(body["contributing"]), "rejected": len(body["rejected"])}
        row = [body[name] for name in COLUMNS] + [body["seconds"][phase] for phase in PHASES]
        row += [body[name] for name in LAST]
        writer.writerow(["" if value is None else value for value in row])
    return into.getvalue().encode()


def peer_rounds(rounds: Rounds, peer: str) -> list[dict[str, Any]]:
    """Return the peer's outcome in every round that mentions it, by number.

    outcome: `contributing`, its standing, or why it was rejected. pay: its share, None where the round was void, since
    a later one settles it. evaluations: their number so far.
    """
    return [row for one in rounds if (row := _row(one, peer)) is not None]


def _row(one: Round, peer: str) -> dict[str, Any] | None:
    body = one.body(())
    outcome = "contributing" if peer in body["contributing"] else body["rejected"].get(peer, body["standing"].get(peer))
    if outcome is None and peer not in body["pay"]:
        return None
    paid = body["pay"].get(peer, 0.0) if body["pay"] and not body["void"] else None
    evaluations = one.evaluations.get(peer)
    return {"round": one.number, "outcome": outcome, "pay": paid, "evaluations": evaluations, "void": body["void"]}
