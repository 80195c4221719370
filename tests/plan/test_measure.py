"""`murmur plan --measure`: rates of this machine, on samples that are small here, and what is made of them."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from murmur.cli.main import main
from murmur.plan import measure, presets, training_speed
from murmur.plan.phases import MARGIN
from murmur.plan.rates import Rates
from murmur.training.sizes import Sizes

MEASURED = {"copy", "fresh", "hash", "cipher", "write", "read", "compress", "apply", "probe"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small samples, a home that does not exist yet, no GPU."""
    for name, value in (("SAMPLE_BYTES", 8 << 20), ("SLOW_BYTES", 4 << 20), ("PIECE_BYTES", 1 << 20)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(training_speed, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(training_speed, "TRIAL_PARAMETERS", 1_000_000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("MURMUR_HOME", str(tmp_path / "not" / "yet"))
    return tmp_path


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    main(["plan", "--measure", "--json", *words])
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


@pytest.mark.usefixtures("quick")
def test_every_measured_rate_is_positive_and_prices_the_phases(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    found, told = measured(capsys, "--spec", "tiny")
    assert torch.get_num_threads() == threads
    rates = found["rates"]
    for name in MEASURED | {"compute"}:
        assert rates[name]["one"] > 0
    for name in MEASURED:
        assert rates[name]["most"] >= rates[name]["one"]
    seconds = {phase["name"]: phase["seconds"] for phase in found["phases"] if phase["role"] == "miner"}
    sizes = Sizes(presets.read("tiny").first)
    assert seconds["theta digest"] == pytest.approx(sizes.model / rates["hash"]["one"])
    one = {name: rates[name]["one"] for name in MEASURED}
    saving = 1 / one["hash"] + 1 / one["write"]
    assert seconds["save own state"] == pytest.approx(sizes.own * saving)
    flops = found["flops"] + found["optimizer_flops"]
    assert seconds["inner steps"] == pytest.approx(flops / rates["compute"]["one"])
    assert found["on_gpu"] is False
    for what in ("memory", "hash", "disk", "codec", "training, 2 of 2 layers"):
        assert what in told


def test_the_disk_is_the_homes_and_nothing_stays_on_it(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = measured(capsys, "--spec", "tiny")
    assert f"the disk under {quick} .." in told
    assert list(quick.iterdir()) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("slow", "margin"), [(0, MARGIN), (1, MARGIN), (4, 0.25)])
def test_the_spread_of_the_trial_is_kept_free(
    slow: int, margin: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_all = training_speed._all_seconds

    def seconds(work: Callable[[], object], runs: int) -> list[float]:
        return [1.25] * slow + [1.0] * (runs - slow) if runs == training_speed.TRIALS else measure_all(work, runs)

    monkeypatch.setattr(training_speed, "_all_seconds", seconds)
    found, _ = measured(capsys, "--spec", "tiny")
    taken = {phase["name"]: phase["seconds"] for phase in found["phases"] if phase["role"] == "miner"}
    assert found["margin"] == pytest.approx(margin)
    assert taken["margin"] == pytest.approx(margin * taken["inner steps"])


@pytest.mark.usefixtures("quick")
def test_what_is_given_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found, told = measured(capsys, "--spec", "covenant-72b", "--gpu-tflops", "400", "--gpus", "16", "--up", "200")
    assert (found["gpus"], found["gpu_flops"], found["up_mbps"], found["on_gpu"]) == (16, 400e12, 200, True)
    assert "training" not in told


@pytest.mark.usefixtures("quick")
def test_a_layer_that_is_too_large_to_try_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found, told = measured(capsys, "--spec", "covenant-72b")
    assert "training: not measured" in told
    assert found["gpu_flops"] == Rates().compute.one


def test_a_trial_has_as_many_whole_layers_as_fit_and_less_of_the_vocabulary_before_none() -> None:
    model = presets.read("150m").first.model

    def size(cut: Any) -> int:
        return sum(torch.Size(shape).numel() for shape in cut.shapes().values())

    for fitting in (200_000_000, 100_000_000, 20_000_000):
        cut = training_speed.cut(model, fitting)
        assert cut is not None
        assert size(cut) <= fitting
        assert cut.layers == model.layers or size(cut.model_copy(update={"layers": cut.layers + 1})) > fitting
    assert training_speed.cut(model, 200_000_000) == model
    assert training_speed.cut(model, 10_000_000) is None


def test_the_rates_are_named_as_they_are_measured() -> None:
    assert {field.name for field in fields(Rates)} >= MEASURED
