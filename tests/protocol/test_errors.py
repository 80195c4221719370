"""The tree of exceptions is the one that its docstring draws."""

import inspect
import re

from murmur.protocol import errors
from murmur.protocol.errors import ChainError, ConfigError, InvalidSubmission, MurmurError, ObjectTooLarge, UpdateNeeded
from murmur.protocol.types import Reason


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    parents = ["MurmurError"]
    for line in (errors.__doc__ or "").splitlines():
        if branch := re.match(r"(?P<depth>[│ ]*)[├└]── (?P<name>\w+)", line):
            depth = len(branch["depth"]) // 4 + 1
            parents[depth:] = [branch["name"]]
            drawn[branch["name"]] = parents[depth - 1]
    classes = inspect.getmembers(errors, lambda member: inspect.isclass(member) and issubclass(member, Exception))
    assert drawn == {name: kind.__base__.__name__ for name, kind in classes if kind is not MurmurError}


def test_errors_carry_what_their_handlers_decide_on() -> None:
    rejected = InvalidSubmission(Reason.COPY, "overlap 0.9")
    assert (rejected.reason, rejected.detail, str(rejected)) == (Reason.COPY, "overlap 0.9", "COPY: overlap 0.9")
    assert ChainError("refused", "SpaceLimitExceeded").code == "SpaceLimitExceeded"
    assert ChainError("silent").code is None
    assert ObjectTooLarge("too large", 7).size_bytes == 7


def test_a_needed_update_is_something_that_the_operator_fixes() -> None:
    assert issubclass(UpdateNeeded, ConfigError)
