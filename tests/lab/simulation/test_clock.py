"""The modelled clock: exactly one thread runs at a time, the seed alone orders what happens, the dead do nothing."""

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.lab.simulation.clock import Clock, Killed
from murmur.protocol.ports import Time
from storage.realtime import REAL


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock(0)
    yield clock
    clock.close()


def test_time_passes_only_while_everybody_waits(clock: Clock) -> None:
    seen: list[tuple[str, float]] = []

    def work(time: Time, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            for _ in range(3):
                sum(range(10_000))
                time.sleep(seconds)
                seen.append((name, time.now()))

        return run

    for name, seconds in (("a", 2.0), ("b", 3.0)):
        life = clock.life(name)
        life.start(work(life, name, seconds), "main")
    clock.run(100.0)
    assert sorted(seen, key=lambda one: one[1]) == seen
    assert sorted(seen) == [("a", 2.0), ("a", 4.0), ("a", 6.0), ("b", 3.0), ("b", 6.0), ("b", 9.0)]
    assert clock.now == 100.0


def history(seed: int) -> list[int]:
    """In which order ten threads that are always due together get their turns."""
    clock = Clock(seed)
    seen: list[int] = []
    running = 0

    def work(number: int, time: Time) -> Callable[[], None]:
        def run() -> None:
            nonlocal running
            for _ in range(5):
                running += 1
                assert running == 1, "two threads run at a time"
                seen.append(number)
                running -= 1
                time.sleep(1.0)

        return run

    for number in range(10):
        life = clock.life(str(number))
        life.start(work(number, life), "main")
    clock.run(10.0)
    clock.close()
    return seen


def test_one_seed_is_one_order_and_other_seeds_are_others() -> None:
    assert history(1) == history(1)
    assert len({tuple(history(seed)) for seed in range(10)}) == 10


def test_a_killed_process_does_nothing_more_in_any_of_its_threads(clock: Clock) -> None:
    life, other = clock.life("one"), clock.life("other")
    seen: list[str] = []

    def child() -> None:
        try:
            life.sleep(10.0)
            seen.append("child")
        finally:
            with pytest.raises(Killed):
                life.now()

    def main() -> None:
        changed = life.condition()
        life.start(child, "child")
        life.start(lambda: seen.append("never begun"), "late") if clock.now > 5 else None
        with changed:
            changed.wait()
        seen.append("main")

    def bystander() -> None:
        other.sleep(20.0)
        seen.append("bystander")

    life.start(main, "main")
    other.start(bystander, "main")
    clock.at(5.0, life.kill)
    clock.run(30.0)
    assert seen == ["bystander"]
    assert not life.parked


def test_a_stopped_process_goes_on_where_it_was_and_finds_the_time_gone(clock: Clock) -> None:
    life = clock.life("one")
    seen: list[float] = []

    def main() -> None:
        for _ in range(3):
            life.sleep(1.0)
            seen.append(life.now())

    life.start(main, "main")
    clock.at(1.5, lambda: life.freeze(10.0))
    clock.run(30.0)
    assert seen == [1.0, 11.5, 12.5]


def test_wall_clocks_may_be_wrong_and_the_monotonic_one_is_not(clock: Clock) -> None:
    life, seen = clock.life("one"), list[tuple[float, float]]()
    life.wall_offset = -3600.0
    other = clock.life("other")
    life.start(lambda: seen.append((life.now(), life.wall())), "main")
    other.start(lambda: seen.append((other.now(), other.wall())), "main")
    clock.run(1.0)
    assert {now for now, _ in seen} == {0.0}
    assert max(wall for _, wall in seen) - min(wall for _, wall in seen) == 3600.0


def test_what_work_does_not_keep_is_raised_where_the_simulation_is_run(clock: Clock) -> None:
    life = clock.life("one")

    def main() -> None:
        life.sleep(1.0)
        raise ValueError("lost")

    life.start(main, "main")
    with pytest.raises(ValueError, match="lost"):
        clock.run(10.0)
    assert clock.now == 1.0
    clock.at(2.0, lambda: life.condition().wait())
    with pytest.raises(AssertionError, match="waits"):
        clock.run(10.0)


def in_either(time: Time, work: Callable[[], None]) -> None:
    """Run work to its end in a time, modelled or real."""
    if time is REAL:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20.0)
        assert not thread.is_alive()


@pytest.fixture(params=["modelled", "real"])
def lived(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Time], None]], None]]:
    """lived(work): run `work(time)` in modelled or in real time: both obey one contract."""
    clock = Clock(3)

    def live(work: Callable[[Time], None]) -> None:
        if request.param == "real":
            in_either(REAL, lambda: work(REAL))
        else:
            life = clock.life("one")
            task = life.start(lambda: work(life), "main")
            clock.run(20.0)
            assert not task.is_alive()

    yield live
    clock.close()


def test_a_condition_wakes_all_who_wait_and_tells_who_waited_in_vain(
    lived: Callable[[Callable[[Time], None]], None],
) -> None:
    seen: list[object] = []

    def work(time: Time) -> None:
        changed, waiting = time.condition(), []

        def wait(timeout: float | None) -> Callable[[], None]:
            def run() -> None:
                with changed, changed:  # re-entrant
                    waiting.append(1)
                    seen.append(changed.wait(timeout))

            return run

        tasks = [time.start(wait(timeout), "waits") for timeout in (None, 10.0, 0.01)]
        while len(waiting) < 3 or not seen:
            time.sleep(0.01)
        with changed:
            changed.notify_all()
            seen.append("notified")
        for task in tasks:
            task.join()
        assert not any(task.is_alive() for task in tasks)

    lived(work)
    assert seen == [False, "notified", True, True]


def test_a_lock_is_held_by_one_at_a_time_even_when_its_holder_sleeps(
    lived: Callable[[Callable[[Time], None]], None],
) -> None:
    inside, most = 0, 0

    def work(time: Time) -> None:
        lock = time.condition()

        def enter() -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0.01)
                inside -= 1

        tasks = [time.start(enter, "enters") for _ in range(5)]
        for task in tasks:
            task.join()

    lived(work)
    assert (inside, most) == (0, 1)


def test_a_join_ends_at_its_time_out_and_leaves_no_wake_up_behind(
    lived: Callable[[Callable[[Time], None]], None],
) -> None:
    took: list[float] = []

    def work(time: Time) -> None:
        task = time.start(lambda: time.sleep(1.0), "sleeps")
        task.join(0.05)
        assert task.is_alive()
        began = time.now()
        time.sleep(1.2)  # the task ends meanwhile
        took.append(time.now() - began)
        assert not task.is_alive()
        task.join()

    lived(work)
    assert took[0] >= 1.2


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=6), st.integers(0, 3))
def test_everybody_wakes_at_the_moment_that_was_asked_for(plans: list[list[int]], seed: int) -> None:
    clock = Clock(seed)
    seen: list[tuple[float, float]] = []

    def work(time: Time, plan: list[int]) -> Callable[[], None]:
        def run() -> None:
            due = 0.0
            for seconds in plan:
                due += seconds
                time.sleep(seconds)
                seen.append((due, time.now()))

        return run

    for number, plan in enumerate(plans):
        life = clock.life(str(number))
        life.start(work(life, plan), "main")
    clock.run(1000.0)
    clock.close()
    assert len(seen) == sum(map(len, plans))
    assert all(due == now for due, now in seen)
    assert [now for _, now in seen] == sorted(now for _, now in seen)
