"""A run as its owner reads it, of a network in one process: what most of the stake stands on, which amendments are
settled, and which are pending."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gauntlet.agreement import abstention, vote_for
from murmur.node.config.ports import Ports
from murmur.node.observe import reader
from murmur.node.sync.amendments import settled
from murmur.owner.amend import POST_BLOCKS, changes, earliest_round, proposed, same, standing
from murmur.owner.records import records, stated, was_agreed
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError, StorageError
from murmur.protocol.messages import first_link
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Digest, Header, Peer, PeerId, Slot, Uid
from tests.fakes.chain import FakeChain, fake_verify
from tests.network import FakeNetwork
from tests.small_run import OWNER
from tests.specs import toy_spec

Networks = Callable[..., FakeNetwork]


def reading(network: FakeNetwork) -> Ports:
    chain = FakeChain(network.world, OWNER.peer)
    return reader.reading(chain, fake_verify, partial(network.store.open, reader="owner"))


def test_the_chain_of_selections_leads_back_to_the_first_and_a_void_round_has_none(networks: Networks) -> None:
    network = networks(miners=2)
    ports, first = reading(network), Run(network.spec)
    assert stated(first, ports, network.world.final) is None or not list(
        records(first, ports, network.world.final, first_link(first.id))
    )
    network.start()
    network.run_to_block(network.clock.vote_deadline(2))
    block = network.world.final
    newest = stated(first, ports, block)
    assert newest is not None
    assert newest.share == 1.0
    found = [selection.round for _, selection in records(first, ports, block, newest.link)]
    played = [round for round in range(newest.round) if round not in network["validator"].voids()]
    assert found == played[::-1]
    assert all(was_agreed(first, ports, round) for round in played)
    assert len(found) > 1


def test_the_holders_of_a_selection_are_asked_beside_each_other_and_each_selection_is_told(networks: Networks) -> None:
    """One that stalls, asked first, would else cost the owner its time-out for every selection."""
    network = networks(miners=2, validators={"validator": 300, "second": 100})
    network.start()
    network.run_to_block(network.clock.vote_deadline(2))
    ports, first = reading(network), Run(network.spec)
    newest = stated(first, ports, network.world.final)
    assert newest is not None
    asked, in_vain = threading.Event(), []

    class Stalling:
        def get(self, key: str, **_: Any) -> bytes:
            if not asked.wait(10.0):
                in_vain.append(key)
            raise StorageError("no answer")

    class Telling:
        def __init__(self, bucket: Any) -> None:
            self.bucket = bucket

        def get(self, key: str, **options: Any) -> Any:
            asked.set()
            return self.bucket.get(key, **options)

    def opened(pointer: Any) -> Any:
        return Stalling() if pointer == network.store.pointer("validator") else Telling(ports.open_pointer(pointer))

    told: list[tuple[int, int]] = []
    there = replace(ports, open_pointer=opened)
    found = list(records(first, there, network.world.final, newest.link, lambda *at: told.append(at)))
    assert found
    assert not in_vain
    assert told == [(selection.round, number) for number, (_, selection) in enumerate(found, 1)]


def test_a_minority_that_speaks_alone_does_not_speak_for_the_stake() -> None:
    """Else the owner would take an invented chain of selections for the run's, and void what others have applied."""
    run = Run(toy_spec())
    clock, true, invented = run.clock, Digest(bytes([1]) * 32), Digest(bytes([6]) * 32)
    forgotten = -1

    def peer(number: int, stake: int, last_round: int, block: int) -> Peer:
        """As of the block: in every round up to this one it has voted one block after the commit deadline."""
        round = min(last_round, (block - 1 - clock.commit_deadline(0)) // clock.round_blocks)
        link = invented if round == 5 else true
        vote = abstention(0) if round < 0 else vote_for(round, [], (link, link))
        slot = Slot(1 if round < 0 else clock.commit_deadline(round) + 1, None, vote)
        return Peer(PeerId(bytes([number]) * 32), Uid(number), stake, True, 0, slot)

    class Chain:
        def peers(self, block: int) -> list[Peer]:
            if block <= forgotten:
                raise ChainError(f"block {block} is pruned", code=STATE_PRUNED)
            return [peer(1, 30, 4, block), peer(2, 30, 4, block), peer(3, 40, 5, block)]

        def header(self, block: int) -> Header:
            return Header(block, Digest(bytes(32)), 0.0)

    chain: Any = Chain()
    ports = reader.reading(chain, fake_verify, lambda pointer: None)  # type: ignore[arg-type, return-value]
    for block in (
        clock.vote_deadline(4),
        clock.commit_deadline(5) + 1,
        clock.vote_deadline(5),
        clock.commit_deadline(6),
    ):
        found = stated(run, ports, block)
        assert found is not None
        assert (found.round, found.theta, found.link, found.share) == (4, true, true, 1.0), block
    assert stated(run, ports, clock.vote_deadline(0) - 1) is None
    # Where the chain's node has forgotten what they said last, nobody guesses.
    forgotten = clock.vote_deadline(4)
    assert stated(run, ports, clock.vote_deadline(5)) is None


def test_an_amendment_is_pending_then_settled_and_in_the_selections_where_the_chain_has_forgotten(
    networks: Networks,
) -> None:
    network = networks(miners=2)
    ports, first = reading(network), Run(network.spec)
    network.start()
    network.run_until(0)
    now = standing(settled(first, 0, ports, {}), ports)
    fields = {"from_round": earliest_round(first, now.block), "changes": {"inner": {"peak_lr": 1e-3}}}
    amendment = proposed(now, fields)
    assert list(changes(now.planned, now.planned.amended([amendment]), amendment.from_round)) == [
        ("inner.peak_lr", first.first.inner.peak_lr, 1e-3)
    ]
    assert same(now, fields) is None
    assert network.amend(**fields) == amendment
    network.world.step(2)
    now = standing(settled(first, 0, ports, {}), ports)
    assert (now.run.amendments, now.pending, now.refused) == ((), (amendment,), None)
    assert same(now, fields) == amendment
    with pytest.raises(ConfigError, match="too late for round 1"):
        proposed(now, {**fields, "from_round": 1})
    network.run_until(amendment.from_round)
    now = standing(settled(first, 0, ports, {}), ports)
    assert (now.run.amendments, now.pending, now.refused) == ((amendment,), (), None)
    # Whoever cannot look at the block that decided it learns from the selections that it holds.
    network.run_to_block(network.clock.vote_deadline(amendment.from_round + 1))
    now = standing(first, ports)
    assert (now.run.amendments, now.pending, now.refused) == ((amendment,), (), None)


def test_the_earliest_round_is_the_first_whose_amendment_can_still_be_final_in_time() -> None:
    run = Run(toy_spec())

    def settled_by(round: int) -> int:
        return run.settled_by(Amendment(previous=run.id.hex(), from_round=round))

    for block in range(0, 200, 7):
        found = earliest_round(run, block)
        assert settled_by(found) >= block + POST_BLOCKS
        assert found == 1 or settled_by(found - 1) < block + POST_BLOCKS
