"""How often honest validators would not approve each other's records by their books: arena runs with five honest
validators, of which one joins late and one misses a fifth of the rounds (docs/decisions/0016-vetoes-by-the-book.md).
Prints a JSON line an attack, and one each kind of validator and author.

    python benchmarks/veto_rates.py --seeds 2 --attacks half-work,wrong-data
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from arena.attacks import ATTACKS
from arena.game import Game, Scenario
from arena.kinds import KINDS
from arena.policies import Ours, Round
from gauntlet.checks import Checked
from gauntlet.selection import Ranking, doubted
from protocol.assignment import Draw
from protocol.types import PeerId, Uid

JOINS = 12
"""Round in which the late one begins to learn."""

MISSES = 0.2


class Flaky(Ours):
    """Misses a share of the rounds."""

    def is_away(self, round: Round) -> bool:
        return Draw("away", round.run, round.validator, round.number).unit() < MISSES

    def learn(self, round: Round, checked: Checked, ranking: Ranking, contributing: frozenset[PeerId]) -> set[PeerId]:
        return set() if self.is_away(round) else super().learn(round, checked, ranking, contributing)


class Late(Flaky):
    """Joins late with an empty book, and leads from the round after."""

    def is_away(self, round: Round) -> bool:
        return round.number < JOINS

    def rank(self, round: Round, checked: Checked) -> Ranking:
        return super().rank(round, checked) if round.number > JOINS else Ranking((), (), (), {})

    def tolerates(self, round: Round, checked: Checked, named: Collection[PeerId]) -> bool:
        return round.number < JOINS or super().tolerates(round, checked, named)


@dataclass(frozen=True, slots=True)
class Look:
    """One validator's look at another's record."""

    judge: str
    author: str
    named: int
    doubted: int
    vetoed: bool


class Watched(Game):
    """Notes every look."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        late, flaky = self.validators[-2:]
        self.kinds = dict.fromkeys(self.validators, "steady") | {late: "late", flaky: "flaky"}
        self.judges |= {late: Late(), flaky: Flaky()}
        self.looks: list[Look] = []

    def _approves(self, round: Round, author: PeerId, named_uids: Sequence[Uid], checked: Checked) -> bool:
        approved = super()._approves(round, author, named_uids, checked)
        judge = self.judges[round.validator]
        is_there = not (isinstance(judge, Late) and judge.is_away(round))
        if round.validator != author and is_there and isinstance(judge, Ours):
            named = {peer for peer, uid in round.uids.items() if uid in named_uids}
            doubts = doubted(judge.book, named, checked.passed, round.spec.gauntlet, round.number)
            self.looks.append(
                Look(self.kinds[round.validator], self.kinds[author], len(named), len(doubts), not approved)
            )
        return approved


def watch(scenario: Scenario) -> list[Look]:
    game = Watched(scenario)
    for number in range(scenario.rounds):
        game.round(number)
    return game.looks


def summary(looks: Sequence[Look]) -> dict[str, object]:
    doubts = Counter(look.doubted for look in looks)
    vetoed = sum(look.vetoed for look in looks)
    return {"looks": len(looks), "vetoed": vetoed, "doubted: looks": {str(n): doubts[n] for n in sorted(doubts)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--attacks", default="wrong-data,half-work,slack-while-unseen,sybil-split", help=", ".join(KINDS)
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--hotkeys", type=int, default=33)
    options = parser.parse_args()
    torch.set_num_threads(1)
    everything: list[Look] = []
    for kind in ("clean", *options.attacks.split(",")):
        attacks = tuple(attack for attack in ATTACKS if attack.kind == kind)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            looks = watch(Scenario(seed, options.rounds, options.hotkeys, attacks=attacks, validators=5))
            everything += looks
            sys.stdout.write(json.dumps({"attack": kind, "seed": seed} | summary(looks)) + "\n")
            sys.stdout.flush()
    for judge, author in sorted({(look.judge, look.author) for look in everything}):
        chosen = [look for look in everything if (look.judge, look.author) == (judge, author)]
        sys.stdout.write(json.dumps({"judge": judge, "author": author} | summary(chosen)) + "\n")


if __name__ == "__main__":
    main()
