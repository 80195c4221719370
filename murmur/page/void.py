"""The reason why a round was void, in one sentence: from the chain, else from the nodes' own events."""

from collections import Counter
from collections.abc import Mapping

from murmur.page.round import Round

DECLARED, NO_STATE, NOBODY = "declared", "no_state", "nobody"
"""Reasons visible in final states (murmur/node/observe/history.py): the owner has declared the round void; no model, or
no peer, has most of the stake."""

_BY_CHAIN = {
    DECLARED: "the run's owner has declared it void",
    NO_STATE: "no model was named by more than half of the validators' stake",
    NOBODY: "no peer was named by more than half of the validators' stake",
}


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
    if one.active and not any(one.active.values()):
        return "no peer had committed by the deadline"
    judges = one.rejected.keys() - one.unobserved.keys()
    if judges and not any(one.passed.get(node) for node in judges):
        return f"no submission passed the checks{_reasons(one.rejected[min(judges)])}"
    abstained = [node for node, vote in one.votes.items() if vote.abstains]
    if one.votes and len(abstained) == len(one.votes):
        return "every validator that voted abstained, since none holds the run's model"
    if one.cause is None and judges and not one.votes:
        return "no validator is known to have posted a vote"
    cause = _BY_CHAIN[one.cause if one.cause in _BY_CHAIN else NOBODY]
    return f"{cause}; {len(abstained)} of the {len(one.votes)} that voted abstained" if abstained else cause


def _reasons(rejected: Mapping[str, str]) -> str:
    counts = Counter(rejected.values())
    return f" ({', '.join(f'{code} {count}' for code, count in sorted(counts.items()))})" if counts else ""
