"""One round of a run, put together from its nodes' events (murmur/page/round_events.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]

PHASES = ("compute", "upload", "download", "apply")
GUESSES = ("right", "wrong")
CHAIN = "chain"
"""The node whose vote is what stands on chain: it comes before everybody's."""


@dataclass(frozen=True, slots=True)
class PostedVote:
    """A validator's vote. `named`: how many peers it names; the rest is known only where the vote was read from the
    chain. `theta`: the state that it holds; `stake`: share of the counted one."""

    block: int | None
    named: int
    abstains: bool
    theta: str | None = None
    peers: tuple[str, ...] | None = None
    stake: float | None = None


@dataclass(slots=True)
class Round:
    """Everything known of one round, by node: the last event of a kind counts. `judged`: by validator, what its report
    or its checks say of each hotkey."""

    number: int
    time: float = 0.0
    void: dict[str, bool] = field(default_factory=dict)
    cause: str | None = None
    """Of a void round, where the chain was read: a code of murmur/page/encode.py."""
    votes: dict[str, PostedVote] = field(default_factory=dict)
    first: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The peers that would contribute by a validator's own order."""
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
    """Share of the counted stake, of validators that are strangers: whose vote comes first, and counts how much."""
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
        """The node whose vote on the outcome counts: a validator's if there is one."""
        return next((node for node in sorted(self.void, key=lambda node: (node not in self.active, node))), None)
