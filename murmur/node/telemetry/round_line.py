"""One log line a round for people, from a node's own events `round_outcome` and `judged` (docs/events.md). `murmur
status` shows it afterwards."""

from collections.abc import Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]


def line(event: Event) -> str:
    """Return the round in one line."""
    parts = _stood(event) if event["event"] == "round_outcome" else _judged(event)
    return f"round {event['round']}: " + "; ".join(parts)


def outcome(event: Event) -> str:
    """Return the result of the node's work in the round, in a word or two."""
    if event["event"] == "round_outcome":
        return str(event["outcome"])
    return f"judged {event['active']}" if event["unobserved"] is None else f"not observed ({event['unobserved']})"


def _stood(event: Event) -> Iterator[str]:
    outcome, why = event["outcome"], event["why"]
    yield f"{outcome} ({why})" if why else outcome
    yield f"{event['selected']} of {event['active']} contributed" if event["selected"] else "the round is void"
    if event["loss"] is not None:
        yield f"loss {event['loss']:.2f}"
    if event["pay"] is not None:
        due = f", next set about block {event['next_set']}" if event["next_set"] is not None else ""
        yield f"pay {100 * event['pay']:.1f} %{due}"
        yield event["sure"]
    if event["margin"] is not None:
        yield f"committed {event['margin']} blocks before the deadline"


def _judged(event: Event) -> Iterator[str]:
    if event["unobserved"] is not None:
        yield f"not observed ({event['unobserved']}): nobody was rated or paid for it"
    rejected = ", ".join(f"{reason} {count}" for reason, count in event["rejected"].items())
    yield f"judged {event['active']}, {event['evaluated']} evaluated" + (f", rejected {rejected}" if rejected else "")
    if event.get("drawn"):
        yield f"steps of {event['verified']} of {event['drawn']} drawn miners repeated"
    yield f"{event['selected']} selected" if event["selected"] else "void: nothing was agreed"
    if event["loss"] is not None:
        yield f"held-out loss {event['loss']:.2f}"
    yield _pay(event)


def _pay(event: Event) -> str:
    count = event["unrevealed"]
    waiting = f", {count} earlier set{'s' * (count != 1)} not revealed yet" if count else ""
    set_now = f"weights set in block {event['set_in']}" if event["set_in"] is not None else "no weights set"
    due = f", next about block {event['next_set']}" if event["next_set"] is not None else ""
    return f"{set_now}{waiting}{due}"
