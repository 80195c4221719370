"""docker/start.py: a node that another start would not help stays, any other end is the container's."""

import os
import pty
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from murmur.node.program.process import EXIT_CONFIG, EXIT_UPDATE

START = Path(__file__).parents[2] / "docker" / "start.py"
SECONDS = 120.0


@contextmanager
def started(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, str(START), *words], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def until(child: subprocess.Popen[str], word: str) -> str:
    """The first line with this word on standard error."""
    assert child.stderr is not None
    for line in child.stderr:
        if word in line:
            return line
    raise AssertionError(f"ended without saying {word}")


@pytest.mark.parametrize("status", [0, 1, 3])  # 0: of a command that somebody ran in place of the node
def test_any_other_end_is_the_containers(status: int) -> None:
    with started(python(f"raise SystemExit({status})")) as child:
        assert child.wait(SECONDS) == status


def test_a_node_that_was_killed_ends_the_container_and_does_not_go_silently() -> None:
    with started(python("import os; os.kill(os.getpid(), 9)")) as child:
        assert "out of memory" in until(child, "the kernel killed a process")
        assert child.wait(SECONDS) == 128 + 9


def test_a_node_that_fails_by_itself_is_not_called_killed() -> None:
    with started(python("raise SystemExit(1)")) as child:
        assert child.communicate(timeout=SECONDS)[1] == ""


EVENTS_OF_ONE = "low 0\nhigh 0\nmax 31\noom {count}\noom_kill {count}\noom_group_kill 0\n"
EVENTS_OF_OTHER = "oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"


@pytest.fixture
def handlers() -> Iterator[None]:
    """What `main` takes for itself is given back."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("counters", "text"), [("memory.events", EVENTS_OF_ONE), ("memory/memory.oom_control", EVENTS_OF_OTHER)]
)
@pytest.mark.parametrize("status", [1, 128 + 9])
def test_a_container_that_reached_its_limit_says_which_variable_to_raise(
    counters: str, text: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several ranks the killed one is not the one that says so: the status is 1 then."""
    file = tmp_path / counters
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.format(count=3))  # of processes before: a container that is restarted keeps its group
    count = f"open({str(file)!r}, 'w').write({text.format(count=4)!r})"
    start = runpy.run_path(str(START))
    assert start["main"](python(f"{count}; raise SystemExit({status})"), {}, tmp_path) == status
    told = capsys.readouterr().err
    assert "reached MEMORY_LIMIT" in told
    assert "murmur plan" in told
    assert start["main"](python(f"raise SystemExit({status})"), {}, tmp_path) == status
    assert "reached MEMORY_LIMIT" not in capsys.readouterr().err


COUNTS = """
import os, signal, time
read, written = os.pipe()
os.set_blocking(written, False)
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, lambda signum, frame: None)
signal.set_wakeup_fd(written)  # counts two that come at once as two
print("up", flush=True)
first = os.read(read, 1)
time.sleep(1)
os.write(written, b"!")
print("came:", *first, *os.read(read, 10)[:-1], flush=True)
"""


def said_in_a_terminal(terminal: int, word: str) -> str:
    said = ""
    while word not in said or not said.endswith("\n"):
        said += os.read(terminal, 1000).decode()
    return said


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_reaches_the_node_once_that_of_a_terminal_too(signum: int) -> None:
    """A second one would end it at once."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.execv(sys.executable, [sys.executable, str(START), *python(COUNTS)])
    try:
        said_in_a_terminal(terminal, "up")
        if signum == signal.SIGINT:
            os.write(terminal, b"\x03")
        else:
            os.kill(pid, signum)
        assert f"came: {int(signum)}\r\n" in said_in_a_terminal(terminal, "came")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_a_node_is_not_started_with_the_file_of_another_one() -> None:
    """`--env-file` gives Compose a file, and the container still has the first node's."""
    wrote = python("import sys; sys.stderr.write('it has begun')")
    mixed = {
        "MURMUR_WALLET__NAME": "first",
        "MURMUR_WALLET__HOTKEY": "default",
        "COMPOSE_READ_WALLET": "second/default",
    }
    with started(wrote, os.environ | mixed) as child:
        assert "COMPOSE_ENV_FILES" in until(child, "'second/default'")
        until(child, "ended with status 2")
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == EXIT_CONFIG
    for agreed in ({**mixed, "COMPOSE_READ_WALLET": "first/default"}, {"COMPOSE_READ_WALLET": "/"}, {}):
        with started(wrote, os.environ | agreed) as child:
            until(child, "it has begun")


@pytest.mark.parametrize("status", [0, EXIT_CONFIG, EXIT_UPDATE])  # 0: drained, or of a closed run
def test_what_another_start_would_not_help_or_undo_is_said_once_and_then_nothing_is_done(status: int) -> None:
    with started([*python(f"raise SystemExit({status})"), "neurons/member.py"]) as child:
        assert f"status {status}" in until(child, "ended with")
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == status


def test_a_real_node_without_configuration_stays_and_names_what_is_missing() -> None:
    with started([sys.executable, str(START.parents[1] / "neurons/miner.py"), "--network", "local"]) as child:
        assert "not configured yet" in until(child, "miner.py")
        until(child, "ended with status 2")


def test_a_request_to_stop_reaches_the_node_which_ends_in_its_own_time() -> None:
    source = (
        "import signal, sys, time\n"
        "def end(signum, _):\n    time.sleep(0.2); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', file=sys.stderr, flush=True)\n"
        "time.sleep(600)"
    )
    with started(python(source)) as child:
        until(child, "ready")
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == 7


@pytest.mark.parametrize(("status", "stays"), [(EXIT_CONFIG, True), pytest.param(4, False, marks=pytest.mark.slow)])
def test_of_several_ranks_the_status_is_that_of_the_one_that_ended(status: int, stays: bool, tmp_path: Path) -> None:
    node = tmp_path / "node.py"
    node.write_text(
        "import os, sys, time\n"  # as a node's first rank ends while the others wait for it
        f"if os.environ['RANK'] == '0':\n    sys.exit({status})\n"
        "time.sleep(600)"
    )
    with started(["torchrun", "--standalone", "--nproc_per_node", "2", str(node)]) as child:
        if stays:
            until(child, f"ended with status {status}")
            child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == (status if stays else 1)
