"""Functions in child processes that may be killed at any line.

The children are forked from a small server process with the modules of `tests.node.preloaded`. The test process itself
may be too large to fork after some thousand tests.
"""

from collections.abc import Callable
from multiprocessing import get_context

_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.node.preloaded"])


def exit_code(function: Callable[..., None], *arguments: object) -> int:
    """Run the function, of a module's top level, in a child process; return the exit code of that process."""
    child = _SERVER.Process(target=function, args=arguments)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode
