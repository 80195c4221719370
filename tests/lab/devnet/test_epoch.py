"""Validator permits and incentives."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.lab.devnet.epoch import U16_MAX, top_stakes, yuma
from tests.lab.devnet.conftest import OWNER, Chain


def test_permits_go_to_the_highest_stakes_and_never_to_none() -> None:
    assert top_stakes([5, 0, 9, 5, 1], 2, 0) == [True, False, True, False, False]
    assert top_stakes([5, 0, 9, 5, 1], 9, 0) == [True, False, True, True, True]
    assert top_stakes([5, 0, 9, 5, 1], 9, 5) == [True, False, True, True, False]
    assert top_stakes([0, 0], 2, 0) == [False, False]


def test_a_minority_cannot_raise_a_miner_above_what_the_majority_gives() -> None:
    honest = {2: 0.5, 3: 0.5}
    stakes, rows = [60, 40, 0, 0, 0], [honest, {4: 1.0}, {}, {}, {}]
    consensus, incentive, trust, dividends = yuma(stakes, rows, 0.5)
    assert consensus == [0.0, 0.0, 0.5, 0.5, 0.0]
    assert incentive == [0.0, 0.0, 0.5, 0.5, 0.0]
    assert trust[:2] == [1.0, 0.0]
    assert dividends[:2] == [1.0, 0.0]


def test_one_validators_word_is_the_consensus() -> None:
    _, incentive, _, dividends = yuma([7, 0, 0], [{1: 0.25, 2: 0.75}, {}, {}], 0.5)
    assert incentive == pytest.approx([0.0, 0.25, 0.75])
    assert dividends == [1.0, 0.0, 0.0]


def test_nobody_earns_when_nobody_votes() -> None:
    assert yuma([0, 0], [{}, {}], 0.5) == ([0.0, 0.0],) * 4


@given(data=st.data(), count=st.integers(2, 6))
def test_consensus_is_the_weighted_median_by_its_definition(data: st.DataObject, count: int) -> None:
    stakes = data.draw(st.lists(st.integers(0, 10), min_size=count, max_size=count))
    eighths = st.dictionaries(st.integers(0, count - 1), st.integers(1, 4).map(lambda n: n / 8), max_size=2)
    rows = data.draw(st.lists(eighths, min_size=count, max_size=count))
    consensus, incentive, _, _ = yuma(stakes, rows, 0.5)
    for target in range(count):
        given_weights = {row.get(target, 0.0) for row in rows} | {0.0}
        supported = [
            weight
            for weight in given_weights
            if Fraction(sum(s for s, row in zip(stakes, rows, strict=True) if row.get(target, 0.0) >= weight))
            > Fraction(sum(stakes), 2)
        ]
        assert consensus[target] == max(supported, default=0.0)
    assert sum(incentive) == pytest.approx(1.0) or incentive == [0.0] * count


def test_an_epoch_turns_weights_into_incentive_every_tempo(chain: Chain) -> None:
    validator, _, _ = chain.register(3)
    chain.stake(validator, 100)
    chain.step(10 - chain.head)
    assert (chain.get("LastEpochBlock", 1), chain.get("SubnetEpochIndex", 1)) == (10, 1)
    chain.step(5)
    assert chain.get("BlocksSinceLastStep", 1) == 5
    params = {"netuid": 1, "dests": [2, 3], "weights": [1, 3], "version_key": 0}
    assert chain.run(validator, "SubtensorModule", "set_weights", **params) is None
    assert chain.get("Incentive", 1) == [0, 0, 0, 0]
    chain.step(20 - chain.head)
    assert chain.get("Incentive", 1) == pytest.approx([0, 0, U16_MAX / 4, U16_MAX * 3 / 4], abs=2)
    assert chain.get("Dividends", 1) == [0, U16_MAX, 0, 0]


def test_a_validator_that_fell_silent_loses_its_vote(chain: Chain) -> None:
    (validator,) = chain.register(1)
    chain.stake(validator, 100)
    chain.step(12)
    params = {"netuid": 1, "dests": [0], "weights": [1], "version_key": 0}
    assert chain.run(validator, "SubtensorModule", "set_weights", **params) is None
    factor = {"netuid": 1, "factor_milli": 2000}  # of a tempo of 10 blocks
    assert chain.run(OWNER, "AdminUtils", "sudo_set_activity_cutoff_factor", **factor) is None
    chain.step(20 - chain.head)
    assert chain.get("Incentive", 1)[0] == U16_MAX
    chain.step(20)
    assert chain.get("Active", 1)[1] is False
    assert chain.get("Incentive", 1)[0] == 0
