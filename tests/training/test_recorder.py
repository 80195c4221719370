"""What is recorded of a round's inner steps is what the steps were, at the places that anybody can draw."""

from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor

from murmur.data.shards import Shards
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.model import genesis_theta
from murmur.training.recorder import TraceOf
from murmur.training.replica import Replica
from sparseloco.trace import Trace, places
from tests.training.test_replica import work

STEPS, PLACES = 4, 120
OF = TraceOf(Digest(bytes(32)), Digest(bytes(range(32))), PeerId(bytes([5]) * 32), PLACES)


@pytest.fixture
def spec(run_spec: RunSpec) -> RunSpec:
    inner = run_spec.inner.model_copy(update={"optimizer": "muon", "state": "fresh"})
    return run_spec.model_copy(update={"inner": inner})


@pytest.fixture
def replica(spec: RunSpec) -> Replica:
    return Replica(spec, genesis_theta(spec.model, 11))


def at_places(replica: Replica, tensors: dict[str, Tensor]) -> np.ndarray:
    found = places(OF.run, OF.page_hash, OF.peer, replica.layout, PLACES)
    return np.concatenate([tensors[name].detach().reshape(-1).numpy()[at] for name, at in found.items()])


def traced(replica: Replica, data: Shards, **options: object) -> Trace:
    replica.inner_round(work(data), trace_of=OF, **options)  # type: ignore[arg-type]
    return replica.trace()


def test_moves_add_up_to_what_the_weights_moved(replica: Replica, data: Shards) -> None:
    trace = traced(replica, data)
    assert (trace.steps, trace.moves.shape, trace.gradients.shape) == (STEPS, (STEPS, PLACES), (STEPS, PLACES))
    before = {name: tensor.clone() for name, tensor in replica.theta.items()}
    after = {name: tensor.detach().clone() for name, tensor in replica.model.named_parameters()}
    moved = at_places(replica, {name: before[name] - after[name] for name in before})
    np.testing.assert_allclose(trace.moves.sum(axis=0), moved, atol=1e-6)
    assert np.abs(trace.moves).min(axis=1).max() > 0


def test_gradients_are_the_clipped_ones_of_each_batch(replica: Replica, spec: RunSpec, data: Shards) -> None:
    trace = traced(replica, data)
    replica.reset()
    model = replica.model
    batch = work(data)[: spec.inner.sequences]
    model.train()
    model.loss(batch).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.inner.clip)
    assert norm > spec.inner.clip, "else clipping would not show"
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    np.testing.assert_allclose(trace.gradients[0], at_places(replica, grads), rtol=1e-4, atol=1e-8)


def test_an_interrupted_round_has_one_trace_and_a_new_one_begins_anew(replica: Replica, data: Shards) -> None:
    whole = traced(replica, data)
    done = count(1)
    part = traced(replica, data, stopped=lambda: next(done) >= 2)
    assert part.steps == 2
    np.testing.assert_array_equal(part.moves, whole.moves[:2])
    again = traced(replica, data, resume=True)
    np.testing.assert_array_equal(again.moves, whole.moves)
    np.testing.assert_array_equal(again.gradients, whole.gradients)


def test_recording_changes_nothing(replica: Replica, spec: RunSpec, data: Shards) -> None:
    other = Replica(spec, replica.theta)
    traced(replica, data)
    other.inner_round(work(data))
    assert all(torch.equal(a, b) for a, b in zip(replica.model.parameters(), other.model.parameters(), strict=True))
