"""The bench of pay, on a network that costs seconds: what it sums up, and that its workers are what they are called."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from murmur.data.shards import Shards
from murmur.protocol.layout import Layout
from murmur.protocol.types import PeerId, Uid
from murmur.training.model import genesis_theta
from murmur.training.replica import ERROR
from murmur.training.schedule import lr_at
from sparseloco import ops
from tests.small_run import data_set
from tests.specs import toy_spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "model": {"layers": 1, "width": 16, "ffn": 32, "context": 32},
    "inner": {"steps": 4, "sequences": 4, "warmup_steps": 4, "decay_steps": 40},
    "data": {"page_sequences": 16, "held_out_sequences": 8},
    "gauntlet": {"sample_sequences": 8, "references": 1},
}


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The script, which runs with its own folder in the path."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import bench_pay

        yield bench_pay
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("data")
    data_set(folder)
    return Shards.open(folder)


@pytest.fixture
def small(bench: ModuleType, shards: Shards, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The bench on this project's own text."""
    torch.set_num_threads(1)
    monkeypatch.setattr(bench, "text_data", lambda say: None)
    monkeypatch.setattr(bench.Shards, "open", lambda folder: shards)
    return bench


def plan(bench: ModuleType, network: str, rounds: int) -> Any:
    return bench.Plan("local", network, 2, rounds, SMALL, bench.Rule())


def line(pays: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    """A kept line of workers by name, their pay by round."""
    count = len(next(iter(pays.values())))
    rows = [
        {"loss": 3.0 - 0.5 * number, "trust": [0.9, 0.8]}
        | {name: {"pay": pay[number], "score": [1.0]} for name, pay in pays.items()}
        for number in range(count)
    ]
    workers = {name: {"kind": name.rsplit("-", 1)[0], "work": 1.0} for name in pays}
    return {"seed": 0, "rounds": count, "workers": workers, "by_round": rows, "first_loss": 3.0} | more


def test_every_network_is_played_and_what_was_played_is_not_played_again(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    plans = [plan(small, network, 2 if network == "cheats" else 1) for network in small.NETWORKS]
    first = small.figures(plans, [0], rows)
    assert {kind for _, kinds in small.NETWORKS.values() for kind in kinds} <= first.keys()
    assert first["double_steps"]["work"] == first["double_batch"]["work"] == 2.0
    assert first["split_in_two"]["work"] == 1.0
    assert first["copier_39"]["work"] == 0.0
    assert len(rows.read_text().splitlines()) == len(plans)
    with rows.open("a") as file:
        file.write('{"model": "lo')  # cut off
    monkeypatch.setattr(small, "play", None)
    assert small.figures(plans, [0], rows) == first


def test_ratios_are_of_a_worker_to_the_mean_of_full_ones(bench: ModuleType) -> None:
    pays = {"full-0": [0.1, 0.3], "full-1": [0.2, 0.2], "split_in_two-0": [0.6, 0.2], "half_work-0": [0.1, 0.3]}
    others = {"full-0": [0.2, 0.2], "full-1": [0.2, 0.2], "split_in_two-0": [0.1, 0.1], "half_work-0": [0.0, 0.1]}
    found = bench.summary([line(pays, network="split"), line(others, network="split", seed=1)])
    assert found["split_in_two"]["ratio_max"] == pytest.approx(2.0)
    assert found["split_in_two"]["ratio_min"] == pytest.approx(0.5)
    assert found["half_work"]["ratio_median"] == pytest.approx((1.0 + 0.25) / 2)


def test_the_swarm_is_measured_by_its_share_and_by_progress_over_the_equal_networks(bench: ModuleType) -> None:
    equal = line({"full-0": [0.5, 0.5], "full-1": [0.5, 0.5]}, network="equal")
    swarm = line({"full-0": [0.2, 0.0], "swarm_80-0": [0.8, 1.0]}, network="swarm_80")
    swarm["by_round"][-1]["loss"] = 2.75
    found = bench.summary([equal, swarm])["swarm_80"]
    assert found["share"] == pytest.approx(0.9)
    assert found["progress"] == pytest.approx(0.5)


@pytest.mark.parametrize(("values", "expected"), [([1.0, 1.0, 1.0], 0.0), ([0.0, 0.0, 3.0], 2 / 3), ([1.0, 3.0], 0.25)])
def test_gini(bench: ModuleType, values: list[float], expected: float) -> None:
    assert bench.gini(values) == pytest.approx(expected)


def test_trust_is_what_the_consensus_leaves_of_a_validators_weights(bench: ModuleType) -> None:
    one, two, three = (PeerId(bytes([number]) * 32) for number in range(3))
    posted = {
        one: {Uid(0): 0.5, Uid(1): 0.5},
        two: {Uid(0): 0.5, Uid(1): 0.5},
        three: {Uid(0): 1.0},
    }
    from pay_network import left

    assert left(posted, dict.fromkeys(posted, 1)) == {one: 1.0, two: 1.0, three: 0.5}


def test_a_rate_follows_the_rounds_whatever_the_number_of_steps(bench: ModuleType) -> None:
    from pay_workers import inner_of

    spec = toy_spec({"inner.steps": 20, "inner.warmup_steps": 60, "inner.decay_steps": 400}).inner
    for share in (0.5, 2.0):
        other = inner_of(spec, share, 1.0, 1.0)
        for number in range(1, 25):
            ours, theirs = lr_at(number * 20, spec), lr_at(number * other.steps, other)
            assert theirs == pytest.approx(ours, rel=0.05)


def test_values_are_chosen_by_size_times_weight(bench: ModuleType) -> None:
    from pay_trainers import chosen_by

    generator = torch.Generator().manual_seed(1)
    acc = torch.randn(128, 64, generator=generator)
    weight = torch.rand(128, 64, generator=generator)
    kept = chosen_by(acc, weight, Layout.of({"some": (128, 64)}, 5), "some")
    for rows in (slice(0, 64), slice(64, 128)):
        ranked = (acc[rows].abs() * weight[rows]).flatten().argsort(descending=True)
        chosen = kept[rows].flatten()
        assert set(chosen.nonzero().flatten().tolist()) == set(ranked[:5].tolist())
        assert torch.equal(chosen[ranked[:5]], acc[rows].flatten()[ranked[:5]])


def test_what_a_miner_does_not_choose_stays_in_its_error_feedback(bench: ModuleType) -> None:
    from pay_trainers import Rule, ruled

    spec = toy_spec({"compression.k": 8})
    theta = genesis_theta(spec.model, 0)
    text = torch.randint(0, 257, (spec.inner.steps * spec.inner.sequences, spec.model.context + 1))
    plain, by_gradient = (ruled(Rule(power))(spec, theta) for power in (0.0, 1.0))
    for replica in (plain, by_gradient):
        replica.inner_round(text)
    ends = {name: parameter.detach().clone() for name, parameter in plain.model.named_parameters()}
    expected, _ = ops.compress(theta, ends, None, spec.layout, spec.compression.decay)
    assert plain.compress().records == expected.records
    update = by_gradient.compress()
    assert update.records != expected.records
    error = {
        name[len(ERROR) :]: value for name, value in by_gradient.own_state().tensors.items() if name.startswith(ERROR)
    }
    for tensor in spec.layout:
        acc = theta[tensor.name] - ends[tensor.name]
        assert torch.allclose(update.dense(tensor.name) + error[tensor.name], acc, atol=1e-7)
