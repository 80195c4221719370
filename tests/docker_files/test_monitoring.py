"""Dashboard, alert rules and scrape configuration name only metrics that a node exports."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import generate_latest

from murmur.node.telemetry.metrics import TROUBLE_LABELS, Metrics
from murmur.node.telemetry.trouble import Trouble

DOCKER = Path(__file__).parents[2] / "docker"


def exported(folder: Path) -> set[str]:
    """Names of all samples of a node that has lived through every kind of event."""
    metrics = Metrics("run", folder, 60.0)
    metrics.recall([], 0.0, validates=True)
    told: dict[str, Any] = {"time": 1.0, "round": 1, "active": 1, "selected": 1, "loss": 1.0, "next_set": 1}
    stood = {"event": "round_outcome", "outcome": "contributing", "pay": 0.5, "margin": 3}
    judged = {"event": "judged", "rejected": {"LATE": 1}, "unobserved": None, "evaluated": 1, "unrevealed": 0}
    for event in (
        stood,
        judged,
        {"event": "applied", "void": False, "contributing": [], "after": 9, "guess": "wrong"},
        {"event": "phases", "phases": [{"phase": "compute", "began": 0.0, "seconds": 1.0}]},
        {"event": "trained"},
        {"event": "published", "payload_bytes": 1},
        {"event": "held_out", "val_loss": 1.0},
        {"event": "weights", "block": 1},
        {"event": "interrupted", "fault": "x"},
        {"event": "trouble", **Trouble("no_permit").fields()},
    ):
        metrics.see(told | event)
    return set(re.findall(r"^(murmur_\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))


def test_every_panel_and_every_rule_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    known = exported(tmp_path)
    board = json.loads((DOCKER / "grafana.json").read_text())
    rules = [rule for group in yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for rule in rules]
    named = {name for expression in asked for name in re.findall(r"murmur_\w+", expression)}
    assert named
    assert not named - known
    names = {name.removesuffix("_created") for name in known if not name.startswith("murmur_told")}
    left_out = {"murmur_round_timestamp_seconds", "murmur_run_info", "murmur_void", "murmur_weights_block"}
    assert (
        not names
        - named
        - left_out
        - {"murmur_counted_timestamp_seconds", "murmur_fault_timestamp_seconds"}
        - {
            "murmur_faults",
            "murmur_guesses",
            "murmur_moved_bytes",
            "murmur_verified",
        }
    ), "what is exported and never looked at"
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all({"summary", "description"} <= rule["annotations"].keys() for rule in rules)


def test_the_alert_of_a_trouble_shows_labels_that_it_has_and_says_what_it_costs_and_what_to_do() -> None:
    (rule,) = [
        rule
        for group in yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == "MurmurTrouble"
    ]
    shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert {"says", "owner", "costs", "do"} <= shown <= {"instance", *TROUBLE_LABELS}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DOCKER / "grafana.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_prometheus_is_told_of_the_rules_and_of_the_job_that_they_ask_for() -> None:
    body = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    assert body["rule_files"] == ["alerts.yml"]
    assert [job["job_name"] for job in body["scrape_configs"]] == ["murmur"]
    assert 'up{job="murmur"}' in (DOCKER / "alerts.yml").read_text()
