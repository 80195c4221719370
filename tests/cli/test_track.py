"""A node's numbers in the field's trackers, read back by each tracker's own tool."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from murmur.node.config.settings import TelemetryConfig, TrackConfig
from murmur.node.program.tracking import start_tracker
from murmur.node.telemetry.events import Events
from murmur.track.scalars import scalars

TRAINED = {"loss": 5.25, "tokens": 4096, "seconds": {"compute": 2.0}}
OUTCOME = {"outcome": "contributing", "why": "", "selected": 4, "active": 5, "pay": 0.25, "sure": "all"}
PHASES = [
    {"phase": "wait", "began": 0.0, "seconds": 1.0},
    {"phase": "compute", "began": 1.0, "seconds": 3.0},
    {"phase": "upload", "began": 3.0, "seconds": 2.0},
]


def test_an_events_numbers_are_its_fields_and_nothing_else_is() -> None:
    head = {"time": 1.0, "node": "a", "round": 3}
    assert scalars({**head, "event": "trained", **TRAINED}) == {
        "trained/loss": 5.25,
        "trained/tokens": 4096.0,
        "trained/seconds/compute": 2.0,
        "trained/tokens_per_second": 2048.0,
    }
    assert scalars({**head, "event": "round_outcome", **OUTCOME}) == {
        "round_outcome/selected": 4.0,
        "round_outcome/active": 5.0,
        "round_outcome/pay": 0.25,
        "round_outcome/contributing": 1.0,
    }
    assert scalars({**head, "event": "phases", "phases": PHASES}) == {
        "phases/wait": 1.0,
        "phases/compute": 3.0,
        "phases/upload": 2.0,
        "utilization": 0.6,
    }
    applied = scalars({**head, "event": "applied", "void": False, "contributing": ["x", "y"], "decided": None})
    assert applied == {"applied/void": 0.0, "applied/contributing": 2.0}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"event": 7},
        {"event": "trouble", "round": 1},
        {"event": "trained", "loss": float("nan"), "seconds": {"compute": None, "more": {"deep": 1}}},
        {"event": "phases", "phases": "none"},
        {"event": "phases", "phases": [{"phase": "compute", "began": "x"}, 7]},
    ],
)
def test_what_is_no_number_is_left_out(event: dict[str, Any]) -> None:
    assert scalars(event) == {}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a node that has played two rounds."""
    events = Events(tmp_path / "home" / "events.jsonl", "miner-1")
    for round in range(2):
        events.emit("trained", round, **TRAINED | {"loss": 5.25 - round})
        events.emit("phases", round, phases=PHASES)
    events.emit("round_outcome", 0, **OUTCOME)
    events.close()
    return tmp_path / "home"


def murmur_track(home: Path, to: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "murmur", "track", str(home), "--to", to, "--project", "tiny", *more]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, env=offline(home))


def offline(home: Path) -> dict[str, str]:
    """No tracker reaches for a network, or for this user's home."""
    names = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1", "HOME": str(home.parent)}
    return os.environ | names


def losses_in_tensorboard(home: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = {path.parent for path in home.rglob("events.out.tfevents.*")}
    found = EventAccumulator(str(folder))
    found.Reload()
    assert {"utilization", "round_outcome/pay", "phases/upload"} <= set(found.Tags()["scalars"])
    return [(one.step, one.value) for one in found.Scalars("trained/loss")]


def losses_in_wandb(home: Path) -> list[tuple[int, float]]:
    """By wandb's own messages, from the file that `wandb sync` uploads and lists."""
    from wandb.proto.wandb_internal_pb2 import Record

    [path] = home.rglob("*.wandb")
    words = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(path.parent)]
    listed = subprocess.run(words, capture_output=True, text=True, timeout=120, env=offline(home), check=True)
    assert path.parent.name in listed.stdout + listed.stderr
    found = list[tuple[int, float]]()
    for data in written(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if "trained/loss" in row:
            found.append((row["round"], row["trained/loss"]))
    return found


def written(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, after wandb's header of seven bytes."""
    assert data.startswith(b":W&B")
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def losses_in_trackio(home: Path) -> list[tuple[int, float]]:
    words = [sys.executable, "-m", "trackio.cli", "get", "metric", "--project", "tiny", "--run", home.name]
    environment = offline(home) | {"TRACKIO_DIR": str(home / "track" / "trackio")}
    words += ["--metric", "trained/loss", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, check=True)
    return [(row["step"], row["value"]) for row in json.loads(done.stdout)["values"]]


READERS = {"tensorboard": losses_in_tensorboard, "wandb": losses_in_wandb, "trackio": losses_in_trackio}


@pytest.mark.parametrize("to", READERS)
def test_each_trackers_own_tool_reads_what_a_node_did(home: Path, to: str) -> None:
    done = murmur_track(home, to)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"5 events shown in {to}" in done.stdout
    assert READERS[to](home) == [(0, 5.25), (1, 4.25)]


def test_a_home_without_events_is_told(tmp_path: Path) -> None:
    done = murmur_track(tmp_path, "tensorboard")
    assert done.returncode == 2
    assert "events.jsonl is missing" in done.stderr


def test_a_tracker_that_a_node_starts_shows_what_comes_until_the_node_is_gone(home: Path) -> None:
    """Also half a line, of which the rest comes later."""
    node = (
        "import sys, time; from pathlib import Path; from murmur.node.config.settings import *\n"
        "from murmur.node.program.tracking import start_tracker; from murmur.node.telemetry.events import Events\n"
        "home = Path(sys.argv[1]); config = TelemetryConfig(track=TrackConfig(to='tensorboard'))\n"
        "start_tracker(config, 'tiny', 'miner-1', home); events = Events(home / 'events.jsonl', 'miner-1')\n"
        "events.emit('trained', 7, loss=2.5, tokens=1, seconds={'compute': 1.0})\n"
        "file = open(home / 'events.jsonl', 'ab', 0)\n"
        'file.write(b\'{"time": 1, "node": "a", "event": "trained", "rou\'); time.sleep(3)\n'
        'file.write(b\'nd": 8, "loss": 2.25}\\n\')\n'
    )
    subprocess.run([sys.executable, "-c", node, str(home)], check=True, timeout=60, env=offline(home))
    log, end = home / "track.log", time.monotonic() + 60
    while "2 events shown" not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = {path.parent for path in home.rglob("events.out.tfevents.*")}
    found = EventAccumulator(str(folder))
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("trained/loss")] == [(7, 2.5), (8, 2.25)]


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("wandb", "the tracker wandb does not open (UsageError): No API key configured"),
        ("trackio", "the tracker trackio does not open (SystemError): a library of another Python"),
    ],
)
def test_a_tracker_that_does_not_open_says_why_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], to: str, said: str
) -> None:
    (home.parent / "trackio.py").write_text("raise SystemError('a library\\nof another Python')")
    monkeypatch.setenv("PYTHONPATH", str(home.parent), prepend=os.pathsep)
    words = [sys.executable, "-m", "murmur", "track", str(home), "--to", to]
    environment = {name: value for name, value in offline(home).items() if not name.startswith("WANDB")}  # no login
    assert subprocess.run(words, stdin=subprocess.DEVNULL, timeout=240, env=environment).returncode == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(said)


@pytest.mark.parametrize(
    "fault", ["raise RuntimeError('broken')", "raise ImportError('gone')", "import os; os.abort()"]
)
def test_a_tracker_that_breaks_is_told_and_the_node_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (home.parent / "trackio.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", str(home.parent), prepend=os.pathsep)
    told = list[str]()
    sink = logger.add(lambda message: told.append(str(message)), level="WARNING")
    try:
        start_tracker(TelemetryConfig(track=TrackConfig(to="trackio")), "tiny", "miner-1", home)
        end = time.monotonic() + 60
        while not any("has ended with status" in line for line in told):
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        logger.remove(sink)


def test_a_tracker_is_given_no_secret_of_its_node(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.parent / "trackio.py").write_text("import os; print(sorted(os.environ)); raise RuntimeError")
    monkeypatch.setenv("PYTHONPATH", str(home.parent), prepend=os.pathsep)
    monkeypatch.setenv("MURMUR_BUCKET__SECRET_KEY", "a secret")
    monkeypatch.setenv("TRACKER_OF_OURS", "1")
    start_tracker(TelemetryConfig(track=TrackConfig(to="trackio")), "tiny", "miner-1", home)
    end = time.monotonic() + 60
    while "RuntimeError" not in (told := (home / "track.log").read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "TRACKER_OF_OURS" in told
    assert "MURMUR_BUCKET__SECRET_KEY" not in told
