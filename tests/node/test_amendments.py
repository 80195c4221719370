"""Amendments settled by the chain: whoever looks, whenever it looks, follows the same ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gauntlet.agreement import abstention
from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig
from murmur.node.sync.amendments import FETCHES_A_LOOK, LOOK_SECONDS, adopted, settled
from murmur.node.sync.run_discovery import find_run
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, OutOfSync, StorageError
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Digest, Peer, Pointer, hotkey
from tests.fakes.bucket import FakeStore
from tests.fakes.chain import FakeChain, FakeSigner, FakeWorld, fake_verify
from tests.specs import toy_spec

OWNER = FakeSigner("owner")
VALIDATOR = FakeSigner("v")


class Owned:
    """A chain, a store, and a run whose owner speaks through its slot and bucket."""

    def __init__(self, **world: Any) -> None:
        self.world = FakeWorld(epoch_blocks=100, max_space_bytes=10**6, **world)
        self.store = FakeStore()
        self.bucket = self.store.bucket("owner", reader="owner")
        self.world.register(OWNER.peer)
        self.world.register(VALIDATOR.peer, stake=1, validates=True)
        spec = toy_spec({"chain": self.world.genesis().hex(), "owner": hotkey(OWNER.peer)})
        self.run = Run(spec)
        self.bucket.put(keys.blob(self.run.id), spec.to_bytes(), timeout_seconds=1)
        self.name(self.run.id)
        self.clock = self.run.clock

    def validate(self) -> None:
        """The validator announces itself, so that it is asked."""
        fields = encode_slot(self.store.pointer("v"), abstention(0))
        self.world.publish(VALIDATOR.peer, fields)

    def until(self, block: int) -> None:
        """Make blocks until `block` is final."""
        self.world.step(block - self.world.final)

    def name(self, digest: Digest) -> None:
        self.world.publish(OWNER.peer, encode_slot(self.store.pointer("owner"), None, digest))

    def publish(self, previous: Run, **fields: Any) -> Run:
        """The owner publishes an amendment of `previous`; the run that comes of it."""
        amendment = Amendment(previous=previous.head.hex(), **fields)
        self.bucket.put(keys.blob(amendment.digest), amendment.to_bytes(), timeout_seconds=1)
        self.name(amendment.digest)
        self.world.step(1)
        return Run(previous.first, (*previous.amendments, amendment))

    def ports(self, **changes: Any) -> Ports:
        ports = Ports(
            FakeChain(self.world, VALIDATOR.peer),
            VALIDATOR,
            fake_verify,
            self.store.bucket("v", reader="v"),
            self.store.pointer("v"),
            lambda pointer: self.store.open(pointer, reader="v"),
        )
        return replace(ports, **changes)

    def look(self, run: Run | None = None, undecided: int = 0) -> Run:
        return settled(run or self.run, undecided, self.ports(), {})


@pytest.fixture
def owned() -> Owned:
    return Owned()


ALPHA = {"outer": {"alpha": 0.25}}


@pytest.mark.parametrize("late", [0, 1])
def test_an_amendment_holds_when_it_stood_before_the_round_before_its_own(owned: Owned, late: int) -> None:
    owned.until(owned.clock.start(4) - 2 + late)
    amended = owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(5))
    expected = owned.run if late else amended
    assert owned.look() == owned.look(undecided=5) == expected
    owned.until(owned.clock.start(9))
    assert owned.look() == expected, "whoever looks later sees the same"


def test_it_is_taken_up_by_nobody_before_the_block_that_decides(owned: Owned) -> None:
    """Else who looked early would keep what the owner took back in time."""
    owned.until(owned.clock.start(3))
    owned.publish(owned.run, from_round=6, changes=ALPHA)
    early = owned.look()
    other = owned.publish(owned.run, from_round=6, changes={"outer": {"alpha": 0.75}})
    owned.until(owned.clock.start(5))
    assert owned.look(early, 4) == owned.look() == other


def test_a_node_that_runs_and_one_that_starts_again_refuse_the_same_late_one(owned: Owned, tmp_path: Path) -> None:
    """A restart with the owner's address used to follow whatever its slot named by then."""
    owned.until(owned.clock.start(10))
    running = owned.look()
    owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(11))
    config = NetworkConfig(network="ws://127.0.0.1:1", netuid=1, owner=hotkey(OWNER.peer))
    ports = owned.ports()
    again = settled(find_run(config, ports.chain, ports.open_pointer, tmp_path), 0, ports, {})
    assert owned.look(running, 10) == again == owned.run


def test_on_a_pruned_chain_node_a_late_one_is_not_taken_as_it_is_found() -> None:
    owned = Owned(keep_blocks=50)
    owned.until(owned.clock.start(10))
    owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(11))
    assert owned.look() == owned.look(undecided=10) == owned.run


def test_on_a_pruned_chain_node_one_that_has_stood_since_is_taken_up() -> None:
    owned = Owned(keep_blocks=50)
    owned.until(owned.clock.start(3))
    amended = owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(10))
    assert owned.look() == amended


class Flaky(FakeChain):
    """Answers for the head only."""

    def peers(self, block: int) -> tuple[Peer, ...]:
        if block < self.world.final:
            raise ChainError("the chain did not answer within 60 s")
        return super().peers(block)


def test_a_chain_that_does_not_answer_lets_nothing_in(owned: Owned) -> None:
    owned.until(owned.clock.start(10))
    owned.publish(owned.run, from_round=10, changes=ALPHA)
    owned.until(owned.clock.start(11))
    ports = owned.ports(chain=Flaky(owned.world, VALIDATOR.peer))
    with pytest.raises(ChainError):
        settled(owned.run, 0, ports, {})
    owned.world.step(1)
    assert owned.look() == owned.run


def test_a_void_is_known_a_round_before_it_holds(owned: Owned) -> None:
    """Nodes that looked on either side of it used to part."""
    owned.until(owned.clock.vote_deadline(9))
    owned.publish(owned.run, from_round=1, void_round=9, void_from_block=0)
    owned.until(owned.clock.start(11))
    assert not owned.look().voided(9, owned.world.final)
    starts = owned.clock.start(13)
    voiding = owned.publish(owned.run, from_round=13, void_round=9, void_from_block=starts)
    owned.until(owned.clock.start(12))
    assert owned.look() == voiding
    assert [voiding.voided(9, block) for block in (starts - 1, starts)] == [False, True]


def test_one_for_a_far_round_shuts_out_none_that_follow(owned: Owned) -> None:
    owned.until(owned.clock.start(2))
    far = owned.publish(owned.run, from_round=2**32 - 1, changes={"gauntlet": {"burn_share": 1.0}})
    owned.until(owned.clock.start(3))
    assert owned.look() == owned.run, "it is not settled yet"
    near = owned.publish(far, from_round=6, changes=ALPHA)
    owned.until(owned.clock.start(5))
    assert owned.look() == near
    assert near.spec_at(6).outer.alpha == 0.25


def test_what_builds_on_one_that_is_not_valid_falls_with_it_and_what_came_before_holds(owned: Owned) -> None:
    owned.until(owned.clock.start(2))
    good = owned.publish(owned.run, from_round=5, changes=ALPHA)
    broken = Amendment(previous=good.head.hex(), from_round=5, changes={"inner": {"steps": -1}})
    after = Amendment(previous=broken.digest.hex(), from_round=6, changes={"outer": {"alpha": 0.5}})
    for amendment in (broken, after):
        owned.bucket.put(keys.blob(amendment.digest), amendment.to_bytes(), timeout_seconds=1)
    owned.name(after.digest)
    owned.until(owned.clock.start(5))
    assert owned.look() == good
    instead = owned.publish(good, from_round=8, changes={"outer": {"alpha": 0.5}})
    owned.until(owned.clock.start(7))
    assert owned.look(good, 6) == owned.look() == instead


def test_what_a_node_has_decided_stays_as_it_was_when_the_bytes_come_only_later(owned: Owned) -> None:
    owned.until(owned.clock.start(2))
    amended = owned.publish(owned.run, from_round=4, changes=ALPHA)
    del owned.store.buckets["owner"][keys.blob(amended.head)]
    owned.until(owned.clock.start(6))
    assert owned.look(undecided=4) == owned.run
    owned.bucket.put(keys.blob(amended.head), amended.amendments[0].to_bytes(), timeout_seconds=1)
    assert owned.look(undecided=5) == owned.run
    assert owned.look(undecided=4) == amended


# --- what the chain of selections says --------------------------------------------------------------------------


def test_where_the_own_look_cannot_tell_the_chain_of_selections_does(owned: Owned) -> None:
    owned.until(owned.clock.start(2))
    one = owned.publish(owned.run, from_round=5, changes=ALPHA)
    two = owned.publish(one, from_round=7, changes={"outer": {"alpha": 0.5}})
    owned.until(owned.clock.start(9))
    heads = [(round, two.head_at(round)) for round in (3, 5, 6, 8)]
    assert adopted(owned.run, heads, owned.ports(), {}) == two
    assert adopted(owned.run, heads[:3], owned.ports(), {}) == one
    assert adopted(owned.run, heads[:1], owned.ports(), {}) == owned.run
    assert adopted(two, heads[:1], owned.ports(), {}) == two, "what no selection contradicts stays"
    assert adopted(one, [(8, owned.run.id)], owned.ports(), {}) == owned.run


def test_selections_that_name_an_invented_amendment_or_no_one_run_are_refused(owned: Owned) -> None:
    owned.until(owned.clock.start(2))
    real = owned.publish(owned.run, from_round=5, changes=ALPHA)
    invented = Amendment(previous=owned.run.head.hex(), from_round=5, changes={"outer": {"alpha": 9.0}})
    # Anybody can write one: what the owner said stands on chain only.
    owned.store.bucket("v", reader="v").put(keys.blob(invented.digest), invented.to_bytes(), timeout_seconds=1)
    owned.validate()
    owned.until(owned.clock.start(9))
    for heads in ([(8, invented.digest)], [(4, real.head), (8, real.head)], [(8, real.head), (9, Digest(b"x" * 32))]):
        with pytest.raises((OutOfSync, StorageError)):
            adopted(owned.run, heads, owned.ports(), {})


def test_an_owner_that_changed_its_mind_late_splits_nobody_for_good(owned: Owned) -> None:
    """Whoever was away while the first one stood learns it from the selections."""
    owned.until(owned.clock.start(2))
    first = owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(5))
    there = owned.look()
    other = owned.publish(owned.run, from_round=9, changes={"outer": {"alpha": 0.75}})
    owned.until(owned.clock.start(8))
    assert owned.look(there, 7) == first
    away = owned.look()
    assert away == other
    assert adopted(away, [(7, there.head_at(7))], owned.ports(), {}) == first


# --- bounds --------------------------------------------------------------------------------------------------


class Ticking:
    """Time that passes with every fetch."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def counting(owned: Owned, ticking: Ticking, seconds: float) -> tuple[Ports, list[str]]:
    """Ports whose buckets take `seconds` a read, and what was read."""
    reads: list[str] = []

    def opener(pointer: Pointer) -> Any:
        bucket = owned.store.open(pointer, reader="v")

        class Slow:
            def get(self, key: str, *, max_bytes: int, timeout_seconds: float) -> bytes:
                reads.append(key)
                ticking.seconds += min(seconds, timeout_seconds)
                if timeout_seconds < seconds:
                    raise StorageError("out of time")
                return bucket.get(key, max_bytes=max_bytes, timeout_seconds=timeout_seconds)

        return Slow()

    return owned.ports(open_pointer=opener), reads


def many(owned: Owned, count: int) -> Run:
    run = owned.run
    owned.until(owned.clock.start(2))
    for number in range(count):
        run = owned.publish(run, from_round=9, changes={"outer": {"alpha": 0.1 + number / 100}})
    owned.until(owned.clock.start(8))
    return run


def test_a_look_reads_few_and_the_next_one_goes_on(owned: Owned) -> None:
    run = many(owned, 2 * FETCHES_A_LOOK + 1)
    ports, reads = counting(owned, Ticking(), 0.0)
    read: dict[Digest, bytes] = {}
    for look, expected in ((1, owned.run), (2, owned.run), (3, run)):
        assert settled(owned.run, 0, ports, read) == expected
        assert len(reads) <= look * FETCHES_A_LOOK
    assert len(set(reads)) == len(reads), "nothing is read twice"


def test_a_look_has_one_deadline_for_all_that_it_reads(owned: Owned) -> None:
    many(owned, FETCHES_A_LOOK)
    ticking = Ticking()
    ports, _ = counting(owned, ticking, LOOK_SECONDS / 3)
    assert settled(owned.run, 0, ports, {}, ticking) == owned.run  # type: ignore[arg-type]
    assert ticking.seconds <= LOOK_SECONDS


def test_what_is_followed_is_kept_for_others(owned: Owned) -> None:
    owned.validate()
    owned.until(owned.clock.start(2))
    amended = owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(4))
    assert owned.look() == amended
    owned.store.buckets["owner"].clear()
    assert owned.look() == amended
