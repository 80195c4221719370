"""Who goes first where more are named than may contribute, and how many books are needed to name somebody: the arena's
networks under other rules than the one that was built (docs/decisions/0058-one-word-each.md).

    python benchmarks/order_study.py [--rounds 30] [--seeds 2] [--json]

Orders: `incentive` (built): the chain's, an eighth of the places for those without any; `quarter`, `twentieth`:
another share; `no-newcomers`: none. `leader`: of one validator's book, drawn by stake for each round, as it would be
before D. `ranks`: by the stake-weighted median of everybody's place in the validators' words. `named`: whom books
name: `eligible` (built) or `not-worthless`: all but those that were evaluated and are not eligible.

For each: share of the places that attackers hold, the fall of the loss, honest peer-rounds in time that some book finds
not eligible and that not more than half name (`left_out`), and rounds until an honest newcomer contributes.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import torch

from gauntlet import agreement
from gauntlet.agreement import Order
from gauntlet.checks import Checked
from gauntlet.selection import Ranking
from murmur.lab.arena.attacks import ATTACKS
from murmur.lab.arena.game import Game, RoundLog, Scenario
from murmur.lab.arena.policies import Policy, Round
from murmur.protocol.assignment import Draw
from murmur.protocol.types import PeerId, Standing, Uid

MIXED = ("garbage", "half-work", "half-rate", "copycat-exact", "framing", "split-in-two", "on-off", "flapping")
BUILT = Order.first
SHARES = {"incentive": agreement.NEWCOMERS_SHARE, "quarter": 4, "twentieth": 20}
"""One of so many places goes to newcomers."""

First = Callable[[Order, Collection[Uid]], list[Uid]]


class Watched:
    """A validator's judgement, with its last ranking."""

    def __init__(self, policy: Policy, named: str) -> None:
        self._policy, self._named = policy, named
        self.last = Ranking((), (), (), {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def rank(self, round: Round, checked: Checked) -> Ranking:
        found = self._policy.rank(round, checked)
        if self._named == "not-worthless":
            unknown = [peer for peer, why in found.standing.items() if why is Standing.NOT_ELIGIBLE]
            found = replace(found, order=(*found.order, *unknown))
        self.last = found
        return found


class Study(Game):
    """A game whose order is another one."""

    def __init__(self, scenario: Scenario, order: str, named: str) -> None:
        super().__init__(scenario)
        self.order = order
        self.judges = {peer: Watched(policy, named) for peer, policy in self.judges.items()}  # type: ignore[misc]
        self.left_out = self.known = 0
        self.first_seen: dict[PeerId, int] = {}
        self.waits: list[int] = []

    def round(self, number: int) -> RoundLog:
        agreement.NEWCOMERS_SHARE = SHARES.get(self.order, SHARES["incentive"])
        agreement.Order.first = BUILT if self.order in SHARES else self._first()  # type: ignore[method-assign]
        try:
            log = super().round(number)
        finally:
            agreement.Order.first = BUILT  # type: ignore[method-assign]
            agreement.NEWCOMERS_SHARE = SHARES["incentive"]
        self._count(number, log)
        return log

    def _first(self) -> First:
        """Of the validators' rankings as they are when it is asked."""

        def first(order: Order, uids: Collection[Uid]) -> list[Uid]:
            places = order.run.spec_at(order.round).gauntlet.contributors
            hotkeys = {uid: order.committed[uid][0] for uid in uids}
            return sorted(uids, key=lambda uid: (self._place(order, hotkeys[uid]), hotkeys[uid]))[:places]

        return first

    def _place(self, order: Order, peer: PeerId) -> float:
        orders: Sequence[Sequence[PeerId]] = [judge.last.order for judge in self.judges.values()]  # type: ignore[attr-defined]
        if self.order == "no-newcomers":
            return -next(float(p.incentive) for p in order.peers if p.id == peer)
        if self.order == "leader":
            drawn = Draw("leader", order.commit_hash).below(len(orders))
            orders = [orders[drawn]]
        return median(each.index(peer) if peer in each else len(order.peers) for each in orders)

    def _count(self, number: int, log: RoundLog) -> None:
        orders = [set(judge.last.order) for judge in self.judges.values()]  # type: ignore[attr-defined]
        for peer in log.punctual:
            if log.players[peer] in self.attackers:
                continue
            naming = sum(peer in order for order in orders)
            standings = [judge.last.standing.get(peer) for judge in self.judges.values()]  # type: ignore[attr-defined]
            low = Standing.LOW_SCORE in standings
            if naming or low:
                self.known += 1
                self.left_out += low and 2 * naming <= len(orders)
            if self.first_seen.setdefault(peer, number) >= 0 and peer in log.contributing:
                if self.first_seen[peer] > 5:
                    self.waits.append(number - self.first_seen[peer])
                self.first_seen[peer] = -1


def run(order: str, named: str, validators: int, attack: str, rounds: int, seeds: int) -> Mapping[str, Any]:
    kinds = {one.kind: one for one in ATTACKS}
    attacks = [
        kinds[kind]
        for kind in (MIXED if attack == "mixed" else () if attack == "clean" else (attack,))
        if kind in kinds
    ]
    held, progress, left_out, waits = [], [], [0, 0], list[int]()
    began = time.monotonic()
    for seed in range(seeds):
        game = Study(
            Scenario(seed, rounds, 36 - validators, attacks=tuple(attacks), validators=validators, churn=0.02),
            order,
            named,
        )
        logs = [game.round(number) for number in range(rounds)]
        theirs = [sum(log.players[peer] in game.attackers for peer in log.contributing) for log in logs]
        held.append(sum(theirs) / max(1, sum(len(log.contributing) for log in logs)))
        progress.append(game.first_loss - logs[-1].loss)
        left_out = [left_out[0] + game.left_out, left_out[1] + game.known]
        waits += game.waits
    return {
        "order": order,
        "seeds": seeds,
        "named": named,
        "validators": validators,
        "attack": attack,
        "attackers_places": round(fmean(held), 4),
        "progress": round(fmean(progress), 4),
        "left_out": round(left_out[0] / max(1, left_out[1]), 4),
        "newcomers_wait": round(fmean(waits), 2) if waits else None,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plans = [
        *((order, "eligible", 3, attack) for attack in ("clean", "mixed", "lying-validator") for order in ORDERS),
        *(("incentive", named, count, "mixed") for named in ("eligible", "not-worthless") for count in (1, 2, 3, 5)),
    ]
    for plan in plans:
        found = run(*plan, options.rounds, options.seeds)
        line = json.dumps(found) if options.json else "  ".join(f"{name} {value}" for name, value in found.items())
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


ORDERS = ("incentive", "quarter", "twentieth", "no-newcomers", "leader", "ranks")

if __name__ == "__main__":
    main()
