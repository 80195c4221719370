"""Ctrl-C at any moment, and what dies while the network starts: everything stops, and the screen says why."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from murmur.lab.localnet.infrastructure import wait_for
from murmur.lab.localnet.processes import Processes
from murmur.protocol.errors import ConfigError
from tests.lab.localnet.harness import assert_nothing_runs, localnet


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("moment", "signum"),
    [
        pytest.param("starting the chain", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("registering", signal.SIGTERM, marks=pytest.mark.slow),
        ("starting the nodes", signal.SIGINT),
    ],
)
def test_a_network_that_is_stopped_while_it_starts_leaves_nothing_behind(
    moment: str, signum: int, tmp_path: Path
) -> None:
    with localnet(tmp_path / "run", "--rounds", "3", "--miners", "1") as run:
        run.wait_for(moment)
        time.sleep(0.7)  # into the middle of that step
        run.process.send_signal(signum)
        # Hit inside an import, Python ends itself by the signal after our status 130: a shell sees 130 in both cases.
        assert run.finish(150) in (130, -signal.SIGINT), run.screen
        assert_nothing_runs(run.folder)
    assert re.search(r"^ +[0-9.]+ s  stopped$", run.screen, re.MULTILINE), run.screen


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_network_that_is_stopped_in_mid_run_leaves_a_report_and_nothing_else(tmp_path: Path) -> None:
    with localnet(tmp_path / "run", "--rounds", "50", "--miners", "1") as run:
        run.wait_for_round(0)
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        run.process.send_signal(signal.SIGINT)  # somebody impatient
        assert run.finish(150) == 130
        assert_nothing_runs(run.folder)
    assert "Traceback" not in run.screen
    assert len(run.report["rounds"]) >= 1
    for name in ("miner-1", "validator-1"):
        assert "stopped on request" in (run.folder / "logs" / f"{name}.log").read_text()


def test_a_process_that_dies_while_the_network_starts_is_named_with_its_last_words(tmp_path: Path) -> None:
    processes = Processes(tmp_path, dict(os.environ))
    processes.start("store", ["-c", "import time; time.sleep(60)"])
    processes.start("miner-1", ["-c", "print('no data set in /nowhere'); raise SystemExit(2)"], ["-c", ""])
    try:
        with pytest.raises(ConfigError, match="miner-1 ended while the nodes started:\n  no data set in /nowhere"):
            wait_for(lambda: False, processes, "the nodes")
    finally:
        processes.stop()


def test_a_start_that_takes_for_ever_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the nodes did not start within 0 s: see the logs in"):
        wait_for(lambda: False, Processes(tmp_path, {}), "the nodes", patience_seconds=0.0)
