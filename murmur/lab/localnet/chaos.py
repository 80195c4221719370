"""The faults of a chaotic network and their times, drawn from a seed alone. Times are in rounds, so a seed means the
same on every machine.

Two decks are dealt, each shuffled again when it is empty. The heavy deck hits validators, the store and the chain, one
at a time with pauses, because each fault can cost a round. The light deck hits miners, perhaps several at a time, but
never one that is already down. The first and the last rounds are quiet: a network has to start, and the last victim has
to be seen to recover.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from murmur.protocol.assignment import Draw

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "kill": "killed",
        "absent": "killed and kept away",
        "wipe": "killed, and its home lost",
        "freeze": "frozen",
        "late": "frozen beyond the block by which commitments count",
        "slow": "on a slow link",
        "stall": "on a link that passes nothing",
        "join": "started for the first time",
    }
)
"""kind -> what is done to a process."""

QUIET_START, QUIET_END = 2, 4
LIGHT_GAP = 1.5

_LENGTHS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"absent": (1.5, 3.0), "freeze": (0.3, 1.0), "late": (0.6, 0.9), "slow": (1.0, 2.0), "stall": (0.5, 1.0)}
)
"""Shortest and longest duration in rounds; all other kinds have none."""

_SERVER_FREEZE = (0.1, 0.4)
_HEAVY: Sequence[tuple[str, str, float]] = (
    ("kill", "validator", 2.0),
    ("wipe", "validator", 4.0),
    ("freeze", "validator", 2.0),
    ("stall", "validator", 2.0),
    ("kill", "store", 1.0),
    ("freeze", "store", 1.0),
    ("kill", "devnet", 1.0),
    ("freeze", "devnet", 1.0),
)
"""Kind, target, and the rounds until the next injection."""
_LIGHT = ("kill", "absent", "wipe", "freeze", "late", "slow", "stall")
_RECOVERY = 2.0
"""Rounds without another fault after a miner was hit."""


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault. `at`: rounds since the start of round 0. `rounds`: its duration; 0 for an instant one."""

    kind: str
    node: str
    at: float
    rounds: float


def done(kind: str, node: str, seconds: float) -> str:
    """Return an injection as text for people."""
    return f"{node} {KINDS[kind]}" + (f" for {seconds:.1f} s" if seconds else "")


def draw(
    seed: int, rounds: int, validators: Sequence[str], miners: Sequence[str], newcomers: Sequence[str] = ()
) -> tuple[Injection, ...]:
    """Return all faults of a network of these nodes, by time. Only `miners` and `validators` are hit, and the two
    servers."""
    luck = Draw("chaos", seed.to_bytes(8, "little"))
    end = rounds - QUIET_END
    plan = [*_heavy(luck, end, validators), *_light(luck, end, miners)]
    for name in newcomers:
        plan.append(Injection("join", name, _between(luck, QUIET_START, max(QUIET_START, rounds / 2)), 0.0))
    return tuple(sorted(plan, key=lambda injection: injection.at))


def _heavy(luck: Draw, end: float, validators: Sequence[str]) -> Iterator[Injection]:
    deck: list[tuple[str, str, float]] = []
    at, hit = float(QUIET_START), luck.below(len(validators))
    while at < end:
        if not deck:
            deck = luck.sample(_HEAVY, len(_HEAVY))
        kind, whom, gap = deck.pop()
        length = _between(luck, *_LENGTHS.get(kind, (0.0, 0.0)))
        if whom == "validator":
            hit, whom = hit + 1, validators[hit % len(validators)]
        elif kind == "freeze":
            length = _between(luck, *_SERVER_FREEZE)
        moment = at + luck.unit() * 0.8
        at += gap
        if moment < end:
            yield Injection(kind, whom, moment, length)


def _light(luck: Draw, end: float, miners: Sequence[str]) -> Iterator[Injection]:
    deck: list[str] = []
    free = dict.fromkeys(miners, 0.0)
    at = QUIET_START - 0.5
    while at < end:
        if not deck:
            deck = luck.sample(_LIGHT, len(_LIGHT))
        kind = deck.pop()
        length = _between(luck, *_LENGTHS.get(kind, (0.0, 0.0)))
        moment = at + luck.unit()
        if kind == "late":
            moment = float(round(moment))
        idle = [name for name in miners if free[name] <= moment]
        if idle and moment < end:
            name = luck.sample(idle, 1)[0]
            free[name] = moment + length + _RECOVERY
            yield Injection(kind, name, moment, length)
        at += LIGHT_GAP


def _between(luck: Draw, least: float, greatest: float) -> float:
    return least + luck.unit() * (greatest - least)
