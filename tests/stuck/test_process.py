"""Processes that end, hang or lose a thread: what tells of them is outside of them."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stuck.play import record, until_back
from tests.stuck.stage import ROUND_SECONDS, Stage, said

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("process"), validators=1, miners=3)
    try:
        stage.publish()
        for node in stage.nodes:
            stage.start(node)
        until_back(stage, ["miner-1", "miner-2", "miner-3"], 0.0, 6.0)
        yield stage
    finally:
        stage.close()


def told(stage: Stage, node: str) -> dict[str, str]:
    config = str(stage.config(node))
    return {
        "status": said("status", "--config", config),
        "doctor": said("doctor", "--fast", "--config", config),
        "explain": said("explain", stage.hotkey(node), "--config", config),
    }


def assert_says(stage: Stage, name: str, node: str, cause: str, words: str, seconds: float) -> None:
    began = time.monotonic()
    stage.wait_for(words, lambda: words in said("status", "--config", str(stage.config(node))), seconds)
    surfaces = told(stage, node)
    assert all(words in " ".join(text.split()) for text in surfaces.values()), surfaces
    record(name, cause, round(time.monotonic() - began, 1), set(surfaces))


def test_a_node_that_was_killed_is_said_to_be_gone_at_once(stage: Stage) -> None:
    stage.stop("miner-1", signal.SIGKILL)
    assert_says(stage, "the process is killed", "miner-1", "gone", "process has ended without a word", 10)
    stage.start("miner-1")
    until_back(stage, ["miner-1"], time.time(), 4.0)
    assert "nothing is wrong" in said("status", "--config", str(stage.config("miner-1")))


def test_a_node_that_hangs_is_said_to_be_silent_within_two_rounds_and_a_bit(stage: Stage) -> None:
    stage.programs["miner-2"].send_signal(signal.SIGSTOP)
    assert_says(stage, "the process hangs", "miner-2", "silent", "has ended no round", 3 * ROUND_SECONDS)
    stage.programs["miner-2"].send_signal(signal.SIGCONT)
    until_back(stage, ["miner-2"], time.time(), 4.0)


def test_a_node_without_memory_for_a_thread_has_stopped_or_is_said_to_be_silent(stage: Stage) -> None:
    """A process that has no memory at all may be unable to end itself; that it does nothing shows from outside."""
    process = stage.programs["miner-3"]
    used = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(process.pid, resource.RLIMIT_AS, (used, used))
    words = {"stopped": "the node has stopped", "silent": "has ended no round"}

    def seen() -> list[str]:
        told = said("status", "--config", str(stage.config("miner-3")))
        return [cause for cause, words in words.items() if words in told]

    stage.wait_for("word", seen, 3 * ROUND_SECONDS)
    (cause,) = seen()
    assert (cause == "stopped") == (process.poll() == 1)
    assert_says(stage, "there is no memory for a thread", "miner-3", cause, words[cause], 10)


def test_a_node_that_is_asked_to_stop_after_it_committed_reveals_first(stage: Stage) -> None:
    began = time.time()
    stage.wait_for("a commitment", lambda: bool(stage.events("miner-2", "committed", began)), 4 * ROUND_SECONDS)
    [round] = {event["round"] for event in stage.events("miner-2", "committed", began)}
    assert stage.stop("miner-2", signal.SIGTERM) == 0
    assert round in {event["round"] for event in stage.events("miner-2", "revealed", began)}
    log = stage.log("miner-2")
    assert log.index(f"round {round}: committed in block") < log.index(f"round {round}: revealed")
    stage.start("miner-2")
    until_back(stage, ["miner-2"], time.time(), 4.0)


def test_a_node_that_is_stopped_on_request_is_not_wrong(stage: Stage) -> None:
    assert stage.stop("miner-1") == 0
    assert "stopped on request" in said("status", "--config", str(stage.config("miner-1")))
    assert "WRONG" not in said("status", "--config", str(stage.config("miner-1")))
