"""Windows from measured seconds: every one long enough for what happens in it, and all of them a valid run spec."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.lab.localnet.calibration import HICCUP_SECONDS, MARGIN, WORK_MARGIN, merge, percentile_95, windows
from murmur.owner.draft import weight_rounds
from murmur.protocol.spec import POSTS_PER_EPOCH
from murmur.protocol.types import Subnet
from tests.specs import toy_spec

PHASES = ("advance", "compute", "upload", "commit", "reveal", "check", "evaluate")
SECONDS = st.lists(st.floats(min_value=1e-4, max_value=60.0), min_size=1, max_size=40)
MEASURED = st.fixed_dictionaries(dict.fromkeys(PHASES, SECONDS))
BLOCKS = st.sampled_from([0.1, 0.25, 1.0, 12.0])
SUBNETS = st.builds(
    Subnet,
    tempo=st.integers(1, 50_400),
    post_bytes=st.just(3100),
    weights_rate_limit=st.integers(0, 2000),
    commit_reveal=st.booleans(),
    owner=st.none(),
)
REAL = Subnet(tempo=360, post_bytes=3100, weights_rate_limit=100, commit_reveal=True, owner=None)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_the_percentile_is_the_larger_neighbour(samples: list[float]) -> None:
    assert percentile_95(samples) == np.percentile(samples, 95, method="inverted_cdf")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=19))
def test_of_few_samples_the_slowest_counts(samples: list[float]) -> None:
    assert percentile_95(samples) == max(samples)


@given(MEASURED, BLOCKS, SUBNETS)
def test_any_machine_gets_a_valid_spec_on_any_subnet(
    measured: dict[str, list[float]], block: float, subnet: Subnet
) -> None:
    clock = windows(measured, block, subnet)
    changes = {f"clock.{name}": value for name, value in clock.items()}
    changes |= {"gauntlet.weight_rounds": weight_rounds(int(clock["round_blocks"]), subnet)}
    spec = toy_spec(changes | {"clock.start_block": 100})
    assert {name: getattr(spec.clock, name) for name in clock} == clock


@given(MEASURED, BLOCKS)
def test_every_window_is_a_multiple_of_what_happens_in_it(measured: dict[str, list[float]], block: float) -> None:
    slow = {phase: percentile_95(seconds) for phase, seconds in measured.items()}
    clock = windows(measured, block, REAL)
    long = {
        "round": clock["round_blocks"] * block,
        "reveal": (clock["reveal"] - clock["commit"]) * block,
        "words": (clock["words"] - clock["reveal"]) * block,
    }
    close = 1 - 1e-9  # sums of floats
    assert long["round"] >= close * WORK_MARGIN * sum(slow[p] for p in ("advance", "compute", "upload", "commit"))
    assert long["reveal"] >= close * max(HICCUP_SECONDS, MARGIN * slow["reveal"])
    # A vote, and a second one with the names that are added to it.
    assert long["words"] >= close * 2 * MARGIN * (slow["check"] + slow["commit"])
    # Scores of a round have to be there before the next round's commitments are read.
    left = (clock["round_blocks"] + clock["commit"] - clock["reveal"]) * block
    assert left >= slow["evaluate"] + slow["advance"]


@given(MEASURED, SUBNETS)
def test_an_epoch_carries_the_posts_of_its_rounds_and_weights_keep_their_distance(
    measured: dict[str, list[float]], subnet: Subnet
) -> None:
    blocks = int(windows(measured, 0.25, subnet)["round_blocks"])
    assert blocks * POSTS_PER_EPOCH >= subnet.tempo
    rounds = weight_rounds(blocks, subnet)
    assert rounds * blocks >= subnet.weights_rate_limit
    assert rounds == 1 or (rounds - 1) * blocks < subnet.weights_rate_limit


def test_a_faster_machine_never_gets_longer_rounds() -> None:
    measured = {phase: [0.2, 0.4, 0.3] for phase in PHASES}
    slower = {phase: [8 * value for value in seconds] for phase, seconds in measured.items()}
    fast, slow = windows(measured, 0.25, REAL), windows(slower, 0.25, REAL)
    for later, sooner in (("reveal", "commit"), ("words", "reveal")):
        assert fast[later] - fast[sooner] <= slow[later] - slow[sooner]
    assert fast["round_blocks"] < slow["round_blocks"]


def test_samples_of_all_processes_are_taken_together() -> None:
    assert merge([{"compute": [1.0]}, {"compute": [2.0], "check": [3.0]}]) == {"compute": [1.0, 2.0], "check": [3.0]}


def test_a_phase_that_nobody_measured_is_an_error() -> None:
    with pytest.raises(KeyError, match="evaluate"):
        windows({phase: [0.1] for phase in PHASES if phase != "evaluate"}, 0.25, REAL)
