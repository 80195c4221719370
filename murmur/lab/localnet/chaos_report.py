"""Analysis of a chaotic network: which void rounds the injections explain, which nodes recovered, and which were
blamed.

Only an injection counts as an explanation, and only for a limited time: a node that does not recover by itself explains
nothing. Rounds are numbered; round r's window is the time from its start to that of round r + 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import floor
from typing import Any

from murmur.lab.localnet.chaos_injector import Injected

Event = Mapping[str, Any]

PATIENCE_ROUNDS = {"wipe": 4, "join": 4}
"""Rounds within which a node has to work again after an injection; RETURN_ROUNDS for all other kinds."""
RETURN_ROUNDS = 2
SETTLE_ROUNDS = 0.5
"""Rounds within which nodes ended by a server's outage are restarted after it."""
WORKS = {"validator": "checked", "miner": "committed"}
"""Role -> the event that shows that a node has done its part of a round."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A fault that a validator booked on an honest peer, although neither was disturbed."""

    round: int
    validator: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The analysis, from the injections and the honest nodes' events.

    `roles`: honest node -> its role. `addresses`: hotkey -> honest node. `void`: round -> whether it was void, for all
    decided rounds.
    """

    injected: Sequence[Injected]
    roles: Mapping[str, str]
    addresses: Mapping[str, str]
    events: Mapping[str, Sequence[Event]]
    void: Mapping[int, bool]

    def back_in(self, injected: Injected) -> int | None:
        """Return the first round in which the node did its part after the injection; for a server the first round that
        was not void. None when there was none."""
        if injected.over is None or injected.ended is None:
            return None
        over = injected.over
        if injected.node not in self.roles:
            return min((r for r, void in self.void.items() if not void and r >= floor(injected.began)), default=None)
        return next((event["round"] for event in self._works(injected.node) if event["time"] > over), None)

    def back_after(self, injected: Injected) -> int | None:
        """Return the rounds from the injection's round to the one in which the node worked again."""
        back = self.back_in(injected)
        return None if back is None else max(0, back - floor(injected.began))

    def disturbed(self, injected: Injected) -> range:
        """Return the rounds for which the injection is an excuse."""
        first = 0 if injected.kind == "join" else floor(injected.began)
        if injected.ended is None:
            return range(first, 1 << 31)
        if injected.node not in self.roles:
            return range(first, floor(injected.ended + SETTLE_ROUNDS) + 1)
        last = floor(injected.ended)
        back, patience = self.back_in(injected), PATIENCE_ROUNDS.get(injected.kind, RETURN_ROUNDS)
        end = last + patience if back is None else min(back, last + patience)
        return range(first, max(last + 1, end))

    def excused(self, node: str, round: int) -> bool:
        """Whether an injection hit this node, or a server, in that round."""
        return any(
            round in self.disturbed(injected)
            for injected in self.injected
            if injected.node == node or injected.node not in self.roles
        )

    def explained(self, round: int) -> bool:
        """Whether half of the validators, or a server, were disturbed in that round. All validators have the same stake
        here, so the votes of the other half are no majority."""
        validators = [name for name, role in self.roles.items() if role == "validator"]
        return 2 * sum(self.excused(name, round) for name in validators) >= len(validators)

    def unexplained(self) -> list[int]:
        """Return the void rounds without an explanation."""
        return [round for round, void in self.void.items() if void and not self.explained(round)]

    def blames(self) -> list[Blame]:
        """Return the faults that undisturbed validators booked on undisturbed honest peers."""
        return [
            Blame(round, validator, peer, reason)
            for validator, round, peer, reason in sorted(set(self._booked()))
            if not self.excused(validator, round) and not self.excused(peer, round)
        ]

    def _booked(self) -> Iterator[tuple[str, int, str, str]]:
        for name, role in self.roles.items():
            for event in self.events[name] if role == "validator" else ():
                if event["event"] == "reported":
                    for hotkey, row in event["peers"].items():
                        if "rejected" in row and hotkey in self.addresses:
                            yield name, event["round"], self.addresses[hotkey], row["rejected"]

    def body(self, seed: int, ended_for_good: int) -> dict[str, Any]:
        """Return `chaos` of report.json."""
        unexplained, blames = self.unexplained(), self.blames()
        return {
            "seed": seed,
            "injected": [
                {
                    "kind": injected.kind,
                    "node": injected.node,
                    "round": max(0, floor(injected.began)),
                    "seconds": injected.seconds,
                    "back_after_rounds": self.back_after(injected),
                }
                for injected in self.injected
            ],
            "void_rounds": sum(self.void.values()),
            "void_unexplained": len(unexplained),
            "unexplained": unexplained,
            "ended_for_good": ended_for_good,
            "honest_faults_booked": len(blames),
            "blames": [asdict(blame) for blame in blames],
            "longest_absence_rounds": self.longest_absence(),
        }

    def longest_absence(self) -> int:
        """Return the most consecutive rounds, from the first one on, in which an honest node did not do its part."""
        return max((_longest_gap(self._worked(name), len(self.void)) for name in self.roles), default=0)

    def _worked(self, node: str) -> list[int]:
        """Return the decided rounds of which the node did its part."""
        return sorted({event["round"] for event in self._works(node)} & set(self.void))

    def _works(self, node: str) -> Iterator[Event]:
        wanted = WORKS[self.roles[node]]
        return (event for event in self.events[node] if event["event"] == wanted and event.get("in_time", True))


def survived(chaos: Mapping[str, Any]) -> bool:
    """Whether a report's `chaos` shows no forbidden outcome. A node whose home was lost must also work again in
    time."""
    back = (entry["back_after_rounds"] for entry in chaos["injected"] if entry["kind"] == "wipe")
    bad = chaos["void_unexplained"] + chaos["ended_for_good"] + chaos["honest_faults_booked"]
    return not bad and all(rounds is not None and rounds <= PATIENCE_ROUNDS["wipe"] for rounds in back)


def _longest_gap(numbers: Sequence[int], end: int) -> int:
    """Return the most consecutive missing numbers, from the first one present to `end`; all of them when there is
    none."""
    return max((later - sooner - 1 for sooner, later in pairwise([*numbers, end])), default=end)
