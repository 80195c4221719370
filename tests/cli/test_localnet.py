"""How a run ends: what is stopped, what is written, and which error is told, whatever else goes wrong."""

import argparse
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from murmur.cli import localnet as command
from murmur.lab.localnet import report, session, trace
from murmur.lab.localnet.infrastructure import SERVERS
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.table import Table
from murmur.protocol.errors import ConfigError
from tests.lab.localnet.synthetic import Synthetic

NODES_FIRST = [SERVERS, ()]
"""Whom each of the calls that stop a network spares."""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Synthetic:
    """A network of two rounds that have been played already; the command will `open` it."""
    run = Synthetic(tmp_path / "network")
    run.round(0)
    run.round(1)
    monkeypatch.setattr(session, "open_network", lambda plan, say: run.network)
    monkeypatch.setattr(report, "_weights", lambda network: {})
    return run


def start(run: Synthetic, *words: str) -> int:
    """The command on a fresh folder, which the network takes for its own."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    folder = run.folder.with_name("run")
    run.network.plan = Plan(folder, rounds=2)
    return command.run(parser.parse_args(["--rounds", "2", "--folder", str(folder), *words]))


def written(run: Synthetic) -> dict[str, Any]:
    body = json.loads((run.folder.with_name("run") / "report.json").read_text())
    assert isinstance(body, dict)
    return body


def breaks(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    def follow(self: Table, network: object, stall_rounds: float) -> None:
        raise fault

    monkeypatch.setattr(Table, "follow", follow)


def test_a_whole_run_is_status_0_with_a_report_and_everything_stopped(ran: Synthetic) -> None:
    assert start(ran) == 0
    assert len(written(ran)["rounds"]) == 2
    assert ran.stopped == NODES_FIRST


def test_a_trace_is_of_the_last_round_and_printed_once_everything_is_stopped(
    ran: Synthetic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def traced(folder: Path, round: int) -> Iterator[str]:
        assert ran.stopped == NODES_FIRST
        yield f"round {round} of {folder.name}"

    monkeypatch.setattr(trace, "trace", traced)
    assert start(ran) == 0
    assert capsys.readouterr().out == ""
    ran.stopped.clear()
    ran.folder.with_name("run").rename(ran.folder.with_name("first"))
    assert start(ran, "--trace") == 0
    assert capsys.readouterr().out == "round 1 of run\n"
    breaks(monkeypatch, KeyboardInterrupt())
    ran.folder.with_name("run").rename(ran.folder.with_name("second"))
    assert start(ran, "--trace") == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("void", "told"),
    [((1,), "round 0 of run\n"), ((0, 1), "every round is void: there is none to trace\n")],
)
def test_a_void_round_is_not_traced(
    ran: Synthetic,
    void: tuple[int, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trace, "trace", lambda folder, round: [f"round {round} of {folder.name}"])
    for round in void:
        for node in ran.network.members:
            ran.applied(node, round, void=True)
    start(ran, "--trace")
    assert capsys.readouterr().out == told


def test_different_replicas_are_status_1(ran: Synthetic) -> None:
    ran.applied("miner-2", 1, theta="ff" * 32)
    assert start(ran) == 1


def test_weights_that_the_chain_refused_are_status_1(ran: Synthetic) -> None:
    ran.emit("validator-1", "weights_not_taken", 1, code="NeuronNoValidatorPermit")
    assert start(ran) == 1
    assert written(ran)["summary"]["weights_refused"] == 1


def test_a_run_that_breaks_has_a_report_and_tells_why_it_broke(ran: Synthetic, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch, ConfigError("round 2 did not end"))
    with pytest.raises(ConfigError, match="round 2 did not end"):
        start(ran)
    assert len(written(ran)["rounds"]) == 2
    assert ran.stopped == NODES_FIRST


def test_a_report_that_cannot_be_made_does_not_hide_why_the_run_broke(
    ran: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch, ConfigError("round 2 did not end"))
    ran.write("miner-1", '{"no": "event"}\n')
    with pytest.raises(ConfigError, match="round 2 did not end"):
        start(ran)
    assert ran.stopped == NODES_FIRST


def test_a_report_that_cannot_be_made_of_a_whole_run_is_told_with_everything_stopped(ran: Synthetic) -> None:
    ran.write("miner-1", '{"no": "event"}\n')
    with pytest.raises(KeyError):
        start(ran)
    assert ran.stopped == NODES_FIRST


def test_a_request_to_stop_is_status_130_with_a_report(
    ran: Synthetic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks(monkeypatch, KeyboardInterrupt())
    assert start(ran) == 130
    assert len(written(ran)["rounds"]) == 2
    assert ran.stopped == NODES_FIRST
    assert str(ran.folder.with_name("run") / "report.json") in capsys.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_that_is_lost_while_the_network_starts_is_heard_at_the_next_step(
    signum: signal.Signals, ran: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def opening(plan: object, say: Callable[[str], None]) -> None:
        say("importing")
        with contextlib.suppress(KeyboardInterrupt):  # what the clean-up of an import does with it
            signal.raise_signal(signum)
        steps.append("went on")
        say("next step")
        steps.append("went on again")

    monkeypatch.setattr(session, "open_network", opening)
    assert start(ran) == 130
    assert steps == ["went on"]
