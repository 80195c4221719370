"""The trial of training against what a node trains, and what doctor makes of a machine that is busy with other work."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from murmur.cli.doctor import slow_checks
from murmur.node.doctor.finding import Advice, FailedCheck
from murmur.plan import measure, presets, training_speed
from murmur.plan.measure import Measured
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import Plan, link
from murmur.plan.training_speed import Trial
from murmur.protocol.spec import RunSpec
from murmur.training.batch_trial import fit_cpu
from murmur.training.inner import inner_round
from murmur.training.model import Transformer, initialise
from murmur.training.optimizer import make_optimizer

CPU = torch.device("cpu")


def spec() -> RunSpec:
    return presets.read("tiny").first


def planned_seconds(found: Trial) -> float:
    """Of a round's inner steps, by the quickest pass."""
    return Plan(spec(), 1, 0, Rates(compute=Rate(found.quickest_flops)), on_gpu=False).compute_seconds


def trained_seconds(steps: int) -> float:
    """Of a round's inner steps, by the quickest of so many that a node makes."""
    run = spec()
    model = Transformer(run.model)
    initialise(model, 0)
    batch = torch.zeros((run.inner.sequences, run.model.context + 1), dtype=torch.int64)
    ends: list[float] = []
    inner_round(
        model,
        make_optimizer(model, run.inner),
        [batch] * steps,
        run.inner,
        first_step=0,
        micro_sequences=fit_cpu(run, run.inner.sequences).micro_sequences,
        on_step=lambda step, loss: ends.append(time.perf_counter()),
    )
    return run.inner.steps * min(end - begin for begin, end in pairwise(ends))


def ratio() -> float:
    found = training_speed.trial(spec(), CPU, lambda told: None)
    assert found is not None
    assert found.threads == torch.get_num_threads()
    return planned_seconds(found) / trained_seconds(20)


@pytest.mark.slow
def test_the_trial_takes_as_long_as_a_nodes_own_steps() -> None:
    """Once in three: another program may take the cores during one of the two."""
    assert any(0.5 < ratio() < 2 for _ in range(3))


def test_what_only_the_first_passes_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first pass in each size took 70 times a later one: it was multiplied to a whole batch."""
    now, seen = 0.0, set[torch.Size]()

    def forward_backward(step: Any, tokens: torch.Tensor) -> None:
        nonlocal now
        for parameter in step.module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        now += tokens.numel() * (1e-4 if tokens.shape in seen else 7e-3)
        seen.add(tokens.shape)

    monkeypatch.setattr(training_speed._Step, "forward_backward", forward_backward)
    monkeypatch.setattr(training_speed, "time", SimpleNamespace(perf_counter=lambda: now))
    found = training_speed.trial(spec(), CPU, lambda told: None)
    run = spec()
    assert found is not None
    assert found.spread == 0
    step = planned_seconds(found) / run.inner.steps
    assert step == pytest.approx(1e-4 * run.inner.sequences * (run.model.context + 1), rel=0.01)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """A miner's case whose trial of training takes so many rounds' time: by the median, and by the quickest pass. With
    one thread it takes 5 rounds, and so it does by default."""

    def made(usual: float, quickest: float, single: float = 5.0) -> Any:
        run = spec()
        plan = Plan(run, 1, 0, Rates(up=link(1000), down=link(1000)), on_gpu=False)
        whole = (plan.flops + plan.optimizer_flops) / plan.round_seconds
        trial = Trial(whole / usual, whole / quickest, usual / quickest - 1, 2)
        alone = Trial(whole / single, whole / single, 0.0, 1)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        monkeypatch.setattr(slow_checks, "trial", lambda spec, device, tell: alone)
        tried = replace(plan, rates=replace(plan.rates, compute=Rate(trial.flops)), margin=trial.spread)
        monkeypatch.setattr(slow_checks, "measure", lambda plan, options, tell, home: Measured(tried, trial))
        return SimpleNamespace(
            run=SimpleNamespace(spec_at=lambda round: run),
            round=0,
            config=SimpleNamespace(device="cpu"),
            links=plan.rates,
            tell=None,
            home=tmp_path,
            role="miner",
        )

    return made


def test_doctor_says_the_spread_beside_the_pace(case: Callable[..., Any]) -> None:
    said = slow_checks.pace(case(0.1, 0.08))
    assert isinstance(said, str)
    assert "on 2 threads, at best" in said
    assert "a slow quarter takes 25% longer" in said


def test_a_machine_that_was_busy_while_it_was_tried_is_no_fault(case: Callable[..., Any]) -> None:
    said = slow_checks.pace(case(5.0, 0.1))
    assert isinstance(said, Advice)
    assert "in time on an idle machine" in said.detail
    assert "try once more" in said.fix


def test_threads_that_wait_for_each_other_are_told_and_no_fault(case: Callable[..., Any]) -> None:
    """Two threads took 47 s on two busy cores, and one took 2 s: local networks give each node one."""
    said = slow_checks.pace(case(5.0, 4.0, single=0.1))
    assert isinstance(said, Advice)
    assert "In time with one thread: inner steps take" in said.detail
    assert "OMP_NUM_THREADS=1" in said.fix


def test_a_machine_that_is_too_slow_at_its_best_is_a_fault(case: Callable[..., Any]) -> None:
    with pytest.raises(FailedCheck, match="inner steps"):
        slow_checks.pace(case(5.0, 4.0))


def test_torch_is_measured_with_a_nodes_threads_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """OMP_NUM_THREADS=1 leaves a node one, whatever the machine has."""
    monkeypatch.setattr(measure, "SAMPLE_BYTES", 1 << 20)
    counts: list[int] = []
    machine = measure._Host(64, 1, lambda told: None, tmp_path)
    machine._torch(1, lambda: counts.append(torch.get_num_threads()))
    assert set(counts) == {1}
