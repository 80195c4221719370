"""Child processes: started with a log, started again when they die, and gone when their supervisor is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from localnet import processes as supervision
from localnet.processes import Child, Processes, undisturbed

SLEEPER = ["-c", "print('up', flush=True); import time; time.sleep(600)"]
STUBBORN = [
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path, dict(os.environ))
    yield started
    started.stop()


def until(happened: Callable[[], object], seconds: float = 30.0) -> None:
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


def watched(children: Processes, happened: Callable[[], object], seconds: float = 30.0) -> None:
    """Watch over the children until it has happened; none of them may be given up."""

    def look() -> object:
        assert children.watch() == []
        return happened()

    until(look, seconds)


def test_a_child_that_always_dies_is_started_after_longer_and_longer_pauses_and_never_given_up(
    children: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(supervision, "LONGEST_PAUSE_SECONDS", 0.4)
    crash = ["-c", "import time; print(time.time(), flush=True)"]
    child = children.start("node", crash, crash)
    watched(children, lambda: child.restarts == 7)
    child.process.wait()
    starts = [float(line) for line in child.log.read_text().splitlines()]
    pauses = [later - sooner for sooner, later in pairwise(starts)]
    least = [0.0, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4]
    assert [pause >= expected for pause, expected in zip(pauses, least, strict=True)] == [True] * 7


def test_a_child_that_lived_well_is_started_again_at_once(children: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LIVED_WELL_SECONDS", 0.5)
    child = children.start("node", SLEEPER, SLEEPER)
    until(lambda: is_up(child))
    child.pause = 20.0  # it had died again and again
    time.sleep(0.6)
    children.kill("node")
    watched(children, lambda: child.restarts == 1, seconds=5.0)


@pytest.mark.parametrize("status", [2, 75])
def test_a_child_that_a_person_has_to_help_ends_for_good(children: Processes, status: int) -> None:
    crash = ["-c", f"raise SystemExit({status})"]
    child = children.start("node", crash, crash)
    child.process.wait()
    assert children.watch() == ["node"]
    assert child.restarts == 0


def test_a_killed_child_stays_away_as_long_as_it_is_told(children: Processes) -> None:
    child = children.start("node", SLEEPER, SLEEPER)
    until(lambda: is_up(child))
    children.kill("node", away_seconds=1.0)
    began = time.monotonic()
    watched(children, lambda: child.restarts == 1)
    assert time.monotonic() - began >= 1.0


def test_a_frozen_child_does_nothing_for_a_while_and_goes_on(children: Processes) -> None:
    child = children.start("node", ["-u", "-c", "import time\nwhile True: print('up'); time.sleep(0.01)"])
    until(lambda: is_up(child))
    children.freeze("node", 1.0)
    began, lines = time.monotonic(), child.log.read_text().count("up")
    until(lambda: is_up(child, lines + 5))
    assert time.monotonic() - began > 0.9
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


def test_stop_ends_everybody_the_deaf_ones_too(children: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "STOP_SECONDS", 1.0)
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
        "from localnet.processes import Processes\n"
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
    before = signal.getsignal(signal.SIGINT)
    with undisturbed():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
