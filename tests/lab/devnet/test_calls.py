"""The rules of the calls, with the real runtime's error names."""

from collections.abc import Callable

import pytest
from bittensor.sp_core import Keypair

from murmur.lab.devnet.metadata import SPEC_VERSION
from murmur.lab.devnet.pool import PoolError
from murmur.lab.devnet.staking import MIN_STAKE_RAO
from tests.lab.devnet.conftest import ALICE, BOB, FUNDS, OWNER, OWNER_HOTKEY, TAO, Chain, hotkey_of

MakeChain = Callable[..., Chain]


def raw(size: int) -> dict[str, bytes]:
    return {f"Raw{size}": b"x" * size}


def test_registration_gives_the_next_uid_and_burns(chain: Chain) -> None:
    first, second = chain.register(2)
    assert [chain.get("Uids", 1, key.ss58_address) for key in (OWNER_HOTKEY, first, second)] == [0, 1, 2]
    assert chain.get("Keys", 1, 2) == second.ss58_address
    assert chain.get("Owner", second.ss58_address) == ALICE.ss58_address
    burns = chain.genesis.burn_rao * 0.5 ** (1 / 360) * 2.26  # the price of a block later, then 1.26 times that
    paid = sum(event["actual_fee"] for event in chain.events("TransactionFeePaid"))
    assert chain.free(ALICE) == pytest.approx(1000 * TAO - burns - paid, abs=10)
    assert chain.get("SubnetTAO", 1) == pytest.approx(burns, abs=10)
    assert chain.get("SubnetAlphaOut", 1) == 0, "nobody gets the alpha that a registration buys"


def test_registration_is_refused_by_the_runtimes_names(make_chain: MakeChain) -> None:
    poor = hotkey_of(8)
    chain = make_chain(balances={**FUNDS, poor.ss58_address: TAO // 20})
    (hotkey,) = chain.register(1)

    def register(key: str, netuid: int = 1, coldkey: Keypair = ALICE) -> str | None:
        return chain.run(coldkey, "SubtensorModule", "burned_register", netuid=netuid, hotkey=key)

    assert register(hotkey.ss58_address) == "HotKeyAlreadyRegisteredInSubNet"
    assert register(hotkey_of(1).ss58_address, coldkey=poor) == "NotEnoughBalanceToStake"
    assert register(hotkey_of(1).ss58_address, netuid=7) == "SubnetNotExists"
    assert register(hotkey_of(1).ss58_address, netuid=0) == "RegistrationNotPermittedOnRootSubnet"
    assert chain.get("SubnetworkN", 1) == 2


def test_another_coldkey_cannot_register_an_owned_hotkey(make_chain: MakeChain) -> None:
    chain = make_chain(max_uids=2)
    (hotkey,) = chain.register(1)
    other = {"netuid": 1, "hotkey": hotkey_of(1).ss58_address}
    assert chain.run(BOB, "SubtensorModule", "burned_register", **other) is None  # evicts hotkey 0
    again = {"netuid": 1, "hotkey": hotkey.ss58_address}
    assert chain.run(BOB, "SubtensorModule", "burned_register", **again) == "NonAssociatedColdKey"
    assert chain.run(ALICE, "SubtensorModule", "burned_register", **again) is None


def test_an_evicted_hotkeys_slot_goes_and_its_commitment_stays_behind(make_chain: MakeChain) -> None:
    chain = make_chain(max_uids=4)
    hotkeys = chain.register(3)
    chain.commit(hotkeys[0], raw(8))
    newcomer = {"netuid": 1, "hotkey": hotkey_of(9).ss58_address}
    assert chain.run(BOB, "SubtensorModule", "burned_register", **newcomer) is None
    assert chain.get("Keys", 1, 1) == hotkey_of(9).ss58_address
    assert chain.get("Uids", 1, hotkeys[0].ss58_address) is None
    assert chain.get("Commitments.CommitmentOf", 1, hotkeys[0].ss58_address) is not None


def test_a_commitment_is_stored_byte_for_byte_and_dated(chain: Chain) -> None:
    (hotkey,) = chain.register(1)
    texts = [b"0x" + b"a" * 126, bytes(range(128)), b"plain"]  # what a decoder can mistake for hex or text
    fields = [{"Raw128": texts[0]}, {"Raw128": texts[1]}, {"BigRaw": texts[2]}]
    assert chain.commit(hotkey, *fields) is None
    key = chain.codec.key("Commitments.CommitmentOf", 1, hotkey.ss58_address)
    stored = chain.author.state.read(key, chain.head)
    assert stored is not None
    variants = [b"\x81" + texts[0], b"\x81" + texts[1], b"\x88" + bytes([len(texts[2]) << 2]) + texts[2]]
    assert stored == bytes(8) + chain.head.to_bytes(4, "little") + b"\x0c" + b"".join(variants)


def test_only_registered_hotkeys_commit(chain: Chain) -> None:
    assert chain.commit(ALICE, raw(8)) == "AccountNotAllowedCommit"


def test_a_hotkey_may_post_3100_bytes_an_epoch_and_each_post_counts_100(chain: Chain) -> None:
    first, second = chain.register(2)
    while chain.get("SubnetEpochIndex", 1) == 0:  # begin at the start of an epoch of 10 blocks
        chain.step(1)
    big = {"BigRaw": b"y" * 512}
    assert chain.commit(first, big, big, big) is None  # 1536
    assert chain.commit(first, big, big) is None  # 2560
    assert chain.commit(first, big, raw(28)) is None  # 3100
    assert chain.commit(first, raw(1)) == "SpaceLimitExceeded"
    assert chain.commit(second, big, big, big) is None
    epoch = chain.get("SubnetEpochIndex", 1)
    while chain.get("SubnetEpochIndex", 1) == epoch:
        chain.step(1)
    assert [chain.commit(first, raw(1)) for _ in range(3)] == [None, None, None]
    assert chain.get("Commitments.UsedSpaceOf", 1, first.ss58_address)["used_space"] == 300


def test_weights_need_a_permit_and_rest_between_posts(chain: Chain) -> None:
    validator, miner, other = chain.register(3)
    chain.step(chain.genesis.weights_rate_limit_blocks)

    def post(key: Keypair, dests: list[int], weights: list[int], **more: int) -> str | None:
        params = {"netuid": 1, "mecid": 0, "dests": dests, "weights": weights, "version_key": 0, **more}
        return chain.run(key, "SubtensorModule", "set_mechanism_weights", **params)

    assert post(validator, [2, 3], [1, 2]) == "NeuronNoValidatorPermit"
    assert chain.stake(validator, 100) is None
    chain.step(chain.genesis.tempo_blocks)
    assert chain.get("ValidatorPermit", 1) == [True, True, False, False], "the owner's always has one"
    assert post(validator, [2, 3], [1]) == "WeightVecNotEqualSize"
    assert post(validator, [2, 2], [1, 1]) == "DuplicateUids"
    assert post(validator, [2, 4], [1, 1]) == "UidVecContainInvalidOne"
    assert post(validator, [0, 1, 2, 3, 4], [1] * 5) == "UidsLengthExceedUidsInSubNet"
    assert post(validator, [2, 3], [1, 2], mecid=1) == "MechanismDoesNotExist"
    assert post(ALICE, [2], [1]) == "HotKeyNotRegisteredInSubNet"
    assert post(validator, [2, 3], [1, 2]) is None
    assert chain.get("Weights", 1, 1) == [(2, 32767), (3, 65535)]
    assert chain.get("LastUpdate", 1)[1] == chain.head
    with pytest.raises(PoolError, match="Custom error: 6"):
        post(validator, [2, 3], [1, 1])
    assert post(miner, [2], [1]) is None  # a weight on oneself needs no permit
    assert post(other, [2], [1]) == "NeuronNoValidatorPermit"


def test_too_few_weights_and_old_version_keys_are_refused(chain: Chain) -> None:
    (validator,) = chain.register(1)
    chain.stake(validator, 100)
    chain.step(chain.genesis.tempo_blocks + chain.genesis.weights_rate_limit_blocks)
    admin = [("sudo_set_min_allowed_weights", "min_allowed_weights", 2)]
    admin.append(("sudo_set_weights_version_key", "weights_version_key", 3))
    for function, name, value in admin:
        assert chain.run(OWNER, "AdminUtils", function, netuid=1, **{name: value}) is None
    params = {"netuid": 1, "dests": [0], "weights": [1]}
    assert chain.run(validator, "SubtensorModule", "set_weights", version_key=3, **params) == "WeightVecLengthIsLow"
    stale = chain.run(validator, "SubtensorModule", "set_weights", version_key=2, **params)
    assert stale == "IncorrectWeightVersionKey"


def test_stake_moves_one_to_one_and_back(chain: Chain) -> None:
    (hotkey,) = chain.register(1)
    before = chain.free(ALICE)
    assert chain.stake(hotkey, 40) is None
    assert chain.free(ALICE) == before - 40 * TAO - chain.fee()
    assert chain.stake(hotkey, 5, coldkey=BOB) is None
    assert chain.get("TotalHotkeyAlpha", hotkey.ss58_address, 1) == 45 * TAO
    assert chain.stake(hotkey, 5000) == "NotEnoughBalanceToStake"
    assert chain.stake(hotkey_of(5), 1) == "HotKeyAccountNotExists"
    little = {"hotkey": hotkey.ss58_address, "netuid": 1, "amount_staked": MIN_STAKE_RAO - 1}
    assert chain.run(ALICE, "SubtensorModule", "add_stake", **little) == "AmountTooLow"
    back = {"hotkey": hotkey.ss58_address, "netuid": 1, "amount_unstaked": 6 * TAO}
    assert chain.run(BOB, "SubtensorModule", "remove_stake", **back) == "NotEnoughStakeToWithdraw"
    before = chain.free(ALICE)
    assert chain.run(ALICE, "SubtensorModule", "remove_stake", **back) is None
    assert chain.free(ALICE) == before + 6 * TAO - chain.fee()


def test_transfers_move_what_is_there_and_no_more(chain: Chain) -> None:
    dest = hotkey_of(0)
    send = {"dest": dest.ss58_address}
    assert chain.run(ALICE, "Balances", "transfer_keep_alive", value=3 * TAO, **send) is None
    assert (chain.free(ALICE), chain.free(dest)) == (997 * TAO - chain.fee(), 3 * TAO)
    assert chain.run(ALICE, "Balances", "transfer_keep_alive", value=998 * TAO, **send) == "FundsUnavailable"
    all_but_the_fee = chain.free(ALICE) - chain.fee()
    assert chain.run(ALICE, "Balances", "transfer_keep_alive", value=all_but_the_fee, **send) == "NotExpendable"
    assert chain.run(ALICE, "Balances", "transfer_keep_alive", value=1, dest=BOB.ss58_address) is None
    assert (
        chain.run(ALICE, "Balances", "transfer_keep_alive", value=1, dest=hotkey_of(1).ss58_address) == "BelowMinimum"
    )
    assert chain.run(ALICE, "Balances", "transfer_keep_alive", value=TAO, dest={"Index": 1}) == "CannotLookup"
    all_but_the_fee = chain.free(ALICE) - chain.fee() - 100
    assert chain.run(ALICE, "Balances", "transfer_allow_death", value=all_but_the_fee, **send) is None


def test_hyperparameters_belong_to_the_owner_or_to_root(chain: Chain) -> None:
    assert (
        chain.run(ALICE, "AdminUtils", "sudo_set_min_allowed_weights", netuid=1, min_allowed_weights=3) == "BadOrigin"
    )
    assert chain.run(OWNER, "AdminUtils", "sudo_set_min_allowed_weights", netuid=1, min_allowed_weights=3) is None
    assert chain.get("MinAllowedWeights", 1) == 3
    assert chain.run(OWNER, "AdminUtils", "sudo_set_tempo", netuid=1, tempo=7) == "BadOrigin"
    inner = chain.codec.compose_call("AdminUtils", "sudo_set_tempo", {"netuid": 1, "tempo": 7})
    assert chain.run(ALICE, "Sudo", "sudo", call=inner) == "RequireSudo"
    assert chain.get("Tempo", 1) == 10
    assert chain.run(OWNER, "Sudo", "sudo", call=inner) is None
    assert chain.get("Tempo", 1) == 7


def test_what_was_signed_for_the_runtime_before_an_upgrade_is_not_taken(chain: Chain) -> None:
    inner = chain.codec.compose_call("System", "set_code", {"code": "0x00"})
    assert chain.run(ALICE, "Sudo", "sudo", call=inner) == "RequireSudo"
    assert chain.run(ALICE, "System", "set_code", code="0x00") == "BadOrigin"
    waits = chain.sign(ALICE, "Balances", "transfer_keep_alive", dest=BOB.ss58_address, value=1)
    chain.author.submit(chain.sign(OWNER, "Sudo", "sudo", call=inner))
    chain.author.build()
    assert [record["event_id"] for record in chain.get("System.Events")].count("CodeUpdated") == 1
    with pytest.raises(PoolError, match="bad signature"):
        chain.author.submit(waits)
    chain.author.build()
    assert chain.get("System.LastRuntimeUpgrade")["spec_version"] == SPEC_VERSION + 1


def test_the_owner_sets_the_tempo_within_bounds_and_the_epoch_begins_anew(real: Chain) -> None:
    real.step(100)

    def tempo(key: Keypair, blocks: int) -> str | None:
        return real.run(key, "SubtensorModule", "set_tempo", netuid=1, tempo=blocks)

    assert tempo(ALICE, 400) == "BadOrigin"
    assert (tempo(OWNER, 359), tempo(OWNER, 50_401)) == ("TempoOutOfBounds", "TempoOutOfBounds")
    assert tempo(OWNER, 400) is None
    assert (real.get("Tempo", 1), real.get("LastEpochBlock", 1)) == (400, real.head)
    real.step(399)
    assert real.get("SubnetEpochIndex", 1) == 0
    real.step(1)
    assert real.get("SubnetEpochIndex", 1) == 1


def test_root_sets_the_quota_of_posts(chain: Chain) -> None:
    assert chain.run(OWNER, "Commitments", "set_max_space", new_limit=100) == "BadOrigin"
    inner = chain.codec.compose_call("Commitments", "set_max_space", {"new_limit": 100})
    assert chain.run(OWNER, "Sudo", "sudo", call=inner) is None
    (hotkey,) = chain.register(1)
    assert [chain.commit(hotkey, raw(1)) for _ in range(2)] == [None, "SpaceLimitExceeded"]


def test_a_sudo_call_that_fails_says_so_in_its_event_and_changes_nothing(chain: Chain) -> None:
    inner = chain.codec.compose_call("AdminUtils", "sudo_set_max_allowed_uids", {"netuid": 1, "max_allowed_uids": 0})
    assert chain.run(OWNER, "Sudo", "sudo", call=inner) is None
    (sudid,) = (r["attributes"] for r in chain.get("System.Events") if r["event_id"] == "Sudid")
    assert chain.error_name(sudid["sudo_result"]["Err"]) == "MaxAllowedUIdsLessThanCurrentUIds"
    assert chain.get("MaxAllowedUids", 1) == 256


@pytest.mark.parametrize(
    ("module", "function", "params"),
    [
        ("System", "remark", {"remark": b"hello"}),
        ("SubtensorModule", "register_network", {"hotkey": hotkey_of(0).ss58_address}),
        ("Balances", "burn", {"value": 5, "keep_alive": True}),
    ],
)
def test_every_other_call_is_filtered(chain: Chain, module: str, function: str, params: dict[str, object]) -> None:
    assert chain.run(ALICE, module, function, **params) == "CallFiltered"
    assert chain.free(ALICE) == 1000 * TAO - chain.fee()
