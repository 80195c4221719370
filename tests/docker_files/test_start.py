"""docker/start.py: a node that another start would not help stays, any other end is the container's."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from murmur.node.program.process import EXIT_CONFIG, EXIT_UPDATE

START = Path(__file__).parents[2] / "docker" / "start.py"
SECONDS = 120.0


@contextmanager
def started(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, str(START), *words], stderr=subprocess.PIPE, text=True)
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


@pytest.mark.parametrize("status", [0, 1, 3])
def test_any_other_end_is_the_containers(status: int) -> None:
    with started(python(f"raise SystemExit({status})")) as child:
        assert child.wait(SECONDS) == status


def test_a_node_that_was_killed_ends_the_container() -> None:
    with started(python("import os; os.kill(os.getpid(), 9)")) as child:
        assert child.wait(SECONDS) == 128 + 9


@pytest.mark.parametrize("status", [EXIT_CONFIG, EXIT_UPDATE])
def test_what_another_start_would_not_help_is_said_once_and_then_nothing_is_done(status: int) -> None:
    with started(python(f"raise SystemExit({status})")) as child:
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
