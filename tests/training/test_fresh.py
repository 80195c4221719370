"""Rounds that begin without optimizer state: whoever has theta and the pages can repeat them bit for bit."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from torch import Tensor

from murmur.data.shards import Shards
from murmur.protocol.errors import ConfigError
from murmur.protocol.run import changed
from murmur.protocol.spec import RunSpec, build
from murmur.training.checkpoint import load, save
from murmur.training.memory import disk_parts, trainer_moments, trainer_parts
from murmur.training.model import genesis_theta
from murmur.training.replica import ERROR, Replica
from murmur.training.sizes import Sizes
from tests.training.test_replica import apply, bits, trained, weights, work

State = Literal["kept", "fresh"]


@pytest.fixture
def theta(run_spec: RunSpec) -> dict[str, Tensor]:
    return genesis_theta(run_spec.model, 11)


def muon(spec: RunSpec, state: State) -> RunSpec:
    return spec.model_copy(update={"inner": spec.inner.model_copy(update={"optimizer": "muon", "state": state})})


def stranger(replica: Replica) -> Replica:
    """A node that knows nothing but the consensus state."""
    other = Replica(replica.spec, genesis_theta(replica.spec.model, 3))
    other.load_consensus(replica.consensus_state())
    return other


@pytest.mark.parametrize(("state", "repeated"), [("fresh", True), ("kept", False)])
def test_a_stranger_repeats_a_round_from_theta_and_pages_alone(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards, state: State, repeated: bool
) -> None:
    replica = Replica(muon(run_spec, state), theta)
    for turn in range(2):
        apply(replica, trained(replica, data, turn))
    other = stranger(replica)
    replica.inner_round(work(data, 2))
    other.inner_round(work(data, 2))
    assert (weights(replica) == weights(other)) is repeated


def test_a_round_after_a_void_one_begins_fresh(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    replica = Replica(muon(run_spec, "fresh"), theta)
    other = stranger(replica)
    replica.restore_to_error_feedback(trained(replica, data, 0))
    replica.inner_round(work(data, 1))
    other.inner_round(work(data, 1))
    assert weights(replica) == weights(other)


def test_a_round_that_goes_on_keeps_what_it_has(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    whole, parted = (Replica(muon(run_spec, "fresh"), theta) for _ in range(2))
    done = count(1)
    whole.inner_round(work(data))
    parted.inner_round(work(data), stopped=lambda: next(done) >= 2)
    assert weights(parted) != weights(whole)
    parted.inner_round(work(data), resume=True)
    assert weights(parted) == weights(whole)


def test_its_own_state_is_its_error_feedback(
    tmp_path: Path, run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    replica = Replica(muon(run_spec, "fresh"), theta)
    trained(replica, data)
    own = replica.own_state()
    assert set(own.tensors) == {ERROR + name for name in theta}
    other = Replica(replica.spec, theta)
    other.load_own(load(tmp_path, save(tmp_path, own), other.own_shapes()))
    assert bits(dict(other.own_state().tensors)) == bits(dict(own.tensors))


def test_a_plan_counts_it_on_the_accelerator_alone(run_spec: RunSpec) -> None:
    kept, fresh = (Sizes(muon(run_spec, state)) for state in ("kept", "fresh"))
    assert fresh.own == fresh.model == kept.own - kept.optimizer
    held: Callable[[Any], int] = lambda sizes: trainer_moments(sizes)["compress"]["stored_moments"]  # noqa: E731
    assert (held(kept), held(fresh)) == (kept.optimizer, 0)
    assert disk_parts(fresh.spec, "miner")["own_state"] == 2 * fresh.model
    assert trainer_parts(fresh, 1, 1)["adam_moments"].gpu_computing == kept.optimizer


def test_adamw_does_not_begin_fresh_and_no_amendment_changes_the_state(run_spec: RunSpec) -> None:
    with pytest.raises(ConfigError, match="AdamW without its averages"):
        build(run_spec.model_dump() | {"inner": run_spec.inner.model_dump() | {"state": "fresh"}}, "it")
    with pytest.raises(ConfigError, match=r"inner\.state, which stays"):
        changed(muon(run_spec, "kept"), {"inner": {"state": "fresh"}})
