"""The contract of the Chain port: one suite for the in-memory fake and for the adapter over a real devnet process.

Every chain here makes blocks by itself, has a finality lag of 4, epochs of `EPOCH` blocks and four hotkeys: a validator
with stake and permit, two miners, and an outsider that is not registered.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from murmur.protocol.errors import ChainError
from murmur.protocol.messages import encode_slot, parse_slot
from murmur.protocol.ports import Chain
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Pointer, Slot, Subnet, Uid, Vote
from tests.chain.harness import EPOCH, FINALITY_LAG, RATE_LIMIT, DevnetHarness, FakeHarness, Harness

POINTER = Pointer("https://s3.example", "bucket", "access", "secret")
LONG_POINTER = Pointer("https://" + "long-name." * 12 + "example", "bucket", "access", "secret")
VALIDATOR, MINER, SECOND, OUTSIDER = 0, 1, 2, 3
PATIENCE = 120.0
"""Seconds that a busy machine may need; nothing that goes well waits for them."""


@pytest.fixture(scope="module", params=[FakeHarness, DevnetHarness], ids=["fake", "devnet"])
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    folder = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(folder / "runtime"))
        with request.param(folder) as harness:
            yield harness


@pytest.fixture(scope="module", params=[FakeHarness, DevnetHarness], ids=["fake", "devnet"])
def concealing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """The same subnet with commit-reveal on."""
    folder = tmp_path_factory.mktemp("concealing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(folder / "runtime"))
        with request.param(folder, commit_reveal=True) as harness:
            yield harness


def final(chain: Chain, block: int) -> tuple[Peer, ...]:
    """Peers at `block`, as soon as it is final."""
    chain.wait(block, PATIENCE)
    return chain.peers(block)


def slot_of(peers: tuple[Peer, ...], peer: PeerId) -> Slot | None:
    return next(entry.slot for entry in peers if entry.id == peer)


def head(chain: Chain) -> int:
    """The finalised head is the newest block that the port shows."""
    return chain.finalized().block


# --- headers -----------------------------------------------------------------------------------------------------


def test_block_zero_is_the_genesis(harness: Harness) -> None:
    chain = harness.chain(MINER)
    assert len(chain.genesis()) == 32
    assert chain.header(0).hash == chain.genesis()


def test_headers_name_their_block_and_never_change(harness: Harness) -> None:
    chain = harness.chain(MINER)
    first = head(chain)
    chain.wait(first + 2, PATIENCE)
    headers = [chain.header(block) for block in range(first, first + 3)]
    assert [header.block for header in headers] == [first, first + 1, first + 2]
    assert all(len(header.hash) == 32 for header in headers)
    assert len({header.hash for header in headers}) == 3
    assert headers[0].time < headers[1].time < headers[2].time
    assert [harness.chain(VALIDATOR).header(header.block) for header in headers] == headers


def test_a_block_that_does_not_exist_yet_is_not_final(harness: Harness) -> None:
    chain = harness.chain(MINER)
    block = head(chain) + 10_000
    with pytest.raises(ChainError, match="not final"):
        chain.header(block)
    with pytest.raises(ChainError, match="not final"):
        chain.peers(block)
    with pytest.raises(ChainError, match="not final"):
        chain.weights(block, Uid(0))
    with pytest.raises(ChainError, match="not final"):
        chain.subnet(block)


def test_the_best_block_is_not_shown_before_it_is_final(harness: Harness) -> None:
    chain = harness.chain(MINER)
    block = head(chain) + FINALITY_LAG
    shown = False
    with suppress(ChainError):
        shown = chain.header(block).block == block
    assert not shown or chain.finalized().block >= block, "blocks may go on while the test sleeps"


def test_a_negative_block_is_refused(harness: Harness) -> None:
    with pytest.raises(ChainError):
        harness.chain(MINER).header(-1)


# --- wait --------------------------------------------------------------------------------------------------------


def test_wait_returns_the_header_of_the_block_asked_for_once_it_is_final(harness: Harness) -> None:
    chain = harness.chain(MINER)
    block = head(chain) + 3
    header = chain.wait(block, PATIENCE)
    assert header.block == block
    assert header == chain.header(block)
    assert chain.finalized().block >= block


def test_wait_for_a_past_block_returns_at_once(harness: Harness) -> None:
    chain = harness.chain(MINER)
    start = time.monotonic()
    assert chain.wait(1, PATIENCE).block == 1
    assert time.monotonic() - start < PATIENCE / 2


def test_wait_gives_up_after_its_time(harness: Harness) -> None:
    chain = harness.chain(MINER)
    start = time.monotonic()
    with pytest.raises(ChainError, match="not final within"):
        chain.wait(head(chain) + 10_000, 0.5)
    assert 0.4 < time.monotonic() - start < PATIENCE / 2


# --- peers -------------------------------------------------------------------------------------------------------


def test_peers_are_every_registered_hotkey_in_order_of_uid(harness: Harness) -> None:
    chain = harness.chain(MINER)
    peers = chain.peers(head(chain))
    assert [peer.uid for peer in peers] == list(range(len(peers)))
    ids = {peer.id for peer in peers}
    assert {harness.peer(who) for who in (VALIDATOR, MINER, SECOND)} <= ids
    assert harness.peer(OUTSIDER) not in ids


def test_stake_is_in_rao_and_the_permit_is_the_validators(harness: Harness) -> None:
    chain = harness.chain(MINER)
    by_id = {peer.id: peer for peer in chain.peers(head(chain))}
    validator, miner = by_id[harness.peer(VALIDATOR)], by_id[harness.peer(MINER)]
    assert (validator.stake, validator.validates) == (harness.stake_rao, True)
    assert (miner.stake, miner.validates) == (0, False)


# --- the subnet --------------------------------------------------------------------------------------------------


def test_what_the_subnet_demands_is_read_at_a_final_block(harness: Harness) -> None:
    chain = harness.chain(MINER)
    assert chain.subnet(head(chain)) == Subnet(EPOCH, 3100, RATE_LIMIT, False, harness.owner)


def test_fees_are_paid_from_a_balance_and_a_hotkey_that_nobody_registered_has_none(harness: Harness) -> None:
    assert 0 < harness.chain(MINER).balance() <= 100 * 10**9
    with pytest.raises(ChainError) as caught:
        harness.chain(OUTSIDER).balance()
    assert caught.value.code == "HotKeyAccountNotExists"


# --- slots -------------------------------------------------------------------------------------------------------


def test_a_slot_has_the_block_that_included_it_and_what_was_published(harness: Harness) -> None:
    chain = harness.chain(MINER)
    statement = Commitment(5, Digest(b"e" * 32))
    block = chain.publish(encode_slot(POINTER, statement, Digest(b"a" * 32)))
    assert slot_of(final(chain, block), harness.peer(MINER)) == Slot(block, POINTER, statement, Digest(b"a" * 32))


def test_a_pointer_beyond_128_bytes_and_an_empty_field_survive(harness: Harness) -> None:
    chain = harness.chain(SECOND)
    fields = encode_slot(LONG_POINTER, None, Digest(b"z" * 32))
    assert len(fields[0]) > 128
    assert fields[1] == b""
    block = chain.publish(fields)
    assert slot_of(final(chain, block), harness.peer(SECOND)) == Slot(block, LONG_POINTER, None, Digest(b"z" * 32))


def test_a_slot_is_overwritten_and_an_old_height_still_shows_the_old_one(harness: Harness) -> None:
    chain, me = harness.chain(VALIDATOR), harness.peer(VALIDATOR)
    vote = Vote(7, 0b101, Digest(b"t" * 32), Digest(b"p" * 32))
    later = replace(vote, bitmap=0b1101)
    first = chain.publish(encode_slot(POINTER, vote))
    second = chain.publish(encode_slot(POINTER, later))
    assert second > first
    assert slot_of(final(chain, second), me) == Slot(second, POINTER, later)
    assert slot_of(chain.peers(first), me) == Slot(first, POINTER, vote)
    assert slot_of(chain.peers(second - 1), me) == Slot(first, POINTER, vote)
    before = slot_of(chain.peers(first - 1), me)
    assert before is None or before.block < first


@pytest.mark.parametrize(
    "fields",
    [
        (b"\xff" * 128,),
        (b"\xff" * 129, b"\x00" * 512, b"x" * 33),
        (b"", b"", b""),
        (encode_slot(POINTER)[0] + b"\0", b"\x01\x01\x00\x01" + bytes(36)),
        (b"0x" + b"zz" * 64, b"0x" + b"61" * 100, b"0x"),
    ],
    ids=["one", "three", "empty", "almost", "hexlike"],
)
def test_garbage_in_a_slot_reads_as_a_slot_of_none(harness: Harness, fields: tuple[bytes, ...]) -> None:
    chain = harness.chain(SECOND)
    block = chain.publish(fields)
    slot = slot_of(final(chain, block), harness.peer(SECOND))
    assert slot == Slot(block)
    assert slot == parse_slot(block, fields)


def test_the_quota_of_an_epoch_is_refused_by_name(harness: Harness) -> None:
    chain = harness.chain(SECOND)
    harness.skip(EPOCH - head(chain) % EPOCH)  # so that all three are in one epoch
    fields = (bytes(512), bytes(512), bytes(512))
    chain.publish(fields)
    chain.publish(fields)
    with pytest.raises(ChainError) as caught:
        chain.publish((b"x",))
    assert caught.value.code == "SpaceLimitExceeded"


def test_a_hotkey_that_is_not_registered_may_not_publish(harness: Harness) -> None:
    with pytest.raises(ChainError) as caught:
        harness.chain(OUTSIDER).publish((b"x",))
    assert caught.value.code == "AccountNotAllowedCommit"


@pytest.mark.parametrize("fields", [(), (b"",) * 4, (bytes(513),)])
def test_fields_that_no_slot_holds_are_the_callers_bug(harness: Harness, fields: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="fit"):
        harness.chain(MINER).publish(fields)


# --- weights -----------------------------------------------------------------------------------------------------


def test_incentive_is_what_the_last_epoch_made_of_the_weights_and_nothing_before(harness: Harness) -> None:
    chain = harness.chain(VALIDATOR)
    uids = {peer.id: peer.uid for peer in chain.peers(head(chain))}
    me, first, second = (uids[harness.peer(who)] for who in (VALIDATOR, MINER, SECOND))
    harness.skip(RATE_LIMIT)
    block = chain.set_weights({first: 0.75, second: 0.25, me: 0.5})
    harness.skip(EPOCH)
    epoch = (block // EPOCH + 1) * EPOCH
    peers = final(chain, epoch)
    assert {peer.incentive for peer in chain.peers(epoch - 1)} == {0}
    assert {peer.uid: peer.incentive for peer in peers if peer.incentive} == {
        first: pytest.approx(65535 * 0.75, abs=2),
        second: pytest.approx(65535 * 0.25, abs=2),
    }, "what a validator gives itself is nothing"
    assert final(chain, epoch + 1) == peers, "until the next epoch"


def test_weights_are_read_back_scaled_to_u16_and_a_second_set_at_once_is_refused_by_name(harness: Harness) -> None:
    chain = harness.chain(VALIDATOR)
    uids = {peer.id: peer.uid for peer in chain.peers(head(chain))}
    me, first, second = (uids[harness.peer(who)] for who in (VALIDATOR, MINER, SECOND))
    harness.skip(RATE_LIMIT)
    block = chain.set_weights({first: 0.5, second: 0.125, me: 0.0})
    with pytest.raises(ChainError) as caught:
        chain.set_weights({first: 1.0, second: 1.0})
    assert caught.value.code == "SettingWeightsTooFast"
    peers = final(chain, block)
    row = dict.fromkeys((peer.uid for peer in peers), 0) | {first: 65535, second: 16384}
    assert chain.weights(block, me) == row, "the complete row: uids that were not named weigh zero"
    assert next(peer.last_update for peer in peers if peer.uid == me) == block
    assert next(peer.last_update for peer in chain.peers(block - 1) if peer.uid == me) < block
    assert chain.weights(block - 1, me) != row
    assert chain.weights(block, second) == {}
    assert chain.stands_from(block) == block
    assert chain.stands_from(block + 10_000) is None, "not final"


def test_weights_without_a_permit_are_refused_by_name(harness: Harness) -> None:
    chain = harness.chain(MINER)
    harness.skip(RATE_LIMIT)
    uids = {peer.id: peer.uid for peer in chain.peers(head(chain))}
    with pytest.raises(ChainError) as caught:
        chain.set_weights({uids[harness.peer(VALIDATOR)]: 1.0, uids[harness.peer(SECOND)]: 1.0})
    assert caught.value.code == "NeuronNoValidatorPermit"


def test_weights_of_a_hotkey_that_is_not_registered_are_refused_by_name(harness: Harness) -> None:
    with pytest.raises(ChainError) as caught:
        harness.chain(OUTSIDER).set_weights({Uid(0): 1.0})
    assert caught.value.code == "HotKeyNotRegisteredInSubNet"


@pytest.mark.parametrize("weights", [{}, {Uid(0): 0.0}, {Uid(0): -1.0}, {Uid(0): float("nan")}])
def test_weights_without_meaning_are_the_callers_bug(harness: Harness, weights: dict[Uid, float]) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        harness.chain(VALIDATOR).set_weights(weights)


# --- weights under commit-reveal ---------------------------------------------------------------------------------


def test_committed_weights_stand_an_epoch_later_and_not_before(concealing: Harness) -> None:
    chain = concealing.chain(VALIDATOR)
    assert chain.subnet(head(chain)).commit_reveal
    uids = {peer.id: peer.uid for peer in chain.peers(head(chain))}
    me, first = uids[concealing.peer(VALIDATOR)], uids[concealing.peer(MINER)]
    concealing.skip(RATE_LIMIT)
    block = chain.set_weights({first: 2.0, me: 1.0})
    with pytest.raises(ChainError) as caught:
        chain.set_weights({first: 1.0})
    assert caught.value.code == "CommittingWeightsTooFast"
    peers = final(chain, block)
    assert next(peer.last_update for peer in peers if peer.uid == me) == block
    assert chain.weights(block, me) == {}
    assert chain.stands_from(block) is None or head(chain) > block
    concealing.skip(EPOCH)
    chain.wait(block + EPOCH + 2, PATIENCE)
    revealed = chain.stands_from(block)
    assert revealed is not None
    assert block < revealed <= block + EPOCH + 1
    assert chain.weights(revealed - 1, me) == {}
    assert chain.weights(revealed, me) == dict.fromkeys(uids.values(), 0) | {first: 65535, me: 32768}
    assert concealing.fresh_chain(MINER).stands_from(block) == revealed, "everybody finds the same block"


def test_a_commit_that_could_never_be_revealed_is_not_made(concealing: Harness) -> None:
    chain, me = concealing.chain(MINER), concealing.peer(MINER)
    concealing.skip(RATE_LIMIT)
    before = next(peer.last_update for peer in chain.peers(head(chain)) if peer.id == me)
    with pytest.raises(ChainError) as caught:
        chain.set_weights({Uid(0): 1.0, Uid(1): 1.0})
    assert caught.value.code == "NeuronNoValidatorPermit"
    later = final(chain, head(chain) + FINALITY_LAG + 1)
    assert next(peer.last_update for peer in later if peer.id == me) == before


# --- faults ------------------------------------------------------------------------------------------------------


def test_several_threads_read_and_publish_through_one_chain(harness: Harness) -> None:
    chain = harness.chain(MINER)
    calls: list[Callable[[], Any]] = [
        lambda: chain.publish((b"one thread's slot",)),
        lambda: chain.publish((b"one thread's slot",)),
        lambda: chain.wait(head(chain) + 2, PATIENCE),
        *[lambda: chain.peers(head(chain))] * 4,
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        results = [future.result(PATIENCE) for future in futures]
    assert slot_of(final(chain, max(results[:2])), harness.peer(MINER)) == Slot(max(results[:2]))


def test_a_reorg_of_three_blocks_changes_no_finalised_answer(harness: Harness) -> None:
    chain = harness.chain(MINER)
    kept = chain.publish(encode_slot(POINTER, Commitment(1, Digest(b"k" * 32))))
    chain.wait(kept, PATIENCE)
    uid = next(peer.uid for peer in chain.peers(kept) if peer.id == harness.peer(VALIDATOR))

    def answers(block: int) -> list[object]:
        # A fresh view: nothing that the first one remembers can hide a change.
        view = harness.fresh_chain(MINER)
        return [(view.header(b), view.peers(b), view.weights(b, uid)) for b in range(block - 5, block + 1)]

    finalised = head(chain)
    before = answers(finalised)
    chain.publish(encode_slot(POINTER, Commitment(2, Digest(b"u" * 32))))
    harness.reorg(3)
    assert answers(finalised) == before
    # What stood in the blocks that went is on chain again, in a block of the new branch.
    later = head(chain) + 2 * FINALITY_LAG
    slot = slot_of(final(chain, later), harness.peer(MINER))
    assert slot is not None
    assert slot.statement == Commitment(2, Digest(b"u" * 32))
    assert slot.block > finalised


def test_a_node_outlives_a_chain_that_goes_and_comes_back(harness: Harness) -> None:
    chain = harness.chain(MINER)
    block = chain.publish(encode_slot(POINTER, Commitment(3, Digest(b"r" * 32))))
    peers = final(chain, block)
    harness.stop()
    start = time.monotonic()
    with pytest.raises(ChainError):
        chain.finalized()
    with pytest.raises(ChainError):
        chain.publish((b"x",))
    assert time.monotonic() - start < PATIENCE
    waited: list[object] = []
    waiting = threading.Thread(target=lambda: waited.append(chain.wait(block + 3 * FINALITY_LAG, PATIENCE)))
    waiting.start()
    time.sleep(0.3)
    harness.start()
    waiting.join(PATIENCE)
    assert [getattr(header, "block", None) for header in waited] == [block + 3 * FINALITY_LAG]
    assert harness.fresh_chain(MINER).peers(block) == peers
    again = chain.publish(encode_slot(POINTER, Commitment(4, Digest(b"s" * 32))))
    assert again > block
    assert slot_of(final(chain, again), harness.peer(MINER)) == Slot(again, POINTER, Commitment(4, Digest(b"s" * 32)))


def test_an_epoch_is_long_enough_for_the_suite_to_mean_what_it_says() -> None:
    assert EPOCH > 2 * FINALITY_LAG + 3
