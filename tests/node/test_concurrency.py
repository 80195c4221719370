"""Work beside each other: what came of it is what one after the other gives."""

import pytest

from murmur.lab.simulation.clock import Clock, Life
from murmur.node.fetch.concurrency import parallel_map


def test_results_come_in_order_and_no_more_threads_work_than_may(life: Life) -> None:
    at_once, most = 0, 0

    def square(number: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        life.sleep(10.0 - number)  # the last ones are ready first
        at_once -= 1
        return number * number

    began = life.now()
    assert parallel_map(square, range(10), 4, life) == [number * number for number in range(10)]
    assert most == 4
    assert life.now() - began < 25
    assert parallel_map(square, [], 4, life) == []


def test_the_first_items_fault_is_raised_once_all_have_ended(life: Life) -> None:
    ended: list[int] = []

    def work(number: int) -> None:
        life.sleep(float(5 - number))
        ended.append(number)
        if number in (1, 3):
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        parallel_map(work, range(5), 5, life)
    assert sorted(ended) == list(range(5))


def test_one_thread_is_the_callers_own() -> None:
    clock = Clock(1)
    assert parallel_map(lambda number: -number, [1, 2], 1, clock.life("nobody waits")) == [-1, -2]
