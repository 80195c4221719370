"""Faults for processes that train together: a schedule drawn from a seed, the same for every side that is compared."""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from murmur.lab.localnet.links import Links
from murmur.lab.localnet.processes import Processes
from murmur.protocol.errors import ConfigError

Kind = Literal["kill", "stop", "cut", "store"]

KINDS: tuple[Kind, ...] = ("kill", "stop")
"""Those that both sides can be given."""
ALL_KINDS: tuple[Kind, ...] = (*KINDS, "cut", "store")
"""`cut`: no byte passes a member's link. `store`: the store itself is killed."""
SECONDS: dict[Kind, tuple[float, float]] = {
    "kill": (1.0, 6.0),
    "stop": (3.0, 12.0),
    "cut": (3.0, 30.0),
    "store": (1.0, 15.0),
}
"""How long a killed process is kept away, a stopped one stopped, a link cut: drawn evenly between these."""
RECOVERY_SECONDS: dict[Kind, float] = {"kill": 20.0, "stop": 8.0, "cut": 15.0, "store": 20.0}
"""So much longer a member counts as down: it starts, or notices, and takes part again. No fault hits it then, so that
no process dies of its restarts."""
QUIET_SECONDS = 20.0
"""No fault so shortly before the end: its cost would lie behind it."""
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` and `seconds` are seconds, `at` from the beginning of the measured time. member: its index; the store's
    fault hits all of them."""

    at: float
    member: int
    kind: Kind
    seconds: float

    @property
    def over(self) -> float:
        return self.at + self.seconds + RECOVERY_SECONDS[self.kind]


def schedule(
    seed: int, members: int, seconds: float, per_hour: float, kinds: Sequence[Kind] = KINDS
) -> tuple[Fault, ...]:
    """Draw the faults of `seconds` at this rate, in order. One that would leave no member up is left out, and one of a
    member that is down, so fewer may come than the rate says. The store's come alone."""
    draw, found, at = random.Random(f"faults {seed}"), list[Fault](), 0.0
    while per_hour > 0:
        at += draw.expovariate(per_hour / 3600)
        if at > seconds - QUIET_SECONDS:
            break
        member, kind = draw.randrange(members), draw.choice(kinds)
        fault = Fault(round(at, 2), member, kind, round(draw.uniform(*SECONDS[kind]), 2))
        before = [earlier for earlier in found if earlier.over > fault.at]
        down = {earlier.member for earlier in before}
        alone = not before or "store" not in (kind, *(earlier.kind for earlier in before))
        if alone and member not in down and len(down) + 1 < members:
            found.append(fault)
    return tuple(found)


def supervise(processes: Processes) -> None:
    """Restart those that died. Raises ConfigError when one has ended for good."""
    if ended := processes.watch():
        raise ConfigError(f"{ended[0]} ended for good:\n{processes.last_lines(ended[0])}")


def play(
    faults: Sequence[Fault],
    seconds: float,
    processes: Processes,
    names: Sequence[str],
    say: Callable[[str], None],
    links: Links | None = None,
    look: Callable[[], None] = lambda: None,
) -> list[float]:
    """Do this to the processes for `seconds` and restart those that end. Return when each fault came, in seconds from
    the beginning. links: for `cut`. look: called again and again. Raises ConfigError when a process ends for good."""
    began, left, came = time.monotonic(), deque(faults), list[float]()
    cut: dict[str, float] = {}
    while (passed := time.monotonic() - began) < seconds:
        supervise(processes)
        look()
        for name in [name for name, until in cut.items() if until <= passed]:
            assert links is not None
            links.clear(name)
            del cut[name]
        if left and passed >= left[0].at:
            fault = left.popleft()
            what, name = ("kill", "store") if fault.kind == "store" else (fault.kind, names[fault.member])
            say(f"{passed:.0f} s: {what} of {name}, for {fault.seconds:.1f} s")
            if fault.kind == "stop":
                processes.freeze(name, fault.seconds)
            elif fault.kind == "cut":
                assert links is not None
                links.stall(name)
                cut[name] = passed + fault.seconds
            else:
                processes.kill(name, fault.seconds)
            came.append(round(passed, 2))
        time.sleep(LOOK_SECONDS)
    return came
