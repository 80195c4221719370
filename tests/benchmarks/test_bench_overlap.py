"""The bench of overlapped rounds, on a model that costs milliseconds: where the guess is right it changes no bit, and a
guess that was wrong leaves no trace in what is sent."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from murmur.data.shards import Shards
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from tests.small_run import data_set

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "model": {"layers": 1, "width": 16, "ffn": 32, "context": 32},
    "inner": {"steps": 4, "sequences": 4, "peak_lr": 0.03, "warmup_steps": 1, "decay_steps": 40},
    "data": {"page_sequences": 16, "held_out_sequences": 8},
}


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The script, which runs with its own folder in the path."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import bench_overlap

        yield bench_overlap
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("data")
    data_set(folder)
    return Shards.open(folder)


def case(bench: ModuleType, full: int = 1, **given: Any) -> Any:
    return bench.Case("local", full, 6, SMALL, **given)


@pytest.mark.parametrize("delay", [0.25, 0.5, 1.0])
def test_a_lone_peer_guesses_right_and_trains_as_if_it_had_waited(
    bench: ModuleType, shards: Shards, delay: float
) -> None:
    """Its own update is all of the outer step: until a joiner's comes to it."""
    waited = bench.losses(case(bench, join=4), 1, shards)
    overlapped = bench.losses(case(bench, join=4, delay=delay, blend=0.5), 1, shards)
    assert overlapped[:5] == waited[:5]
    assert overlapped[5] != waited[5]


@pytest.mark.parametrize("guess", ["own", "share", "none", "last", "kept"])
def test_the_others_updates_and_void_rounds_are_what_a_guess_lacks(
    bench: ModuleType, shards: Shards, guess: str
) -> None:
    overlapped = bench.losses(case(bench, 2, void=3, delay=0.5, guess=guess), 1, shards)
    waited = bench.losses(case(bench, 2, void=3), 1, shards)
    assert overlapped[0] == waited[0]
    assert overlapped[1] != waited[1]
    assert overlapped[2] == overlapped[1]  # void
    assert overlapped[5] == overlapped[4] < overlapped[0]


@pytest.mark.parametrize(("delay", "blend"), [(0.25, 0.0), (0.5, 0.5), (1.0, 0.0), (1.0, 0.5)])
def test_a_wrong_guess_leaves_no_trace_in_what_is_sent(
    bench: ModuleType, shards: Shards, delay: float, blend: float
) -> None:
    """Of a peer that learns nothing on its way."""
    still = SMALL | {"inner": SMALL["inner"] | {"peak_lr": 1e-30, "final_lr": 1e-30}}
    waiting = bench.Case("local", 1, 1, still, delay=delay, blend=blend)
    spec = waiting.spec(shards)
    peer = bench.Peer("full-0", 0, Replica(spec, genesis_theta(spec.model, 0)))
    peer.guess = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in peer.replica.theta.items()}
    work = torch.randint(0, spec.model.vocabulary, (spec.inner.steps * spec.inner.sequences, spec.model.context + 1))
    sent = peer.train(work, waiting)
    assert sent.norms.whole < 1e-5
    assert not torch.equal(next(iter(peer.guess.values())), next(iter(peer.replica.theta.values())))


def test_a_line_is_compared_with_the_synchronous_side_at_its_own_best_rate(bench: ModuleType) -> None:
    def line(rate: float, seed: int, loss: float, **given: Any) -> dict[str, Any]:
        made = bench.Case("local", 4, 6, {"inner": {"peak_lr": rate}}, **given)
        return {"case": bench.asdict(made), "seed": seed, "losses": [9.0, 9.0] + [loss] * 4}

    told = bench.table(
        [
            line(0.1, 0, 3.0),
            line(0.1, 1, 2.0),
            line(0.2, 0, 2.0),
            line(0.2, 1, 2.5),
            line(0.1, 0, 2.02, delay=0.5),
            line(0.1, 1, 2.55, delay=0.5),
            line(0.1, 0, 2.02, delay=0.5, void=2),
        ]
    )
    assert [row for row in told if "0: 2.020 1: 2.550 | +1.0 +2.0 | +1.5 |" in row]
    assert [row for row in told if "void 2" in row and row.endswith("0: 2.020 |  | |  |")]


def test_rounds_that_a_loss_is_worth_are_read_off_the_other_curve(bench: ModuleType) -> None:
    line = {"losses": [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]}  # means of four: 7.5, 6.5, 5.5, 4.5
    assert bench.worth(line, 6.5) == 5.0
    assert bench.worth(line, 5.0) == 6.5
    assert bench.worth(line, 4.0) != bench.worth(line, 4.0)  # it never came so far
