"""A round as the page's JSON, and why it was void: from the chain, else from the nodes' own events."""

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any, TypeVar

from gauntlet.account import SETTLED
from murmur.page.round import CHAIN, GUESSES, PHASES, Round

S = TypeVar("S")
T = TypeVar("T")

NOT_AGREED = "NOT_AGREED"
"""Of a peer that passed and has no other standing: it was not selected, or nobody was."""
APART = "APART"
"""Of a member of a cluster that trained from another model than the run's."""
DECLARED, NO_STATE, NOBODY = "declared", "no_state", "nobody"
"""Reasons visible in final states (murmur/node/observe/history.py): the owner has declared the round void; no model, or
no peer, has most of the stake."""

_BY_CHAIN = {
    DECLARED: "the run's owner has declared it void",
    NO_STATE: "no model was named by more than half of the validators' stake",
    NOBODY: "no peer was named by more than half of the validators' stake",
}


def encode(one: Round, peers: Mapping[str, str]) -> dict[str, Any]:
    """Return a round as JSON. Losses in nats a token, `pay` in shares, `seconds` medians over nodes; null for what
    nobody told. peers: hotkey, or a member's id, by name of a node."""
    node = one.agreed()
    contributing = list(one.contributing.get(node, ())) if node is not None else []
    rejected, standing = dict(_first(one, one.rejected, {})), dict(_first(one, one.standing, {}))
    if node is not None:
        left_out = set(_first(one, one.passed, ())) - {*contributing, *standing, *rejected}
        standing |= dict.fromkeys(sorted(left_out), NOT_AGREED)
        rejected |= {peers.get(node, node): APART if node in one.apart else "LATE" for node in sorted(one.steps)}
    pay = _mean_pay(one)
    judged = {*contributing, *standing, *rejected}
    miners = [node for node in {**peers, **one.steps} if peers.get(node, node) in contributing]
    honest = [one.trained[node] for node in miners if node in one.trained] or list(one.trained.values())
    return {
        "round": one.number,
        "version": one.version,
        "time": one.time,
        "loss": fmean(one.held_out.values()) if one.held_out else None,
        "train_loss": median(honest) if honest else None,
        "tested": one.tested,
        "active": _first(one, one.active, len(one.steps) or None),
        "contributing": contributing,
        "rejected": {peer: why for peer, why in rejected.items() if peer not in contributing},
        "standing": {peer: why for peer, why in standing.items() if peer not in contributing},
        "pay": {peer: round(share, 6) for peer, share in sorted(pay.items()) if share},
        "learning": {p: n for p, n in sorted(one.evaluations.items()) if n < SETTLED and p in judged},
        "void": one.void[node] if node is not None else None,
        "decided": one.block.get(node) if node is not None else None,
        "guesses": {guess: count for guess in GUESSES if (count := [*one.guesses.values()].count(guess))},
        "computed": round(median(one.computed.values()), 3) if one.computed else None,
        "unobserved": next(iter(one.unobserved.values()), None),
        "seconds": {
            phase: round(median(found), 3)
            if (found := [s[phase] for s in one.seconds.values() if phase in s])
            else None
            for phase in PHASES
        },
        "payload_bytes": one.payload_bytes,
        "sent_bytes": sum(one.sent.values()) if one.sent else None,
        "why_void": why_void(one),
        "loss_range": [min(honest), max(honest)] if honest else None,
        "computed_range": [round(end(one.computed.values()), 3) for end in (min, max)] if one.computed else None,
        "steps": _sum(one.steps, miners),
        "tokens": _sum(one.tokens, miners),
        "length": round(median(one.length.values()), 3) if one.length else None,
        "theta": one.theta.get(node) if node is not None else None,
        "closed_by": one.closed_by,
    }


def _mean_pay(one: Round) -> dict[str, float]:
    """Peer -> its share: the mean of the validators' reports, by stake where that is known."""
    stakes = {node: one.stakes.get(node, 1.0) for node in one.pay}
    stakes = stakes if any(stakes.values()) else dict.fromkeys(stakes, 1.0)
    total = sum(stakes.values())
    pay: dict[str, float] = {}
    for node, shares in one.pay.items():
        for peer, share in shares.items():
            pay[peer] = pay.get(peer, 0.0) + share * (stakes[node] / total)
    return pay


def _first(one: Round, found: Mapping[str, S], none: T) -> S | T:
    """What the first validator says, by stake and by name."""
    if not found:
        return none
    return found[min(found, key=lambda node: (node != CHAIN, -one.stakes.get(node, 0.0), node))]


def _sum(found: Mapping[str, int], nodes: Iterable[str]) -> int | None:
    """The sum over these nodes, None where nothing is known of them."""
    return sum(own) if (own := [found[node] for node in nodes if node in found]) else None


def why_void(one: Round) -> str | None:
    """Return the reason; None for a round that is not void, or not decided."""
    node = one.agreed()
    if node is None or not one.void[node]:
        return None
    why = _why(one)
    return f"{why[0].upper()}{why[1:]}."


def _why(one: Round) -> str:
    if one.cause == DECLARED:
        return _BY_CHAIN[DECLARED]
    # A validator that came late saw nothing of what others had committed.
    committed = any(one.active.values()) or any(kind == "committed" for _, kind in one.places)
    if one.active and not committed and not one.unobserved:
        return "no peer had committed by the deadline"
    judges = one.rejected.keys() - one.unobserved.keys()
    if any(one.rejected[node] for node in judges) and not any(one.passed.get(node) for node in judges):
        return f"no submission passed the checks{_reasons(one.rejected[min(judges)])}"
    if one.unobserved and not judges:
        whys = ", ".join(f"{node} {why}" for node, why in sorted(one.unobserved.items()))
        return f"no validator that counts has judged it in time ({whys})"
    abstained = [node for node, vote in one.votes.items() if vote.abstains]
    if one.votes and len(abstained) == len(one.votes):
        return "every validator that voted abstained, since none holds the run's model"
    if one.cause is None and not one.votes and (judges or committed):
        return "no validator is known to have posted a vote"
    cause = _BY_CHAIN[one.cause if one.cause in _BY_CHAIN else NOBODY]
    return f"{cause}; {len(abstained)} of the {len(one.votes)} that voted abstained" if abstained else cause


def _reasons(rejected: Mapping[str, str]) -> str:
    counts = Counter(rejected.values())
    return f" ({', '.join(f'{code} {count}' for code, count in sorted(counts.items()))})" if counts else ""
