"""`murmur simulate`: short runs in which everything holds, one history a seed, and bugs that it finds."""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from gauntlet.agreement import Log, posts_in
from murmur.cli import simulate as command
from murmur.cli.simulate import add_arguments, simulate
from murmur.lab.simulation import hostile
from murmur.lab.simulation.hostile import LIES
from murmur.lab.simulation.modelled_replica import INNER_STEP
from murmur.node.chain.agreement import Agreement
from murmur.protocol.errors import ConfigError
from murmur.protocol.run import Run
from storage.realtime import RealTime

HOLDS = {"disagreements", "void_unexplained", "halted", "honest_faults_booked", "unobserved_weights"} | {
    "refused_weights",
    "unpaid",
}


def options(*words: str) -> Namespace:
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_twenty_rounds_without_a_fault_are_all_agreed_and_touch_no_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a simulated node uses real time")

    for name in ("now", "wall", "sleep", "condition", "start"):
        monkeypatch.setattr(RealTime, name, refuse)
    result = simulate(options("--rounds", "20", "--validators", "2", "--miners", "3", "--faults-per-hour", "0"))
    assert (result.rounds, result.faults, result.void_rounds, result.broken) == (20, 0, 0, [])
    assert result.recovery_rounds_p99 < 0.1
    # Every round moves theta about one inner step along the pages' common way, whose mean square is a third.
    assert 0.5 < result.loss_fall / (20 * INNER_STEP / 3) < 1.5


def test_one_seed_is_one_history_in_any_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Hash seeds, thread ids and sealing keys differ from process to process."""
    words = ["--rounds", "10", "--validators", "2", "--miners", "3", "--faults-per-hour", "120", "--seed", "5"]
    words.append("--json")
    command.run(options(*words))
    here = json.loads(capsys.readouterr().out)
    done = subprocess.run(
        [sys.executable, "-m", "murmur", "simulate", *words],
        env={**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    there = json.loads(done.stdout)
    for found in (here, there):
        found.pop("seconds")
    assert here == there
    assert here["faults"] > 0


def test_what_must_hold_holds_in_a_storm(tmp_path: Path) -> None:
    trace = tmp_path / "history.jsonl"
    words = ("--rounds", "12", "--validators", "3", "--miners", "5", "--faults-per-hour", "60", "--seed", "3")
    result = simulate(options(*words, "--trace", str(trace)))
    assert result.broken == []
    assert result.faults > 30
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert {"killed", "applied", "weights"} <= {line["event"] for line in lines}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


def test_a_node_that_decides_by_what_it_sees_when_it_looks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug reads votes from the newest block's state, and not from those of the round: whoever looks late,
    because it was down, sees slots that were overwritten since, and takes for void what others applied."""

    def hasty(self: Agreement, run: Run, round: int, block: int) -> Log:
        chain, first = self.chain, run.clock.commit_deadline(round)
        posts = posts_in(run, round, chain.peers(chain.finalized().block))
        in_order = sorted(posts, key=lambda post: (post.block, post.peer))
        return Log(chain.peers(first), chain.header(first).hash, tuple(in_order))

    monkeypatch.setattr(Agreement, "log", hasty)
    words = ("--rounds", "12", "--validators", "2", "--miners", "3", "--faults-per-hour", "60")
    assert any(simulate(options(*words, "--seed", str(seed))).broken for seed in range(3))


def test_no_lie_of_a_third_of_the_stake_costs_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them a vote that is taken back or contradicted, and one that comes at the last moment."""
    told: list[str] = []
    monkeypatch.setattr(hostile, "lie", lambda run, round: told.append(LIES[round % len(LIES)]) or told[-1])
    words = ("--validators", "3", "--miners", "4", "--hostile-stake", "0.33", "--faults-per-hour", "0")
    result = simulate(options("--rounds", str(len(LIES)), *words))
    assert (result.void_rounds, result.disagreements, result.broken) == (0, 0, [])
    assert set(told) == set(LIES)


def test_miners_that_show_each_validator_another_face_cost_no_round() -> None:
    words = ("--rounds", "5", "--validators", "3", "--miners", "13", "--two-faced", "6", "--faults-per-hour", "0")
    result = simulate(options(*words, "--seed", "1"))
    assert (result.void_rounds, result.disagreements, result.broken) == (0, 0, [])


def test_what_breaks_is_printed_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from murmur.lab.simulation.invariants import Result

    monkeypatch.setattr(command, "simulate", lambda options: Result(7, 9, halted=True, broken=["miner-1 stands still"]))
    words = ("--rounds", "9", "--seed", "7", "--miners", "4")
    assert command.run(options(*words)) == 1
    told = capsys.readouterr()
    assert "miner-1 stands still" in told.out
    again = next(line for line in told.err.splitlines() if "murmur simulate" in line).split()[2:]
    replayed = options(*again)
    assert (replayed.rounds, replayed.seed, replayed.miners, replayed.validators) == (9, 7, 4, 3)
    assert command.run(options(*words, "--json")) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() >= HOLDS
    assert shown["broken"] == ["miner-1 stands still"]


@pytest.mark.parametrize(
    "words",
    [
        ("--rounds", "0"),
        ("--validators", "0"),
        ("--miners", "1000"),
        ("--faults-per-hour", "-1"),
        ("--hostile-stake", "1.5"),
        ("--miners", "3", "--two-faced", "4"),
        ("--validators", "1", "--hostile-stake", "0.3"),
    ],
)
def test_numbers_that_make_no_network_are_refused_by_name(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=words[-2]):
        command.run(options(*words))
