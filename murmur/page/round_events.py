"""Folds the events of nodes (docs/events.md) into the rounds that they tell of. Of runs whose nodes are not on this
machine, murmur/page/live/ writes other events from what it has read:

- of a network: `agreed` in place of `applied` and `checked`, `reported` with the validator's `stake` and `set_in`,
  `word_posted` with its `theta`, `peers` and `stake`, `stated`, and `unread`;
- of a cluster: `recorded` in place of `trained`, `published`, `closed` and `applied`; `claims` and `sent`.

Events are what other programs wrote: one that is not as documented is passed over, and nothing of them is trusted to be
short, printable or true.
"""

from collections.abc import Mapping
from sys import intern
from typing import Any

from murmur.page.round import PHASES, Event, PostedVote, Round

MAX_ROUND = 1 << 32
MAX_NUMBER = 1e18
"""Far beyond any loss, share, duration or time: sums of such numbers are still numbers."""
NOT_HERE = ("MISSING", "LATE")
"""Reasons of peers that had not committed by the deadline."""
NODE_KINDS = {
    "trained",
    "published",
    "committed",
    "applied",
    "phases",
    "interrupted",
    "not_followed",
    "weights_not_taken",
}
VALIDATOR_KINDS = {
    "checked",
    "ranked",
    "word_posted",
    "reported",
    "held_out",
    "unobserved",
    "weights_refused",
    "weights",
}
MEMBER_KINDS = {"claimed", "closed", "diverged", "recorded", "claims", "sent"}
KINDS = NODE_KINDS | VALIDATOR_KINDS | MEMBER_KINDS | {"agreed", "stated", "unread", "tested"}
EVALUATIONS = "evaluations"
"""The node under whose name evaluations of checkpoints stand (murmur/page/evaluations.py); no member is called so."""
MOST_METRICS = 200


def fold(one: Round, node: str, kind: str, event: Event) -> None:
    """Fold an event of one of KINDS. Raises KeyError, TypeError, ValueError, AttributeError for an event that is not as
    documented, and leaves the round as it was then."""
    time = _number(event["time"])
    seconds = {phase: _number(event["seconds"][phase]) for phase in PHASES if phase in event.get("seconds", {})}
    decided = _count(event["decided"]) if event.get("decided") is not None else None
    if kind in NODE_KINDS:
        _fold_node(one, node, kind, event)
    elif kind in VALIDATOR_KINDS:
        _fold_validator(one, node, kind, event)
    elif kind in MEMBER_KINDS:
        _fold_member(one, node, kind, event)
    else:
        _fold_outside(one, node, kind, event)
    if decided is not None and kind in ("applied", "agreed"):
        one.block[node] = decided
    if node in one.not_set:
        one.faults[node] = one.not_set[node]
    if seconds:
        one.seconds[node] = one.seconds.get(node, {}) | seconds
    one.time = max(one.time, time)


def _fold_node(one: Round, node: str, kind: str, event: Event) -> None:
    """What every node says of itself."""
    match kind:
        case "trained":
            loss = _number(event["loss"]) if event["loss"] is not None else None
            tokens = _count(event["tokens"]) if "tokens" in event else None
            if loss is not None:
                one.trained[node] = loss
            if tokens is not None:
                one.tokens[node] = tokens
        case "published":
            one.payload_bytes = one.sent[node] = _count(event["payload_bytes"])
        case "applied":
            contributing = tuple(_text(peer) for peer in event["contributing"])
            void, theta, guess = bool(event["void"]), _text(event["theta"]), event.get("guess")
            one.contributing[node], one.void[node], one.theta[node] = contributing, void, theta
            if guess is not None:
                one.guesses[node] = _text(guess)
        case "phases":
            spent = [(_text(p["phase"]), _number(p["began"]), _number(p["seconds"])) for p in event["phases"]]
            whole = max((began + seconds for _, began, seconds in spent), default=0.0)
            trained = sum(seconds for name, _, seconds in spent if name == "compute")
            if trained and whole:
                one.computed[node], one.length[node] = min(1.0, trained / whole), whole
        case "interrupted":
            one.faults[node] = f"broke off: {_text(event['fault'])}"
        case "not_followed":
            one.faults[node] = f"could not follow the round: {_text(event['reason'])}"
        case "weights_not_taken":
            one.not_set[node] = f"the chain refused its weights: {_text(event['code'])}"


def _fold_validator(one: Round, node: str, kind: str, event: Event) -> None:
    """What a validator says of the round."""
    match kind:
        case "held_out":
            one.held_out[node] = _number(event["val_loss"])
        case "checked":
            rejected, passed = _texts(event["rejected"]), tuple(_text(peer) for peer in event["passed"])
            one.active[node] = _count(event["active"])
            one.rejected[node], one.passed[node] = rejected, passed
        case "ranked":
            first, standing = tuple(_text(peer) for peer in event["contributing"]), _texts(event["standing"])
            one.first[node], one.standing[node] = first, standing
        case "word_posted":
            one.votes[node] = _posted_vote(event)
        case "reported":
            stake = _number(event["stake"]) if "stake" in event else None
            set_in = _count(event["set_in"]) if event.get("set_in") is not None else None
            _reported(one, node, event["peers"])
            if set_in is not None:
                one.set_in[node] = set_in
            if stake is not None:
                one.stakes[node] = stake
            one.unread.pop(node, None)
        case "unobserved":
            one.unobserved[node] = _text(event["why"])
        case "weights":
            one.set_in[node] = _count(event["block"])
        case "weights_refused":
            one.not_set[node] = "its weights do not stand on chain as they were set"


def _fold_outside(one: Round, node: str, kind: str, event: Event) -> None:
    """What was read of chain and buckets, and of evaluations."""
    match kind:
        case "agreed":
            contributing = tuple(_text(peer) for peer in event["contributing"])
            void, committed = bool(event["void"]), event["committed"]
            cause = _text(event["cause"]) if event.get("cause") is not None else None
            if committed is not None:
                one.passed[node] = tuple(_text(peer) for peer in committed)
                one.active[node] = len(one.passed[node])
            one.contributing[node], one.void[node], one.cause = contributing, void, cause
        case "stated":
            one.theta[node] = _text(event["theta"])
        case "unread":
            one.unread[node] = _text(event["why"])
        case "tested":
            if node != EVALUATIONS:
                raise ValueError(node)
            loss = _number(event["loss"])
            metrics = [(task, name, value) for task, found in event["tasks"].items() for name, value in found.items()]
            tasks = {f"{_text(task)} {_text(name)}": _number(value) for task, name, value in metrics[:MOST_METRICS]}
            one.tested = {"loss": loss, "tasks": tasks}


def _fold_member(one: Round, node: str, kind: str, event: Event) -> None:
    """What a cluster's member says of itself, and what its bucket shows."""
    match kind:
        case "claimed":
            one.steps[node] = _count(event["steps"])
        case "closed":
            if event["ours"]:
                one.closed_by = node
        case "diverged":
            one.faults[node] = f"held another model than the run: {_text(event['why'])}"
            one.apart.add(node)
        case "claims":
            claims = [(_text(name), _count(row["steps"]), bool(row["apart"])) for name, row in event["members"].items()]
            one.steps |= {name: steps for name, steps, _ in claims}
            one.apart |= {name for name, _, apart in claims if apart}
        case "sent":
            seconds = {_text(name): _number(spent) for name, spent in event["members"].items()}
            for name, spent in seconds.items():
                one.seconds[name] = one.seconds.get(name, {}) | {"upload": spent}
        case "recorded":
            _recorded(one, node, event)


def _recorded(one: Round, node: str, event: Event) -> None:
    """A record: all that its claims say."""
    updates = {
        _text(name): (_count(row["steps"]), _number(row["seconds"]), row["loss"])
        for name, row in event["updates"].items()
    }
    losses = {name: _number(loss) for name, (_, _, loss) in updates.items() if loss is not None}
    length = _number(event["length"]) if event["length"] is not None else None
    by, theta, size, tokens = _text(event["by"]), _text(event["theta"]), event["payload_bytes"], event["step_tokens"]
    sent, trained = dict.fromkeys(updates, _count(size)), {n: s * _count(tokens) for n, (s, _, _) in updates.items()}
    one.contributing[node], one.void[node], one.theta[node] = tuple(updates), False, theta
    one.closed_by, one.payload_bytes, one.sent = by, size, one.sent | sent
    one.trained |= losses
    one.tokens |= trained
    if length:
        one.length[node] = length
    for name, (steps, seconds, _) in updates.items():
        one.steps[name] = steps
        one.seconds[name] = one.seconds.get(name, {}) | {"compute": seconds}
        if length:
            one.computed[name] = min(1.0, seconds / length)


def _reported(one: Round, node: str, peers: Mapping[str, Mapping[str, Any]]) -> None:
    rejected, standing = {}, {}
    pay, evaluations = {}, {}
    for peer, row in peers.items():
        name = _text(peer)
        if "rejected" in row:
            rejected[name] = _text(row["rejected"])
        elif "standing" in row:
            standing[name] = _text(row["standing"])
        if share := _number(row["weight"]):
            pay[name] = share
        evaluations[name] = _count(row.get("evaluations", 0))
    one.rejected[node], one.standing[node], one.pay[node] = rejected, standing, pay
    if node not in one.first:
        one.first[node] = tuple(_text(peer) for peer, row in peers.items() if row.get("contributing"))
    passed = tuple(_text(peer) for peer, row in peers.items() if "contributing" in row or "standing" in row)
    one.passed.setdefault(node, passed)
    one.active.setdefault(node, len(passed) + sum(why not in NOT_HERE for why in rejected.values()))
    for name, times in evaluations.items():
        one.evaluations[name] = max(times, one.evaluations.get(name, 0))


def _posted_vote(event: Event) -> PostedVote:
    abstains, named = bool(event["abstains"]), _count(event["named"])
    block = _count(event["block"]) if event["block"] is not None else None
    theta = _text(event["theta"]) if event.get("theta") is not None else None
    peers = tuple(_text(peer) for peer in event["peers"]) if "peers" in event else None
    return PostedVote(block, named, abstains, theta, peers, _number(event["stake"]) if "stake" in event else None)


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in found.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return intern(value[:300])


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ValueError(value)
    return float(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(value)
    return value
