"""Faults for processes that train together: a schedule drawn from a seed, the same for every side that is compared."""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from localnet.processes import Processes
from protocol.errors import ConfigError

Kind = Literal["kill", "stop"]

KINDS: tuple[Kind, ...] = ("kill", "stop")
SECONDS: dict[Kind, tuple[float, float]] = {"kill": (1.0, 6.0), "stop": (3.0, 12.0)}
"""How long a killed process is kept away, and a stopped one stopped: drawn evenly between these."""
RECOVERY_SECONDS: dict[Kind, float] = {"kill": 20.0, "stop": 8.0}
"""So much longer a member counts as down: it starts, or notices, and takes part again. No fault hits it then, so that
no process dies of its restarts."""
QUIET_SECONDS = 20.0
"""No fault so shortly before the end: its cost would lie behind it."""
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` and `seconds` are seconds, `at` from the beginning of the measured time. member: its index."""

    at: float
    member: int
    kind: Kind
    seconds: float

    @property
    def over(self) -> float:
        return self.at + self.seconds + RECOVERY_SECONDS[self.kind]


def schedule(seed: int, members: int, seconds: float, per_hour: float) -> tuple[Fault, ...]:
    """Draw the faults of `seconds` at this rate, in order. One that would leave no member up is left out, and one of a
    member that is down, so fewer may come than the rate says."""
    draw, found, at = random.Random(f"faults {seed}"), list[Fault](), 0.0
    while per_hour > 0:
        at += draw.expovariate(per_hour / 3600)
        if at > seconds - QUIET_SECONDS:
            break
        member, kind = draw.randrange(members), draw.choice(KINDS)
        fault = Fault(round(at, 2), member, kind, round(draw.uniform(*SECONDS[kind]), 2))
        down = {earlier.member for earlier in found if earlier.over > fault.at}
        if member not in down and len(down) + 1 < members:
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
) -> list[float]:
    """Do this to the processes for `seconds` and restart those that end. Return when each fault came, in seconds from
    the beginning. Raises ConfigError when a process ends for good."""
    began, left, came = time.monotonic(), deque(faults), list[float]()
    while (passed := time.monotonic() - began) < seconds:
        supervise(processes)
        if left and passed >= left[0].at:
            fault = left.popleft()
            say(f"{passed:.0f} s: {fault.kind} of {names[fault.member]}, for {fault.seconds:.1f} s")
            strike = processes.kill if fault.kind == "kill" else processes.freeze
            strike(names[fault.member], fault.seconds)
            came.append(round(passed, 2))
        time.sleep(LOOK_SECONDS)
    return came
