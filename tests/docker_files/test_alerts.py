"""The alert rules over what a node really exports, judged by Prometheus' own tool."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from murmur.node.telemetry.metrics import Metrics
from murmur.node.telemetry.trouble import Trouble

PROMTOOL = shutil.which("promtool")
ALERTS = Path(__file__).parents[2] / "docker" / "alerts.yml"
MINUTES = 10
"""Of quiet, before what happens."""

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here: it comes with Prometheus")


def scraped(metrics: Metrics) -> dict[str, float]:
    """By series as a rule test names it, with the labels that a scrape adds."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = {**sample.labels, "instance": "node", "job": "murmur"}
            named = ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
            found[f"{sample.name}{{{named}}}"] = sample.value
    return found


def fires(folder: Path, alert: str, metrics: Metrics, minutes: int, happens: Callable[[], None]) -> bool:
    """Whether the alert is firing `minutes` after `happens`, with a scrape every minute."""
    before = scraped(metrics)
    happens()
    after = scraped(metrics)
    series = [
        {
            "series": name,
            "values": f"{before.get(name, '_')}x{MINUTES - 1} "
            + (f"{after[name]}x{minutes + MINUTES}" if name in after else "stale"),
        }
        for name in before | after
    ]
    return is_told(folder, alert, MINUTES + minutes, [*series, {"series": UP, "values": "1x100000"}])


def is_told(folder: Path, alert: str, minute: int, series: list[dict[str, str]]) -> bool:
    """Whether the alert is firing in that minute of these series."""
    case: dict[str, Any] = {"interval": "1m", "input_series": series}
    case["alert_rule_test"] = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}]
    tests = folder / "tests.json"
    tests.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [case]}))
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert "SUCCESS" in told or f'alertname="{alert}"' in told or f"alertname: {alert}" in told, told
    return done.returncode != 0


UP = 'up{instance="node", job="murmur"}'


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    """Of a validator that started at the epoch, on Prometheus' clock in a rule test."""
    found = Metrics("run", tmp_path, 60.0)
    found.recall([], 0.0, validates=True)
    return found


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": 600.0, "round": 1, **fields}


@pytest.mark.parametrize(
    ("alert", "kind"),
    [("MurmurOutOfSync", "not_followed"), ("MurmurOutOfSync", "damaged"), ("MurmurWeightsRefused", "weights_refused")],
)
def test_the_first_fault_of_a_process_is_told(alert: str, kind: str, metrics: Metrics, tmp_path: Path) -> None:
    assert fires(tmp_path, alert, metrics, 5, lambda: metrics.see(event(kind)))
    assert not fires(tmp_path, alert, metrics, 5, lambda: metrics.see(event("interrupted")))


def test_a_node_that_has_never_finished_a_round_is_told_of(metrics: Metrics, tmp_path: Path) -> None:
    assert fires(tmp_path, "MurmurNoRound", metrics, 0, lambda: None)
    applied = event("applied", void=False, contributing=[], after=9, guess=None)
    assert not fires(tmp_path, "MurmurNoRound", metrics, 1, lambda: metrics.see(applied))


def test_a_clusters_member_that_stands_still_is_told_of(tmp_path: Path) -> None:
    """No clock plans its rounds: they last as long as the last ones did."""
    member = Metrics("run", tmp_path, None)
    member.recall([], 0.0, validates=False)
    applied = event("applied", void=False, contributing=[], after=None, guess=None)
    for seconds in (20.0, 60.0, 50.0):  # the first one was half over when it joined
        member.see(event("phases", phases=[{"phase": "compute", "began": 0.0, "seconds": seconds}]))
    member.see(applied)
    assert not fires(tmp_path, "MurmurNoRound", member, 2, lambda: None)
    assert fires(tmp_path, "MurmurNoRound", member, 4, lambda: None)


def test_a_validator_that_has_never_set_weights_is_told_of(metrics: Metrics, tmp_path: Path) -> None:
    assert fires(tmp_path, "MurmurWeightsNotSet", metrics, 24 * 60, lambda: None)
    weights = event("weights", block=7)
    assert not fires(tmp_path, "MurmurWeightsNotSet", metrics, 24 * 60 - 60, lambda: metrics.see(weights))
    miner = Metrics("run", tmp_path, 60.0)
    miner.recall([], 0.0, validates=False)
    assert not fires(tmp_path, "MurmurWeightsNotSet", miner, 24 * 60, lambda: None)


def test_a_trouble_is_told_within_two_minutes_and_not_after_it_is_mended(metrics: Metrics, tmp_path: Path) -> None:
    def begins() -> None:
        metrics.see(event("trouble", **Trouble("bucket_denied", "put: (403)").fields()))

    def ends() -> None:
        metrics.see(event("mended", about="bucket", cause="bucket_denied"))

    assert not fires(tmp_path, "MurmurTrouble", metrics, 2, lambda: None)
    assert fires(tmp_path, "MurmurTrouble", metrics, 2, begins)
    assert fires(tmp_path, "MurmurTrouble", metrics, 60, lambda: None), "as long as it stands"
    assert not fires(tmp_path, "MurmurTrouble", metrics, 1, ends)
    begins()
    assert not fires(tmp_path, "MurmurTrouble", metrics, 1, lambda: metrics.see(event("started")))


def answers(instance: str, values: str) -> dict[str, str]:
    """Of a target: whether it answered the scrape of each minute. One that the network's names lose is a blank."""
    return {"series": f'up{{instance="{instance}", job="murmur"}}', "values": values}


def test_one_node_of_two_that_is_gone_is_told_of_and_one_that_never_was_is_not(tmp_path: Path) -> None:
    """A container that has ended has no address: its target is gone with it, so nothing says `up == 0`."""
    lives = answers("validator", "1x3000")
    assert is_told(tmp_path, "MurmurDown", 60, [lives, answers("miner", "1x30 stale _x2000")])
    assert is_told(tmp_path, "MurmurDown", 60, [lives, answers("miner", "1x30 0x2000")]), "no metrics, and an address"
    assert is_told(tmp_path, "MurmurDown", 60, [lives, answers("miner", "1x30 0x5 stale _x5 0x5 stale _x900")])
    assert not is_told(tmp_path, "MurmurDown", 60, [lives]), "only one of them runs here"
    assert not is_told(tmp_path, "MurmurDown", 35, [lives, answers("miner", "1x30 stale _x2000")]), "it may start again"
    assert not is_told(tmp_path, "MurmurDown", 60, [lives, answers("miner", "1x30 stale _x9 1x2000")]), "it is back"
    assert not is_told(tmp_path, "MurmurDown", 30 + 26 * 60, [lives, answers("miner", "1x30 stale _x2000")])
    assert is_told(tmp_path, "MurmurDown", 60, [answers("miner", "1x30 stale _x2000")]), "the only one"
    assert is_told(tmp_path, "MurmurDown", 60, []), "no node at all"


@pytest.mark.parametrize(("starts", "tells"), [(2, False), (4, True)])
def test_a_node_that_starts_again_and_again_is_told_of(starts: int, tells: bool, tmp_path: Path) -> None:
    """It answers between its ends, so it is never down for long."""
    values = []
    for start in range(starts):
        node = Metrics("run", tmp_path, 60.0)
        node.recall([], 600.0 * start, validates=False)
        (began,) = (value for name, value in scraped(node).items() if name.startswith("murmur_process_timestamp"))
        values.append(f"{began}x7 stale")
    series = {"series": 'murmur_process_timestamp_seconds{instance="node", job="murmur"}', "values": " ".join(values)}
    assert is_told(tmp_path, "MurmurRestarts", 9 * starts - 1, [series]) == tells
