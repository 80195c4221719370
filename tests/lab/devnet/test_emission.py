"""What an epoch pays, and to whom."""

from collections.abc import Callable

import pytest

from murmur.lab.devnet.genesis import Genesis
from tests.lab.devnet.conftest import ALICE, OWNER, OWNER_HOTKEY, TAO, Chain, hotkey_of

MakeChain = Callable[..., Chain]
TEMPO = 10


@pytest.fixture
def paying(make_chain: MakeChain) -> Chain:
    """Two validators with 60 and 40 alpha and a permit, two miners; the epoch begins at the next block."""
    chain = make_chain(emission_rao=TAO, pool_rao=0)
    first, second, *_ = chain.register(4)
    chain.stake(first, 60)
    chain.stake(second, 40)
    chain.step(2 * TEMPO - 1 - chain.head)
    return chain


def alpha(chain: Chain) -> list[int]:
    hotkeys = [OWNER_HOTKEY, *(hotkey_of(index) for index in range(4))]
    return [chain.get("TotalHotkeyAlpha", key.ss58_address, 1) for key in hotkeys]


def vote(chain: Chain, index: int, dests: list[int], weights: list[int]) -> None:
    params = {"netuid": 1, "dests": dests, "weights": weights, "version_key": 0}
    assert chain.run(hotkey_of(index), "SubtensorModule", "set_weights", **params) is None


def test_an_epoch_pays_owner_miners_and_validators_18_41_41(paying: Chain) -> None:
    paying.step(1)
    vote(paying, 0, [3, 4], [1, 3])
    vote(paying, 1, [3, 4], [1, 3])
    paying.step(3 * TEMPO - 1 - paying.head)
    before = alpha(paying)
    paying.step(1)
    earned = [after - was for after, was in zip(alpha(paying), before, strict=True)]
    total = TEMPO * TAO
    owner, first, second, third, fourth = earned
    assert sum(earned) == pytest.approx(total, abs=10)
    assert owner == pytest.approx(total * 11796 / 65535, abs=10)
    half = (total - owner) / 2
    assert (third, fourth) == pytest.approx((half / 4, half * 3 / 4), abs=10)
    assert first / second == pytest.approx(before[1] / before[2], rel=1e-6)
    assert first + second == pytest.approx(half, abs=10)
    assert paying.get("Emission", 1) == [0, first, second, third, fourth], "the cut is no emission"


def test_where_nobody_gives_weights_stake_alone_is_paid(paying: Chain) -> None:
    before = alpha(paying)
    paying.step(1)
    owner, first, second, *miners = (now - was for now, was in zip(alpha(paying), before, strict=True))
    assert miners == [0, 0]
    assert owner + first + second == pytest.approx(TEMPO * TAO, abs=10)
    assert first > second > 0


def test_weight_on_the_owner_pays_nobody(paying: Chain) -> None:
    paying.step(1)
    vote(paying, 0, [0], [1])
    vote(paying, 1, [0], [1])
    paying.step(3 * TEMPO - 1 - paying.head)
    before, outside = alpha(paying), paying.get("SubnetAlphaOut", 1)
    paying.step(1)
    owner, first, second, *miners = (now - was for now, was in zip(alpha(paying), before, strict=True))
    assert miners == [0, 0]
    total = TEMPO * TAO
    assert owner == pytest.approx(total * 0.18, rel=1e-3)
    assert owner + first + second == pytest.approx(total * 0.59, rel=1e-3)
    burned = total - owner - first - second
    assert outside + TAO - paying.get("SubnetAlphaOut", 1) == pytest.approx(burned, abs=10)


def test_all_that_is_emitted_is_held_or_pending_or_burned(paying: Chain) -> None:
    start = paying.get("SubnetAlphaOut", 1)
    head = paying.head
    held = sum(alpha(paying))
    pending = ("PendingOwnerCut", "PendingServerEmission", "PendingValidatorEmission")
    waiting = sum(paying.get(item, 1) for item in pending)
    assert start == held + waiting
    vote(paying, 0, [3], [1]) if paying.get("ValidatorPermit", 1)[1] else None
    paying.step(35)
    assert paying.get("SubnetAlphaOut", 1) - start == (paying.head - head) * TAO
    assert sum(alpha(paying)) + sum(paying.get(item, 1) for item in pending) == paying.get("SubnetAlphaOut", 1)


def test_miners_that_earn_become_validators_and_so_does_the_owner(paying: Chain) -> None:
    paying.step(1)
    vote(paying, 0, [3], [1])
    vote(paying, 1, [3], [1])
    paying.step(2 * TEMPO)
    assert paying.get("ValidatorPermit", 1) == [True, True, True, True, False]


def test_an_epoch_of_a_new_real_subnet(real: Chain) -> None:
    """Settings that nobody chose are those of a real one."""
    values = {
        "Tempo": 360,
        "MinAllowedWeights": 1024,
        "WeightsSetRateLimit": 100,
        "CommitRevealWeightsEnabled": True,
        "RevealPeriodEpochs": 1,
        "MaxAllowedUids": 256,
        "MaxAllowedValidators": 64,
        "ImmunityPeriod": 5000,
        "MinBurn": 500_000,
        "MaxBurn": 100 * TAO,
        "BurnHalfLife": 360,
        "SubnetMechanism": 1,
        "SubnetTAO": 1000 * TAO,
        "SubnetAlphaIn": 1000 * TAO,
    }
    assert {item: real.get(item, 1) for item in values} == values
    assert real.get("CommitRevealWeightsVersion") == 4
    assert real.get("Commitments.MaxSpace") == 3100
    assert real.get("SubnetOwnerCut") / 65535 == pytest.approx(0.18, abs=1e-4)
    assert Genesis("a", "b").tempo_blocks * real.get("ActivityCutoffFactorMilli", 1) // 1000 == 5000
    real.step(360)
    assert real.get("SubnetEpochIndex", 1) == 1
    assert real.get("ValidatorPermit", 1) == [True], "the owner's"
    assert real.get("TotalHotkeyAlpha", OWNER_HOTKEY.ss58_address, 1) == 360 * (TAO * 11796 // 65535)
    assert real.free(OWNER) == real.free(ALICE) == 1000 * TAO
