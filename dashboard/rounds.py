"""A run's rounds, put together from its nodes' events (docs/events.md) as these come in; of a network whose nodes are
not on this machine, from what murmur/dashboard/watcher.py has read of chain and buckets: `agreed` in place of `applied`
and `checked`, `reported` with the validator's `stake` and `set_in`, `word_posted` with its `theta`, `peers` and
`stake`, and `unread`.

Events are what other programs wrote: one that is not as documented is passed over, and nothing of them is trusted to be
short, printable or true.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from sys import intern
from typing import Any, TypeVar

from dashboard.short import Places, shortened
from dashboard.void import why_void
from gauntlet.account import SETTLED

Event = Mapping[str, Any]
S = TypeVar("S")
T = TypeVar("T")

MAX_ROUND = 1 << 32
MAX_NUMBER = 1e18
"""Far beyond any loss, share, duration or time: sums of such numbers are still numbers."""
NOT_AGREED = "NOT_AGREED"
"""Of a peer that passed and has no other standing: it was not selected, or nobody was."""
NOT_HERE = ("MISSING", "LATE")
"""Reasons of peers that had not committed by the deadline."""
PHASES = ("compute", "upload", "download", "apply")
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
KINDS = NODE_KINDS | VALIDATOR_KINDS | {"agreed", "stated", "unread", "tested"}
EVALUATIONS = "evaluations"
"""The node whose word are evaluations of checkpoints (dashboard/evaluations.py); no member is called so."""
MOST_METRICS = 200
GUESSES = ("right", "wrong")
CHAIN = "chain"
"""The node whose word is what stands on chain: it comes before everybody's."""


@dataclass(frozen=True, slots=True)
class Said:
    """A validator's word. `named`: how many peers it names; the rest is known only where the word was read from the
    chain. `theta`: the state that it holds; `stake`: share of the counted one."""

    block: int | None
    named: int
    abstains: bool
    theta: str | None = None
    peers: tuple[str, ...] | None = None
    stake: float | None = None


@dataclass(slots=True)
class Round:
    """What is known of one round, by node: the last event of a kind counts. `judged`: by validator, what its report or
    its checks say of each hotkey."""

    number: int
    time: float = 0.0
    void: dict[str, bool] = field(default_factory=dict)
    cause: str | None = None
    """Of a void round, where the chain was read: a code of dashboard/void.py."""
    said: dict[str, Said] = field(default_factory=dict)
    first: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Who would contribute by a validator's own order."""
    set_in: dict[str, int] = field(default_factory=dict)
    """Validator -> the block in which its weights were set."""
    not_set: dict[str, str] = field(default_factory=dict)
    """Validator -> why its weights do not stand."""
    block: dict[str, int] = field(default_factory=dict)
    """The one in which it was decided, where that is known."""
    contributing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    theta: dict[str, str] = field(default_factory=dict)
    active: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, dict[str, str]] = field(default_factory=dict)
    standing: dict[str, dict[str, str]] = field(default_factory=dict)
    passed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pay: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluations: dict[str, int] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    tested: dict[str, Any] | None = None
    """The state that the round has made, evaluated: `loss`, `tasks`."""
    trained: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    """Whether the selection that a miner expected was the right one."""
    computed: dict[str, float] = field(default_factory=dict)
    """Share of the time, from one decision to the next, in which a miner trained."""
    payload_bytes: int | None = None
    sent: dict[str, int] = field(default_factory=dict)
    """Miner -> bytes of its submission."""
    faults: dict[str, str] = field(default_factory=dict)
    unobserved: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Validator -> why its report is not to be had."""
    stakes: dict[str, float] = field(default_factory=dict)
    """Share of the counted stake, of validators that are strangers: whose word comes first, and counts how much."""
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    """(node, kind) -> where its line stands in the node's file."""
    version: int = 0
    encoded: dict[bool, bytes] = field(default_factory=dict)
    """As JSON, in full and (True) as the page has it."""

    @property
    def decided(self) -> bool:
        return bool(self.void)

    def agreed(self) -> str | None:
        """The node whose word on the outcome counts: a validator's if there is one."""
        return next((node for node in sorted(self.void, key=lambda node: (node not in self.active, node))), None)

    def body(self, miners: Iterable[str]) -> dict[str, Any]:
        """As JSON. Losses in nats a token, `pay` in shares, `seconds` medians over nodes; null for what nobody told."""
        word = self.agreed()
        contributing = list(self.contributing.get(word, ())) if word is not None else []
        rejected, standing = self._first(self.rejected, {}), dict(self._first(self.standing, {}))
        if word is not None:
            left_out = set(self._first(self.passed, ())) - {*contributing, *standing, *rejected}
            standing |= dict.fromkeys(sorted(left_out), NOT_AGREED)
        pay = self._mean_pay()
        judged = {*contributing, *standing, *rejected}
        honest = [self.trained[node] for node in miners if node in self.trained] or list(self.trained.values())
        return {
            "round": self.number,
            "version": self.version,
            "time": self.time,
            "loss": fmean(self.held_out.values()) if self.held_out else None,
            "train_loss": median(honest) if honest else None,
            "tested": self.tested,
            "active": self._first(self.active, None),
            "contributing": contributing,
            "rejected": {peer: why for peer, why in rejected.items() if peer not in contributing},
            "standing": {peer: why for peer, why in standing.items() if peer not in contributing},
            "pay": {peer: round(share, 6) for peer, share in sorted(pay.items()) if share},
            "learning": {p: n for p, n in sorted(self.evaluations.items()) if n < SETTLED and p in judged},
            "void": self.void[word] if word is not None else None,
            "decided": self.block.get(word) if word is not None else None,
            "guesses": {guess: count for guess in GUESSES if (count := [*self.guesses.values()].count(guess))},
            "computed": round(median(self.computed.values()), 3) if self.computed else None,
            "unobserved": next(iter(self.unobserved.values()), None),
            "seconds": {
                phase: round(median(found), 3)
                if (found := [s[phase] for s in self.seconds.values() if phase in s])
                else None
                for phase in PHASES
            },
            "payload_bytes": self.payload_bytes,
            "sent_bytes": sum(self.sent.values()) if self.sent else None,
            "why_void": why_void(self),
        }

    def _mean_pay(self) -> dict[str, float]:
        """Peer -> its share: the mean of the validators' reports, by stake where that is known."""
        stakes = {node: self.stakes.get(node, 1.0) for node in self.pay}
        stakes = stakes if any(stakes.values()) else dict.fromkeys(stakes, 1.0)
        total = sum(stakes.values())
        pay: dict[str, float] = {}
        for node, shares in self.pay.items():
            for peer, share in shares.items():
                pay[peer] = pay.get(peer, 0.0) + share * (stakes[node] / total)
        return pay

    def _first(self, found: Mapping[str, S], none: T) -> S | T:
        """What the first validator says, by stake and by name."""
        if not found:
            return none
        return found[min(found, key=lambda node: (node != CHAIN, -self.stakes.get(node, 0.0), node))]


class Rounds:
    """All of them. `version` grows with every change; `hotkeys`: name of a node -> its hotkey, where known."""

    def __init__(self) -> None:
        self.version = 0
        self.hotkeys: dict[str, str] = {}
        self.peers = Places()
        self.last_seen: dict[str, tuple[int, float]] = {}
        """Validator -> round and time of the last word or report that is known of it."""
        self._rounds: dict[int, Round] = {}
        self._by_change: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[Round]:
        """By number."""
        return (self._rounds[number] for number in sorted(self._rounds))

    def get(self, number: int) -> Round | None:
        return self._rounds.get(number)

    def newest(self, count: int) -> list[Round]:
        """The last decided rounds, oldest first."""
        return [one for one in self if one.decided][-count:]

    def keep(self, count: int) -> None:
        """Forget all but the `count` newest by number."""
        for number in sorted(self._rounds)[: max(0, len(self._rounds) - count)]:
            del self._rounds[number], self._by_change[number]

    def take(self, node: str, event: Event, place: int = 0) -> None:
        """Fold one event of the node; one of another kind or form is passed over."""
        try:
            kind, number = event["event"], event["round"]
            if kind not in KINDS or type(number) is not int or not 0 <= number < MAX_ROUND:
                return
            one = self._rounds.get(number) or Round(number)
            _fold(one, node, kind, event)
            one.time = max(one.time, _number(event["time"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        one.places[node, kind] = place
        self.version += 1
        one.version = self.version
        one.encoded.clear()
        if kind in ("word_posted", "reported"):
            self.last_seen[node] = max((number, _number(event["time"])), self.last_seen.get(node, (0, 0.0)))
        self._rounds[number] = one
        self._by_change.pop(number, None)
        self._by_change[number] = None

    def since(self, version: int, max_bytes: int, *, short: bool = False) -> tuple[list[bytes], int, bool]:
        """JSON of the rounds that have changed after `version`, those first that changed first, up to about `max_bytes`
        and at least one, sorted by number; the version to ask with next, and whether there is more. `short`: as
        dashboard/short.py has it."""
        changed = []
        for number in reversed(self._by_change):
            if self._rounds[number].version <= version:
                break
            changed.append(self._rounds[number])
        told: list[Round] = []
        size = 0
        more = False
        for one in reversed(changed):
            if more := size >= max_bytes:
                break
            size += len(self._encode(one, short))
            told.append(one)
            version = one.version
        return [one.encoded[short] for one in sorted(told, key=lambda one: one.number)], version, more

    def encode(self) -> None:
        """Make the page's JSON of what has changed now, not when somebody asks."""
        for number in reversed(self._by_change):
            if True in self._rounds[number].encoded:
                break
            self._encode(self._rounds[number], short=True)

    def _encode(self, one: Round, short: bool) -> bytes:
        if short not in one.encoded:
            agreed = one.contributing.get(one.agreed() or "", ())
            miners = [node for node, key in self.hotkeys.items() if key in agreed]
            body = one.body(miners)
            told = shortened(body, self.peers) if short else body
            one.encoded[short] = json.dumps(told, separators=(",", ":"), allow_nan=False).encode()
        return one.encoded[short]


def _fold(one: Round, node: str, kind: str, event: Event) -> None:
    """Raises KeyError, TypeError, ValueError, AttributeError for an event that is not as documented, and leaves the
    round as it was then."""
    seconds = {phase: _number(event["seconds"][phase]) for phase in PHASES if phase in event.get("seconds", {})}
    decided = _count(event["decided"]) if event.get("decided") is not None else None
    if kind in NODE_KINDS:
        _fold_node(one, node, kind, event)
    elif kind in VALIDATOR_KINDS:
        _fold_validator(one, node, kind, event)
    else:
        _fold_outside(one, node, kind, event)
    if decided is not None and kind in ("applied", "agreed"):
        one.block[node] = decided
    if node in one.not_set:
        one.faults[node] = one.not_set[node]
    if seconds:
        one.seconds[node] = one.seconds.get(node, {}) | seconds


def _fold_node(one: Round, node: str, kind: str, event: Event) -> None:
    """What every node says of itself."""
    match kind:
        case "trained":
            if event["loss"] is not None:
                one.trained[node] = _number(event["loss"])
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
                one.computed[node] = min(1.0, trained / whole)
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
            one.said[node] = _said(event)
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


def _said(event: Event) -> Said:
    abstains, named = bool(event["abstains"]), _count(event["named"])
    block = _count(event["block"]) if event["block"] is not None else None
    theta = _text(event["theta"]) if event.get("theta") is not None else None
    peers = tuple(_text(peer) for peer in event["peers"]) if "peers" in event else None
    return Said(block, named, abstains, theta, peers, _number(event["stake"]) if "stake" in event else None)


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
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
