"""What a check finds: that something is as it has to be, or what is wrong with it and what to do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from protocol.errors import MurmurError
from training.memory import Role


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


class Examined:
    """What is under examination. role: as which the checks are asked."""

    role: Role

    def examine(self, checks: Sequence[Check]) -> Iterator[Finding]:
        """What each check finds, in their order, one by one."""
        passed: set[str] = set()
        for check in checks:
            if self.role not in check.roles:
                continue
            lacking = [name for name in check.needs if name not in passed]
            if lacking:
                yield Finding(check.name, Status.SKIP, f"not tried: it needs {' and '.join(lacking)}")
                continue
            found = self._found(check)
            if found.status is Status.OK:
                passed.add(check.name)
            yield found

    def _found(self, check: Check) -> Finding:
        try:
            said = check.work(self)
        except Fault as fault:
            return Finding(check.name, Status.FAULT, str(fault), fault.fix, fault.reaction)
        except MurmurError as fault:
            return Finding(check.name, Status.FAULT, str(fault), check.fix, self.reaction(fault))
        except OSError as fault:
            if fault.filename is None:
                raise
            return Finding(check.name, Status.FAULT, f"cannot use {fault.filename}: {fault.strerror}", check.fix)
        if isinstance(said, Advice):
            return Finding(check.name, Status.OK, said.detail, said.fix)
        return Finding(check.name, Status.OK, said)

    def reaction(self, fault: MurmurError) -> Reaction:
        """What a node that starts does about a fault that is no Fault."""
        return Reaction.END
