"""What `murmur status` and a health check know: the last rounds, from the node's own events alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from murmur.cli.main import main
from murmur.node.telemetry.event_tail import FALLBACK_SECONDS, LATELY_ROUNDS, read_event_tail
from murmur.node.telemetry.events import TAIL_BYTES, Events

NOW = 1_800_000_000.0


def stood(round: int, outcome: str = "contributing", **fields: Any) -> dict[str, Any]:
    event = {"outcome": outcome, "why": "", "selected": 2, "active": 4, "loss": 4.5, "pay": 0.5, "sure": "learning"}
    return {"event": "round_outcome", "round": round, **event, "next_set": 100 + round, "margin": 11, **fields}


@pytest.fixture
def home(tmp_path: Path) -> Callable[..., Path]:
    """home(*events) -> a node's home in which it has told them, a minute apart, the last one now."""

    def make(*events: dict[str, Any]) -> Path:
        lines = [
            json.dumps({"time": NOW - 60 * (len(events) - 1 - place), "node": "w/default", **event})
            for place, event in enumerate(events)
        ]
        (tmp_path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path

    return make


def test_a_node_that_counts_is_healthy_and_its_last_rounds_are_told(home: Callable[..., Path]) -> None:
    tail = read_event_tail(home(*(stood(round) for round in range(9))))
    assert [event["round"] for event in tail.rounds] == [4, 5, 6, 7, 8]
    assert (tail.name, tail.counted, list(tail.wrong(NOW))) == ("w/default", True, [])


def test_a_round_that_was_told_twice_is_told_as_it_was_told_last(home: Callable[..., Path]) -> None:
    tail = read_event_tail(home(stood(1), stood(2), stood(1, "LOW_SCORE")))
    assert [event["outcome"] for event in tail.rounds] == ["LOW_SCORE", "contributing"]


@pytest.mark.parametrize(
    ("events", "later", "wrong"),
    [
        ([], 0.0, ["it has not done anything yet"]),
        ([stood(1)], 4 * FALLBACK_SECONDS, ["no round has ended for 240 minutes"]),
        ([stood(1)], -600.0, ["its last event lies 10 minutes in the future"]),
        ([{"event": "trained", "round": 0}], 0.0, []),
        (
            [stood(round, "LOW_SCORE") for round in range(LATELY_ROUNDS)],
            0.0,
            ["none of its work counted in its last 5 rounds"],
        ),
        ([stood(round, "LOW_SCORE") for round in range(LATELY_ROUNDS - 1)], 0.0, []),
        ([stood(1), {"event": "interrupted", "round": 2, "fault": "(403)"}], 0.0, ["round 2 broke off: (403)"]),
        ([{"event": "not_followed", "round": 0, "reason": "x"}, *map(stood, range(1, 7))], 0.0, []),
        ([stood(1), {"event": "weights_refused", "round": 1}], 0.0, ["the weights of round 1 are not on chain"]),
    ],
)
def test_what_is_wrong_is_named(
    home: Callable[..., Path], events: list[dict[str, Any]], later: float, wrong: list[str]
) -> None:
    found = list(read_event_tail(home(*events)).wrong(NOW + later))
    assert len(found) == len(wrong)
    assert all(told.startswith(start) for told, start in zip(found, wrong, strict=True)), found


def stopped(fault: str | None) -> dict[str, Any]:
    return {"event": "stopped", "round": 2, "fault": fault}


@pytest.mark.parametrize(
    ("events", "wrong", "unwell"),
    [
        ([stood(1), stopped(None)], [], ["it was stopped on request"]),
        ([stood(1), stopped("no space")], ["it has stopped: no space"], ["it has stopped: no space"]),
        ([stood(1), stopped(None), {"event": "started", "round": 2}], [], []),
        ([stood(1), stopped(None), {"event": "mirrored", "round": 2}], [], ["it was stopped on request"]),
    ],
)
def test_a_stop_on_request_is_told_and_is_no_fault(
    home: Callable[..., Path], events: list[dict[str, Any]], wrong: list[str], unwell: list[str]
) -> None:
    tail = read_event_tail(home(*events))
    assert list(tail.wrong(NOW)) == wrong
    assert list(tail.unwell(NOW)) == unwell


def test_status_says_that_a_node_was_stopped(
    home: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = ["status", "--home", str(home(stood(1), stopped(None)))]
    assert main(votes) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1].startswith("  round 2, stopped on request ")
    assert told[-1] == "  nothing is wrong"
    assert main([*votes, "--check"]) == 1
    assert capsys.readouterr().out == "it was stopped on request\n"


def test_only_the_end_of_a_long_history_is_read(home: Callable[..., Path]) -> None:
    long = {"event": "reported", "round": 0, "peers": "x" * (TAIL_BYTES // 2)}
    assert [event["round"] for event in read_event_tail(home(stood(1), long, long, stood(2))).rounds] == [2]


def test_status_prints_it_and_its_exit_status_is_a_health_check(
    home: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = ["status", "--home", str(tmp_path)]
    events = Events(tmp_path / "events.jsonl", "w/default")
    for round in (7, 8):
        fields = {name: value for name, value in stood(round).items() if name not in ("event", "round")}
        events.emit("round_outcome", round, **fields)
    assert main([*votes, "--check"]) == 0
    assert capsys.readouterr().out == ""
    assert main(votes) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"w/default in {tmp_path}, no run yet"
    assert told[1].startswith("  round 8, last sign of life ")
    assert told[3] == (
        "  round 8: contributing; 2 of 4 contributed; loss 4.50; pay 50.0 %, next set about block 108; learning; "
        "committed 11 blocks before the deadline"
    )
    assert told[4:] == ["  weights are set next about block 108", "  nothing is wrong"]
    events.emit("interrupted", 8, fault="the bucket refuses (403)")
    assert main(votes) == 1
    assert "  WRONG: round 8 broke off: the bucket refuses (403)" in capsys.readouterr().out
    assert main([*votes, "--check"]) == 0, "a round that broke off is no illness"
    for round in range(9, 14):
        events.emit("round_outcome", round, **{**fields, "outcome": "LOW_SCORE", "pay": 0.0})
    assert main([*votes, "--check"]) == 1
    assert capsys.readouterr().out == "none of its work counted in its last 5 rounds: LOW_SCORE\n"


def test_status_of_a_run_folder_tells_of_everybody_or_of_whom_one_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("miner-1", "validator-1"):
        node = tmp_path / "nodes" / name
        node.mkdir(parents=True)
        (node / "node.toml").touch()
        Events(node / "events.jsonl", name).emit("revealed", 1)
    assert main(["status", "--run", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["node", "round"]
    assert [row.split()[:2] + row.split()[-1:] for row in rows] == [["miner-1", "1", "ok"], ["validator-1", "1", "ok"]]
    assert main(["status", "--run", str(tmp_path), "miner-1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"miner-1 in {tmp_path}")
    assert "validator-1" not in shown
    assert "ended" not in shown
    (tmp_path / "report.json").write_text("{}")
    assert main(["status", "--run", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("the run has ended\n")
    assert main(["status", "--run", str(tmp_path), "miner-1"]) == 0
    shown = capsys.readouterr().out
    assert "round 1, ended" in shown
    assert "sign of life" not in shown
    assert main(["status", "--run", str(tmp_path), "miner-9"]) == 2
    assert main(["status", "--run", str(tmp_path / "none")]) == 2
    assert main(["status", "--home", str(tmp_path / "none")]) == 2
