"""What calls cost, who pays, and what becomes of those who can't."""

import pytest
from bittensor.sp_core import Keypair

from murmur.lab.devnet.fees import fee_of
from murmur.lab.devnet.pool import PoolError
from tests.lab.devnet.conftest import ALICE, BOB, OWNER, TAO, Chain, hotkey_of

CANNOT_PAY = "Invalid Transaction: Inability to pay some fees"


def transfer(chain: Chain, value: int, key: Keypair = ALICE, dest: Keypair = BOB) -> str | None:
    return chain.run(key, "Balances", "transfer_allow_death", dest=dest.ss58_address, value=value)


def test_the_signer_pays_and_the_money_is_gone(chain: Chain) -> None:
    issued = chain.get("Balances.TotalIssuance")
    assert transfer(chain, TAO) is None
    fee = chain.fee()
    assert fee == fee_of(("Balances", "transfer_allow_death"), len(chain.author.state.block(1).extrinsics[1]) // 2 - 1)
    assert chain.free(ALICE) == 999 * TAO - fee
    assert chain.get("Balances.TotalIssuance") == issued - fee
    assert chain.events("TransactionFeePaid") == [{"who": ALICE.ss58_address, "actual_fee": fee, "tip": 0}]
    assert chain.events("Withdraw") == [{"who": ALICE.ss58_address, "amount": fee}]


def test_a_call_that_fails_is_paid_for(chain: Chain) -> None:
    assert transfer(chain, 2000 * TAO) == "FundsUnavailable"
    assert chain.free(ALICE) == 1000 * TAO - chain.fee()


def test_a_hotkeys_posts_are_paid_by_its_owner(chain: Chain) -> None:
    (hotkey,) = chain.register(1)
    assert chain.free(hotkey) == 0
    before = chain.free(ALICE)
    assert chain.commit(hotkey, {"Raw1": b"x"}) is None
    assert chain.events("TransactionFeePaid")[0]["who"] == ALICE.ss58_address
    assert chain.free(ALICE) == before - chain.fee()


def test_who_cannot_pay_is_refused_by_the_pool(chain: Chain) -> None:
    poor, hotkey = hotkey_of(5), hotkey_of(0)
    with pytest.raises(PoolError, match=CANNOT_PAY) as raised:
        transfer(chain, 1, poor)
    assert raised.value.code == 1010
    with pytest.raises(PoolError, match=CANNOT_PAY):
        chain.commit(hotkey, {"Raw1": b"x"})  # nobody owns it yet, so it would have to pay itself
    chain.register(1)
    assert transfer(chain, chain.free(ALICE) - 200_000) is None
    with pytest.raises(PoolError, match=CANNOT_PAY):
        chain.commit(hotkey, {"Raw1": b"x"})


def test_an_extrinsic_whose_payer_became_poor_in_the_same_block_is_left_out(chain: Chain) -> None:
    (hotkey,) = chain.register(1)
    send = {"dest": BOB.ss58_address, "value": chain.free(ALICE) - 300_000}
    chain.author.submit(chain.sign(ALICE, "Balances", "transfer_allow_death", **send))
    info = {"fields": [[{"Raw1": b"x"}]]}
    late = chain.sign(hotkey, "Commitments", "set_commitment", netuid=1, info=info)
    digest = chain.author.submit(late)
    after = chain.sign(hotkey, "Commitments", "set_commitment", netuid=1, info=info)
    chain.author.submit(after)
    told: list[object] = []
    chain.author.watch(digest, told.append)
    block = chain.author.build()
    assert len(block.extrinsics) == 2
    assert told == ["invalid"]
    assert len(chain.author.pool) == len(chain.author.state.pooled()) == 0
    assert chain.get("System.Account", hotkey.ss58_address)["nonce"] == 0


def test_root_gets_its_fee_back(chain: Chain) -> None:
    inner = chain.codec.compose_call("AdminUtils", "sudo_set_tempo", {"netuid": 1, "tempo": 7})
    before = chain.free(OWNER)
    assert chain.run(OWNER, "Sudo", "sudo", call=inner) is None
    assert (chain.free(OWNER), chain.events("TransactionFeePaid")) == (before, [])
