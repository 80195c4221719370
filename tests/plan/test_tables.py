"""The tables in which the documents say what a miner and a validator need are those of `murmur plan`."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from murmur.cli.main import main

ROOT = Path(__file__).parents[2]
LINK = ("--up", "110", "--down", "500")
MACHINES = {"150m": ("24", "60"), "1b": ("80", "400")}
SHOWN = {"150m": "150 M", "1b": "1.2 B"}


@cache
def row(page: str, preset: str) -> list[str]:
    """The cells of the preset's row."""
    (found,) = re.findall(rf"^ *\| {re.escape(SHOWN[preset])} \| (.*) \|$", (ROOT / page).read_text(), re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


def planned(preset: str, tflops: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    words = ["plan", "--spec", preset, "--gpus", "1", "--gpu-memory", MACHINES[preset][0], "--gpu-tflops", tflops]
    main([*words, *LINK, "--json"])
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def same(cell: str, nbytes: float) -> bool:
    """Whether the cell, such as `2.6 GB`, is this number, rounded as it is."""
    number, unit = re.match(r"([\d.]+)(?: ([GM])B)?", cell).groups()  # type: ignore[union-attr]
    digits = len(number.partition(".")[2])
    return f"{nbytes / (1e6 if unit == 'M' else 1e9):.{digits}f}" == number


@pytest.mark.parametrize("preset", MACHINES)
def test_the_readme_says_what_a_miner_needs(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu, host, disk, link = row("README.md", preset)
    memory, tflops = MACHINES[preset]
    plan = planned(preset, tflops, capsys)
    assert (gpu, plan["refused"]) == (f"{memory} GB, {tflops} TFLOP/s", [])
    miner = plan["nodes"]["miner"]
    assert same(host, miner["host_bytes_peak"]), miner["host_bytes_peak"]
    state, text = disk.split("; ")
    assert same(state, miner["disk_bytes"]), miner["disk_bytes"]
    assert same(text, miner["data_bytes_per_day"]), miner["data_bytes_per_day"]
    sent = link.partition(",")[0]
    assert same(f"{sent} MB", plan["payload_bytes"]), plan["payload_bytes"]
    (minutes,) = re.findall(r"a round takes ([\d.]+) minutes", (ROOT / "README.md").read_text())
    assert float(minutes) == pytest.approx(plan["round_seconds"] / 60)


@pytest.mark.parametrize("preset", MACHINES)
def test_a_validators_page_says_what_it_needs(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu, host, disk, *_, checkpoint = row("docs/run-a-validator.md", preset)
    (tflops,) = re.findall(r"(\d+) TFLOP", gpu)
    plan = planned(preset, tflops, capsys)
    assert not [reason for reason in plan["refused"] if "validator" in reason]
    validator = plan["nodes"]["validator"]
    assert same(host, validator["host_bytes_peak"]), validator["host_bytes_peak"]
    assert same(disk, validator["disk_bytes"]), validator["disk_bytes"]
    assert same(checkpoint, validator["disk"]["checkpoint"])
