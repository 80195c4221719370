"""The span in which a node plays, as its events tell it."""

from collections.abc import Iterator
from contextlib import contextmanager

from murmur.node.program.process import is_stopping
from murmur.node.state.node_state import NodeState


@contextmanager
def lifetime(state: NodeState) -> Iterator[None]:
    """Record that the node began to play, and that it stopped: on request or at its end, or because of a fault. Nothing
    records a kill."""
    state.events.emit("started", state.round)
    fault: str | None = None
    try:
        yield
    except BaseException as error:
        # An interrupted library call may raise any error.
        if not (isinstance(error, KeyboardInterrupt) or is_stopping()):
            fault = str(error) or type(error).__name__
        raise
    finally:
        state.events.emit("stopped", state.round, fault=fault)
