"""Another miner's steps, repeated in parts: whatever is computed between two parts, they come to the same trace."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.model import genesis_theta
from murmur.training.recorder import TraceOf
from murmur.training.replica import Replica
from sparseloco.trace import Trace
from sparseloco.update import Update
from tests.specs import toy_spec

OF = TraceOf(Digest(bytes(32)), Digest(bytes(range(32))), PeerId(bytes([7]) * 32), 64)
STEPS = 5


@pytest.fixture(scope="module")
def spec() -> RunSpec:
    inner = {"inner.optimizer": "muon", "inner.state": "fresh", "inner.steps": STEPS}
    return toy_spec({**inner, "gauntlet.trace_values": 64 * STEPS})


@pytest.fixture(scope="module")
def text(spec: RunSpec) -> Tensor:
    shape = (spec.inner.steps * spec.inner.sequences, spec.model.context + 1)
    return torch.randint(0, spec.model.vocabulary, shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def update(spec: RunSpec, text: Tensor) -> Update:
    miner = Replica(spec, genesis_theta(spec.model, 0))
    miner.inner_round(text.flip(0))
    return miner.compress()


@pytest.fixture
def judge(spec: RunSpec) -> Replica:
    return Replica(spec, genesis_theta(spec.model, 0))


def repeat(
    judge: Replica, spec: RunSpec, text: Tensor, stopped: Callable[[], bool], done: int = 0, rounds: int = 0
) -> Trace | None:
    return judge.repeat(
        text,
        inner=spec.inner,
        rounds=rounds,
        first_step=0,
        trace_of=OF,
        on_step=lambda step, loss: None,
        stopped=stopped,
        done=done,
    )


def judged(judge: Replica, update: Update, text: Tensor) -> None:
    """What a validator computes between two windows: losses, probes, and an outer step."""
    judge.losses(text[:4])
    judge.outer_step([update], alpha=1.0, aggregate="mean")
    with judge.probe(update, judge.outer_step([update], alpha=1.0, aggregate="mean")[0], 0.1):
        judge.losses(text[:4])


def test_steps_that_are_stopped_after_each_come_to_the_trace_of_one_go(
    judge: Replica, spec: RunSpec, text: Tensor, update: Update
) -> None:
    whole = repeat(judge, spec, text, lambda: False)
    assert whole is not None
    for made in range(STEPS - 1):
        assert repeat(judge, spec, text, lambda: True, made) is None
        assert judge.repeated == made + 1
        judged(judge, update, text)
        for name, tensor in judge.model.named_parameters():
            assert torch.equal(tensor, judge.theta[name]), "between them the module's weights are theta"
    last = repeat(judge, spec, text, lambda: True, STEPS - 1)
    assert last is not None
    assert np.array_equal(last.moves, whole.moves)
    assert np.array_equal(last.gradients, whole.gradients)
    assert judge.repeated == 0


def test_what_is_not_here_any_more_is_said(judge: Replica, spec: RunSpec, text: Tensor, update: Update) -> None:
    assert repeat(judge, spec, text, lambda: True) is None
    with pytest.raises(ValueError, match="step 3 is not here"):
        repeat(judge, spec, text, lambda: False, 3)
    judge.forget_repeated()
    with pytest.raises(ValueError, match="step 1 is not here"):
        repeat(judge, spec, text, lambda: False, 1)
    for _ in range(2):
        judge.outer_step([update], alpha=1.0, aggregate="mean")
    with pytest.raises(ValueError, match="theta after 0 rounds is not here"):
        repeat(judge, spec, text, lambda: False)
    assert repeat(judge, spec, text, lambda: False, rounds=1) is not None, "of the round before it is"


def test_a_theta_that_is_kept_outlasts_outer_steps_but_not_another_state(
    judge: Replica, spec: RunSpec, text: Tensor, update: Update
) -> None:
    whole, first = repeat(judge, spec, text, lambda: False), judge.consensus_state()
    first = replace(first, tensors={name: tensor.clone() for name, tensor in first.tensors.items()})
    judge.keep_theta(0)
    for _ in range(3):
        judge.outer_step([update], alpha=1.0, aggregate="mean")
    again = repeat(judge, spec, text, lambda: False)
    assert whole is not None
    assert again is not None
    assert np.array_equal(again.moves, whole.moves)
    judge.load_consensus(replace(first, facts={**first.facts, "rounds": 3}))
    with pytest.raises(ValueError, match="theta after 0 rounds is not here"):
        repeat(judge, spec, text, lambda: False)
