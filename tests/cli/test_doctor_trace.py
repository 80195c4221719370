"""`murmur doctor --trace`: executions of one round on this machine, beside the limits of verified work."""

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gauntlet.repetition import LIMITS, Repetition
from murmur.cli.doctor import executions, trace
from murmur.cli.doctor.executions import SILENT_SECONDS, Round, UncompiledTrainer, apart, progress, worst
from murmur.cli.main import main
from murmur.data.shards import Shards
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.protocol.errors import ConfigError
from murmur.training import trainer as training
from murmur.training.batch_trial import Fit
from murmur.training.replica import Replica
from murmur.training.trainer import Trainer
from sparseloco.trace import Trace
from tests.node.doctor_world import World, world

__all__ = ["world"]


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MURMUR_") and name != "MURMUR_CACHE"]:
        monkeypatch.delenv(name)


def far(moves: float, gradients: float = 0.0) -> Repetition:
    return Repetition(0, 2, 2, (moves, moves), (gradients, gradients))


# --- the whole command ---------------------------------------------------------------------------------------------


def test_a_cpu_plays_tiny_and_its_split_is_within_half_of_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--trace", "tiny"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    rows = {line[:17].strip(): list(map(float, line[17:].split())) for line in lines if line.count(".") == 4}
    assert list(rows) == ["once more", "in another split", "limits"]
    assert rows["once more"] == [0.0] * 4  # the same on one machine
    assert rows["limits"] == list(LIMITS)
    assert all(0.0 < found <= limit / 2 for found, limit in zip(rows["in another split"], LIMITS, strict=True))
    words = " ".join(shown.out.split())
    assert "tiny, 2 of 2 layers, seeded weights, on cpu" in words
    assert "20 steps of 8 sequences, 512 places" in words
    assert "Within half of the limits: honest steps" in words
    assert "in another split .." in shown.err


def test_a_machine_that_computes_something_else_is_beyond_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Careless(Replica):
        """Takes its sequences in another order, where they are split."""

        def repeat(self, sequences: torch.Tensor, *, split: bool = False, **rest: Any) -> Trace | None:
            return super().repeat(sequences.flip(0) if split else sequences, split=split, **rest)

    monkeypatch.setattr(executions, "Replica", Careless)
    assert main(["doctor", "--trace"]) == 1
    shown = capsys.readouterr()
    assert "BEYOND THE LIMITS: a validator with such a machine" in " ".join(shown.out.split())
    assert "no run is configured: the preset tiny is played" in shown.err


def test_programs_get_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(trace, "apart", lambda round, tell: iter({"in another split": far(0.15, 0.01)}.items()))
    assert main(["doctor", "--trace", "tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["trace"]
    assert found["executions"] == {"in another split": {"moves": [0.15, 0.15], "gradients": [0.01, 0.01]}}
    assert found["limits"] == {"moves": list(LIMITS[:2]), "gradients": list(LIMITS[2:])}
    assert (found["spec"], found["layers"], found["verdict"]) == ("tiny", 2, "within")


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--trace", "70b"], "no spec '70b'"), (["--trace", "tiny", "--fast"], "not allowed with argument")],
)
def test_what_cannot_be_played_is_said(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["doctor", *words])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert told in capsys.readouterr().err


# --- the verdict ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([far(0.1), far(0.0)], "half"),
        ([far(0.101), far(0.0)], "within"),
        ([far(0.0), far(0.0, 0.12)], "within"),
        ([far(0.0), far(0.0, 0.121)], "beyond"),
        ([far(0.0), replace(far(0.0), moves=(0.0, 0.0, 0.36))], "beyond"),
    ],
)
def test_the_farthest_execution_decides_by_its_median_or_its_largest(found: list[Repetition], told: str) -> None:
    assert trace.judged(found) == told
    assert all(one.passed for one in found) is (told != "beyond")


def test_the_worst_is_a_share_of_its_own_limit() -> None:
    assert worst(far(0.1, 0.09)) == pytest.approx(0.75)


# --- the executions ------------------------------------------------------------------------------------------------


def test_a_gpu_also_plays_without_compiling_and_a_cpu_compiles_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Still(Replica):
        def __init__(self, *given: Any, ranks: Any) -> None:
            made.append(type(self).trainer.compiled)

        def repeat(self, *given: Any, **rest: Any) -> Trace:
            return Trace(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))

    class StillUncompiled(Still):
        trainer = UncompiledTrainer

    monkeypatch.setattr(executions, "Replica", Still)
    monkeypatch.setattr(executions, "UncompiledReplica", StillUncompiled)
    spec, text, _ = trace.named("tiny")
    for device, names, compiled in (
        ("cpu", ["once more", "in another split"], [True]),
        ("cuda", ["once more", "in another split", "not compiled"], [True, False]),
    ):
        made.clear()
        found = dict(apart(Round(spec, text, torch.device(device)), lambda told: None))
        assert list(found) == names
        assert made == compiled


@pytest.mark.parametrize(("kind", "times"), [(Trainer, 1), (UncompiledTrainer, 0)])
def test_an_uncompiled_trainer_compiles_nothing_on_a_gpu(
    kind: type[Trainer], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(training, "fit", lambda *given: Fit(1, "none"))
    there = kind.__new__(kind)
    there._fit, there._optimizer, there.spec = None, None, None  # type: ignore[assignment]
    there.ranks = SimpleNamespace(device=torch.device("cuda"))  # type: ignore[assignment]
    there.model = SimpleNamespace(compile=lambda: compiled.append(True))  # type: ignore[assignment]
    assert there._fitting() == there._fitting() == Fit(1, "none")
    assert len(compiled) == times


def test_a_step_is_told_when_nothing_was_for_two_seconds() -> None:
    times: Iterator[float] = iter([0.0, 1.0, 2.0, 2.0, 3.5, 4.5, 4.5])
    told: list[str] = []
    on_step = progress("plain", 9, told.append, lambda: next(times))
    for step in range(4):
        on_step(step, 0.0)
    assert SILENT_SECONDS == 2.0
    assert told == ["plain: step 2 of 9", "plain: step 4 of 9"]


def test_nothing_finite_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Trace(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
    monkeypatch.setattr(executions, "_execute", lambda *given, **rest: nothing)
    spec, text, device = trace.named("tiny")
    with pytest.raises(ConfigError, match="nothing to compare"):
        list(apart(Round(spec, text, device), lambda told: None))


# --- the round -----------------------------------------------------------------------------------------------------


def test_a_presets_text_is_as_many_sequences_as_its_round_has() -> None:
    for name in ("tiny", "150m"):
        spec, text, device = trace.named(name)
        assert text.shape == (spec.inner.steps * spec.inner.sequences, spec.model.context + 1)
        assert (text[1:, 0] == text[:-1, -1]).all()  # one begins with the token that the one before ends with
        assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_configured_run_plays_its_own_first_pages(world: World) -> None:
    node = ExaminedNode(world.config(), "miner", keeps=False, time=world.time)
    spec, text, device = trace.first_pages(node)
    node.close()
    train, context = Shards.open(world.data).train, spec.model.context
    assert spec.name == node.run.first.name
    assert len(text) == spec.inner.steps * spec.inner.sequences
    assert text[0].tolist() == train.tokens(0, context + 1).tolist()
    assert device.type == "cpu"


def test_a_run_that_is_not_found_is_said_with_its_fix(world: World) -> None:
    world.spec["netuid"] = 9
    node = ExaminedNode(world.config(), "miner", keeps=False, time=world.time)
    with pytest.raises(ConfigError, match="--netuid"):
        trace.first_pages(node)
    node.close()


def test_who_configured_a_run_is_not_given_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("netuid = 7\n")
    with pytest.raises(ConfigError, match="is not configured yet"):
        trace._configured(Namespace(config=str(path), role="miner"))


def test_the_data_needs_run_and_chain_but_no_bucket() -> None:
    names = [check.name for check in trace.needed("device", "data")]
    assert names[-1] == "data"
    assert {"device", "chain", "spec", "run"} <= set(names)
    assert not {"bucket", "permit", "disk"} & set(names)
