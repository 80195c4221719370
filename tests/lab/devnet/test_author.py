"""Blocks, pool, finality and reorgs, without a process around them."""

from collections.abc import Callable
from hashlib import blake2b

import pytest

from murmur.lab.devnet.codec import compact
from murmur.lab.devnet.pool import PoolError
from murmur.protocol.errors import ConfigError
from tests.lab.devnet.conftest import ALICE, BOB, TAO, Chain, genesis, hotkey_of

MakeChain = Callable[..., Chain]
DEST = hotkey_of(0).ss58_address


def transfer(chain: Chain, value: int, nonce: int | None = None) -> bytes:
    return chain.sign(ALICE, "Balances", "transfer_keep_alive", nonce, dest=DEST, value=value * TAO)


def received(chain: Chain) -> int:
    return chain.free(hotkey_of(0)) // TAO


def test_block_hashes_are_those_of_their_scale_headers(chain: Chain) -> None:
    chain.step(70)
    for number in (0, 1, 63, 64, 70):
        block = chain.author.state.block(number)
        header = block.header
        (log,) = header["digest"]["logs"]
        fields = [bytes.fromhex(header[name][2:]) for name in ("parentHash", "stateRoot", "extrinsicsRoot")]
        encoded = fields[0] + compact(number) + fields[1] + fields[2] + compact(1) + bytes.fromhex(log[2:])
        assert blake2b(encoded, digest_size=32).digest() == block.hash == chain.author.state.hash_of(number)
        if number:
            assert fields[0] == chain.author.state.hash_of(number - 1)


def test_each_network_has_its_own_genesis_hash(make_chain: MakeChain) -> None:
    first, second = make_chain(), make_chain()
    assert first.author.state.hash_of(0) != second.author.state.hash_of(0)


def test_chain_time_moves_even_when_the_machine_clock_stands_still(chain: Chain) -> None:
    chain.author._milliseconds = lambda: 5
    before = chain.get("Timestamp.Now")
    chain.step(2)
    assert chain.get("Timestamp.Now") == before + 2


def test_extrinsics_get_in_by_nonce_whatever_order_they_come_in(chain: Chain) -> None:
    for nonce in (2, 0, 3, 1):
        chain.author.submit(transfer(chain, 1 << nonce, nonce))
    assert chain.author.pool.next_nonce(ALICE.ss58_address) == 4
    chain.author.build()
    assert received(chain) == 0b1111
    assert chain.get("System.Account", ALICE.ss58_address)["nonce"] == 4


def test_a_nonce_with_a_gap_before_it_waits(chain: Chain) -> None:
    chain.author.submit(transfer(chain, 2, nonce=1))
    chain.step(2)
    assert received(chain) == 0
    chain.author.submit(transfer(chain, 1, nonce=0))
    chain.step(1)
    assert received(chain) == 3


def refusal(chain: Chain, data: bytes) -> tuple[int, str | None]:
    with pytest.raises(PoolError) as raised:
        chain.author.submit(data)
    assert len(chain.author.pool) == len(chain.author.state.pooled())
    return raised.value.code, raised.value.data


def test_forged_signatures_and_wrong_nonces_are_refused(chain: Chain) -> None:
    good = transfer(chain, 1)
    chain.author.submit(good)
    assert refusal(chain, good)[0] == 1013
    assert refusal(chain, transfer(chain, 2, nonce=0))[0] == 1014
    chain.author.build()
    assert refusal(chain, good) == (1010, "Transaction is outdated")
    fresh = transfer(chain, 1)
    signature = fresh.index(ALICE.public_key) + 33
    forged = bytearray(fresh)
    forged[signature + 5] ^= 1
    assert refusal(chain, bytes(forged)) == (1010, "Transaction has a bad signature")
    stolen = fresh.replace(ALICE.public_key, BOB.public_key)
    assert refusal(chain, stolen) == (1010, "Transaction has a bad signature")
    raised = fresh[:-1] + bytes([fresh[-1] ^ 1])
    assert refusal(chain, raised) == (1010, "Transaction has a bad signature")
    assert refusal(chain, transfer(chain, 1, nonce=10_000)) == (1010, "Transaction will be valid in the future")


def test_a_signature_for_another_network_is_refused(make_chain: MakeChain) -> None:
    here, there = make_chain(), make_chain()
    assert refusal(there, transfer(here, 1)) == (1010, "Transaction has a bad signature")


@pytest.mark.parametrize("size", [0, 1, 3, 40, 120])
def test_bytes_that_are_no_extrinsic_are_refused(chain: Chain, size: int) -> None:
    good = transfer(chain, 1)
    assert refusal(chain, good[:size])[0] == 1002
    assert refusal(chain, good + b"\x00")[0] == 1002


def test_commitments_beyond_the_runtimes_bounds_do_not_decode(chain: Chain) -> None:
    (hotkey,) = chain.register(1)
    for fields in ([{"BigRaw": bytes(513)}], [{"Raw1": b"a"}] * 4):
        data = chain.sign(hotkey, "Commitments", "set_commitment", netuid=1, info={"fields": [fields]})
        assert refusal(chain, data)[0] == 1002
    assert chain.commit(hotkey, {"BigRaw": bytes(512)}) is None


def test_a_mortal_extrinsic_dies_with_its_era(chain: Chain) -> None:
    chain.step(10)
    call = chain.codec.compose_call("Balances", "transfer_keep_alive", {"dest": DEST, "value": TAO})
    waiting = chain.sign_call(ALICE, call, nonce=1, birth=10)
    late = chain.sign_call(ALICE, call, nonce=0, birth=10)
    chain.author.submit(waiting)
    chain.step(64)
    assert len(chain.author.pool) == 0
    assert chain.author.state.pooled() == []
    assert refusal(chain, late) == (1010, "Transaction has a bad signature")  # its era now begins elsewhere


def test_finality_trails_the_head_and_never_goes_back(make_chain: MakeChain) -> None:
    chain = make_chain(lag=4)
    finals: list[int] = []
    chain.author.on_final = lambda block: finals.append(block.number)
    chain.step(10)
    assert chain.author.finalized == 6
    chain.author.finality_lag_blocks = 1000
    chain.step(5)
    assert chain.author.finalized == 6
    chain.author.finality_lag_blocks = 2
    chain.step(1)
    assert chain.author.finalized == 14
    chain.reopen()
    assert chain.author.finalized == 14
    assert finals == list(range(1, 15))


def test_a_three_block_reorg_moves_extrinsics_to_a_new_branch(make_chain: MakeChain) -> None:
    chain = make_chain(lag=4)
    chain.step(10)
    state = chain.author.state
    for value in (1, 2, 4):
        chain.author.submit(transfer(chain, value))
        chain.author.build()
    before = [state.hash_of(number) for number in range(14)]
    heads: list[int] = []
    statuses: list[object] = []
    chain.author.on_block = lambda block: heads.append(block.number)
    data = bytes.fromhex(state.block(12).extrinsics[1][2:])
    chain.author.watch(blake2b(data, digest_size=32).digest(), statuses.append)

    head = chain.author.reorg(3, empty_blocks=2)

    assert head.number == state.head == 14
    assert heads == [11, 12, 13, 14]
    assert [state.hash_of(number) for number in range(11)] == before[:11]
    assert all(state.hash_of(number) != before[number] for number in range(11, 14))
    assert all(state.number_of(digest) is None for digest in before[11:] if digest)
    assert [len(state.block(number).extrinsics) - 1 for number in range(11, 15)] == [0, 0, 3, 0]
    assert received(chain) == 7
    assert chain.author.storage_at(12).get("System.Account", DEST)["data"]["free"] == 0
    assert [next(iter(status)) for status in statuses if isinstance(status, dict)] == ["retracted", "inBlock"]


def test_a_reorg_can_lose_extrinsics_for_good(make_chain: MakeChain) -> None:
    chain = make_chain(lag=4)
    chain.author.submit(transfer(chain, 1))
    chain.step(2)
    chain.author.reorg(2, drop=True)
    chain.step(6)
    assert received(chain) == 0
    assert chain.author.pool.next_nonce(ALICE.ss58_address) == 0


def test_final_blocks_cannot_be_discarded(make_chain: MakeChain) -> None:
    chain = make_chain(lag=2)
    chain.step(6)
    with pytest.raises(ValueError, match="1 to 2 blocks"):
        chain.author.reorg(3)
    with pytest.raises(ValueError, match="not 0"):
        chain.author.reorg(0)
    assert chain.head == 6


def test_a_reopened_chain_goes_on_where_its_last_block_ended(make_chain: MakeChain) -> None:
    chain = make_chain(lag=2)
    chain.register(1)
    chain.step(3)
    chain.author.submit(transfer(chain, 5))
    hashes = [chain.author.state.hash_of(number) for number in range(chain.head + 1)]
    chain.reopen()
    assert [chain.author.state.hash_of(number) for number in range(chain.head + 1)] == hashes
    assert len(chain.author.pool) == 1
    chain.author.build()
    assert received(chain) == 5
    chain.author.reorg(1)  # a block that this run made, and below it one of the run before
    assert received(chain) == 5


def test_a_new_chain_needs_a_genesis(chain: Chain) -> None:
    chain.genesis = None  # type: ignore[assignment]
    chain.reopen()  # an old one does not
    chain.author.state.close()
    (chain.folder / "chain.sqlite").unlink()
    with pytest.raises(ConfigError, match="--genesis"):
        chain.open()


def test_a_genesis_that_no_runtime_could_hold_is_refused() -> None:
    genesis().check()
    for wrong in (
        {"tempo_blocks": 0},
        {"max_uids": 1 << 16},
        {"owner_hotkey": "nobody"},
        {"burn_rao": -1},
        {"seed": "salt"},
    ):
        with pytest.raises(ValueError, match=r"\S"):
            genesis(**wrong).check()
