"""Times of a round's phases: begin, duration, whether critical, and concurrent phases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from murmur.plan.phases import Opening, Phase, Work
from murmur.plan.rates import Rate, Rates

_AN_INSTANT = 1e-9


@dataclass(frozen=True, slots=True)
class Timed:
    """A phase in time: `begins` in seconds from the commit deadline of the previous round. critical: a longer one makes
    a deadline later. overlaps: the phases of the same node that run at the same time."""

    phase: Phase
    begins: float
    seconds: float
    critical: bool
    overlaps: tuple[str, ...]

    @property
    def ends(self) -> float:
        return self.begins + self.seconds


def phase_seconds(phase: Phase, rates: Rates) -> float:
    """Return a phase's seconds: its work in sequence, or its concurrent work when that is longer."""
    return max(
        sum(work_seconds(work, rates) for work in phase.work), *(work_seconds(w, rates) for w in phase.beside), 0.0
    )


def work_seconds(work: Work, rates: Rates) -> float:
    rate: Rate = getattr(rates, work.rate)
    return rate.seconds(work.amount, work.threads)


def amount(phases: Sequence[Phase], rate: str) -> float:
    """Return the amount that a round's phases put through a rate, on average over rounds."""
    return sum(work.amount / p.every for p in phases for work in (*p.work, *p.beside) if work.rate == rate)


def schedule(
    phases: Sequence[Phase],
    rates: Rates,
    openings: Mapping[Opening, float],
    targets: Sequence[str],
    round_seconds: float,
) -> tuple[Timed, ...]:
    """Schedule every phase as early as it can begin. Critical phases are those without slack before the end of a
    target."""
    waits = {
        phase.name: phase.after if phase.after is not None else tuple(before.name for before in phases[at - 1 : at])
        for at, phase in enumerate(phases)
    }
    taken = {phase.name: phase_seconds(phase, rates) for phase in phases}
    begins: dict[str, float] = {}
    for phase in phases:  # phases are listed after those that they wait for
        earliest = openings[phase.opens] if phase.opens is not None else 0.0
        begins[phase.name] = max([earliest, *(begins[name] + taken[name] for name in waits[phase.name])])
    critical = set(targets)
    for phase in reversed(phases):
        if phase.name in critical:
            began = begins[phase.name]
            critical |= {name for name in waits[phase.name] if began - begins[name] - taken[name] <= _AN_INSTANT}

    ends = {name: began + taken[name] for name, began in begins.items()}
    idle = max(round_seconds, *(ends[name] for name in targets))

    def meet(one: str, other: str) -> bool:
        if one == other or not taken[one] or not taken[other]:
            return False
        shared = min(ends[one], ends[other]) - max(begins[one], begins[other])
        # A phase that outlasts the round overlaps all of the next.
        return shared > _AN_INSTANT or max(ends[one], ends[other]) > idle + _AN_INSTANT

    return tuple(
        Timed(
            phase,
            begins[phase.name],
            taken[phase.name],
            phase.name in critical,
            tuple(other.name for other in phases if meet(phase.name, other.name)),
        )
        for phase in phases
    )
