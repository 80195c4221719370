"""The final head that a node sees: the chain's present one, an old one, or this machine's clock is wrong."""

from collections.abc import Callable

import pytest

from murmur.node.chain.head_watch import HeadWatch
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, Header
from storage.realtime import RealTime

BLOCK_SECONDS = 12.0
GENESIS = 1_700_000_000.0


class World(RealTime):
    """The true time, a chain whose blocks are final two blocks later, a chain node that is `behind` by so many seconds,
    a clock that is `off`, and a store that says the true time."""

    def __init__(self) -> None:
        self.true, self.off = 1000 * BLOCK_SECONDS, 0.0
        self.behind = 0.0
        self.halted_at: int | None = None
        self.store: Callable[[], float | None] = lambda: GENESIS + self.true
        self.asked = 0
        self.watch = HeadWatch(BLOCK_SECONDS, self, self.date)

    def now(self) -> float:
        return 5.0 + self.true

    def wall(self) -> float:
        return GENESIS + self.true + self.off

    def date(self) -> float | None:
        self.asked += 1
        return self.store()

    def look(self, seconds: float = 0.0) -> Trouble | None:
        self.true += seconds
        block = int((self.true - self.behind) / BLOCK_SECONDS) - 2
        block = block if self.halted_at is None else min(block, self.halted_at)
        return self.watch.look(Header(block, Digest(bytes(32)), GENESIS + block * BLOCK_SECONDS))

    def cause(self, seconds: float = 0.0) -> str | None:
        found = self.look(seconds)
        return None if found is None else found.cause


def silent() -> float | None:
    raise StorageError("no answer")


@pytest.fixture
def world() -> World:
    return World()


def test_a_fresh_head_is_fine_and_the_store_is_not_asked(world: World) -> None:
    assert [world.cause(7.0) for _ in range(200)] == [None] * 200
    assert world.asked == 0


def test_a_chain_that_makes_no_blocks_is_halted_after_ten_blocks_time_and_until_it_goes_on(world: World) -> None:
    assert world.look() is None
    world.halted_at = 998
    causes = [world.cause(10.0) for _ in range(20)]
    assert causes == [None] * 12 + ["chain_halted"] * 8, "at no time is the chain node said to be behind"
    found = world.look()
    assert found is not None
    assert found.detail == "block 998 has been the last one for 200 s"
    world.halted_at = None
    assert world.look(1.0) is None


def test_a_chain_that_was_silent_for_long_is_not_halted_when_its_head_has_moved(world: World) -> None:
    world.look()
    assert world.look(10_000.0) is None


def test_a_lagging_chain_node_is_told_with_the_age_of_its_head_and_until_it_has_caught_up(world: World) -> None:
    world.behind = 600.0
    found = world.look()
    assert found is not None
    assert (found.cause, world.asked) == ("chain_behind", 1)
    assert found.detail == "its newest final block, 948, is 624 s old"
    assert [world.cause(12.0) for _ in range(5)] == ["chain_behind"] * 5, "though it advances"
    world.behind = 0.0
    assert world.look(1.0) is None


def test_a_head_a_few_blocks_old_is_fine(world: World) -> None:
    world.behind = 3 * BLOCK_SECONDS
    assert world.look() is None


@pytest.mark.parametrize(("off", "words"), [(1800.0, "30 minutes ahead of"), (300.0, "300 s ahead of")])
def test_a_clock_that_is_ahead_is_this_machines_and_not_the_chain_nodes(world: World, off: float, words: str) -> None:
    world.off = off
    assert world.look() == Trouble("clock_wrong", f"it is {words} the store's")
    world.off = 0.0
    assert world.look() is None


@pytest.mark.parametrize(("off", "words"), [(-1800.0, "30 minutes behind"), (-300.0, "300 s behind")])
def test_a_clock_that_is_behind_is_this_machines(world: World, off: float, words: str) -> None:
    world.off = off
    assert world.look() == Trouble("clock_wrong", f"it is {words} the store's")
    world.off = 0.0
    assert world.look() is None


def test_a_small_difference_of_clocks_is_none(world: World) -> None:
    for world.off in (-50.0, 40.0):
        assert world.look() is None


def test_a_clock_that_is_wrong_is_told_while_the_chain_node_is_behind_too(world: World) -> None:
    world.behind, world.off = 600.0, 300.0
    assert world.cause() == "clock_wrong"


@pytest.mark.parametrize("store", [lambda: None, silent])
def test_a_store_that_does_not_tell_leaves_it_open_which_is_wrong(
    world: World, store: Callable[[], float | None]
) -> None:
    world.store, world.behind = store, 600.0
    found = world.look()
    assert found is not None
    assert found.cause == "chain_behind"
    assert found.detail.endswith("s old, or this machine's clock is ahead: the store does not say")
    world.behind, world.off = 0.0, -300.0
    found = world.look()
    assert found is not None, "a chain is never ahead of the time"
    assert found.cause == "clock_wrong"
    assert "the chain's newest final block" in found.detail
    world.off = 0.0
    assert world.look() is None


def test_a_chain_ahead_of_a_clock_that_the_store_says_is_right_is_not_this_machines_to_mend(world: World) -> None:
    world.behind = -300.0
    assert world.look() is None


def test_a_chain_of_short_blocks_has_time_for_a_pause() -> None:
    world = World()
    world.watch = HeadWatch(0.25, world, world.date)
    world.behind = -2 * BLOCK_SECONDS
    world.look()
    world.halted_at = 1000
    assert world.cause(29.0) is None
    assert [world.cause(1.1), world.cause()] == ["chain_halted"] * 2


def test_a_head_that_another_thread_read_a_block_earlier_is_not_behind(world: World) -> None:
    assert [world.cause(-12.0 if look % 2 else 24.0) for look in range(60)] == [None] * 60


def test_a_node_that_falls_back_and_catches_up_is_behind_and_never_halted(world: World) -> None:
    """As after a failover to a node that still syncs: it shows old blocks, and goes on with them."""
    world.look()
    world.behind = 600.0
    causes = []
    while world.behind > 0:
        causes.append(world.cause(6.0))
        world.behind -= 6.0
    assert set(causes) == {"chain_behind", None}
    assert causes == sorted(causes, key=lambda cause: cause is None), "first behind, then in order"


@pytest.mark.parametrize("off", [-59.0, -30.0, 30.0, 45.0, 59.0])
def test_a_clock_that_differs_by_less_than_a_minute_makes_no_chain_node_old(world: World, off: float) -> None:
    world.off = off
    assert {world.cause(15.0) for _ in range(100)} == {None}


def test_a_halted_chain_behind_two_backends_one_block_apart_is_halted(world: World) -> None:
    world.look()
    causes = []
    for turn in range(40):
        world.halted_at = 997 + turn % 2
        causes.append(world.cause(10.0))
    assert set(causes) == {None, "chain_halted"}
    assert causes[-20:] == ["chain_halted"] * 20
