"""What the fake promises beyond the port: steps by hand, hashes from a seed, forks within the finality lag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.errors import ChainError
from murmur.protocol.types import Peer, PeerId, Uid
from tests.fakes.chain import FakeSigner, FakeWorld, fake_verify

ONE, TWO = FakeSigner("one"), FakeSigner("two")


def test_a_write_by_hand_stands_in_the_block_it_names_after_the_step() -> None:
    world = FakeWorld()
    assert world.register(ONE.peer, stake=5, validates=True) == 0
    chain = world.chain(ONE.peer)
    block = chain.publish((b"x",))
    assert block == world.head + 1
    with pytest.raises(ChainError, match="not final"):
        chain.peers(block)
    assert world.step() == block
    assert [(peer.id, peer.stake, peer.slot is not None) for peer in chain.peers(block)] == [(ONE.peer, 5, True)]
    assert chain.peers(block - 1) == ()


def test_the_same_seed_makes_the_same_chain_and_another_seed_another() -> None:
    first, again, other = FakeWorld(b"a"), FakeWorld(b"a"), FakeWorld(b"b")
    for world in (first, again, other):
        world.step(5)
    headers = [[world.header(block) for block in range(6)] for world in (first, again, other)]
    assert headers[0] == headers[1]
    assert all(one.hash != two.hash for one, two in zip(headers[0], headers[2], strict=True))
    assert [header.time for header in headers[0]] == [1_700_000_000.0 + 12.0 * block for block in range(6)]


def test_a_reorg_beyond_the_finality_lag_is_refused() -> None:
    world = FakeWorld(finality_lag=4)
    world.step(10)
    with pytest.raises(ValueError, match="final"):
        world.reorg(5)


def test_a_reorg_keeps_final_hashes_changes_the_rest_and_makes_the_writes_again() -> None:
    world, twin = FakeWorld(finality_lag=4), FakeWorld(finality_lag=4)
    for each in (world, twin):
        each.register(ONE.peer)
        each.step(9)
        each.chain(ONE.peer).publish((b"x",))
        each.step(1)
    world.reorg(3)
    assert world.head == twin.head + 1
    world.step(4)
    twin.step(4)
    assert world.header(7) == twin.header(7)
    assert world.header(8).hash != twin.header(8).hash
    slots = [each.chain(ONE.peer).peers(10)[0].slot for each in (world, twin)]
    assert [slot.block if slot else None for slot in slots] == [8, 10]


def test_a_recycled_uid_is_another_peers_with_no_weights() -> None:
    world = FakeWorld(weights_rate_limit=0)
    world.register(ONE.peer, stake=1, validates=True)
    world.chain(ONE.peer).set_weights({Uid(0): 1.0})
    world.step()
    world.register(TWO.peer, uid=0)
    world.set_stake(TWO.peer, 7, True)
    head = world.step()
    chain = world.chain(TWO.peer)
    assert chain.peers(head) == (Peer(TWO.peer, Uid(0), 7, True, head),)
    assert chain.weights(head, Uid(0)) == {}
    assert chain.weights(head - 1, Uid(0)) == {0: 65535}


def test_old_state_is_pruned_when_the_world_says_so() -> None:
    world = FakeWorld(keep_blocks=5)
    world.step(10)
    chain = world.chain(ONE.peer)
    assert chain.header(5).block == 5
    for read in (chain.header, chain.peers, lambda block: chain.weights(block, Uid(0))):
        with pytest.raises(ChainError, match="pruning horizon"):
            read(4)


def test_an_outage_fails_every_call_and_ends() -> None:
    world = FakeWorld()
    chain = world.chain(ONE.peer)
    world.down = True
    for call in (chain.genesis, chain.finalized, lambda: chain.header(0), lambda: chain.wait(0, 0.01)):
        with pytest.raises(ChainError):
            call()
    world.down = False
    assert chain.wait(0, 0.01) == chain.finalized()


def test_a_fake_signature_is_the_signers_over_its_message() -> None:
    signature = ONE.sign(b"m")
    assert len(signature) == 64
    assert fake_verify(ONE.peer, b"m", signature)
    assert not fake_verify(TWO.peer, b"m", signature)
    assert not fake_verify(ONE.peer, b"n", signature)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=130))
def test_fake_verify_never_raises(peer: bytes, message: bytes, signature: bytes) -> None:
    assert fake_verify(PeerId(peer), message, signature) is False


def test_incentive_is_the_weighers_majority_and_who_takes_a_uid_over_begins_with_none() -> None:
    world = FakeWorld(epoch_blocks=10, weights_rate_limit=1)
    signers = [FakeSigner(str(number)) for number in range(6)]
    for number, (stake, validates) in enumerate([(60, True), (40, True), (1000, False), (0, False), (0, False)]):
        world.register(signers[number].peer, stake=stake, validates=validates)
    world.step(5)
    for weigher, row in ((0, {3: 1.0, 4: 1.0}), (1, {2: 1.0})):
        world.chain(signers[weigher].peer).set_weights({Uid(uid): weight for uid, weight in row.items()})

    def incentives() -> list[int]:
        return [peer.incentive for peer in world.chain(signers[0].peer).peers(world.head)]

    world.step(4)
    assert incentives() == [0] * 5
    world.step(1)
    assert incentives() == [0, 0, 0, 32768, 32768], "what less than half of the stake stands behind is clipped"
    world.register(signers[5].peer, uid=3)
    world.step(1)
    assert incentives() == [0, 0, 0, 0, 32768]
    world.chain(signers[0].peer).set_weights({Uid(2): 1.0})
    world.step(9)
    assert incentives() == [0, 0, 65535, 0, 0]
