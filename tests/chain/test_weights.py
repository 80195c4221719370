"""Complete rows, what is checked before one is sent, and what a commit of one holds."""

import os
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bittensor.intents.weights import clip_to_max_weight, normalize
from bittensor.result import ExtrinsicResult
from hypothesis import given
from hypothesis import strategies as st

from murmur.chain import beacon, reading, submission
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.weights import Terms, require, row
from murmur.lab.devnet.codec import compact
from murmur.protocol.errors import UNKNOWN_BEACON, ChainError
from murmur.protocol.types import PeerId, Uid, hotkey
from tests.chain.stubs import ALICE, BOB, WALLET, Stub

QUICKNET = (
    "0x83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
QUICKNET_GENESIS, QUICKNET_PERIOD = 1_692_803_367, 3
"""Unix seconds of its round 1, and between two rounds."""
PULSE_ROUND = 1000
PULSE = "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
RANDOMNESS = "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd"
"""What drand's quicknet published in that round."""
WEIGHTS = st.dictionaries(
    st.integers(0, 63).map(Uid), st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=64
).filter(lambda weights: any(weights.values()))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_STILL_SECONDS", 0.0)
    monkeypatch.setattr(submission, "_POLL_SECONDS", 0.02)


# --- rows --------------------------------------------------------------------------------------------------------


@given(WEIGHTS)
def test_a_row_names_every_uid_and_its_positive_part_is_the_sdks(weights: dict[Uid, float]) -> None:
    found = row(weights, 64, 65535)
    assert len(found) == 64
    assert max(found) == 65535
    uids, values = normalize([int(uid) for uid in weights], list(weights.values()))
    assert {uid: value for uid, value in enumerate(found) if value} == dict(zip(uids, values, strict=True))


@given(WEIGHTS, st.integers(700, 65534))
def test_under_a_limit_no_uid_has_more_than_it_and_the_rest_is_the_sdks(weights: dict[Uid, float], limit: int) -> None:
    positive = {uid: weight for uid, weight in weights.items() if weight > 0}
    if len(positive) * limit < 65535:
        with pytest.raises(ChainError) as caught:
            row(weights, 64, limit)
        assert caught.value.code == "MaxWeightExceeded"
        return
    found = row(weights, 64, limit)
    assert max(found) * 65535 <= limit * sum(found), "the runtime's check"
    clipped = clip_to_max_weight(list(positive.values()), limit / 65535)
    theirs = {uid: weight / max(clipped) * 65535 for uid, weight in zip(positive, clipped, strict=True)}
    assert all(abs(value - theirs.get(Uid(uid), 0.0)) <= 1 for uid, value in enumerate(found))


def test_a_weight_for_a_uid_that_is_gone_is_refused_by_the_runtimes_name() -> None:
    with pytest.raises(ChainError) as caught:
        row({Uid(4): 1.0}, 4, 65535)
    assert caught.value.code == "UidVecContainInvalidOne"


# --- terms -------------------------------------------------------------------------------------------------------

GOOD = Terms(
    block=1000,
    num_uids=4,
    stake=10,
    stake_threshold=10,
    permitted=True,
    last_update=901,
    rate_limit=100,
    max_weight=65535,
    version_key=3,
    commit_reveal=False,
    commit_version=4,
)


def test_terms_that_are_just_met_are_met() -> None:
    require(GOOD)
    require(replace(GOOD, last_update=0, rate_limit=10**6))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"stake": 9}, "NotEnoughStakeToSetWeights"),
        ({"last_update": 902}, "SettingWeightsTooFast"),
        ({"last_update": 902, "commit_reveal": True}, "CommittingWeightsTooFast"),
        ({"permitted": False}, "NeuronNoValidatorPermit"),
        ({"permitted": False, "commit_reveal": True}, "NeuronNoValidatorPermit"),
    ],
)
def test_terms_that_are_missed_by_little_are_refused_by_the_runtimes_name(change: dict[str, Any], code: str) -> None:
    with pytest.raises(ChainError) as caught:
        require(replace(GOOD, **change))
    assert caught.value.code == code


# --- what is sent ------------------------------------------------------------------------------------------------


class Taking(Stub):
    """A subnet of two that takes what it is sent."""

    def __init__(self, **storage: Any) -> None:
        super().__init__()
        self.storage |= {("SubtensorModule", item): value for item, value in storage.items()}
        self.constants: dict[tuple[str, str], Any] = {("Aura", "SlotDuration"): 12_000}
        self.methods: dict[tuple[str, str], Any] = {}

    async def constant(self, module: str, name: str) -> Any:
        return self.constants.get((module, name))

    async def runtime_call(self, api: str, method: str, params: list[Any], block_hash: str | None = None) -> Any:
        if api in ("AuraApi", "BabeApi"):
            return self.methods[api, method]  # KeyError: the runtime has none
        return await super().runtime_call(api, method, params, block_hash)

    async def submit(self, call: Any, keypair: Any, **options: Any) -> ExtrinsicResult:
        self.storage["SubtensorModule", "LastUpdate"] = [9]
        return await super().submit(call, keypair, **options)


def concealing(key: str) -> Taking:
    """With commit-reveal, whose beacon has this public key."""
    stub = Taking(
        CommitRevealWeightsEnabled=True,
        CommitRevealWeightsVersion=7,
        WeightsVersionKey=5,
        RevealPeriodEpochs=1,
        SubnetEpochIndex=40,
        Tempo=360,
        LastEpochBlock=5,
        PendingEpochAt=0,
        BlocksSinceLastStep=4,
    )
    stub.storage["Drand", "BeaconConfig"] = {"public_key": key}
    return stub


def chain_on(stub: Stub, *, local: bool = False) -> SubtensorChain:
    return open_chain(
        "ws://stub.invalid", 1, WALLET, local=local, call_timeout_seconds=0.4, substrate_factory=lambda: stub
    )


def test_a_plain_set_has_the_complete_row_and_the_chains_version_key() -> None:
    stub = Taking(WeightsVersionKey=17, MinAllowedWeights=1024)
    assert chain_on(stub).set_weights({Uid(1): 3.0}) == 9
    (call,) = stub.calls
    assert call[:2] == ("SubtensorModule", "set_weights")
    assert call[2] == {"netuid": 1, "dests": [0, 1], "weights": [0, 65535], "version_key": 17}


@pytest.mark.parametrize("private", [os.urandom(32), bytes(range(32))], ids=["random", "ascii-ish"])
def test_on_a_local_chain_a_commit_is_the_row_sealed_to_the_key_that_its_state_names(private: bytes) -> None:
    stub = concealing("0x" + beacon.public_key(private).hex())
    assert chain_on(stub, local=True).set_weights({Uid(0): 1.0, Uid(1): 0.5}) == 9
    (call,) = stub.calls
    assert call[:2] == ("SubtensorModule", "commit_timelocked_mechanism_weights")
    sealed = call[2].pop("commit")
    assert call[2] == {"netuid": 1, "mecid": 0, "reveal_round": 41, "commit_reveal_version": 7}
    said = beacon.decode(beacon.open(sealed, private))
    assert said == beacon.Weights(bytes(ALICE.public_key), (0, 1), (65535, 32768), 5)


@pytest.mark.parametrize("local", [False, True])
def test_a_commit_on_a_chain_with_drands_beacon_is_the_sdks(local: bool) -> None:
    """Its ciphertext can be opened by nobody yet; its size is that of the same payload sealed by the SDK's function."""
    import bittensor_core

    stub = concealing(QUICKNET)
    assert chain_on(stub, local=local).set_weights({Uid(0): 1.0}) == 9
    (call,) = stub.calls
    theirs, opens_at = bittensor_core.get_encrypted_commit_v2(
        uids=[0, 1],
        weights=[65535, 0],
        version_key=5,
        last_epoch_block=5,
        pending_epoch_at=0,
        subnet_epoch_index=40,
        tempo=360,
        blocks_since_last_step=4,
        current_block=9,
        subnet_reveal_period_epochs=1,
        block_time=12.0,
        hotkey=bytes(ALICE.public_key),
    )
    assert len(call[2]["commit"]) == len(theirs)
    assert abs(call[2]["reveal_round"] - opens_at) <= 2, "both count from now"
    assert call[2]["commit_reveal_version"] == 7


def test_the_recorded_pulse_is_the_beacons() -> None:
    """Recorded from drand's quicknet: a round's randomness is the sha256 of its signature."""
    assert sha256(bytes.fromhex(PULSE)).hexdigest() == RANDOMNESS


def enveloped(sealed: bytes, opens_at: int) -> bytes:
    """As the SDK opens it: SCALE of the ciphertext and its round."""
    return compact(len(sealed)) + sealed + opens_at.to_bytes(8, "little")


def test_a_commit_opens_by_the_beacons_recorded_pulse_to_the_row_in_the_runtimes_form() -> None:
    """What the SDK seals and nobody can open yet: blocks that take less than no time put its round into the past."""
    import bittensor_core

    stub = concealing(QUICKNET)
    opens_at = QUICKNET_GENESIS + PULSE_ROUND * QUICKNET_PERIOD
    blocks, tried = 359, range(-8, 9)  # from block 9 to the epoch that reveals
    for seconds in (opens_at + later for later in tried):
        stub.calls.clear()
        stub.storage["SubtensorModule", "LastUpdate"] = [0]
        stub.constants["Aura", "SlotDuration"] = 1000 * (seconds - time.time()) / blocks
        assert chain_on(stub).set_weights({Uid(0): 1.0, Uid(1): 0.5}) == 9
        (call,) = stub.calls
        if call[2]["reveal_round"] == PULSE_ROUND:
            break
    else:
        pytest.fail(f"no commit opens in round {PULSE_ROUND}; the last one does in {call[2]['reveal_round']}")
    opened = bytes(bittensor_core.decrypt_with_signature(enveloped(call[2]["commit"], PULSE_ROUND), PULSE))
    assert beacon.decode(opened) == beacon.Weights(bytes(ALICE.public_key), (0, 1), (65535, 32768), 5)


def test_a_commit_does_not_open_by_another_pulse() -> None:
    import bittensor_core

    said = beacon.encode(beacon.Weights(bytes(32), (0,), (1,), 5))
    sealed, _ = bittensor_core.encrypt_at_round(said, PULSE_ROUND)
    assert bytes(bittensor_core.decrypt_with_signature(bytes(sealed), PULSE)) == said
    other, _ = bittensor_core.encrypt_at_round(said, PULSE_ROUND + 1)
    with pytest.raises(Exception, match=r"(?i)decrypt|signature|invalid"):
        bittensor_core.decrypt_with_signature(bytes(other), PULSE)


def test_the_beacons_key_is_the_sdks() -> None:
    import bittensor_core

    (library,) = Path(bittensor_core.__file__).parent.glob("bittensor_core*.so")
    assert QUICKNET.removeprefix("0x").encode() in library.read_bytes()


def duration_of(constants: dict[tuple[str, str], Any], methods: dict[tuple[str, str], Any]) -> float:
    """Seconds of a block by a runtime that says this."""
    stub = Taking()
    stub.constants, stub.methods = constants, methods
    return chain_on(stub).call(lambda session: reading.block_seconds(session, "0x00"))


@pytest.mark.parametrize(
    ("constants", "methods"),
    [
        ({("Aura", "SlotDuration"): 250}, {}),
        ({}, {("AuraApi", "slot_duration"): 250}),
        ({("Babe", "ExpectedBlockTime"): 250}, {}),
        ({}, {("BabeApi", "configuration"): {"slot_duration": 250, "epoch_length": 2400}}),
    ],
    ids=["aura", "aura's method", "babe", "babe's method"],
)
def test_a_blocks_duration_is_what_the_runtime_says(constants: Any, methods: Any) -> None:
    assert duration_of(constants, methods) == 0.25


def test_a_runtime_that_says_no_duration_is_named_and_nothing_is_sealed() -> None:
    with pytest.raises(ChainError, match="neither by Aura nor by Babe"):
        duration_of({}, {})
    stub = concealing(QUICKNET)
    stub.constants = {}
    with pytest.raises(ChainError, match="neither by Aura nor by Babe"):
        chain_on(stub).set_weights({Uid(0): 1.0})
    assert stub.calls == []


@pytest.mark.parametrize(
    ("key", "local"), [("0x" + "07" * 32, False), ("0x" + "07" * 96, True), ("0x" + "07" * 96, False), ("", True)]
)
def test_weights_are_sealed_to_no_other_beacon(key: str, local: bool) -> None:
    stub = concealing(key)
    with pytest.raises(ChainError, match="beacon") as caught:
        chain_on(stub, local=local).set_weights({Uid(0): 1.0})
    assert caught.value.code == UNKNOWN_BEACON
    assert stub.calls == []


def test_a_chain_reopened_for_a_local_run_seals_to_its_own_beacon() -> None:
    stub = concealing("0x" + beacon.public_key(bytes(range(32))).hex())
    assert chain_on(stub).as_local().set_weights({Uid(0): 1.0}) == 9


@pytest.mark.parametrize("conceals", [False, True])
def test_a_row_can_be_tried_before_it_is_due_and_nothing_is_sent(conceals: bool) -> None:
    stub = concealing(QUICKNET)
    stub.storage["SubtensorModule", "CommitRevealWeightsEnabled"] = conceals
    stub.storage["SubtensorModule", "WeightsSetRateLimit"] = 10**6
    chain_on(stub).require_weights({Uid(0): 1.0, Uid(1): 1.0})
    stub.permits = [False, True]
    with pytest.raises(ChainError) as caught:
        chain_on(stub).require_weights({Uid(0): 1.0, Uid(1): 1.0})
    assert caught.value.code == "NeuronNoValidatorPermit"
    assert stub.calls == []


@pytest.mark.parametrize("conceals", [False, True])
def test_the_subnets_owner_needs_no_permit(conceals: bool) -> None:
    stub = concealing(QUICKNET)
    stub.storage["SubtensorModule", "CommitRevealWeightsEnabled"] = conceals
    stub.permits = [False, True]
    with pytest.raises(ChainError) as caught:
        chain_on(stub).set_weights({Uid(0): 1.0})
    assert caught.value.code == "NeuronNoValidatorPermit"
    assert stub.calls == [], "a commit would have been taken, and its reveal refused in silence"
    stub.storage["SubtensorModule", "SubnetOwnerHotkey"] = ALICE.ss58_address
    assert chain_on(stub).set_weights({Uid(0): 1.0}) == 9


# --- the subnet, the balance, where weights stand --------------------------------------------------------------------


def test_what_a_subnet_demands_is_read_and_an_owner_that_is_nobody_is_none() -> None:
    stub = Taking(Tempo=360, WeightsSetRateLimit=100, CommitRevealWeightsEnabled=True)
    stub.storage["Commitments", "MaxSpace"] = 3100
    for owner, expected in ((hotkey(PeerId(bytes(32))), None), (BOB.ss58_address, PeerId(bytes(BOB.public_key)))):
        stub.storage["SubtensorModule", "SubnetOwnerHotkey"] = owner
        found = chain_on(stub).subnet(5)
        assert (found.tempo, found.post_bytes, found.weights_rate_limit, found.commit_reveal) == (360, 3100, 100, True)
        assert found.owner == expected


def test_a_hotkey_that_nobody_owns_has_no_balance() -> None:
    stub = Taking(Owner=hotkey(PeerId(bytes(32))))
    with pytest.raises(ChainError) as caught:
        chain_on(stub).balance()
    assert caught.value.code == "HotKeyAccountNotExists"


class Revealing(Stub):
    """200 blocks. Commits by (epoch, block) wait up to the block that reveals them."""

    revealed_in = 150
    final = 200

    async def finalized_block_number(self) -> int:
        return self.final

    async def block_number(self) -> int:
        return self.final

    async def query(
        self, module: str, item: str, params: list[Any] | None = None, block_hash: str | None = None
    ) -> Any:
        assert block_hash is not None
        at = int(block_hash, 16)
        if item == "SubnetEpochIndex":
            return at // 100
        if item == "TimelockedWeightCommits":
            assert params == [1, 0]
            return [(ALICE.ss58_address, 40, "box", 7)] if 40 <= at < self.revealed_in else []
        return await super().query(module, item, params, block_hash)


@pytest.mark.parametrize("revealed_in", [41, 100, 103, 150, 199, 200])
def test_committed_weights_stand_from_the_block_that_takes_the_commit_out_of_the_queue(revealed_in: int) -> None:
    stub = Revealing()
    stub.revealed_in = revealed_in
    assert chain_on(stub).stands_from(40) == revealed_in


def test_weights_stand_nowhere_before_that_is_final_and_at_once_where_none_were_committed() -> None:
    stub = Revealing()
    stub.revealed_in = 201
    assert chain_on(stub).stands_from(40) is None
    assert chain_on(stub).stands_from(201) is None, "not final itself"
    assert chain_on(stub).stands_from(39) == 39
    assert chain_on(stub).stands_from(41) == 41, "another's commit of another block"
