"""The trackers, each by its own library (the extra `track`). Their settings are their own: W&B reads WANDB_MODE,
WANDB_API_KEY and the like."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from murmur.files import is_full
from murmur.protocol.errors import ConfigError, one_line

TRACKERS = ("wandb", "tensorboard", "trackio")


class Tracker(Protocol):
    """Where numbers are shown. Raises whatever its library raises."""

    def log(self, round: int, time: float, values: Mapping[str, float]) -> None:
        """Show the numbers of an event. time: Unix seconds."""
        ...

    def close(self) -> None:
        """Finish, so that the run can be read."""
        ...


def open_tracker(to: str, folder: Path, project: str, name: str) -> Tracker:
    """Open the tracker `to`. folder: for what it keeps on this disk. project, name: of the run there. Raises
    ConfigError if its package is missing, or does not open it: nobody has logged in to W&B, say."""
    os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))  # it is read at the import
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _opened(to, folder, project, name)
    except ImportError as fault:
        raise ConfigError(
            f"the tracker {to} cannot be used ({fault}): pip install -c constraints.txt -e '.[track]'"
        ) from None
    except Exception as fault:  # each library raises its own
        if isinstance(fault, OSError) and is_full(fault):
            raise
        said = one_line(str(fault)) or "no reason given"
        raise ConfigError(f"the tracker {to} does not open ({type(fault).__name__}): {said}") from fault


def _opened(to: str, folder: Path, project: str, name: str) -> Tracker:
    library = import_module("tensorboard.summary.writer.event_file_writer" if to == "tensorboard" else to)
    if to == "tensorboard":
        return _TensorBoard(library, folder / "tensorboard" / name.replace("/", "."))
    return _Wandb(library, folder, project, name) if to == "wandb" else _Trackio(library, project, name)


class _TensorBoard:
    """Event files of TensorBoard, without torch."""

    def __init__(self, library: Any, folder: Path) -> None:
        self._writer = library.EventFileWriter(str(folder))
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary

    def log(self, round: int, time: float, values: Mapping[str, float]) -> None:
        shown = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(self._event(wall_time=time, step=round, summary=self._summary(value=shown)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """A run of Weights & Biases. Its own steps only grow, and what a round came to is told after the next one has
    begun, so rounds are a metric."""

    def __init__(self, library: Any, folder: Path, project: str, name: str) -> None:
        # Numbers only: no code, no changes of the checkout, and no log leave this machine.
        settings = library.Settings(disable_git=True, disable_code=True, console="off")
        self._run = library.init(dir=str(folder), project=project, name=name, settings=settings)
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, round: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, "round": round})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """A run of Trackio, which keeps it on this machine (TRACKIO_DIR)."""

    def __init__(self, library: Any, project: str, name: str) -> None:
        self._library = library
        library.init(project=project, name=name.replace("/", "."), resume="allow", embed=False)

    def log(self, round: int, time: float, values: Mapping[str, float]) -> None:
        self._library.log(dict(values), step=round)

    def close(self) -> None:
        self._library.finish()
