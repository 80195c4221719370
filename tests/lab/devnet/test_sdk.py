"""The unmodified SDK on a devnet process: what a node, an operator and a dashboard do with it.

One process makes its own blocks, for what waits on blocks; another makes them on request, for what must happen at an
exact height. Both are shared by the whole file, so each test uses hotkeys of its own.
"""

import asyncio
from collections.abc import Iterator
from itertools import count
from threading import Timer
from types import SimpleNamespace
from typing import Any

import bittensor as bt
import pytest
from bittensor.sp_core import Keypair

from murmur.lab.devnet import launch
from murmur.lab.devnet.launch import Admin
from tests.lab.devnet.conftest import ALICE, OWNER, OWNER_HOTKEY, TAO, genesis

NETUID = 1
TEMPO = 10
EPOCH, RATE_LIMIT = 200, 100
"""Of the chain that makes its own blocks: ten and five seconds, in which a busy machine posts three times, and sets
weights twice. Nobody waits for them: `Admin.step`."""
LAG = 4
KEEP = 40
_numbers = count()


def new_wallet() -> Any:
    """A rich coldkey with a hotkey that nobody has used."""
    hotkey = Keypair.create_from_uri(f"//sdk//{next(_numbers)}")
    return SimpleNamespace(name="test", coldkey=ALICE, coldkeypub=ALICE, hotkey=hotkey)


@pytest.fixture(scope="module", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    start = genesis(tempo_blocks=EPOCH, weights_rate_limit_blocks=RATE_LIMIT)
    devnet = launch.start(tmp_path_factory.mktemp("running"), start, block_seconds=0.05)
    yield devnet.url
    devnet.stop()


@pytest.fixture(scope="module")
def sub(running: str) -> Iterator[bt.Subtensor]:
    with bt.Subtensor(running) as subtensor:
        yield subtensor


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("stepped")
    start = genesis(tempo_blocks=TEMPO)
    devnet = launch.start(folder, start, step=True, finality_lag_blocks=LAG, keep_blocks=KEEP)
    yield devnet.admin()
    devnet.stop()


@pytest.fixture(scope="module")
def stepped(admin: Admin) -> Iterator[bt.Subtensor]:
    with bt.Subtensor(admin.url) as subtensor:
        yield subtensor


def call(sub: bt.Subtensor, wallet: Any, what: Any, *, signer: str = "coldkey", wait: bool = True) -> Any:
    return sub.submit_call(what, wallet, signer=signer, wait_for_inclusion=wait, wait_for_finalization=False)


def register(sub: bt.Subtensor, wallet: Any, *, wait: bool = True) -> Any:
    registration = bt.calls.SubtensorModule.burned_register(netuid=NETUID, hotkey=wallet.hotkey.ss58_address)
    return call(sub, wallet, registration, wait=wait)


def commit(sub: bt.Subtensor, wallet: Any, *fields: bytes, wait: bool = True) -> Any:
    info = {"fields": [[{f"Raw{len(data)}" if len(data) <= 128 else "BigRaw": data} for data in fields]]}
    what = bt.calls.Commitments.set_commitment(netuid=NETUID, info=info)
    return call(sub, wallet, what, signer="hotkey", wait=wait)


def test_heads_time_and_blocks_read_as_on_any_chain(sub: bt.Subtensor) -> None:
    head = sub.wait_for_block(sub.block + 2, timeout=10)
    info = sub.block_info(head.number)
    assert info.number == head.number
    assert info.extrinsics[0]["call"]["call_function"] == "set"
    assert sub.timestamp(block=head.number) > sub.timestamp(block=head.number - 1)
    assert sub.finalized_block >= head.number


def test_block_subscriptions_give_each_block_once_in_order(sub: bt.Subtensor) -> None:
    for finalized in (False, True):
        numbers = []
        for header in sub.blocks(finalized=finalized):
            numbers.append(header.number)
            if len(numbers) == 5:
                break
        assert numbers == list(range(numbers[0], numbers[0] + 5))


def test_a_hotkey_registers_once_and_stands_in_the_metagraph(sub: bt.Subtensor) -> None:
    wallet = new_wallet()
    assert register(sub, wallet).success
    again = register(sub, wallet)
    assert not again.success
    assert again.error.code == bt.ErrorCode.ALREADY_EXISTS
    assert again.error.name == "HotKeyAlreadyRegisteredInSubNet"
    metagraph = sub.subnets.metagraph(netuid=NETUID)
    neuron = metagraph.by_hotkey(wallet.hotkey.ss58_address)
    assert (neuron.coldkey, neuron.active, neuron.validator_permit) == (ALICE.ss58_address, True, False)
    assert metagraph.owner_hotkey == metagraph.neurons[0].hotkey == OWNER_HOTKEY.ss58_address
    assert metagraph.owner_coldkey == OWNER.ss58_address
    assert metagraph.tempo == EPOCH
    assert [n.hotkey for n in sub.neurons.all(NETUID)] == metagraph.hotkeys
    assert sub.query(bt.storage.SubtensorModule.Uids, [NETUID, wallet.hotkey.ss58_address]) == neuron.uid


def test_commitments_are_read_back_until_the_quota_ends_them(sub: bt.Subtensor) -> None:
    wallet = new_wallet()
    assert not commit(sub, wallet, b"too early").success
    register(sub, wallet)
    assert commit(sub, wallet, b"a" * 128, b"b" * 69, b"c" * 32).success
    (entry,) = (c for c in sub.subnets.commitments(NETUID).values() if c.hotkey == wallet.hotkey.ss58_address)
    assert entry.data == "a" * 128 + "b" * 69 + "c" * 32
    assert entry.block <= sub.block
    for _ in range(2 * 3100 // 1536 + 3):  # three in one epoch cross the quota, wherever the epoch began
        result = commit(sub, wallet, *[b"d" * 512] * 3)
        if not result.success:
            break
    assert result.error.name == "SpaceLimitExceeded"


class WithoutNewItems(bt.RpcSubstrate):  # type: ignore[misc]
    """SetWeights asks for a storage item that the devnet's runtime does not have yet: absent, it means the default."""

    async def query(self, module: str, storage_function: str, *args: Any, **kwargs: Any) -> Any:
        if storage_function == "SubnetEpochConsensus":
            return None
        return await super().query(module, storage_function, *args, **kwargs)


def test_a_staked_validator_sets_weights_and_is_rate_limited(running: str, sub: bt.Subtensor) -> None:
    validator, miner = new_wallet(), new_wallet()
    for wallet in (validator, miner):
        register(sub, wallet)
    target = sub.query(bt.storage.SubtensorModule.Uids, [NETUID, miner.hotkey.ss58_address])
    direct = {"netuid": NETUID, "mecid": 0, "dests": [target], "weights": [1], "version_key": 0}
    Admin(running).step(RATE_LIMIT)
    result = call(sub, validator, bt.calls.SubtensorModule.set_mechanism_weights(**direct), signer="hotkey")
    assert result.error.name == "NeuronNoValidatorPermit"
    stake = {"hotkey": validator.hotkey.ss58_address, "netuid": NETUID, "amount_staked": 50 * TAO}
    assert call(sub, validator, bt.calls.SubtensorModule.add_stake(**stake)).success
    Admin(running).step(EPOCH)

    async def set_weights() -> tuple[Any, Any, Any]:
        async with bt.Client(running, substrate=WithoutNewItems(running)) as client:
            intent = bt.SetWeights(netuid=NETUID, weights={target: 1.0})
            first = await client.execute(intent, validator, wait_for_finalization=False)
            with pytest.raises(bt.ChainError) as raised:
                await client.execute(intent, validator, wait_for_finalization=False)
            too_fast = bt.calls.SubtensorModule.set_mechanism_weights(**direct)
            third = await client.submit_call(too_fast, validator, signer="hotkey", wait_for_finalization=False)
            return first, raised.value, third

    first, second, third = asyncio.run(set_weights())
    assert first.success
    assert second.code == bt.ErrorCode.RATE_LIMITED
    assert third.error.name == "RateLimitExceeded", "the pool's word, before a block sees it"
    neuron = sub.subnets.metagraph(netuid=NETUID).by_hotkey(validator.hotkey.ss58_address)
    assert neuron.validator_permit
    assert neuron.total_stake.rao == 50 * TAO
    assert neuron.last_update == int(first.extrinsic_id.split("-")[0])
    assert sub.query(bt.storage.SubtensorModule.Weights, [NETUID, neuron.uid]) == [(target, 65535)]
    skip = Timer(0.5, Admin(running).step, (EPOCH,))
    skip.start()
    sub.wait_for_epoch(NETUID, timeout=60)
    skip.join()
    assert sub.subnets.metagraph(netuid=NETUID).by_hotkey(miner.hotkey.ss58_address).incentive == 1.0


def test_fees_are_planned_as_they_are_paid_and_nonces_count_what_waits(admin: Admin, stepped: bt.Subtensor) -> None:
    wallets = [new_wallet() for _ in range(3)]
    for wallet in wallets:
        assert register(stepped, wallet, wait=False).success
    assert admin.info()["waiting"] == 3
    assert admin.step()["waiting"] == 0
    before = stepped.query(bt.storage.System.Account, [ALICE.ss58_address])
    assert before["nonce"] == 3
    plan = stepped.plan(bt.Transfer(dest_ss58=OWNER.ss58_address, amount_tao=1), wallets[0])
    transfer = bt.calls.Balances.transfer_keep_alive(dest=OWNER.ss58_address, value=TAO)
    assert call(stepped, wallets[0], transfer, wait=False).success
    admin.step()
    after = stepped.query(bt.storage.System.Account, [ALICE.ss58_address])
    paid = before["data"]["free"] - after["data"]["free"] - TAO
    assert paid == pytest.approx(plan.fee.rao, abs=10)  # an era takes two bytes, the plan's guess may take one
    assert paid > 100_000


def test_who_cannot_pay_is_told_so_by_the_runtimes_name(admin: Admin, stepped: bt.Subtensor) -> None:
    poor = Keypair.create_from_uri("//sdk//poor")
    wallet = SimpleNamespace(name="poor", coldkey=poor, coldkeypub=poor, hotkey=poor)
    transfer = bt.calls.Balances.transfer_keep_alive(dest=OWNER.ss58_address, value=TAO)
    result = call(stepped, wallet, transfer, wait=False)
    assert (result.success, result.error.name) == (False, "Payment")
    assert admin.info()["waiting"] == 0


def test_old_heights_read_as_they_were_until_they_are_pruned(admin: Admin, stepped: bt.Subtensor) -> None:
    wallet = new_wallet()
    register(stepped, wallet, wait=False)
    admin.step()
    dates = []
    for text in (b"first", b"second"):
        commit(stepped, wallet, text, wait=False)
        dates.append(admin.step(2)["head"] - 1)
    address = wallet.hotkey.ss58_address
    uid = stepped.query(bt.storage.SubtensorModule.Uids, [NETUID, address])
    texts = [
        stepped.at(block).subnets.commitments(NETUID)[address].data for block in (dates[0], dates[1] - 1, dates[1])
    ]
    assert texts == ["first", "first", "second"]
    early = stepped.at(dates[0]).subnets.metagraph(netuid=NETUID)
    assert early.block == dates[0]
    assert early.commitments[uid].block == dates[0]
    assert stepped.at(dates[0] - 1).subnets.metagraph(netuid=NETUID).commitments[uid] is None
    admin.step(KEEP + 3)
    assert stepped.block_info(dates[0]).number == dates[0]
    with pytest.raises(bt.BittensorError, match=r"(?i)state .*discarded"):
        stepped.at(dates[0]).subnets.metagraph(netuid=NETUID)
    assert stepped.at(dates[0] + 8).subnets.metagraph(netuid=NETUID).commitments[uid].data == "second"


def test_a_three_block_reorg_is_seen_by_readers_and_subscribers(admin: Admin, stepped: bt.Subtensor) -> None:
    wallet = new_wallet()
    register(stepped, wallet, wait=False)
    admin.step(LAG + 1)  # final now
    commit(stepped, wallet, b"moves", wait=False)
    head = admin.step(3)["head"]
    address = wallet.hotkey.ss58_address
    assert stepped.subnets.commitments(NETUID)[address].block == head - 2
    final = stepped.finalized_block
    hashes = [stepped.block_info(number).hash for number in range(final, head + 1)]
    heads = stepped.blocks()
    assert next(heads).number == head
    admin.reorg(3, empty_blocks=2)
    assert [next(heads).number for _ in range(4)] == [head - 2, head - 1, head, head + 1]
    heads.close()
    assert stepped.subnets.commitments(NETUID)[address].block == head
    after = [stepped.block_info(number).hash for number in range(final, head + 1)]
    assert [old == new for old, new in zip(hashes, after, strict=True)] == [True] * (head - 2 - final) + [False] * 3
    with pytest.raises(bt.BittensorError):
        asyncio.run(_read_at(admin.url, hashes[-1]))


async def _read_at(url: str, block_hash: str) -> Any:
    substrate = bt.RpcSubstrate(url)
    await substrate.connect()
    try:
        return await substrate.query("Timestamp", "Now", [], block_hash=block_hash)
    finally:
        await substrate.close()


def test_a_finality_stall_holds_the_finalised_head(admin: Admin, stepped: bt.Subtensor) -> None:
    admin.step(LAG)
    final = stepped.finalized_block
    admin.finality(1000)
    admin.step(5)
    assert stepped.finalized_block == final
    admin.finality(LAG)
    admin.step()
    assert stepped.finalized_block == final + 6


def test_a_selective_metagraph_gives_the_columns_asked_for(admin: Admin, stepped: bt.Subtensor) -> None:
    admin.step()

    async def read() -> tuple[dict[str, Any], dict[str, Any]]:
        substrate = bt.RpcSubstrate(admin.url)
        await substrate.connect()
        try:
            head = await substrate.block_hash()
            api = "SubnetInfoRuntimeApi"
            whole = await substrate.runtime_call(api, "get_metagraph", [NETUID], block_hash=head)
            some = await substrate.runtime_call(api, "get_selective_metagraph", [NETUID, [52, 57, 59, 62, 69]], head)
        finally:
            await substrate.close()
        return whole, some

    whole, some = asyncio.run(read())
    present = {name: value for name, value in some.items() if value is not None}
    asked = ("netuid", "hotkeys", "validator_permit", "last_update", "incentives", "total_stake")
    assert present == {name: whole[name] for name in asked}


def test_hyperparameters_read_by_name(stepped: bt.Subtensor) -> None:
    values = stepped.subnets.subnet_hyperparameters(NETUID)
    assert (values["tempo"], values["commit_reveal_weights_enabled"], values["min_allowed_weights"]) == (
        TEMPO,
        False,
        1,
    )


def test_a_forged_signature_is_refused_by_name(admin: Admin, stepped: bt.Subtensor) -> None:
    class Forger:
        crypto_type = 1
        ss58_address = ALICE.ss58_address
        public_key = ALICE.public_key

        def sign(self, payload: bytes) -> bytes:
            return bytes(OWNER.sign(payload))

    forger = SimpleNamespace(name="forger", coldkey=Forger(), coldkeypub=ALICE, hotkey=OWNER_HOTKEY)
    result = register(stepped, forger)
    assert not result.success
    assert result.error.name == "BadProof"
    assert admin.info()["waiting"] == 0
