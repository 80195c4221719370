"""What every program of a node does around its rounds: logging, the first line, exit statuses, a clean Ctrl-C.

Exit statuses: 0 stopped on request, 2 the operator has to fix something, 75 this release is too old for the run.
Bugs crash with a traceback.
"""

import errno
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from loguru import logger

from protocol.errors import ConfigError, MurmurError, UpdateNeeded

if TYPE_CHECKING:
    from loguru import Record as LogRecord

EXIT_CONFIG = 2
EXIT_UPDATE = 75
_OPEN_FILES = 8192
_DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def run_program(main: Callable[[], None]) -> int:
    """Run a node's main function; the process's exit status."""
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _allow_open_files()
    os.umask(0o077)  # what a node writes is its owner's alone: among it are keys of payloads that are still sealed
    try:
        status = _status(main)
    except KeyboardInterrupt:
        pass
    except BaseException:
        if not stop.asked:
            raise
    else:
        if not stop.asked:
            return status
    # What was broken off in a library's depths may have come out as any fault, or as none.
    stop.say()
    return 0


class _Stop:
    """What SIGINT and SIGTERM do: the first one breaks off whatever is done, a second one does not wait for the rest to
    be put away. Everything that matters is on the disk before it is said, so both may come at any line."""

    def __init__(self) -> None:
        self.asked = False
        self._said = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.asked:
            self._end()
        self.asked = True
        # From here on threads, and what is collected, lose what they stood on: nobody wants to read of it.
        sys.unraisablehook = self._dropped
        threading.excepthook = lambda _: None
        raise KeyboardInterrupt

    def say(self) -> None:
        """Once."""
        if not self._said:
            self._said = True
            logger.info("stopped on request; everything is saved, and the next start resumes here")

    def _dropped(self, fault: "sys.UnraisableHookArgs") -> None:
        """Python passes over what is raised while it tidies up: the request too, which then nobody has heard."""
        if issubclass(fault.exc_type, KeyboardInterrupt):
            self._end()

    def _end(self) -> None:
        self.say()
        os._exit(0)


def _status(main: Callable[[], None]) -> int:
    """The exit status of `main`, whose faults are told."""
    try:
        main()
    except UpdateNeeded as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_UPDATE
    except ConfigError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_CONFIG
    except MurmurError as fault:
        print(f"stopped: {fault}", file=sys.stderr)  # noqa: T201
        return 1
    except OSError as fault:
        if fault.errno not in _DISK_FAULTS:
            raise
        where = f" {fault.filename}" if fault.filename else ""
        print(  # noqa: T201
            f"cannot write{where}: {fault.strerror}. Nothing is lost: free disk space and start again", file=sys.stderr
        )
        return EXIT_CONFIG
    return 0


def _allow_open_files() -> None:
    """As many as we may have, up to a bound. Hundreds of peers' connections and of views of files soon take the 1,024
    that most systems begin with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wish = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wish:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wish, hard))


def log_to_stderr(level: str) -> None:
    """Send our log and the standard library's to stderr. `diagnose` is off: it would print values, secrets included."""
    logger.remove()
    logger.add(sys.stderr, level=level, format=_line, diagnose=False, backtrace=False)
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


class _Bridge(logging.Handler):
    """Standard-library records into loguru; the message is an argument, never a template."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.log(record.levelname, "{source}: {message_text}", source=record.name, message_text=record.getMessage())


def _line(record: "LogRecord") -> str:
    return "<dim>{time:HH:mm:ss}</dim> <level>{level: <7}</level> {message}\n{exception}"
