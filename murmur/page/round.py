"""One round of a run, put together from its nodes' events (murmur/page/round_events.py)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, TypeVar

from gauntlet.account import SETTLED
from murmur.page.void import why_void

Event = Mapping[str, Any]
S = TypeVar("S")
T = TypeVar("T")

NOT_AGREED = "NOT_AGREED"
"""Of a peer that passed and has no other standing: it was not selected, or nobody was."""
APART = "APART"
"""Of a member of a cluster that trained from another model than the run's."""
PHASES = ("compute", "upload", "download", "apply")
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
    """Of a void round, where the chain was read: a code of murmur/page/void.py."""
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
    steps: dict[str, int] = field(default_factory=dict)
    """Member of a cluster -> the inner steps that it claims."""
    apart: set[str] = field(default_factory=set)
    """Members of a cluster that held another model than the run."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Node -> the tokens that it trained on."""
    closed_by: str | None = None
    """The member of a cluster whose record it is."""
    length: dict[str, float] = field(default_factory=dict)
    """Node -> seconds from the round before to this one."""
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

    def body(self, peers: Mapping[str, str]) -> dict[str, Any]:
        """As JSON. Losses in nats a token, `pay` in shares, `seconds` medians over nodes; null for what nobody told.
        peers: hotkey, or a member's id, by name of a node."""
        word = self.agreed()
        contributing = list(self.contributing.get(word, ())) if word is not None else []
        rejected, standing = dict(self._first(self.rejected, {})), dict(self._first(self.standing, {}))
        if word is not None:
            left_out = set(self._first(self.passed, ())) - {*contributing, *standing, *rejected}
            standing |= dict.fromkeys(sorted(left_out), NOT_AGREED)
            rejected |= {peers.get(node, node): APART if node in self.apart else "LATE" for node in sorted(self.steps)}
        pay = self._mean_pay()
        judged = {*contributing, *standing, *rejected}
        miners = [node for node in {**peers, **self.steps} if peers.get(node, node) in contributing]
        honest = [self.trained[node] for node in miners if node in self.trained] or list(self.trained.values())
        return {
            "round": self.number,
            "version": self.version,
            "time": self.time,
            "loss": fmean(self.held_out.values()) if self.held_out else None,
            "train_loss": median(honest) if honest else None,
            "tested": self.tested,
            "active": self._first(self.active, len(self.steps) or None),
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
            "loss_range": [min(honest), max(honest)] if honest else None,
            "computed_range": [round(end(self.computed.values()), 3) for end in (min, max)] if self.computed else None,
            "steps": _sum(self.steps, miners),
            "tokens": _sum(self.tokens, miners),
            "length": round(median(self.length.values()), 3) if self.length else None,
            "theta": self.theta.get(word) if word is not None else None,
            "closed_by": self.closed_by,
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


def _sum(found: Mapping[str, int], nodes: Iterable[str]) -> int | None:
    """The sum over these nodes, None where nothing is known of them."""
    return sum(own) if (own := [found[node] for node in nodes if node in found]) else None
