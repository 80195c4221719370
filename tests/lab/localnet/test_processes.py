"""Child processes: started with a log, started again when they die, and gone when their supervisor is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from murmur.lab.localnet import processes as supervision
from murmur.lab.localnet.processes import Child, Processes, undisturbed

SLEEPER = ["-c", "print('up', flush=True); import time; time.sleep(600)"]
STUBBORN = [
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


class Clock:
    """The supervisor's, moved by hand."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervision, "time", clock)
    return clock


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path, dict(os.environ))
    yield started
    started.stop()


def until(happened: Callable[[], object], seconds: float = 150.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_up(child: Child, times: int = 1) -> bool:
    return child.log.read_text().count("up") >= times


def pids(children: Processes) -> dict[str, int]:
    lines = (children.folder / "pids").read_text().splitlines()
    return {name: int(pid) for name, pid in map(str.split, lines)}


def exists(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_killed_child_runs_again_with_its_restart_arguments_and_the_same_log(children: Processes) -> None:
    child = children.start("node", SLEEPER, ["-c", "print('up again', flush=True); import time; time.sleep(600)"])
    other = children.start("other", SLEEPER, SLEEPER)
    until(lambda: is_up(child))
    first, untouched = child.process.pid, other.process.pid
    assert pids(children) == {"node": first, "other": untouched}
    os.kill(first, signal.SIGKILL)
    child.process.wait()
    assert children.watch() == []
    until(lambda: "up again" in child.log.read_text())
    assert child.log.read_text().splitlines() == ["up", "up again"]
    assert child.restarts == 1
    assert pids(children) == {"node": child.process.pid, "other": untouched}
    assert child.process.pid != first


def test_a_child_that_may_not_be_restarted_is_reported_dead(children: Processes) -> None:
    store = children.start("store", ["-c", "print('no room')"])
    children.start("node", SLEEPER, SLEEPER)
    store.process.wait()
    assert children.watch() == ["store"]
    assert children.watch() == ["store"]
    assert children.last_lines("store") == "  no room"


def watched(children: Processes, happened: Callable[[], object]) -> None:
    """Watch over the children until it has happened; none of them may be given up."""

    def look() -> object:
        assert children.watch() == []
        return happened()

    until(look)


def test_a_child_that_always_dies_is_started_after_longer_and_longer_pauses_and_never_given_up(
    children: Processes, clock: Clock
) -> None:
    crash = ["-S", "-c", ""]
    child = children.start("node", crash, crash)
    for restarts, pause in enumerate([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]):
        child.process.wait()
        assert children.watch() == []
        if pause:
            clock.seconds += pause - 0.01
            assert children.watch() == []
            assert child.restarts == restarts
            clock.seconds += 0.02
            assert children.watch() == []
        assert child.restarts == restarts + 1


@pytest.mark.parametrize("well", [False, True])
def test_a_child_that_lived_well_is_started_again_at_once(children: Processes, clock: Clock, well: bool) -> None:
    child = children.start("node", SLEEPER, SLEEPER)
    child.began, child.pause = clock.seconds, 20.0  # it had died again and again
    clock.seconds += supervision.LIVED_WELL_SECONDS + (0.1 if well else -0.1)
    children.kill("node")
    assert children.watch() == []
    assert child.restarts == well


@pytest.mark.parametrize("status", [2, 75])
def test_a_child_that_a_person_has_to_help_ends_for_good(children: Processes, status: int) -> None:
    crash = ["-c", f"raise SystemExit({status})"]
    child = children.start("node", crash, crash)
    child.process.wait()
    assert children.watch() == ["node"]
    assert child.restarts == 0


def test_a_killed_child_stays_away_as_long_as_it_is_told(children: Processes, clock: Clock) -> None:
    child = children.start("node", SLEEPER, SLEEPER)
    children.kill("node", away_seconds=100.0)
    clock.seconds += 99.9
    assert children.watch() == []
    assert child.restarts == 0
    clock.seconds += 0.2
    assert children.watch() == []
    assert child.restarts == 1


def test_a_frozen_child_does_nothing_for_a_while_and_goes_on(children: Processes) -> None:
    child = children.start("node", ["-u", "-c", "import time\nwhile True: print('up'); time.sleep(0.01)"])
    until(lambda: is_up(child))
    began = time.monotonic()
    children.freeze("node", 0.5)
    # It was stopped, and has been told to go on.
    assert os.waitid(os.P_PID, child.process.pid, os.WCONTINUED) is not None
    assert time.monotonic() - began >= 0.5
    lines = child.log.read_text().count("up")
    until(lambda: is_up(child, lines + 5))
    assert child.process.poll() is None


def test_a_frozen_child_can_be_stopped(children: Processes) -> None:
    child = children.start("node", SLEEPER)
    until(lambda: is_up(child))
    children.freeze("node", 20.0)
    children.stop()
    assert child.process.returncode == -signal.SIGTERM


def test_a_process_that_somebody_else_started_is_watched_too(children: Processes) -> None:
    process = subprocess.Popen([sys.executable, *SLEEPER], stdout=subprocess.DEVNULL, start_new_session=True)
    child = children.adopt("devnet", process, SLEEPER)
    assert pids(children) == {"devnet": process.pid}
    children.kill("devnet")
    watched(children, lambda: child.restarts == 1 and is_up(child))


def test_stop_ends_everybody_the_deaf_ones_too(
    children: Processes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that is given to whoever listens is over when they have ended."""

    def sleep(seconds: float) -> None:
        time.sleep(0.01)
        if polite.process.poll() is not None and clock.seconds < began + supervision.STOP_SECONDS:
            clock.seconds = began + supervision.STOP_SECONDS

    began = clock.seconds
    monkeypatch.setattr(clock, "sleep", sleep)
    polite = children.start("polite", SLEEPER, SLEEPER)
    stubborn = children.start("stubborn", STUBBORN, STUBBORN)
    dead = children.start("dead", ["-c", ""])
    dead.process.wait()
    until(lambda: is_up(polite) and is_up(stubborn))
    children.stop()
    assert polite.process.returncode == -signal.SIGTERM
    assert stubborn.process.returncode == -signal.SIGKILL
    children.stop()  # and once more is no error


def test_a_ctrl_c_in_the_terminal_reaches_the_supervisor_alone(children: Processes) -> None:
    child = children.start("node", SLEEPER)
    until(lambda: is_up(child))
    assert os.getpgid(child.process.pid) == child.process.pid != os.getpgid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_children_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from murmur.lab.localnet.processes import Processes\n"
        f"Processes(Path({str(tmp_path)!r}), dict(os.environ)).start('node', {SLEEPER!r})\n"
        "time.sleep(600)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: (tmp_path / "node.log").exists() and "up" in (tmp_path / "node.log").read_text())
        child = int((tmp_path / "pids").read_text().split()[1])
        assert exists(child)
    finally:
        supervisor.kill()
        supervisor.wait()
    until(lambda: not exists(child))


def test_a_second_ctrl_c_does_not_interrupt_the_stopping() -> None:
    # A shell has processes in the background ignore it, and this may be one.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, outside)
