"""What `murmur status` and a health check know: the last rounds, from the node's own events alone."""

import fcntl
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from murmur.cli.main import main
from murmur.node.config.run_file import LOCK, RunFile, folder_of
from murmur.node.doctor import machine, start
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.telemetry import event_tail
from murmur.node.telemetry.event_tail import FALLBACK_SECONDS, LATELY_ROUNDS, WAITS_SECONDS, read_event_tail
from murmur.node.telemetry.events import TAIL_BYTES, Events, last_events
from murmur.node.telemetry.metrics import Metrics
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.run import Run
from storage.realtime import REAL
from tests.specs import toy_spec, toy_table

NOW = 1_800_000_000.0


def stood(round: int, outcome: str = "contributing", **fields: Any) -> dict[str, Any]:
    event = {"outcome": outcome, "why": "", "selected": 2, "active": 4, "loss": 4.5, "pay": 0.5, "sure": "learning"}
    return {"event": "round_outcome", "round": round, **event, "next_set": 100 + round, "margin": 11, **fields}


def trouble(cause: str, detail: str = "") -> dict[str, Any]:
    return {"event": "trouble", "round": 1, **Trouble(cause, detail).fields()}


def mended(about: str) -> dict[str, Any]:
    return {"event": "mended", "round": 1, "about": about, "cause": "any"}


def stopped(fault: str | None) -> dict[str, Any]:
    return {"event": "stopped", "round": 2, "fault": fault}


def started(run: str, hotkey: str = "5mine") -> dict[str, Any]:
    return {"event": "started", "round": 0, "run": run, "hotkey": hotkey}


def judged(round: int, **fields: Any) -> dict[str, Any]:
    event = {"active": 6, "evaluated": 4, "rejected": {"LATE": 2}, "selected": 3, "unobserved": None, "loss": 4.1}
    return {"event": "judged", "round": round, **event, "set_in": 540, "unrevealed": 1, "next_set": 640, **fields}


def without(event: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != field}


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
        ([{"event": "trained", "round": 0, "loss": None}], 0.0, []),
        (
            [stood(round, "LOW_SCORE") for round in range(LATELY_ROUNDS)],
            0.0,
            ["none of the node's last rounds counted (the last 5: LOW_SCORE); yours to mend"],
        ),
        ([stood(round, "LOW_SCORE") for round in range(LATELY_ROUNDS - 1)], 0.0, []),
        ([stood(1), trouble("bucket_denied", "put: (403)")], 0.0, ["our own bucket refuses our writes (put: (403)); "]),
        ([stood(1), trouble("bucket_denied"), mended("bucket")], 0.0, []),
        ([stood(1), trouble("bucket_denied"), mended("chain")], 0.0, ["our own bucket refuses our writes; "]),
        ([stood(1), trouble("bucket_denied"), started("aa")], 0.0, []),
        ([trouble("chain_silent", "none"), *map(stood, range(1, 7))], 0.0, ["the chain node does not answer (none); "]),
        ([{"event": "damaged", "round": 0, "lost": ["theta"]}, *map(stood, range(1, 7))], 0.0, []),
        ([stood(1), trouble("weights_refused", "a rate limit")], 0.0, ["the chain did not take this hotkey's weights"]),
        (
            [stood(1), {"event": "damaged", "round": 1, "lost": ["theta"]}],
            0.0,
            ["the disk has damaged saved files of round"],
        ),
    ],
)
def test_what_is_wrong_is_named(
    home: Callable[..., Path], events: list[dict[str, Any]], later: float, wrong: list[str]
) -> None:
    found = list(read_event_tail(home(*events)).wrong(NOW + later))
    assert len(found) == len(wrong)
    assert all(told.startswith(start) for told, start in zip(found, wrong, strict=True)), found


@pytest.mark.parametrize(
    ("events", "wrong", "unwell"),
    [
        ([stood(1), stopped(None)], [], [Trouble("stopped", "on request")]),
        ([stood(1), stopped("no space")], [Trouble("stopped", "no space")], [Trouble("stopped", "no space")]),
        ([stood(1), stopped(None), started("aa")], [], []),
        ([stood(1), stopped(None), {"event": "mirrored", "round": 2}], [], [Trouble("stopped", "on request")]),
    ],
)
def test_a_stop_on_request_is_told_and_is_no_fault(
    home: Callable[..., Path], events: list[dict[str, Any]], wrong: list[Trouble], unwell: list[Trouble]
) -> None:
    tail = read_event_tail(home(*events))
    assert list(tail.wrong(NOW)) == [str(one) for one in wrong]
    assert list(tail.unwell(NOW)) == [one.fields() for one in unwell]


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


def test_of_two_runs_in_one_home_only_the_one_that_was_followed_last_is_told(home: Callable[..., Path]) -> None:
    old = [started("aa", "5old"), *(stood(round, "LOW_SCORE") for round in range(90, 99)), trouble("diverged")]
    damaged = {"event": "damaged", "round": 98, "lost": ["theta"]}
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


FOREIGN = [
    {},
    {"event": "damaged", "lost": ["theta"]},
    {"event": "damaged", "round": 1},
    stood(2) | {"round": "2"},
    stood(2) | {"round": True},
    {"event": "judged", "round": 3},
    judged(3) | {"rejected": ["LATE"]},
    judged(3) | {"rejected": {"LATE": "many"}},
    *(without(judged(3), field) for field in judged(3) if field not in ("event", "round")),
    *(without(stood(3), field) for field in stood(3) if field not in ("event", "round")),
    stood(3) | {"pay": "much"},
    stood(3) | {"margin": 10**400},
    stood(3) | {"time": None},
    stood(3) | {"time": float("nan")},
    stood(3) | {"time": 10**400},
    stood(3) | {"node": None},
    {"event": "stopped", "round": 3},
    {"event": "stopped", "round": 3, "fault": 7},
    {"event": "started", "round": 3, "run": 7, "hotkey": None},
    {"event": "phases", "round": 3, "phases": {"a": 1}},
    {"event": "phases", "round": 3, "phases": [{"phase": "compute", "began": 0.0, "seconds": None}]},
    {"event": "applied", "round": 3, "void": False, "contributing": None, "after": 1},
    trouble("disk_low") | {"do": None},
    trouble("disk_low") | {"about": ["disk"]},
]


@pytest.mark.parametrize("line", FOREIGN, ids=lambda line: json.dumps(line)[:60])
def test_a_line_that_is_no_event_with_the_fields_of_its_kind_is_passed_over_everywhere(
    line: dict[str, Any], home: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = cast(ExaminedNode, SimpleNamespace(home=tmp_path, time=SimpleNamespace(wall=lambda: NOW)))

    def shown() -> tuple[int, list[str], str, bytes]:
        code = main(["status", "--home", str(tmp_path), "--check"])
        code += main(["status", "--home", str(tmp_path)])
        metrics = Metrics("run", tmp_path, 60.0)
        metrics.recall(last_events(tmp_path / "events.jsonl"), NOW, validates=True)
        known = [row for row in generate_latest(metrics.registry).splitlines() if b"bytes" not in row]
        told = [row for row in capsys.readouterr().out.splitlines() if "sign of life" not in row]
        return code, told, machine.node(node), b"\n".join(row for row in known if b"_created" not in row)

    home(started("aa"), stood(1), {"event": "mirrored", "round": 2})
    before = shown()
    file = tmp_path / "events.jsonl"
    first, *rest = file.read_text().splitlines()
    foreign = json.dumps(({"time": NOW, "node": "w/default"} if line else {}) | line)
    file.write_text("\n".join([first, foreign, *rest, ""]))
    assert shown() == before


JUNK = [
    None,
    True,
    -1,
    0,
    1e308,
    float("nan"),
    "",
    "x",
    "\x1b[2J",
    "\ud800",
    [],
    {},
    [1, None],
    {"a": 1},
    10**400,
    "clock",
]


def test_whatever_stands_in_the_file_nothing_that_reads_it_crashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: Callable[[int], int]
) -> None:
    draw = random.Random(1)
    known = [started("aa"), stopped("x"), stood(1), judged(1), trouble("disk_low"), *FOREIGN]
    for _ in range(share(200)):
        lines = []
        for _ in range(6):
            event: dict[str, Any] = {"time": NOW, "node": "n"} | draw.choice(known)
            for name in draw.sample(sorted(event), draw.randrange(3) if event else 0):
                event[name] = draw.choice(JUNK)
            lines.append(json.dumps(event))
        (tmp_path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        main(["status", "--home", str(tmp_path)])
        metrics = Metrics("run", tmp_path, 60.0)
        metrics.recall(last_events(tmp_path / "events.jsonl"), NOW, validates=True)
        generate_latest(metrics.registry)
        capsys.readouterr().out.encode()


@pytest.mark.parametrize("cause", ["cannot_start", "waits"])
def test_a_node_that_has_not_started_yet_is_not_healthy(
    cause: str, home: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said = trouble(cause, "chain: down")
    node = str(home(said | {"time": REAL.wall()}))
    assert main(["status", "--home", node, "--check"]) == 1
    assert capsys.readouterr().out == f"{Trouble(cause, 'chain: down')}\n"


RUN = "ab" * 32


def locked(home: Path, run: str = RUN) -> Path:
    """The lock of a run's folder, which a process has held."""
    folder = home / run[:16]
    folder.mkdir(exist_ok=True)
    (folder / LOCK).touch()
    return folder / LOCK


WAITS, CANNOT = trouble("waits", "chain: down"), trouble("cannot_start", "wallet: none")


@pytest.mark.parametrize(
    ("events", "later", "causes"),
    [
        ([started(RUN), stood(1)], 0.0, ["gone"]),
        ([started(RUN), stood(1)], 9 * FALLBACK_SECONDS, ["gone"]),
        ([stood(1)], 0.0, ["gone"]),
        ([started(RUN), stood(1), WAITS], 0.0, ["waits"]),
        ([started(RUN), stood(1), trouble("bucket_denied"), CANNOT], 0.0, ["cannot_start"]),
        ([started(RUN), stood(1), CANNOT], 9 * FALLBACK_SECONDS, ["cannot_start"]),
        ([started(RUN), stood(1), stopped("x"), WAITS], 0.0, ["waits"]),
        ([started(RUN), stood(1), stopped("x")], 0.0, ["stopped"]),
        ([started(RUN), stood(1), stopped(None)], 9 * FALLBACK_SECONDS, []),
        ([started(RUN), stood(1), stopped(None), WAITS], 0.0, ["waits"]),
        ([started(RUN), stood(1), stopped(None), WAITS], WAITS_SECONDS + 1, ["gone"]),
        ([WAITS], WAITS_SECONDS + 1, ["gone"]),
        ([WAITS, started(RUN), stood(1), stopped("x"), WAITS, started(RUN)], 0.0, ["gone"]),
    ],
)
def test_of_its_process_the_newest_word_counts_alone(
    home: Callable[..., Path], events: list[dict[str, Any]], later: float, causes: list[str]
) -> None:
    folder = home(*events)
    locked(folder)
    assert [one["cause"] for one in read_event_tail(folder).troubles(NOW + later)] == causes
    assert WAITS_SECONDS > 2 * start.AGAIN_SECONDS


def test_a_process_that_holds_the_folder_waits_however_long_it_says_nothing(home: Callable[..., Path]) -> None:
    folder = home(WAITS)
    with locked(folder).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = read_event_tail(folder).troubles(NOW + 2 * WAITS_SECONDS)
    assert [one["cause"] for one in found] == ["waits"]


def test_who_a_node_is_and_that_its_process_is_gone_is_known_however_much_it_has_told_since(tmp_path: Path) -> None:
    """A validator tells as much as is read in about fifty rounds."""
    run = "cd" * 32
    locked(tmp_path, run)
    events = Events(tmp_path / "events.jsonl", "w/default")
    events.emit("started", 0, run=run, hotkey="5mine")
    for round in range(40):
        events.emit("reported", round, peers={f"{peer}": "x" * 1500 for peer in range(200)})
    assert (tmp_path / "events.jsonl").stat().st_size > TAIL_BYTES
    tail = read_event_tail(tmp_path)
    assert (tail.hotkey, tail.gone) == ("5mine", True)


def test_a_clock_that_is_right_again_is_not_told_as_wrong(home: Callable[..., Path]) -> None:
    """The last round was told an hour ahead of time."""
    right = mended("clock") | {"time": NOW}
    tail = read_event_tail(home(started("aa"), stood(1) | {"time": NOW + 3600}, right))
    assert list(tail.wrong(NOW)) == []
    found = [one["cause"] for one in tail.troubles(NOW + 2.1 * FALLBACK_SECONDS)]
    assert found == ["silent"], "since it was right again"


def test_of_two_runs_in_one_home_the_one_that_is_followed_is_named_and_timed(home: Callable[..., Path]) -> None:
    table = toy_table()
    clock = table["clock"]
    newer = Run(toy_spec({"name": "newer", "clock": clock | {"start_block": 5000}}))
    followed = Run(toy_spec({"name": "followed", "clock": clock | {"round_blocks": 10 * clock["round_blocks"]}}))
    folder = home(started(followed.id.hex()), stood(1))
    for run in (newer, followed):
        RunFile(folder_of(folder, run.id)).save(run)
    tail = read_event_tail(folder)
    assert tail.run is not None
    assert tail.run.first.name == "followed"
    assert tail.seconds == followed.clock.round_blocks * followed.first.clock.block_seconds
