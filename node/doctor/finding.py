"""What a check finds: that something is as it has to be, or what is wrong with it and what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from protocol.errors import MurmurError


class Status(StrEnum):
    """How a check ended. SKIP: not tried, `detail` says why."""

    OK = "ok"
    FAULT = "fault"
    SKIP = "skip"


class Reaction(StrEnum):
    """What a node that starts does about a fault: it ends and has it mended, or needs an update; REACH: a server that
    the operator named is not to be reached; HANGS: it is, or nothing says that it is not, and does not answer in time;
    WAIT: somebody else's does not, and nothing has to be done here."""

    END = "end"
    UPDATE = "update"
    REACH = "reach"
    HANGS = "hangs"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail`: what was seen, and why it matters. `fix`: what to do, naming the variable or flag; one beside OK is
    advice. `reaction` is of a fault."""

    name: str
    status: Status
    detail: str
    fix: str = ""
    reaction: Reaction = Reaction.END


class Fault(MurmurError):
    """A check has failed."""

    def __init__(self, detail: str, fix: str, reaction: Reaction = Reaction.END) -> None:
        super().__init__(detail)
        self.fix, self.reaction = fix, reaction


@dataclass(frozen=True, slots=True)
class Advice:
    """What a check that has passed says, and what could be better."""

    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at in a node (node/doctor/case.py).

    `work` says what it has seen, or raises Fault; of what else it raises by the tree of protocol/errors.py the message
    is shown, with `fix`. It leaves in the case what it has opened. `needs`: names of the checks that must have passed
    before, so that what they open is there. `roles`: of which it is asked.
    """

    name: str
    work: Callable[[Any], str | Advice]
    fix: str
    needs: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("miner", "validator")
