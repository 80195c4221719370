"""What a person sees first: the programs started with nothing, and the exit statuses."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.node.program.process import run_program
from murmur.protocol.errors import ChainError, CheckpointCorrupt, ConfigError, DiskFull, UpdateNeeded

ROOT = Path(__file__).parents[2]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HEAVY = ("torch", "boto3", "botocore", "bittensor", "datasets", "numpy")


@pytest.fixture(autouse=True)
def the_tests_own_process() -> Iterator[None]:
    """A thread that dies in a later test must not end the tests."""
    hook, handlers = threading.excepthook, {one: signal.getsignal(one) for one in SIGNALS}
    yield
    threading.excepthook = hook
    signal.set_wakeup_fd(-1)
    for one, handler in handlers.items():
        signal.signal(one, handler)


def start(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
    environment |= {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-X", "importtime", *argv],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def told(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))


@pytest.mark.parametrize("program", ["miner", "validator"])
def test_a_program_started_with_nothing_says_what_it_needs(program: str) -> None:
    done = start(f"neurons/{program}.py")
    assert done.returncode == 2
    assert "--wallet.name" in told(done)
    assert "--owner" in told(done)
    assert "Traceback" not in told(done)
    assert "murmur" in imported(done)
    assert not imported(done) & set(HEAVY)


@pytest.mark.parametrize("program", ["miner", "validator"])
def test_help_is_instant_and_names_every_flag(program: str) -> None:
    done = start(f"neurons/{program}.py", "--help")
    assert done.returncode == 0
    assert "--bucket.endpoint" in told(done)
    assert "--bucket.secret_key" not in told(done)
    assert not imported(done) & set(HEAVY)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ConfigError("fix this"), 2),
        (CheckpointCorrupt("fix this"), 1),
        (UpdateNeeded("fix this"), 75),
        (ChainError("fix this"), 1),
        (DiskFull("fix this"), 1),
        (OSError(errno.ENOSPC, "fix this", "/state"), 1),
        (OSError(errno.EDQUOT, "fix this", "/state"), 1),
        (OSError(errno.EROFS, "fix this", "/state"), 2),
    ],
)
def test_every_kind_of_end_has_its_status_and_no_traceback(
    fault: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise fault

    assert run_program(main) == status
    assert "fix this" in capsys.readouterr().err


def test_a_stop_on_request_is_no_failure() -> None:
    def main() -> None:
        raise KeyboardInterrupt

    assert run_program(main) == 0


def test_a_bug_is_shown_as_one() -> None:
    def main() -> None:
        raise OSError(errno.EBADF, "a bug")

    with pytest.raises(OSError, match="a bug"):
        run_program(main)


def test_what_a_program_writes_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "written"
    before = os.umask(0o022)
    try:
        assert run_program(path.touch) == 0
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


STOPPED = """
import os, signal, sys, threading, time
from murmur.node.program.process import log_to_stderr, run_program

class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

def in_a_destructor():
    Lost()
    time.sleep(60)

def twice():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

def as_another_fault():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except KeyboardInterrupt:
        raise ImportError("half a module")

def at_the_end():
    threading._register_atexit(os.kill, os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

log_to_stderr("INFO")
sys.exit(run_program(globals()[sys.argv[1]]))
"""


def ended(program: str, how: str) -> subprocess.CompletedProcess[str]:
    """The process that has run `how` of the program."""
    return subprocess.run(
        [sys.executable, "-c", program, how],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("when", ["in_a_destructor", "twice", "as_another_fault", "at_the_end"])
def test_a_stop_is_one_line_wherever_it_meets_the_program(when: str) -> None:
    done = ended(STOPPED, when)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "stopped on request" in line


DYING = """
import errno, os, signal, sys, threading, time
from murmur.node.program import process
from murmur.node.program.process import log_to_stderr, run_program

process.DYING_SECONDS = 2
LOCK = threading.Lock()

def dies():
    time.sleep(0.3)
    raise ValueError("no such page")

def begin():
    threading.Thread(target=dies, name="prefetch", daemon=True).start()

def in_an_event():
    begin()
    threading.Event().wait()

def in_a_lock():
    begin()
    with LOCK, LOCK:
        pass

def asleep():
    begin()
    time.sleep(50)

def in_a_join():
    begin()
    other = threading.Thread(target=time.sleep, args=(50,), daemon=True)
    other.start()
    other.join()

def as_another_fault():
    begin()
    try:
        time.sleep(50)
    except KeyboardInterrupt:
        raise ImportError("half a module")

def in_a_destructor():
    class Lost:
        def __del__(self):
            time.sleep(50)
    begin()
    Lost()
    time.sleep(50)

def hanging():
    begin()
    try:
        time.sleep(50)
    finally:
        time.sleep(50)

def fills_the_disk():
    time.sleep(0.3)
    raise OSError(errno.ENOSPC, "No space left on device", "/home/state")

def without_room():
    threading.Thread(target=fills_the_disk, daemon=True).start()
    time.sleep(50)

def without_room_itself():
    fills_the_disk()

def interrupted():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Event().wait()

def died_while_stopping():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        time.sleep(50)
    finally:
        begin()
        time.sleep(1)

log_to_stderr("INFO")
sys.exit(run_program(globals()[sys.argv[1]]))
"""


@pytest.mark.parametrize(
    "main", ["in_an_event", "in_a_lock", "asleep", "in_a_join", "as_another_fault", "in_a_destructor"]
)
def test_a_thread_that_dies_ends_the_process_and_is_named(main: str) -> None:
    began = time.monotonic()
    done = ended(DYING, main)
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - began < 20
    assert "ValueError: no such page" in done.stderr
    assert "its thread 'prefetch' died of ValueError" in done.stderr
    assert "on request" not in done.stderr


@pytest.mark.parametrize("main", ["without_room", "without_room_itself"])
def test_a_full_disk_is_named_in_the_same_words_whichever_thread_meets_it(main: str) -> None:
    done = ended(DYING, main)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    words = "cannot write /home/state: No space left on device. Nothing is lost: free disk space and start again"
    assert line.endswith(words)


QUOTING = """
import logging, sys
from loguru import logger
from murmur.node.program.process import log_to_stderr

log_to_stderr("INFO")
hostile = "no answer\\n12:00:00 ERROR your hotkey is stolen\\x1b[2J\\x07\\x08\\u202e" + "A" * 10**6
logger.warning("it broke off: {fault}", fault=hostile)
logging.getLogger("library").warning(hostile)
try:
    raise ValueError("no such page")
except ValueError:
    logger.exception("it failed: {fault}", fault=hostile)
"""


def test_whatever_a_message_of_the_log_quotes_it_is_one_line_and_a_traceback_stays() -> None:
    done = ended(QUOTING, "")
    one, two, three, *trace = done.stderr.splitlines()
    for line in (one, two, three):
        assert line[:2].isdigit()
        assert ": no answer 12:00:00 ERROR your hotkey is stolen [2J AAAA" in line
        assert line.isprintable()
        assert len(line) < 5000
    assert trace[0].startswith("Traceback")
    assert trace[-1].startswith("ValueError: no such page")


def test_a_process_that_hangs_after_a_threads_death_is_ended_all_the_same() -> None:
    done = ended(DYING, "hanging")
    assert done.returncode == -signal.SIGALRM
    assert "ValueError: no such page" in done.stderr


@pytest.mark.parametrize("how", ["interrupted", "died_while_stopping"])
def test_an_interrupt_by_the_operator_is_no_fault_whatever_dies_of_it(how: str) -> None:
    done = ended(DYING, how)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "stopped on request" in line


OWES = """
import ctypes, sys, time
from pathlib import Path
from murmur.node.program.process import is_stopping, log_to_stderr, run_program, stop_after

def main():
    stop_after("the key is out")
    print("ready", flush=True)
    if sys.argv[1] == "stuck":  # inside a call that no signal interrupts, as a collective operation of torch
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
    while not is_stopping():
        time.sleep(0.01)
    time.sleep(1)  # as long as a busy machine may need to say what it waits for
    print("revealed", flush=True)
    stop_after(None)
    print("went on", flush=True)

log_to_stderr("INFO")
sys.exit(run_program(main))
"""


def owing(how: str) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", OWES, how], cwd=ROOT, **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == "ready\n"
    return process  # type: ignore[no-any-return]


def test_a_node_that_owes_something_stops_once_it_has_given_it() -> None:
    process = owing("waits")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "revealed\n")
    assert "asked to stop: stops after the key is out" in err
    assert "stopped on request" in err


def test_a_second_signal_ends_even_a_node_that_is_stuck_inside_a_call() -> None:
    process = owing("stuck")
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert "asked to stop: stops after the key is out" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "stopped on request" in err
