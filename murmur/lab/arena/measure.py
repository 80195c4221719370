"""Measurements of a run's story: exclusions of honest peers, ejection times of attackers, and their pay."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import fmean, median, pstdev

from murmur.lab.arena.attack import Attack, Expected
from murmur.lab.arena.game import RoundLog, Story
from murmur.protocol.types import PeerId, Standing

SOON = 10
"""Rounds within which an attacker of that class has to be out."""

NEAR_THE_END = 5
"""A hotkey that is still named or paid in one of the last rounds is not out."""

DEVIATIONS = 2.0
"""Permitted excess of an attacker's pay over its work, in standard errors of honest peers' own spread."""

NOTHING = 0.01
"""Pay, in honest peers' pay, that counts as none: from the first rounds, in which the validators know no peer yet."""


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack under one policy, over all seeds.

    `ejection_*`: rounds until it was out for good, infinite when it was not. `share`: pay of one attacker, all its
    hotkeys together, over an honest peer's. `work`: its work, in honest peers. `allowed`: the most pay that its work
    justifies. `rejected`: share of its submissions that the fast checks refused.
    """

    attack: str
    expected: Expected
    policy: str
    ejection_median: float
    ejection_p90: float
    share: float
    work: float
    allowed: float
    rejected: float
    progress: float
    meets: bool

    @property
    def is_fair(self) -> bool:
        """Whether it earns no more than an honest peer that does this work."""
        return self.share <= self.allowed


def row(attack: type[Attack], policy: str, stories: Sequence[Story]) -> AttackResult:
    """Measure one attack in runs that differ only in their seed."""
    kind = attack.kind
    ejections = [rounds for story in stories for rounds in _ejections(story, kind)]
    shares = [share for story in stories for share in _shares(story, _names(story, kind))]
    honest = [share for story in stories for share in _shares(story, _honest(story))]
    usual = fmean(honest)
    works = [work for story in stories for work in _works(story, kind)]
    share, work = (fmean(shares) / usual if usual else 0.0), fmean(works)
    spread = pstdev(honest) / usual / sqrt(len(shares)) if usual else 0.0
    sent = [peer in log.rejected for story in stories for log, peer in _sent(story, kind)]
    refused = fmean(sent) if sent else 1.0
    p90 = _quantile(ejections, 0.9)
    allowed = max(NOTHING, work + DEVIATIONS * spread * min(1.0, work))
    met = {
        Expected.AT_ONCE: refused == 1.0 and p90 == 0.0,
        Expected.SOON: p90 <= SOON,
        Expected.NEVER: share == 0.0 and not any(_contributed(story, kind) for story in stories),
        Expected.UNPAID: share <= NOTHING,
        Expected.PROPORTION: share <= allowed,
    }
    progress = fmean(story.progress for story in stories)
    return AttackResult(
        kind,
        attack.expected,
        policy,
        median(ejections),
        p90,
        share,
        work,
        allowed,
        refused,
        progress,
        met[attack.expected],
    )


def honest_excluded(stories: Iterable[Story]) -> float:
    """Return the share of honest peer-rounds, sent in time and with their key, that were rejected or LOW_SCORE."""
    wrong = all_of_them = 0
    for story in stories:
        for log in story.rounds:
            sent = [peer for peer in log.punctual if log.players[peer] not in story.attackers]
            all_of_them += len(sent)
            wrong += sum(peer in log.rejected or log.standing.get(peer) is Standing.LOW_SCORE for peer in sent)
    return wrong / all_of_them if all_of_them else 0.0


def _names(story: Story, kind: str) -> set[str]:
    return {name for name, theirs in story.attackers.items() if theirs == kind}


def _honest(story: Story) -> set[str]:
    return {name for log in story.rounds for name in log.players.values() if name not in story.attackers}


def _shares(story: Story, names: set[str]) -> list[float]:
    """Return each player's mean pay per round, over the rounds in which it took part."""
    paid: dict[str, float] = dict.fromkeys(sorted(names), 0.0)
    rounds: dict[str, int] = dict.fromkeys(paid, 0)
    for log in story.rounds:
        for name in sorted(set(log.players.values()) & names):
            rounds[name] += 1
        for peer, name in log.players.items():
            if name in names:
                paid[name] += log.paid.get(peer, 0.0)
    return [paid[name] / rounds[name] for name in paid if rounds[name]]


def _works(story: Story, kind: str) -> list[float]:
    return [fmean(log.work.get(name, 0.0) for log in story.rounds) for name in sorted(_names(story, kind))]


def _sent(story: Story, kind: str) -> list[tuple[RoundLog, PeerId]]:
    names = _names(story, kind)
    return [(log, peer) for log in story.rounds for peer in sorted(log.sent) if log.players[peer] in names]


def _ejections(story: Story, kind: str) -> list[float]:
    """Return for every hotkey the rounds from its first to its last in which it contributed or was paid."""
    names = _names(story, kind)
    first: dict[PeerId, int] = {}
    last: dict[PeerId, int] = {}
    for number, log in enumerate(story.rounds):
        for peer, name in log.players.items():
            if name in names:
                first.setdefault(peer, number)
                if peer in log.contributing or log.paid.get(peer, 0.0) > 0:
                    last[peer] = number
    end = len(story.rounds) - NEAR_THE_END
    still = set(story.rounds[-1].players)
    return [
        0.0 if peer not in last else inf if peer in still and last[peer] >= end else last[peer] - first[peer] + 1.0
        for peer in sorted(first)
    ]


def _contributed(story: Story, kind: str, opening_rounds: int = 3) -> bool:
    """Whether one of its hotkeys contributed after the opening rounds, in which any peer that passes may."""
    names = _names(story, kind)
    late = story.rounds[opening_rounds:]
    return any(log.players.get(peer) in names for log in late for peer in log.contributing)


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]
