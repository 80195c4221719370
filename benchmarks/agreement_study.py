"""Vetoes against approvals: what late, absent, returning and hostile validators make of the rounds of a run. Vetoes are
a small model of the rule before protocol version 2, approvals the real agreement over statements on a chain of nothing
else (docs/decisions/0021-approve-not-veto.md). Prints a JSON line a scenario.

    python benchmarks/agreement_study.py --rounds 400

A round is *void* when nothing is agreed, and *poisoned* when a hostile validator's record is: its bytes are nowhere, so
under vetoes the run ends there and what follows is hypothetical. A validator that is late says nothing by X, neither as
leader nor otherwise. A hostile one is never late, and vetoes or approves so that it does most harm.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

from arena.stage import POINTER, make_spec, named
from gauntlet import agreement
from gauntlet.agreement import (
    Claim,
    Views,
    agreed,
    announcement,
    attestation_for,
    electorate,
    leader_order,
    record_for,
)
from protocol.messages import first_link
from protocol.spec import Run
from protocol.types import Attestation, Commitment, Peer, PeerId, Record, Slot, Uid

RUN = Run(make_spec(0))
CLOCK = RUN.clock
GOOD: Claim = (named("theta"), first_link(RUN.id))
POISON: Claim = (named("nobody's theta"), first_link(RUN.id))
VETO_STATEMENT_ROUNDS = 8
"""How long a word lasted under vetoes."""

SOCIETIES: Mapping[str, tuple[Sequence[int], int]] = {
    "2 equal": ((1, 1), 0),
    "3 equal": ((1, 1, 1), 0),
    "5 equal": ((1,) * 5, 0),
    "9 equal": ((1,) * 9, 0),
    "40, 20, 15, 10, 8, 7": ((40, 20, 15, 10, 8, 7), 0),
    "3 equal, 1 hostile": ((1, 1, 1), 1),
    "6 equal, 2 hostile": ((1,) * 6, 2),
    "9 equal, 3 hostile": ((1,) * 9, 3),
    "10^15 and 1, the 1 hostile": ((10**15, 1), 1),
}
"""Stakes, and how many of the last are hostile."""

Rule = Callable[["Society", int, Collection[int]], PeerId | None]
"""(society, round, places of those that speak in time) -> author of the agreed record."""


class Society:
    """Validators and their slots. The hostile ones are the last."""

    def __init__(self, stakes: Sequence[int], hostile: int) -> None:
        self.stakes = stakes
        self.ids = [PeerId(named("validator", place)) for place in range(len(stakes))]
        self.hostile = set(self.ids[len(stakes) - hostile :])
        self.slots = [Slot(0, POINTER, announcement(RUN, GOOD[0])) for _ in stakes]

    def peers(self, round: int) -> tuple[Peer, ...]:
        """The chain's view: the validators, and one miner that has committed."""
        commitment = Slot(CLOCK.commit_by(round), POINTER, Commitment(round, named("envelope")))
        validators = (
            Peer(peer, Uid(1 + place), self.stakes[place], True, slot=self.slots[place])
            for place, peer in enumerate(self.ids)
        )
        return (Peer(PeerId(named("miner")), Uid(0), 0, False, slot=commitment), *validators)

    def say(self, place: int, block: int, statement: Record | Attestation) -> None:
        self.slots[place] = Slot(block, POINTER, statement)

    def share(self, places: Collection[int]) -> float:
        return sum(self.stakes[place] for place in places) / sum(self.stakes)


def approvals(society: Society, round: int, there: Collection[int]) -> PeerId | None:
    """The real rule. A hostile validator's record is false in bytes that nobody checks but those that would approve
    it; so it names the true theta, and all hostile ones approve it, and no other."""
    commit_hash, at_commit = named("block D", round), society.peers(round)
    order = leader_order(RUN, round, commit_hash, at_commit)
    views, wrong = [], set()
    for index in range(CLOCK.leader_slots):
        if index < len(order) and (place := society.ids.index(order[index])) in there:
            society.say(place, CLOCK.slot(round, index)[0], record_for(round, [Uid(0)], *GOOD))
        if index < len(order) and order[index] in society.hostile:
            wrong.add(index)
        views.append(society.peers(round))
    for place in there:
        good = {index for index in range(len(order)) if index not in wrong}
        approved = wrong if society.ids[place] in society.hostile else good
        society.say(place, CLOCK.attest_by(round), attestation_for(round, approved, *GOOD))
    seen = Views(at_commit, views, society.peers(round))
    return agreed(RUN, round, *GOOD, commit_hash, seen, CLOCK.attest_by(round)).author


def vetoes(society: Society, round: int, there: Collection[int]) -> PeerId | None:
    """The rule before: the theta with most counted stake among those that speak, the first record that vetoes of others
    with half of all counted stake do not stop. A hostile validator vetoes all honest records, an honest one all hostile
    ones; theta is voted on, so a hostile record names one that nobody has."""
    commit_hash = named("block D", round)
    with lasting(VETO_STATEMENT_ROUNDS):
        stakes = electorate(RUN, round, society.peers(round))
        order = leader_order(RUN, round, commit_hash, society.peers(round))
    speaking = {society.ids[place] for place in there}
    for place in there:
        society.say(place, CLOCK.attest_by(round), attestation_for(round, (), *GOOD))
    said = {
        theta: sum(stakes.get(peer, 0) for peer in speaking if (peer in society.hostile) == (theta == POISON))
        for theta in (GOOD, POISON)
    }
    for author in order:
        hostile = author in society.hostile
        against = sum(stakes.get(peer, 0) for peer in speaking if (peer in society.hostile) != hostile)
        named_theta = POISON if hostile else GOOD
        stopped = 2 * against >= sum(stakes.values()) and against > 0
        if author in speaking and said[named_theta] == max(said.values()) and not stopped:
            return author
    return None


@contextmanager
def lasting(rounds: int) -> Iterator[None]:
    """While a word lasts for so many rounds."""
    before, agreement.STATEMENT_ROUNDS = agreement.STATEMENT_ROUNDS, rounds
    try:
        yield
    finally:
        agreement.STATEMENT_ROUNDS = before


RULES: Mapping[str, Rule] = {"vetoes": vetoes, "approvals": approvals}


def shares(society: Society, rule: Rule, present: Sequence[Collection[int]]) -> dict[str, float]:
    """Shares of rounds. `alone`: something is agreed while those that speak hold at most half of all stake."""
    void = poisoned = alone = 0
    for number, there in enumerate(present):
        author = rule(society, number, there)
        void += author is None
        poisoned += author in society.hostile
        alone += author is not None and 2 * society.share(there) <= 1
    counts = {"void": void, "poisoned": poisoned, "alone": alone}
    return {name: round(count / len(present), 4) for name, count in counts.items()}


def late(stakes: Sequence[int], hostile: int, share: float, rounds: int, seed: int) -> list[list[int]]:
    """Who speaks in time, when each honest validator is late with probability `share`."""
    random, honest = Random(seed), len(stakes) - hostile
    return [
        [place for place in range(len(stakes)) if place >= honest or random.random() >= share] for _ in range(rounds)
    ]


def outages(stakes: Sequence[int], up: float, down: float, rounds: int, seed: int) -> list[list[int]]:
    """Who speaks, when each validator is up and down for that many rounds on average (geometric)."""
    random, away = Random(seed), [False] * len(stakes)
    found = []
    for _ in range(rounds):
        away = [random.random() >= 1 / down if gone else random.random() < 1 / up for gone in away]
        found.append([place for place, gone in enumerate(away) if not gone])
    return found


def back_after(rule: Rule, stakes: Sequence[int], hostile: int, away: int) -> dict[str, int | None]:
    """The honest are away for that many rounds and come back. `poisoned`: rounds from then on until the run goes on;
    `back`: rounds from the return to the first agreed record of an honest leader, None for never: what was agreed
    meanwhile binds them under vetoes, under approvals they go on from the state that they have."""
    society, before = Society(stakes, hostile), 12
    everybody = range(len(stakes))
    for round in range(before):
        rule(society, round, everybody)
    poisoned = 0
    for round in range(before, before + away + 20):
        author = rule(society, round, everybody[len(stakes) - hostile :] if round < before + away else everybody)
        poisoned += author in society.hostile
        if author is not None and author not in society.hostile:
            stuck = poisoned > 0 and rule is vetoes
            return {"poisoned": poisoned, "back": None if stuck else round + 1 - before - away}
    return {"poisoned": poisoned, "back": None}


def lines(rounds: int, seed: int) -> Iterator[dict[str, object]]:
    for name, (stakes, hostile) in SOCIETIES.items():
        for share in (0.0, 0.02, 0.05, 0.1):
            present = late(stakes, hostile, share, rounds, seed)
            for rule in RULES:
                found = shares(Society(stakes, hostile), RULES[rule], present)
                yield {"validators": name, "late": share, "rule": rule} | found
    for name in ("2 equal", "3 equal", "40, 20, 15, 10, 8, 7"):
        stakes, hostile = SOCIETIES[name]
        for down in (1.5, 4.0, 16.0):
            present = outages(stakes, 100.0, down, 2 * rounds, seed)
            found = shares(Society(stakes, 0), vetoes, present)
            yield {"validators": name, "rounds down": down, "rule": "vetoes", "word lasts": 8} | found
            for lasts in (1, 2, 3, 4, 6, 8):
                with lasting(lasts):
                    found = shares(Society(stakes, 0), approvals, present)
                yield {"validators": name, "rounds down": down, "rule": "approvals", "word lasts": lasts} | found
    for name in ("3 equal, 1 hostile", "10^15 and 1, the 1 hostile"):
        for away in (1, 3, 4, 8, 20):
            for rule in RULES:
                back = back_after(RULES[rule], *SOCIETIES[name], away)
                yield {"validators": name, "honest away": away, "rule": rule, **back}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for line in lines(options.rounds, options.seed):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
