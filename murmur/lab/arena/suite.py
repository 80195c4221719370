"""The runs of a table, and the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

from murmur.lab.arena.attack import Attack
from murmur.lab.arena.game import Scenario, Story, play
from murmur.lab.arena.measure import AttackResult, honest_excluded, row

SAME = 0.01
"""Differences up to this, in honest peers' pay or in shares of the clean run's progress, are ignored."""

Tell = Callable[[str, int, float], None]
"""Called after every round: name of the run, rounds played, the loss."""


@dataclass(frozen=True)
class Table:
    """`clean` and `excluded` by policy: progress without attackers in nats per token, and the share of honest
    peer-rounds wrongly excluded over all runs. `stories` of all runs, by (what, policy)."""

    scenario: Scenario
    seeds: int
    clean: dict[str, float]
    excluded: dict[str, float]
    rows: tuple[AttackResult, ...]
    stories: dict[tuple[str, str], list[Story]]

    def notes(self, one: AttackResult) -> str:
        """Return in what respects our policy does worse than the published formulas; else ''."""
        other = next((o for o in self.rows if o.attack == one.attack and o.policy == "published"), None)
        if one.policy != "ours" or other is None:
            return ""
        worse = []
        if one.share > other.share + SAME:
            worse.append(f"takes {one.share:.2f} against {other.share:.2f}")
        if self.kept(one) < self.kept(other) - SAME:
            worse.append(f"keeps {self.kept(one):.3f} of the progress against {self.kept(other):.3f}")
        if other.meets and not one.meets:
            worse.append("the published formulas meet the class")
        return "; ".join(worse)

    def kept(self, one: AttackResult) -> float:
        """Return the progress over the clean run's under the same policy."""
        return one.progress / self.clean[one.policy]

    def to_body(self) -> dict[str, Any]:
        """Return the table as JSON. An infinite number of rounds (not out by the end) is null."""
        return {
            "clean_loss_progress": self.clean["ours" if "ours" in self.clean else "published"],
            "honest_excluded": self.excluded["ours" if "ours" in self.excluded else "published"],
            "rows": [
                {
                    "attack": one.attack,
                    "class": one.expected.value,
                    "policy": one.policy,
                    "rounds_to_ejection_median": _finite(one.ejection_median),
                    "rounds_to_ejection_p90": _finite(one.ejection_p90),
                    "weight_share_vs_honest": one.share,
                    "loss_progress": one.progress,
                    "work": one.work,
                    "rejected": one.rejected,
                    "meets_class": one.meets,
                    "earns_at_most_its_work": one.is_fair,
                    "note": self.notes(one),
                }
                for one in self.rows
            ],
            "policies": {
                policy: {"clean_loss_progress": self.clean[policy], "honest_excluded": self.excluded[policy]}
                for policy in self.clean
            },
            "scenario": {
                "hotkeys": self.scenario.hotkeys,
                "rounds": self.scenario.rounds,
                "seed": self.scenario.seed,
                "seeds": self.seeds,
                "validators": self.scenario.validators,
                "attackers": self.scenario.share,
                "trouble": self.scenario.trouble,
                "churn": self.scenario.churn,
            },
        }


def standard(base: Scenario, attacks: Sequence[type[Attack]], policies: Sequence[str], seeds: int, tell: Tell) -> Table:
    """Play every attack alone, with a third of all hotkeys, and one clean run; with each policy and seed."""
    stories: dict[tuple[str, str], list[Story]] = {}
    for policy in policies:
        for attack in (None, *attacks):
            what = "clean" if attack is None else attack.kind
            chosen = replace(base, policy=policy, attacks=() if attack is None else (attack,))
            stories[what, policy] = _played(chosen, f"{what}, {policy}", seeds, tell)
    rows = [row(attack, policy, stories[attack.kind, policy]) for attack in attacks for policy in policies]
    return _table(base, seeds, policies, rows, stories)


def together(base: Scenario, attacks: Sequence[type[Attack]], policies: Sequence[str], seeds: int, tell: Tell) -> Table:
    """Play all attacks in one run, a third of all hotkeys divided among them, and one clean run. Those of
    murmur/lab/arena/kinds.py `ALONE` are excluded: the judge's or the majority's behaviour affects a whole run."""
    stories: dict[tuple[str, str], list[Story]] = {}
    for policy in policies:
        stories["clean", policy] = _played(replace(base, policy=policy), f"clean, {policy}", seeds, tell)
        mixed = replace(base, policy=policy, attacks=tuple(attacks))
        stories["together", policy] = _played(mixed, f"together, {policy}", seeds, tell)
    rows = [row(attack, policy, stories["together", policy]) for attack in attacks for policy in policies]
    return _table(base, seeds, policies, rows, stories)


SUITES: dict[str, Callable[[Scenario, Sequence[type[Attack]], Sequence[str], int, Tell], Table]] = {
    "standard": standard,
    "together": together,
}


def _played(scenario: Scenario, name: str, seeds: int, tell: Tell) -> list[Story]:
    stories = []
    for seed in range(scenario.seed, scenario.seed + seeds):
        stories.append(play(replace(scenario, seed=seed), partial(tell, f"{name}, seed {seed}")))
    return stories


def _table(
    base: Scenario,
    seeds: int,
    policies: Sequence[str],
    rows: Sequence[AttackResult],
    stories: dict[tuple[str, str], list[Story]],
) -> Table:
    clean = {policy: _mean_progress(stories["clean", policy]) for policy in policies}
    excluded = {
        policy: honest_excluded(story for (_, theirs), found in stories.items() if theirs == policy for story in found)
        for policy in policies
    }
    return Table(base, seeds, clean, excluded, tuple(rows), stories)


def _mean_progress(stories: Sequence[Story]) -> float:
    return sum(story.progress for story in stories) / len(stories)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
