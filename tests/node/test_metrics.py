"""What Prometheus scrapes from a node: every event lands in its metric, and nothing is exported that is not known."""

import socket
import urllib.request
from pathlib import Path

import pytest
from loguru import logger
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from murmur.node.telemetry.events import Events, last_events
from murmur.node.telemetry.metrics import FAULTS, GUESSES, LAST_ERROR_CHARACTERS, VERDICTS, Metrics
from murmur.protocol.errors import ConfigError


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    return Metrics("the-run", tmp_path, 60.0)


def samples(metrics: Metrics) -> dict[str, float]:
    """name{label value} -> value, as a scraper parses it."""
    text = generate_latest(metrics.registry).decode()
    return {
        "".join([sample.name, *(f"{{{value}}}" for value in sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_a_node_that_has_done_nothing_exports_its_run_and_its_disk_alone(metrics: Metrics) -> None:
    found = samples(metrics)
    assert found.keys() == {
        "murmur_run_info{the-run}",
        "murmur_last_error_info{}",
        "murmur_round_planned_seconds",
        "murmur_disk_free_bytes",
        "murmur_moved_bytes_total{up}",
        "murmur_moved_bytes_total{down}",
        *(f"murmur_faults_total{{{kind}}}" for kind in FAULTS),
        *(f"murmur_guesses_total{{{kind}}}" for kind in GUESSES),
        *(f"murmur_verified_total{{{kind}}}" for kind in VERDICTS),
    }
    counted = ("murmur_faults", "murmur_guesses", "murmur_verified")
    assert not any(found[name] for name in found if name.startswith(counted))
    assert found["murmur_disk_free_bytes"] > 0


def test_verdicts_are_counted(metrics: Metrics, tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl", "w/default", see=metrics.see)
    for passed, declared in ((True, 20), (True, 10), (False, 20), (False, 0)):
        events.emit("verified", 3, peer="5", passed=passed, declared=declared, confirmed=True, seconds={"verify": 1.0})
    events.emit("unverified", 3, peer="5", why="no time")
    found = samples(metrics)
    assert [found[f"murmur_verified_total{{{kind}}}"] for kind in VERDICTS] == [2, 1, 1, 1]


def test_what_a_miner_tells_is_what_is_scraped(metrics: Metrics, tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl", "w/default", see=metrics.see)
    events.emit("trained", 3, loss=4.5, tokens=100, seconds={"compute": 1.0})
    events.emit("published", 3, payload_bytes=1000, seconds={"upload": 1.0})
    events.emit("published", 4, payload_bytes=1000, seconds={"upload": 1.0})
    events.emit("applied", 3, void=False, contributing=["a", "b"], theta="", after=9, guess="right", seconds={})
    phases = [("wait", 0.0, 1.0), ("compute", 0.0, 2.0), ("wait", 2.0, 3.0)]
    events.emit("phases", 3, phases=[{"phase": p, "began": b, "seconds": s} for p, b, s in phases])
    told = {"why": "", "selected": 2, "active": 4, "loss": 4.5, "sure": "learning", "next_set": 540}
    events.emit("round_outcome", 2, outcome="LOW_SCORE", pay=None, margin=None, **told)
    assert samples(metrics)["murmur_rounds_missed"] == 1
    assert "murmur_pay_share" not in samples(metrics)
    events.emit("round_outcome", 3, outcome="contributing", pay=0.078, margin=11, **told)
    events.emit("interrupted", 4, fault="no connection")
    found = samples(metrics)
    expected = {
        "murmur_round": 3,
        "murmur_told_round": 3,
        "murmur_contributing": 1,
        "murmur_rounds_missed": 0,
        "murmur_active": 4,
        "murmur_selected": 2,
        "murmur_void": 0,
        "murmur_decided_blocks": 9,
        "murmur_guesses_total{right}": 1,
        "murmur_compute_share": 0.4,
        "murmur_loss": 4.5,
        "murmur_payload_bytes": 1000,
        "murmur_phase_seconds{wait}": 4,
        "murmur_phase_seconds{compute}": 2,
        "murmur_deadline_margin_blocks": 11,
        "murmur_pay_share": 0.078,
        "murmur_faults_total{interrupted}": 1,
    }
    assert expected.items() <= found.items()
    assert found["murmur_counted_timestamp_seconds"] >= found["murmur_round_timestamp_seconds"]
    events.emit("phases", 4, phases=[{"phase": "wait", "began": 0.0, "seconds": 7.0}])
    assert samples(metrics)["murmur_phase_seconds{wait}"] == 7
    assert "murmur_phase_seconds{compute}" not in samples(metrics)


def test_what_a_validator_tells_is_what_is_scraped(metrics: Metrics) -> None:
    judged = {"event": "judged", "time": 5.0, "active": 6, "evaluated": 4, "selected": 3, "loss": 4.1, "set_in": 540}
    judged |= {"round": 3, "rejected": {"LATE": 2}, "unobserved": None, "unrevealed": 1, "next_set": 640}
    metrics.see(judged)
    metrics.see({"event": "held_out", "time": 5.0, "round": 3, "val_loss": 4.1})
    metrics.see({"event": "weights", "time": 6.0, "round": 3, "block": 540, "weights": {}})
    found = samples(metrics)
    expected = {
        "murmur_contributing": 1,
        "murmur_evaluated": 4,
        "murmur_rejected{LATE}": 2,
        "murmur_weights_unrevealed": 1,
        "murmur_held_out_loss": 4.1,
        "murmur_weights_block": 540,
        "murmur_weights_timestamp_seconds": 6,
    }
    assert expected.items() <= found.items()
    metrics.see(judged | {"round": 4, "rejected": {}, "unobserved": "late"})
    found = samples(metrics)
    assert (found["murmur_contributing"], found["murmur_rounds_missed"]) == (0, 1)
    assert "murmur_rejected{LATE}" not in found


def test_it_is_served_with_the_last_error_and_a_port_in_use_is_the_operators_to_change(
    metrics: Metrics, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    metrics.serve("127.0.0.1", port)
    logger.warning("round {round} broke off: {fault}", round=4, fault='it said\n\x1b"no"\n' + "x" * 9999)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        body = answer.read().decode()
    (told,) = [
        sample.labels["message"]
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if sample.name == "murmur_last_error_info"
    ]
    assert told.startswith('round 4 broke off: it said "no" xxx')
    assert len(told) == LAST_ERROR_CHARACTERS
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port} is in use: choose another --metrics-port"):
        Metrics("the-run", tmp_path, 60.0).serve("127.0.0.1", port)


def test_a_restart_goes_on_where_the_node_was_and_counts_no_fault_twice(metrics: Metrics, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path, "w/default", see=metrics.see)
    told = {"why": "", "selected": 2, "active": 4, "loss": 4.5, "sure": "learning", "next_set": 540}
    for round in range(3):
        events.emit("round_outcome", round, outcome="LATE", pay=None, margin=None, **told)
        events.emit("applied", round, void=False, contributing=["a"], theta="", after=9, guess="right", seconds={})
        events.emit("interrupted", round, fault="no connection")
    with path.open("a") as file:
        file.write('{"event": "applied", "round": 2, "of": "an earlier version"}\n{"torn')
    before = samples(metrics)
    later = Metrics("the-run", tmp_path, 60.0)
    later.recall(last_events(path), 2e9, validates=True)
    after = samples(later)
    counters = {
        name
        for name in after
        if name.startswith(("murmur_faults_total", "murmur_guesses_total", "murmur_verified_total"))
    }
    gauges = before.keys() - counters - {"murmur_disk_free_bytes"}
    assert {name: after[name] for name in gauges} == {name: before[name] for name in gauges}
    assert after["murmur_rounds_missed"] == 3
    assert not any(after[name] for name in counters)
    # It has never contributed or set weights: since its first event, and not since this start.
    assert after["murmur_counted_timestamp_seconds"] == after["murmur_weights_timestamp_seconds"] < 1.9e9


def test_what_a_new_node_has_not_done_yet_counts_from_its_start(metrics: Metrics, tmp_path: Path) -> None:
    metrics.recall(last_events(tmp_path / "none.jsonl"), 1000.0, validates=False)
    found = samples(metrics)
    assert found["murmur_round_timestamp_seconds"] == found["murmur_counted_timestamp_seconds"] == 1000.0
    assert "murmur_weights_timestamp_seconds" not in found


def test_what_a_clock_that_was_ahead_told_silences_no_alert(metrics: Metrics, tmp_path: Path) -> None:
    path, now = tmp_path / "events.jsonl", 1000.0
    Events(path, "w/default").emit(
        "applied", 0, void=False, contributing=["a"], theta="", after=9, guess="right", seconds={}
    )
    assert next(iter(last_events(path)))["time"] > now
    metrics.recall(last_events(path), now, validates=False)
    assert samples(metrics)["murmur_round_timestamp_seconds"] == now


def test_a_clusters_member_is_seen_by_its_own_events(tmp_path: Path) -> None:
    """No blocks, no guesses: none of them is exported. Its rounds are planned as long as the last ones were."""
    metrics = Metrics("ours", tmp_path, None)
    member = "07" * 32
    applied = {"time": 9.0, "void": False, "contributing": [member], "guess": None, "decided": None, "after": None}
    for kind, fields in (
        ("trained", {"loss": 3.5}),
        ("claimed", {"steps": 61}),
        ("closed", {"ours": True, "waited_for": [member]}),
        ("applied", applied),
        ("update_returned", {}),
        ("diverged", {"why": "theta"}),
    ):
        metrics.see({"time": 8.0, "event": kind, "round": 4} | fields)
    lengths = (7.0, 600.0, 30.0, 40.0, 50.0, 35.0)
    planned = []
    for seconds in lengths:
        metrics.see(
            {"time": 9.0, "event": "phases", "round": 4, "phases": [_phase("wait", 0.0), _phase("compute", seconds)]}
        )
        planned.append(samples(metrics).get("murmur_round_planned_seconds"))
    metrics.see({"time": 9.0, "event": "phases", "round": 4, "phases": [_phase("wait", 900.0)]})  # it did not train
    found = samples(metrics)
    assert planned == [None, 600.0, 600.0, 600.0, 600.0, 50.0]
    assert found["murmur_round_planned_seconds"] == 50.0
    assert "murmur_decided_blocks" not in found
    for name, value in (("loss", 3.5), ("steps", 61), ("given_up", 1), ("round", 4), ("selected", 1)):
        assert found[f"murmur_{name}"] == value
    assert found["murmur_faults_total{update_returned}"] == found["murmur_faults_total{diverged}"] == 1


def _phase(name: str, seconds: float) -> dict[str, object]:
    return {"phase": name, "began": 0.0, "seconds": seconds}
