"""`murmur plan`: numbers with units for a person, the same numbers for a program, and one line for a wrong value."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from murmur.cli.main import main
from murmur.plan import presets

REQUIRED = {
    "refused",
    "parameters",
    "parameters_untied",
    "payload_bytes",
    "upload_seconds",
    "download_seconds",
    "utilization",
    "phases",
    "restart",
    "memory",
    "host_bytes_peak",
    "disk_bytes",
    "disk_bytes_per_day",
}
NO_TORCH = """
import sys
from murmur.cli.main import main
status = main(["plan", "--spec", "covenant-72b"])
loaded = {name.split(".")[0] for name in sys.modules} & {"torch", "numpy", "boto3", "bittensor", "datasets"}
sys.exit(" ".join(sorted(loaded)) or status)
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["plan", *words])
    return status, capsys.readouterr().out


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    status, shown = printed(capsys, *words, "--json")
    found: dict[str, Any] = json.loads(shown)
    assert status == bool(found["refused"])
    return found


def test_covenants_plan_has_the_published_count_and_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", NO_TORCH], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "70,599,843,840   (72,747,327,488 with embedding and head counted separately)" in done.stdout
    for words in ("94.5%", "145 s up and 637 s down", "1,413,376,016 bytes"):
        assert words in " ".join(done.stdout.split())


def test_covenant_is_accepted_on_the_links_that_it_is_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--spec", "covenant-72b", "--gpus", "8", "--gpu-memory", "192", "--up", "880", "--down", "4000"]
    status, shown = printed(capsys, *words)
    assert status == 0
    assert "IT FITS: every deadline is met." in shown
    found = planned(capsys, *words)
    assert 0.89 < found["utilization"] < found["published_utilization"]
    assert planned(capsys, *words, "--validators", "1")["refused"] == []
    assert "a miner's data comes by whole files" in " ".join(shown.split())
    assert "the data set is on the disk" in " ".join(printed(capsys, *words, "--with-data")[1].split())


def test_true_110_and_500_megabits_are_another_clock(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpus", "8", "--gpu-memory", "192", "--up", "110", "--down", "500"]
    found = planned(capsys, "--spec", "covenant-72b-110", *words)
    assert found["refused"] == []
    assert 0.66 < found["utilization"] < 0.67
    assert found["uplink_share"] < 1.0
    (alone,) = planned(capsys, "--spec", "covenant-72b-110", "--validators", "1", *words)["refused"]
    assert "a validator's uplink is needed 135% of the time" in alone
    refused = " ".join(planned(capsys, "--spec", "covenant-72b", *words)["refused"])
    for words_told in (
        "a miner has published what it commits to",
        "after the reveal deadline's block is final",
        "293%",
    ):
        assert words_told in refused


def test_a_fitted_clock_is_told_as_a_spec_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--spec", "8b", "--gpus", "2", "--gpu-memory", "80", "--gpu-tflops", "400", "--fit"]
    status, shown = printed(capsys, *words)
    assert status == 0
    assert "# 72 blocks of 12 s: 14.4 min a round, of which 82.9% is compute" in shown
    assert "[clock]\nround_blocks = 72\ncommit = 58\n" in shown
    assert planned(capsys, *words)["clock"]["round_blocks"] == 72


@pytest.mark.parametrize("name", presets.names())
def test_what_a_person_sees_fits_100_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown = printed(capsys, "--spec", name)
    assert [line for line in shown.splitlines() if len(line) > 100 or line != line.rstrip()] == []


@pytest.mark.parametrize("name", presets.names())
def test_the_json_agrees_with_the_spec(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--spec", name, "--up", "110", "--down", "500")
    spec = presets.read(name).first
    assert found.keys() >= REQUIRED
    assert found["parameters"] == spec.layout.num_parameters
    assert found["payload_bytes"] == spec.object_bytes
    assert found["upload_seconds"] == pytest.approx(8 * spec.object_bytes / 110e6)
    assert found["download_seconds"] == pytest.approx(20 * 8 * spec.object_bytes / 500e6)
    busy = found["compute_seconds"] + found["upload_seconds"] + found["download_seconds"]
    assert found["published_utilization"] == pytest.approx(found["compute_seconds"] / busy)
    assert found["utilization"] <= found["compute_seconds"] / found["round_seconds"]
    assert {"theta", "parameters", "gradients", "adam_moments", "error_feedback", "activations", "logits"} <= set(
        found["memory"]
    )


def test_a_day_is_told_in_tokens_and_in_passes_over_a_data_set_that_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A toy's plan said 48 GB of text a day for a data set of 8 MB."""
    _, shown = printed(capsys, "--spec", "tiny")
    a_day = 20 * 20_480 * 86_400 / (72 * 12)
    assert f"one day        {a_day:,.0f} tokens of all peers\n" in shown
    spec = presets.read("tiny").first
    table = spec.model_dump() | {"data": spec.data.model_dump() | {"index": "01" * 32, "num_tokens": 4_096_000}}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(table))
    _, shown = printed(capsys, "--spec", str(path))
    assert f"one day        {a_day:,.0f} tokens of all peers, 10 times the data set's 4,096,000\n" in shown
    assert planned(capsys, "--spec", str(path))["nodes"]["miner"]["data_bytes_per_day"] == 2 * 4_096_000


def test_every_phase_of_both_roles_has_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--spec", "8b")
    names: dict[str, list[str]] = {"miner": [], "validator": []}
    for phase in found["phases"]:
        assert {key: type(value) for key, value in phase.items()} == {
            "name": str,
            "role": str,
            "begins": float,
            "seconds": float,
            "critical": bool,
            "overlaps": list,
        }
        assert phase["seconds"] >= 0
        names[phase["role"]].append(phase["name"])
    for phase in found["phases"]:
        assert set(phase["overlaps"]) <= set(names[phase["role"]]) - {phase["name"]}
    assert {"swap", "save own state", "compress", "seal", "publish", "reveal", "select", "theta digest"} <= set(
        names["miner"]
    )
    assert {"gather", "check", "copies", "vote", "probe", "losses", "checkpoint upload"} <= set(names["validator"])
    compute = next(phase for phase in found["phases"] if phase["name"] == "inner steps")
    assert compute["seconds"] == found["compute_seconds"]
    for key in ("host_bytes_peak", "disk_bytes", "disk_bytes_per_day"):
        assert found[key] == found["nodes"]["miner"][key] > 0


def test_every_option_changes_its_numbers_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    before = planned(capsys, "--spec", "8b")
    sent, guessed = {"published_after_correction"}, {"correction_seconds", "published_after_correction"}
    for words, given, changed in (
        (["--up", "220"], "up_mbps", {"upload_seconds", "published_utilization", "uplink_share", "rates", "phases"}),
        (
            ["--down", "1000"],
            "down_mbps",
            {"download_seconds", "published_utilization", "restart", "rates", "phases", "verification"},
        ),
        (
            ["--gpu-tflops", "265"],
            "gpu_flops",
            {"compute_seconds", "utilization", "published_utilization", "rates", "phases", "verification"} | sent,
        ),
        (["--with-data"], "has_data", {"phases", "disk_bytes_per_day", "nodes", "verification"}),
        (["--validators", "2"], "validators", {"phases", "uplink_share"}),
        (["--gpu-memory", "30"], "gpu_memory_bytes", {"micro_sequences", "gpus_needed"}),
        (
            ["--gpus", "4"],
            "gpus",
            {"compute_seconds", "utilization", "published_utilization", "restart", "memory", "memory_total"}
            | {"micro_sequences", "host_bytes_peak", "nodes", "phases", "verification"}
            | guessed,
        ),
    ):
        after = planned(capsys, "--spec", "8b", *words)
        assert {name for name in before if before[name] != after[name]} == {given, *changed}


def test_what_does_not_fit_and_what_comes_too_late_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--spec", "covenant-72b", "--gpu-memory", "80", "--gpu-tflops", "100"]
    needed = planned(capsys, *small)["gpus_needed"]
    status, shown = printed(capsys, *small)
    assert status == 1
    assert f"does not fit on 8 x 80 GB: it needs {needed} of them, or GPUs with more memory" in " ".join(shown.split())
    assert "It fits, with" in printed(capsys, *small, "--gpus", str(needed))[1]
    _, shown = printed(capsys, "--spec", "covenant-72b", "--gpu-memory", "24")
    assert "no number of GPUs is enough" in " ".join(shown.split())
    status, fitting = printed(capsys, "--spec", "150m", "--gpus", "1", "--gpu-memory", "24", "--gpu-tflops", "60")
    assert status == 0
    assert "It fits, with" in fitting
    assert "IT FITS: every deadline is met." in fitting


def test_another_runs_plan_says_nothing_of_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Published" in printed(capsys, "--spec", "covenant-72b")[1]
    assert "Published" not in printed(capsys, "--spec", "8b")[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--spec", "70b"], "no spec '70b': expected a TOML file, or one of the presets 150m"),
        (["--spec", "8b", "--gpus", "0"], "--gpus is 0, expected a number above 0"),
        (["--spec", "8b", "--gpus", "193"], "an inner step of 8b has 192 sequences"),
        (["--spec", "8b", "--gpu-memory", "-1"], "--gpu-memory is -1.0, expected a number above 0"),
        (["--spec", "8b", "--gpu-tflops", "inf"], "--gpu-tflops is inf"),
        (["--spec", "8b", "--up", "nan"], "--up is nan"),
        (["--spec", "8b", "--down", "0"], "--down is 0.0"),
        (["--spec", "8b", "--validators", "0"], "--validators is 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_values_are_one_line_and_exit_status_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    shown = capsys.readouterr()
    assert expected in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_file_that_is_no_spec_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[model")
    assert main(["plan", "--spec", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_model_that_any_cpu_trains_is_told_nothing_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """The toy's plan spoke of GPUs of 180 GB, and of 49.8 GB that it writes in a day: they were files of the data."""
    status, shown = printed(capsys, "--spec", "tiny")
    assert status == 0
    assert "A GPU has" not in shown
    assert "So small a model needs no GPU: it trains in 5.17 MB" in shown
    rows = {line[:34].strip(): line[34:].split() for line in shown.splitlines()}
    found = planned(capsys, "--spec", "tiny")
    data = found["nodes"]["miner"]["data_bytes_per_day"]
    written = float(rows["written a day, without data"][0].replace(",", ""))
    assert written == pytest.approx((found["disk_bytes_per_day"] - data) / 1e6, abs=0.1)
    assert rows["data a day, until all is there"] == [f"{data / 1e6:,.1f}", "-"]
