"""The frame of every node program: logging, the first line, exit statuses, a clean Ctrl-C.

Exit statuses: 0 stopped on request, 2 the operator has to fix something, 75 this release is too old for the run, 1
anything else, a full disk among it: start it again. Bugs crash with a traceback.
"""

import errno
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from loguru import logger

from murmur import files
from murmur.homes import provide_for_libraries
from murmur.protocol.errors import ConfigError, DiskFull, MurmurError, UpdateNeeded, one_line

if TYPE_CHECKING:
    from loguru import Record as LogRecord

EXIT_AGAIN = 1
EXIT_CONFIG = 2
EXIT_UPDATE = 75
URGENT = (signal.SIGTERM, signal.SIGINT)
"""Signals of which a second one ends a program at once."""
DYING_SECONDS = 20
"""Longest time from the death of a thread to the end of its process."""
_LAST_WORDS_SECONDS = 0.3
_OPEN_FILES = 8192
_LINE_CHARACTERS = 4000
"""Longest message in the log: some quote strangers."""


def run_program(main: Callable[[], None]) -> int:
    """Run a node's main function; return the process's exit status."""
    global _stop
    provide_for_libraries()  # first: it may begin this program anew
    stop = _stop = _Stop()
    for signum in URGENT:
        signal.signal(signum, stop)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # `nohup` leaves it ignored
        signal.signal(signal.SIGHUP, stop)
    stop.watch()
    threading.excepthook = stop.thread_died
    sys.unraisablehook = stop.ignored
    _allow_open_files()
    os.umask(0o077)  # files are readable by their owner only: some hold keys of payloads that are still sealed
    try:
        status = _status(main)
    except KeyboardInterrupt:
        pass
    except BaseException:
        if not stop.asked:
            raise
    else:
        if not stop.asked:
            threading.excepthook, sys.unraisablehook = threading.__excepthook__, sys.__unraisablehook__
            signal.set_wakeup_fd(-1)
            return status
    # An interrupted library call may have raised any error, or none.
    stop.say()
    return stop.status


def is_stopping() -> bool:
    """Whether this process was asked to stop."""
    return _stop is not None and _stop.asked


def stop_after(what: str | None) -> None:
    """Let a request to stop wait until `what` has happened. None: it has; the main thread says so, and is interrupted
    here if it was asked meanwhile. A second signal ends the process all the same."""
    if _stop is not None:
        _stop.wait_for(what)


def last_word(say: Callable[[], None] | None) -> None:
    """Let `say` run, in a thread and for a moment at most, before a second signal ends the process. None: nothing."""
    if _stop is not None:
        _stop.last_word = say


def dead_thread() -> str | None:
    """Return how a thread died that has stopped this process; None where none has."""
    return _stop.fault if _stop is not None else None


class _Stop:
    """The handler of SIGINT, SIGTERM and SIGHUP. The first signal interrupts the program; the second ends the process
    at once, without cleanup. Everything that matters is saved before it is published, so both may come at any line. A
    terminal that closes asks to stop, but hurries nobody: shell and kernel may each send a SIGHUP, systemd one more.

    Python runs a handler between two lines of the main thread, and this may be inside one call for minutes. So another
    thread counts the signals too."""

    def __init__(self) -> None:
        self.asked = False
        self._urged = 0
        self._awaited: str | None = None
        self.fault: str | None = None
        """The death of a thread that stopped the process."""
        self.last_word: Callable[[], None] | None = None
        """See `last_word`."""
        self._said = False
        self._wake: int | None = None
        """Where signals are counted, once that began."""

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._urged += signum in URGENT
        if self._urged > 1:
            self._end()
        if self.asked:
            return
        self.asked = True
        if self._awaited is None or self.fault is not None:
            self._break_off()

    def wait_for(self, what: str | None) -> None:
        """See `stop_after`."""
        self._awaited = what
        if what is None and self.asked:
            self._break_off()

    def watch(self) -> None:
        """Count signals in a thread: it tells what the first one waits for, and ends the process after the second."""
        told, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        self._wake = written
        # Else a signal to a child that never ran another program would be counted here.
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._count, args=(told,), name="signals", daemon=True).start()

    def _count(self, told: int) -> None:
        urged, said = 0, set[str]()
        while True:
            came = os.read(told, 64)
            urged += sum(signum in URGENT for signum in came)
            if urged > 1:
                for words in [self._aside(self.say), self._aside(self.last_word)]:
                    if words is not None:
                        words.join(_LAST_WORDS_SECONDS / 2)
                os._exit(self.status)
            sooner = "A second signal ends it at once" if urged else "SIGTERM, sent twice, ends it at once"
            if (urged or signal.SIGHUP in came) and self._awaited and self.fault is None and sooner not in said:
                said.add(sooner)
                told_of = f"asked to stop: stops after {self._awaited}. {sooner}"
                self._aside(partial(logger.info, "{what}", what=told_of))

    @staticmethod
    def _aside(say: Callable[[], None] | None) -> threading.Thread | None:
        """Run `say` in a thread of its own: the one that counts would wait for the log as long as somebody else."""
        if say is not None:
            with suppress(RuntimeError):  # no memory for a thread
                thread = threading.Thread(target=say, name="last words", daemon=True)
                thread.start()
                return thread
        return None

    def _break_off(self) -> None:
        # During shutdown threads and finalizers may fail: their errors are noise.
        sys.unraisablehook = self._dropped
        threading.excepthook = lambda _: None
        raise KeyboardInterrupt

    def thread_died(self, death: threading.ExceptHookArgs) -> None:
        """End the process when one of its threads dies: what that thread did would be missing without a word. A process
        that then hangs is ended all the same."""
        if self.asked or issubclass(death.exc_type, SystemExit):  # a thread may end itself
            return
        signal.alarm(DYING_SECONDS)  # first, and not a thread: there may be no memory for more
        name = death.thread.name if death.thread is not None else "unknown"
        lost = f"its thread {name!r} died of {death.exc_type.__name__}; start it again"
        self.fault = disk_fault(death.exc_value) or lost
        sys.excepthook(death.exc_type, death.exc_value or death.exc_type(), death.exc_traceback)
        self._interrupt()

    def ignored(self, fault: "sys.UnraisableHookArgs") -> None:
        """End the process when a thread dies before it has begun, for lack of memory: whoever started it waits for
        ever. Python ignores such an error, as it does those of finalizers."""
        signal.alarm(DYING_SECONDS)  # before anything that takes memory
        if self.asked or "thread started" not in (fault.err_msg or ""):
            signal.alarm(0 if self.fault is None else DYING_SECONDS)
            sys.__unraisablehook__(fault)
            return
        self.fault = f"a thread could not begin ({fault.exc_type.__name__}); start it again"
        sys.__unraisablehook__(fault)
        self._interrupt()

    @staticmethod
    def _interrupt() -> None:
        """Interrupt the main thread."""
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGTERM)

    @property
    def status(self) -> int:
        """The exit status of a process that was interrupted."""
        return 0 if self.fault is None else EXIT_AGAIN

    def say(self) -> None:
        """Log the stop, once."""
        if self._said:
            return
        self._said = True
        if self.fault is not None:
            logger.error("stopped: {fault}", fault=self.fault)
        else:
            logger.info("stopped on request; everything is saved, and the next start resumes here")

    def _dropped(self, fault: "sys.UnraisableHookArgs") -> None:
        """Python ignores exceptions in finalizers: if the interrupt was raised there, end the process."""
        if issubclass(fault.exc_type, KeyboardInterrupt):
            self._end()

    def _forget(self) -> None:
        """Count no more signals, in a forked child."""
        signal.set_wakeup_fd(-1)
        self._wake = None

    def _end(self) -> None:
        """End the process. The last words are another thread's: this one may hold a lock that they need."""
        if self._wake is not None:
            with suppress(BlockingIOError):  # full of signals
                os.write(self._wake, bytes([signal.SIGTERM] * 2))
        time.sleep(2 * _LAST_WORDS_SECONDS)
        os._exit(self.status)


_stop: _Stop | None = None


def _status(main: Callable[[], None]) -> int:
    """Run `main`; print its fault, if any; return the exit status."""
    try:
        main()
    except UpdateNeeded as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_UPDATE
    except DiskFull as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_AGAIN
    except ConfigError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_CONFIG
    except MurmurError as fault:
        print(f"stopped: {fault}", file=sys.stderr)  # noqa: T201
        return EXIT_AGAIN
    except OSError as fault:
        if (words := disk_fault(fault)) is None:
            raise
        print(words, file=sys.stderr)  # noqa: T201
        return EXIT_AGAIN if files.is_full(fault) else EXIT_CONFIG
    return 0


def disk_fault(fault: BaseException | None) -> str | None:
    """Return in words that the disk takes nothing more; None for another fault."""
    if isinstance(fault, DiskFull):
        return str(fault)
    if not isinstance(fault, OSError) or not (files.is_full(fault) or fault.errno == errno.EROFS):
        return None
    where = f" {fault.filename}" if fault.filename else ""
    return f"cannot write{where}: {fault.strerror}. Nothing is lost: free disk space and start again"


def _allow_open_files() -> None:
    """Raise the limit of open files to at most _OPEN_FILES. Most systems begin with 1,024; hundreds of peers'
    connections and memory-mapped files soon need more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wish = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wish:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wish, hard))


def log_to_stderr(level: str) -> None:
    """Log to stderr, with the standard library's records. `diagnose` is off: it would print values and secrets. A
    message is one line of printable characters, whoever is quoted in it; a traceback stays as it is."""
    logger.remove()
    logger.configure(patcher=_plain)
    logger.add(sys.stderr, level=level, format=_line, diagnose=False, backtrace=False)
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


class _Bridge(logging.Handler):
    """Forwards standard-library records to loguru; the message is an argument, never a template."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.log(record.levelname, "{source}: {message_text}", source=record.name, message_text=record.getMessage())


def _plain(record: "LogRecord") -> None:
    record["message"] = one_line(record["message"], _LINE_CHARACTERS)


def _line(record: "LogRecord") -> str:
    return "<dim>{time:HH:mm:ss}</dim> <level>{level: <7}</level> {message}\n{exception}"


def new_folder(wanted: Path | None) -> Path:
    """Create the run folder (default runs/<time>), which must be empty, and return it. Raises ConfigError."""
    folder = (wanted or Path("runs") / datetime.now().strftime("%Y-%m-%d-%H%M%S")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose another --folder")
    except OSError as fault:
        raise ConfigError(f"cannot make the run folder {folder}: {fault.strerror}; choose another --folder") from None
    return folder
