"""What keeps a node from its work, as the node itself says it in a network: when, for how long, and what it does not do
meanwhile."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import count
from typing import Any

import pytest
from loguru import logger

from murmur.lab.simulation.store import Call, Faults
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, ChainError, StorageCause, StorageError
from murmur.protocol.messages import encode_slot
from murmur.protocol.types import Commitment, Digest, PeerId, Pointer, PublicPointer, Uid, hotkey
from storage.s3 import RangedBucket
from tests.fakes.chain import FakeSigner
from tests.network import FakeNetwork, posts
from tests.small_run import OWNER

Networks = Callable[..., FakeNetwork]


def told(network: FakeNetwork, name: str) -> list[tuple[int, str]]:
    """The troubles that a node has said, with the round of each."""
    return [(event["round"], event["cause"]) for event in network[name].events("trouble")]


def causes(network: FakeNetwork, name: str) -> set[str]:
    return {cause for _, cause in told(network, name)}


def standing(network: FakeNetwork, name: str) -> set[str]:
    return {trouble.cause for trouble in network[name].node.troubles.now()}


def uid(network: FakeNetwork, name: str) -> Uid:
    return next(peer.uid for peer in network.world.pending_peers if peer.id == network[name].peer)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    found: list[str] = []
    sink = logger.add(lambda line: found.append(str(line)), format="{level} {message}", level="WARNING")
    yield found
    logger.remove(sink)


@pytest.mark.parametrize(
    "options", [{}, {"finality_lag": 2}, {"commit_reveal": True, "weights_rate_limit": 25}, {"keep_blocks": 60}]
)
def test_a_quiet_network_tells_no_trouble(networks: Networks, options: dict[str, Any], lines: list[str]) -> None:
    network = networks(miners=2, validators={"one": 100, "two": 99}, **options)
    network.start()
    network.run_until(5)
    network.kill("miner-1", "one")
    network.start("miner-1", "one")
    network.run_until(7)
    assert {name: told(network, name) for name in network.members} == {name: [] for name in network.members}
    assert not [line for line in lines if "to mend" in line]


def test_a_miner_that_is_deregistered_says_so_posts_nothing_and_contributes_again_once_it_is_registered(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    place = uid(network, "miner-1")
    network.world.register(FakeSigner("stranger").peer, uid=place)
    lost = network.clock.round_at(network.world.head)
    found = posts(network, "miner-1", monkeypatch)
    network.run_to_block(network.clock.start(lost + 4))
    assert "not_registered" in {cause for round, cause in told(network, "miner-1") if round <= lost + 1}
    assert causes(network, "miner-1") == {"not_registered"}
    assert standing(network, "miner-1") == {"not_registered"}
    assert found.total() <= 1, found
    assert [event for event in network["miner-1"].events("trained") if event["round"] > lost + 1] == []
    network.world.register(network["miner-1"].peer)
    back = network.clock.round_at(network.world.head)
    network.run_until(back + 3)
    assert standing(network, "miner-1") == set()
    me = hotkey(network["miner-1"].peer)
    assert me in network["miner-2"].contributing(back + 1) or me in network["miner-2"].contributing(back + 2)
    network.assert_agreement()


def test_a_miner_that_is_deregistered_follows_the_run_meanwhile(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.world.register(FakeSigner("stranger").peer, uid=uid(network, "miner-1"))
    network.run_until(7)
    assert max(network["miner-1"].thetas()) >= 6
    network.assert_agreement()


def test_a_validator_that_is_deregistered_says_so_and_votes_again_once_it_is_registered(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=1, validators={"one": 100, "two": 99})
    network.start()
    network.run_until(2)
    network.world.register(FakeSigner("stranger").peer, uid=uid(network, "two"))
    found = posts(network, "two", monkeypatch)
    network.run_until(6, "one")
    assert "not_registered" in causes(network, "two")
    assert found.total() <= 2, found
    network.world.register(network["two"].peer, stake=99, validates=True)
    network.run_until(9)
    assert standing(network, "two") == set()
    assert [event["round"] for event in network["two"].events("word_posted")][-1] >= 8
    network.assert_agreement()


def test_a_validator_that_loses_its_permit_says_so_until_it_has_it_again(networks: Networks) -> None:
    network = networks(miners=1, validators={"one": 100, "two": 99})
    network.start()
    network.run_until(2)
    network.world.set_stake(network["two"].peer, 99, False)
    network.run_until(5)
    assert "no_permit" in {cause for round, cause in told(network, "two") if round <= 4}
    assert "no_permit" in standing(network, "two")
    assert told(network, "one") == []
    network.world.set_stake(network["two"].peer, 99, True)
    network.run_until(8)
    assert standing(network, "two") == set()


@pytest.mark.parametrize("later", [0, 4])
def test_a_second_process_with_a_miners_hotkey_is_told_and_not_posted_against(
    networks: Networks, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    me = network["miner-1"]
    network.run_blocks(lambda: any(event["round"] == 3 for event in me.events("committed")))
    network.run_to_block(network.world.head + later)  # before it looks again whether a fork has dropped it, and after
    other = Commitment(3, Digest(b"\x07" * 32))
    network.world.publish(me.peer, encode_slot(network.store.pointer("miner-1"), other, None))
    found = posts(network, "miner-1", monkeypatch)
    network.run_to_block(network.clock.commit_deadline(3) + 1)
    assert told(network, "miner-1") == [(3, "other_process")]
    assert found.total() == 0, "it does not post against the other one"
    network.run_until(6)
    assert told(network, "miner-1") == [(3, "other_process")]
    assert standing(network, "miner-1") == set()
    assert hotkey(me.peer) in network["miner-2"].contributing(4)
    network.assert_agreement()


@pytest.mark.parametrize("answered", [True, False])
def test_a_miner_that_takes_its_own_commitment_back_does_not_take_itself_for_another_process(
    networks: Networks, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    publish, me = network.world.publish, network["miner-1"]

    def loses_answers(peer: PeerId, fields: tuple[bytes, ...]) -> int:
        block = publish(peer, fields)
        if peer == me.peer and not answered and "miner-1" in network.store.faults:
            raise ChainError("the connection to the chain was lost")
        return block

    monkeypatch.setattr(network.world, "publish", loses_answers)
    network.start()
    network.run_until(2)
    network.run_blocks(lambda: any(event["round"] == 2 for event in me.events("committed")))
    network.store.faults["miner-1"] = Faults(denied=True)
    network.run_to_block(network.clock.start(6))
    assert "bucket_denied" in causes(network, "miner-1")
    assert "other_process" not in causes(network, "miner-1")


def test_a_fork_that_drops_a_commitment_is_no_other_process(networks: Networks) -> None:
    network = networks(miners=2, finality_lag=3)
    network.start()
    network.run_until(2)
    me = network["miner-1"]
    network.run_blocks(lambda: any(event["round"] == 2 for event in me.events("committed")))
    network.world.reorg(2, lost=True)
    network.run_until(4)
    assert "other_process" not in causes(network, "miner-1")


def test_weights_that_are_never_revealed_are_told_when_they_were_due_and_until_they_stand(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=1, weights_rate_limit=25, commit_reveal=True)
    with monkeypatch.context() as stopped:
        stopped.setattr(network.world, "_reveal", lambda block: None)
        network.start()
        network.run_until(6)
        assert told(network, "validator") == [], "the epoch after the next is not over"
        network.run_until(11)
        assert causes(network, "validator") == {"weights_unrevealed"}
        (first, *_) = network["validator"].events("trouble")
        set_in = network["validator"].events("weights")[0]["block"]
        assert f"those of block {set_in} were due by block {set_in + 2 * 101 + 30}" in first["detail"]
    network.run_until(16)
    assert standing(network, "validator") == set()
    assert causes(network, "validator") == {"weights_unrevealed"}


def test_weights_that_are_refused_are_told_and_those_that_come_too_early_are_not(networks: Networks) -> None:
    network = networks(miners=1, validators={"one": 100, "two": 99}, weights_rate_limit=25)
    network.start()
    network.run_until(2)
    network.world.set_stake(network["two"].peer, 99, False)
    network.run_until(5)
    assert "weights_refused" in causes(network, "two")
    assert "weights_refused" not in causes(network, "one")
    network.world.set_stake(network["two"].peer, 99, True)
    network.run_until(9)
    assert standing(network, "two") == set()


def test_an_owner_that_names_another_run_is_told_in_few_lines_and_this_run_goes_on(
    networks: Networks, lines: list[str]
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    other = network.spec.model_copy(update={"name": "another"})
    network._owner_bucket.put(keys.blob(other.digest), other.to_bytes(), timeout_seconds=1)
    network._publish(OWNER.peer, "owner", other.digest)
    network.run_until(7)
    for name in network.members:
        assert causes(network, name) == {"run_replaced"}, name
        assert network[name].events("trouble")[0]["detail"] == f"run {other.digest.hex()[:16]}"
        assert network[name].node.run.first == network.spec
    assert 3 <= len(lines) <= 3 * 7, lines
    assert not [line for line in lines if "Traceback" in line or "\n" in line.strip()]
    network.assert_agreement()
    network._publish(OWNER.peer, "owner", network.run.id)
    network.run_until(9)
    assert [standing(network, name) for name in network.members] == [set()] * 3


def test_an_owner_whose_bucket_cannot_be_read_is_told_and_no_amendment_of_another_shape_is(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(2)
    network._publish(OWNER.peer, "owner", Digest(b"\x01" * 32))
    network.run_until(4)
    assert causes(network, "miner-1") == {"owner_unread"}
    junk = b"junk" * 9
    digest = Digest(sha256(junk).digest())
    network._owner_bucket.put(keys.blob(digest), junk, timeout_seconds=1)
    network._publish(OWNER.peer, "owner", digest)
    network.run_until(6)
    assert causes(network, "miner-1") == {"owner_unread", "amendment_invalid"}
    assert standing(network, "miner-1") == {"amendment_invalid"}


def test_a_read_key_that_opens_nothing_is_told_by_its_miner(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    revoked = network.store.open(network.store.pointer("miner-1"), reader="miner-1")
    revoked.revoked = True
    node = network["miner-1"].node
    whole = node.ports

    def opened(pointer: Pointer | PublicPointer) -> RangedBucket:
        return revoked if pointer == whole.pointer else whole.open_pointer(pointer)

    node.ports = replace(whole, open_pointer=opened)
    network.run_until(4)
    assert causes(network, "miner-1") == {"read_key_refused"}
    node.ports = whole
    network.run_until(6)
    assert standing(network, "miner-1") == set()


def test_a_chain_that_does_not_answer_is_told_and_so_is_its_answer(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(2)
    network.world.down = True
    network.stand_still(40.0)
    network.world.down = False
    network.run_until(4)
    for name in network.members:
        assert causes(network, name) == {"chain_silent"}, name
        assert standing(network, name) == set(), name


def test_a_chain_that_makes_no_blocks_is_told_and_so_are_the_next_ones(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(2)
    network.stand_still(60.0)
    assert all(standing(network, name) == {"chain_halted"} for name in network.members)
    network.run_until(4)
    assert all(standing(network, name) == set() for name in network.members)


def test_a_miner_whose_bucket_refuses_says_so_in_its_own_words_until_it_is_mended(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.store.faults["miner-1"] = Faults(denied=True)
    network.run_to_block(network.clock.start(5))
    assert causes(network, "miner-1") == standing(network, "miner-1") == {"bucket_denied"}
    assert causes(network, "miner-2") == set()
    del network.store.faults["miner-1"]
    network.run_until(8)
    assert standing(network, "miner-1") == set()
    assert network["miner-1"].events("mended")[-1]["about"] == "bucket"


def payload_put(call: Call, name: str) -> bool:
    return call.bucket == name and call.verb in ("put", "create") and "/payload/" in call.key


def test_a_bucket_that_takes_small_objects_alone_is_ours_and_full(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)

    def before(call: Call) -> None:
        if payload_put(call, "miner-1"):
            full = StorageError("put: the bucket or its account is full, or over its quota (507)")
            full.cause, full.seen = StorageCause.FULL, "put: 507"
            raise full

    network.store.before = before
    network.run_to_block(network.clock.start(5))
    assert causes(network, "miner-1") == standing(network, "miner-1") == {"bucket_full"}
    network.store.before = lambda call: None
    network.run_until(8)
    assert standing(network, "miner-1") == set()


def test_a_bucket_that_refuses_every_second_payload_costs_one_commitment_and_one_retraction_a_round(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    tries = count()

    def before(call: Call) -> None:
        if payload_put(call, "miner-1") and next(tries) % 2 == 0:
            raise AccessDenied("put: the credential is unknown or may not do this (403)")

    network.store.before = before
    found = posts(network, "miner-1", monkeypatch)
    network.run_to_block(network.clock.start(8))
    assert max(found.values()) <= 2, found


def test_a_payload_is_uploaded_once_while_the_chain_refuses_its_commitment(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    publish, me, uploads = network.world.publish, network["miner-1"].peer, Counter[str]()

    def before(call: Call) -> None:
        if payload_put(call, "miner-1"):
            uploads[call.key] += 1

    def refuses(peer: PeerId, fields: tuple[bytes, ...]) -> int:
        if peer == me:
            raise ChainError("the chain refused: Payment", code="Payment")
        return publish(peer, fields)

    network.store.before = before
    monkeypatch.setattr(network.world, "publish", refuses)
    network.run_to_block(network.clock.start(6))
    assert causes(network, "miner-1") == {"no_money"}
    assert set(uploads.values()) == {1}, uploads


@pytest.mark.parametrize(("code", "cause"), [("Payment", "unpaid"), (None, "refused")])
def test_weights_that_the_chain_never_takes_stay_a_trouble(
    networks: Networks, monkeypatch: pytest.MonkeyPatch, code: str | None, cause: str
) -> None:
    network = networks(miners=1, weights_rate_limit=25)
    network.start()

    def refuses(peer: PeerId, weights: object) -> int:
        raise ChainError("the chain refused them", code=code)

    monkeypatch.setattr(network.world, "set_weights", refuses)
    network.run_until(6)
    assert causes(network, "validator") - {"chain_silent"} == {f"weights_{cause}"}
    assert f"weights_{cause}" in standing(network, "validator")
    assert "weights" not in {event["about"] for event in network["validator"].events("mended")}


def test_a_bucket_that_lets_strangers_read_nothing_is_told_by_its_miner(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)

    def before(call: Call) -> None:
        if call.bucket == "miner-1" and call.verb == "get":
            raise StorageError("get: out of time")

    network.store.before = before
    network.run_to_block(network.clock.start(5))
    assert "unread_by_others" in causes(network, "miner-1")
    network.store.before = lambda call: None
    network.run_until(8)
    assert standing(network, "miner-1") == set()


def test_a_vote_on_its_way_is_not_posted_again(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    network = networks(miners=2, validators={"one": 100, "two": 99}, finality_lag=3)
    network.start()
    network.run_until(2)

    def fails(*arguments: object) -> None:
        raise StorageError("get: the server answered with status 500")

    found = posts(network, "one", monkeypatch)
    monkeypatch.setattr(network["one"].program.scores, "evaluate", fails)
    network.run_to_block(network.clock.start(6))
    assert max(found.values()) <= 2, found
