"""Findings of checks: a check has passed, or a fault and its fix."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from murmur.protocol.errors import MurmurError
from murmur.training.memory import Role


class Status(StrEnum):
    """The result of a check. SKIP: not tried, `detail` says why."""

    OK = "ok"
    FAULT = "fault"
    SKIP = "skip"


class Reaction(StrEnum):
    """How a starting node reacts to a fault. END: it exits, and the operator has to fix something. UPDATE: it exits,
    and needs a newer release. REACH: a server that the operator named cannot be reached. HANGS: such a server does not
    answer in time, but nothing shows that its address is wrong. WAIT: another party's server does not answer, and the
    operator need do nothing. FULL: it exits, and may be started again: the disk of a node that ran here has no room."""

    END = "end"
    UPDATE = "update"
    REACH = "reach"
    HANGS = "hangs"
    WAIT = "wait"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail`: the observation, and why it matters. `fix`: the remedy, naming the variable or flag; with OK it is
    advice. `reaction` applies to faults only."""

    name: str
    status: Status
    detail: str
    fix: str = ""
    reaction: Reaction = Reaction.END


class FailedCheck(MurmurError):
    """A failed check."""

    def __init__(self, detail: str, fix: str, reaction: Reaction = Reaction.END) -> None:
        super().__init__(detail)
        self.fix, self.reaction = fix, reaction


@dataclass(frozen=True, slots=True)
class Advice:
    """The result of a passed check that also suggests an improvement."""

    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a node (murmur/node/doctor/examined_node.py).

    `work` returns its observation, or raises Fault. For other errors of murmur/protocol/errors.py their message is
    shown, with `fix`. `work` stores all that it opens in the examined node. `needs`: names of the checks that must have
    passed before, since this one uses their results. `roles`: the roles that it applies to.
    """

    name: str
    work: Callable[[Any], str | Advice]
    fix: str
    needs: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("miner", "validator")


class Examined:
    """The subject of an examination. role: the role whose checks apply."""

    role: Role

    def examine(self, checks: Sequence[Check]) -> Iterator[Finding]:
        """Yield the finding of each check, in their order."""
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
        except FailedCheck as fault:
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
        """Return how a starting node reacts to a fault that is no Fault."""
        return Reaction.END
