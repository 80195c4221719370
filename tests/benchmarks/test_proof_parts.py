"""The parts study's arithmetic, on leads that say by themselves what was trained on."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
import torch

from murmur.lab.arena.stage import make_spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module("proof_parts")
    finally:
        sys.path.remove(str(BENCHMARKS))


def row(kind: str, assigned: list[float]) -> dict[str, object]:
    return {"kind": kind, "assigned": assigned, "unassigned": [0.0] * 64}


def test_what_was_trained_on_and_what_was_skipped_are_told_by_the_kind(study: ModuleType) -> None:
    early, every_second = [1.0] * 32 + [0.0] * 32, [1.0, 0.0] * 32
    assert study.apart(row("first", early)) == study.apart(row("thin", every_second)) == (0.5, 0.0)
    assert study.apart(row("spread", early)) == (0.25, 0.25)


def test_the_worse_half_shows_a_skipped_one_and_nothing_of_every_second_sequence(study: ModuleType) -> None:
    found = study.gaps(row("first", [1.0] * 32 + [0.0] * 32), 64, Random(0))
    assert (found["drawn"], found["early"], found["late"], found["worse"]) == (0.25, 0.5, 0.0, 0.0)
    assert study.gaps(row("spread", [1.0, 0.0] * 32), 64, Random(0))["worse"] == pytest.approx(0.25)


def test_skipping_takes_half_of_the_steps_or_half_of_every_batch(study: ModuleType) -> None:
    spec, lesson = make_spec(0), torch.arange(64)
    taken = {kind: study.cut(kind, lesson, spec) for kind in ("full", "first", "spread", "thin")}
    assert {kind: (len(values), inner.steps, inner.sequences) for kind, (values, inner) in taken.items()} == {
        "full": (64, 4, 16),
        "first": (64, 2, 16),
        "spread": (32, 2, 16),
        "thin": (32, 4, 8),
    }
    assert taken["thin"][0].tolist() == lesson[::2].tolist()
