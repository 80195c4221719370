"""Commit-reveal: what is checked at the commit, what only at the reveal, and when the weights stand."""

from collections.abc import Callable
from typing import Any

import pytest

from murmur.chain import beacon
from murmur.lab.devnet.pool import PoolError
from tests.lab.devnet.conftest import ALICE, OWNER, Chain, hotkey_of

MakeChain = Callable[..., Chain]
TEMPO, RATE = 20, 10


@pytest.fixture
def sealed(make_chain: MakeChain) -> Chain:
    """A subnet of three hotkeys, the first with stake and permit, on which weights are committed sealed."""
    chain = make_chain(real=True, tempo_blocks=TEMPO, weights_rate_limit_blocks=RATE)
    validator, *_ = chain.register(3)
    assert chain.stake(validator, 100) is None
    chain.step(TEMPO - chain.head)
    assert chain.get("ValidatorPermit", 1) == [True, True, False, False]
    return chain


def finish_epoch(chain: Chain) -> None:
    """Up to the block that begins the next epoch."""
    chain.step(chain.get("LastEpochBlock", 1) + TEMPO - chain.head)


ROW = {0: 0, 1: 0, 2: 1, 3: 3}
STANDING = [(0, 0), (1, 0), (2, 21845), (3, 65535)]


def test_a_plain_row_is_refused_while_commit_reveal_is_on(sealed: Chain) -> None:
    params = {"netuid": 1, "mecid": 0, "dests": [0], "weights": [1], "version_key": 0}
    refused = sealed.run(hotkey_of(0), "SubtensorModule", "set_mechanism_weights", **params)
    assert refused == "CommitRevealEnabled"


def test_a_commit_moves_last_update_and_stands_from_the_next_epochs_first_block(sealed: Chain) -> None:
    validator, epoch = hotkey_of(0), sealed.get("SubnetEpochIndex", 1)
    assert sealed.commit_weights(validator, ROW) is None
    committed = sealed.head
    assert sealed.get("LastUpdate", 1)[1] == committed
    ((who, netuid, _digest, reveal_round),) = sealed.events("TimelockedWeightsCommitted")
    assert (who, netuid, reveal_round) == (validator.ss58_address, 1, 7)
    ((stored, block, _, _),) = sealed.get("TimelockedWeightCommits", 1, epoch)
    assert (stored, block) == (validator.ss58_address, committed)
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1, height=sealed.head - 1) == []
    assert sealed.get("Weights", 1, 1) == STANDING
    assert sealed.events("TimelockedWeightsRevealed") == [(1, validator.ss58_address)]
    assert sealed.events("WeightsSet") == [(1, 1)]
    assert sealed.get("LastUpdate", 1)[1] == committed, "the reveal does not move it"
    assert sealed.get("TimelockedWeightCommits", 1, epoch) == []
    incentive = sealed.get("Incentive", 1)
    assert incentive == pytest.approx([0, 0, 65535 / 4, 65535 * 3 / 4], abs=2), "the epoch counts them at once"


def test_a_longer_reveal_period_waits_as_many_epochs(sealed: Chain) -> None:
    period = {"netuid": 1, "interval": 2}
    assert sealed.run(OWNER, "AdminUtils", "sudo_set_commit_reveal_weights_interval", **period) is None
    assert sealed.commit_weights(hotkey_of(0), ROW) is None
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == []
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == STANDING


def test_of_two_commits_in_an_epoch_the_later_stands(sealed: Chain) -> None:
    validator = hotkey_of(0)
    assert sealed.commit_weights(validator, ROW) is None
    with pytest.raises(PoolError, match="Custom error: 6"):
        sealed.commit_weights(validator, ROW)
    sealed.step(RATE - 1)
    assert sealed.commit_weights(validator, {0: 0, 1: 0, 2: 5, 3: 5}) is None
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == [(0, 0), (1, 0), (2, 65535), (3, 65535)]
    assert len(sealed.events("TimelockedWeightsRevealed")) == 2


def test_what_a_commit_is_refused_for(sealed: Chain) -> None:
    validator = hotkey_of(0)
    assert sealed.commit_weights(ALICE, ROW) == "HotKeyNotRegisteredInSubNet"
    assert sealed.commit_weights(validator, ROW, commit_reveal_version=3) == "IncorrectCommitRevealVersion"
    assert sealed.commit_weights(validator, ROW, mecid=1) == "MechanismDoesNotExist"
    with pytest.raises(PoolError, match="more than 5000 bytes") as raised:
        sealed.commit_weights(validator, ROW, commit=bytes(beacon.MAX_SEALED_BYTES + 1))
    assert raised.value.code == 1002
    off = {"netuid": 1, "enabled": False}
    assert sealed.run(OWNER, "AdminUtils", "sudo_set_commit_reveal_weights_enabled", **off) is None
    assert sealed.commit_weights(validator, ROW) == "CommitRevealDisabled"


@pytest.mark.parametrize("fault", ["permit", "length", "version", "owner", "box", "uids"])
def test_a_reveal_that_is_refused_leaves_no_trace_on_chain(sealed: Chain, fault: str) -> None:
    """The commit succeeds all the same, and LastUpdate moves."""
    if fault == "version":
        key = {"netuid": 1, "weights_version_key": 5}
        assert sealed.run(OWNER, "AdminUtils", "sudo_set_weights_version_key", **key) is None
    who = hotkey_of(1) if fault == "permit" else hotkey_of(0)
    done = {
        "permit": lambda: sealed.commit_weights(who, ROW),
        "length": lambda: sealed.commit_weights(who, {2: 1, 3: 1}),
        "version": lambda: sealed.commit_weights(who, ROW, version_key=4),
        "owner": lambda: sealed.commit_weights(who, ROW, hotkey=hotkey_of(1)),
        "box": lambda: sealed.commit_weights(who, ROW, commit=bytes(200)),
        "uids": lambda: sealed.commit_weights(who, {0: 1, 1: 1, 2: 1, 4: 1}),
    }[fault]()
    assert done is None
    uid = sealed.get("Uids", 1, who.ss58_address)
    assert sealed.get("LastUpdate", 1)[uid] == sealed.head
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, uid) == []
    assert sealed.events("TimelockedWeightsRevealed") == sealed.events("WeightsSet") == []
    assert sealed.get("TimelockedWeightCommits", 1, sealed.get("SubnetEpochIndex", 1) - 1) == []


def test_a_registration_before_the_reveal_makes_a_complete_row_too_short(sealed: Chain) -> None:
    """The runtime counts entries at the reveal: on a subnet that still grows, and asks for more weights than it has
    uids, whoever registers meanwhile costs every validator its row."""
    assert sealed.commit_weights(hotkey_of(0), ROW) is None
    params = {"netuid": 1, "hotkey": hotkey_of(7).ss58_address}
    assert sealed.run(ALICE, "SubtensorModule", "burned_register", **params) is None
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == []
    assert sealed.commit_weights(hotkey_of(0), {**ROW, 4: 0}) is None
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == [*STANDING, (4, 0)]


def test_one_bad_commit_does_not_hold_up_the_others(sealed: Chain) -> None:
    assert sealed.commit_weights(hotkey_of(1), ROW) is None  # no permit
    assert sealed.commit_weights(hotkey_of(0), ROW) is None
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == STANDING


def test_the_key_survives_a_restart_and_is_nowhere_in_the_state(sealed: Chain) -> None:
    assert sealed.commit_weights(hotkey_of(0), ROW) is None
    secret = bytes.fromhex(sealed.author.state.fact("beacon") or "")
    assert beacon.public_key(secret) == sealed.beacon_key()
    state = sealed.author.state
    keys = state.keys_after(b"", b"", 10**6, sealed.head)
    assert not any(secret in (state.read(key, sealed.head) or b"") for key in keys)
    sealed.reopen()
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == STANDING


@pytest.mark.parametrize("function", ["commit_timelocked_weights", "commit_crv3_mechanism_weights"])
def test_older_calls_commit_too(sealed: Chain, function: str) -> None:
    validator = hotkey_of(0)
    payload = beacon.encode(beacon.Weights(validator.public_key, tuple(ROW), tuple(ROW.values()), 0))
    params: dict[str, Any] = {"netuid": 1, "reveal_round": 7}
    params |= {"mecid": 0} if "mechanism" in function else {"commit_reveal_version": 4}
    params["commit"] = beacon.seal(payload, sealed.beacon_key())
    assert sealed.run(validator, "SubtensorModule", function, **params) is None
    finish_epoch(sealed)
    assert sealed.get("Weights", 1, 1) == STANDING
