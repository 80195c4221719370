"""What `murmur status` and a health check know: the last rounds, from the node's own events alone."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from murmur.cli.main import main
from murmur.node.telemetry import event_tail
from murmur.node.telemetry.event_tail import FALLBACK_SECONDS, LATELY_ROUNDS, read_event_tail
from murmur.node.telemetry.events import TAIL_BYTES, Events
from murmur.node.telemetry.trouble import Trouble

NOW = 1_800_000_000.0


def stood(round: int, outcome: str = "contributing", **fields: Any) -> dict[str, Any]:
    event = {"outcome": outcome, "why": "", "selected": 2, "active": 4, "loss": 4.5, "pay": 0.5, "sure": "learning"}
    return {"event": "round_outcome", "round": round, **event, "next_set": 100 + round, "margin": 11, **fields}


def trouble(cause: str, detail: str = "") -> dict[str, Any]:
    return {"event": "trouble", "round": 1, **Trouble(cause, detail).fields()}


def mended(about: str) -> dict[str, Any]:
    return {"event": "mended", "round": 1, "about": about, "cause": "any"}


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
        ([], 0.0, ["the node has not done anything yet; yours to mend. It costs: "]),
        (
            [stood(1)],
            4 * FALLBACK_SECONDS,
            ["the node has ended no round for two rounds' time (no round has ended for 240 minutes, "],
        ),
        ([stood(1)], -600.0, ["this machine's clock is wrong (its last event lies 10 minutes in the future, "]),
        ([{"event": "trained", "round": 0}], 0.0, []),
        (
            [stood(round, "LOW_SCORE") for round in range(LATELY_ROUNDS)],
            0.0,
            ["none of the node's last rounds counted (the last 5: LOW_SCORE); yours to mend"],
        ),
        ([stood(round, "LOW_SCORE") for round in range(LATELY_ROUNDS - 1)], 0.0, []),
        ([stood(1), trouble("bucket_denied", "put: (403)")], 0.0, ["our own bucket refuses our writes (put: (403)); "]),
        ([stood(1), trouble("bucket_denied"), mended("bucket")], 0.0, []),
        ([stood(1), trouble("bucket_denied"), mended("chain")], 0.0, ["our own bucket refuses our writes; "]),
        ([stood(1), trouble("bucket_denied"), {"event": "started", "round": 1}], 0.0, []),
        ([trouble("chain_silent", "none"), *map(stood, range(1, 7))], 0.0, ["the chain node does not answer (none); "]),
        ([{"event": "damaged", "round": 0, "lost": "x"}, *map(stood, range(1, 7))], 0.0, []),
        ([stood(1), trouble("weights_refused", "a rate limit")], 0.0, ["the chain did not take this hotkey's weights"]),
        ([stood(1), {"event": "damaged", "round": 1, "lost": "x"}], 0.0, ["the disk has damaged saved files of round"]),
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
        ([stood(1), stopped(None)], [], [Trouble("stopped", "on request")]),
        ([stood(1), stopped("no space")], [Trouble("stopped", "no space")], [Trouble("stopped", "no space")]),
        ([stood(1), stopped(None), {"event": "started", "round": 2}], [], []),
        ([stood(1), stopped(None), {"event": "mirrored", "round": 2}], [], [Trouble("stopped", "on request")]),
    ],
)
def test_a_stop_on_request_is_told_and_is_no_fault(
    home: Callable[..., Path], events: list[dict[str, Any]], wrong: list[Trouble], unwell: list[Trouble]
) -> None:
    tail = read_event_tail(home(*events))
    assert list(tail.wrong(NOW)) == [str(one) for one in wrong]
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
    assert capsys.readouterr().out == f"{Trouble('stopped', 'on request')}\n"


def started(run: str, hotkey: str = "5mine") -> dict[str, Any]:
    return {"event": "started", "round": 0, "run": run, "hotkey": hotkey}


def test_of_two_runs_in_one_home_only_the_one_that_was_followed_last_is_told(home: Callable[..., Path]) -> None:
    old = [started("aa", "5old"), *(stood(round, "LOW_SCORE") for round in range(90, 99)), trouble("diverged")]
    damaged = {"event": "damaged", "round": 98, "lost": "x"}
    tail = read_event_tail(home(*old, damaged, started("bb"), stood(0), stood(1), started("bb"), stood(2)))
    assert [event["round"] for event in tail.rounds] == [0, 1, 2]
    assert (tail.hotkey, list(tail.wrong(NOW))) == ("5mine", [])
    assert tail.newest is not None
    assert tail.newest["round"] == 2


def test_what_was_told_before_the_first_start_is_of_the_same_run(home: Callable[..., Path]) -> None:
    tail = read_event_tail(home(stood(0), trouble("cannot_start"), started("aa"), stood(1)))
    assert [event["round"] for event in tail.rounds] == [0, 1]
    assert list(tail.wrong(NOW)) == []


def test_a_node_that_could_not_start_says_why_until_it_has(home: Callable[..., Path]) -> None:
    tail = read_event_tail(home(started("aa"), stood(0), stopped(None), trouble("cannot_start", "key: fix it")))
    assert next(iter(tail.wrong(NOW))).startswith("the node cannot start (key: fix it); yours to mend")


def test_a_low_disk_is_told_once_though_the_node_says_it_too(
    home: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert len(list(read_event_tail(home(stood(1))).wrong(NOW))) == 1
    (told,) = read_event_tail(home(stood(1), trouble("disk_low", "by itself"))).wrong(NOW)
    assert "(by itself)" in told


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
    events.emit("trouble", 8, **Trouble("broke_off", "the bucket refuses (403)").fields())
    assert main(votes) == 1
    assert f"  WRONG: {Trouble('broke_off', 'the bucket refuses (403)')}\n" in capsys.readouterr().out
    assert main([*votes, "--check"]) == 0, "a round that broke off is no illness"
    events.emit("mended", 8, about="work", cause="broke_off")
    assert main(votes) == 0
    assert capsys.readouterr().out.endswith("  nothing is wrong\n")
    for round in range(9, 14):
        events.emit("round_outcome", round, **{**fields, "outcome": "LOW_SCORE", "pay": 0.0})
    assert main([*votes, "--check"]) == 1
    assert capsys.readouterr().out == f"{Trouble('not_counting', 'the last 5: LOW_SCORE')}\n"


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
