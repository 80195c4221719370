"""Pages become sequences and batches."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from murmur.data.shards import Shards
from murmur.protocol.types import Page
from murmur.training.loader import ahead, batches, one_ahead, sequences


def test_sequences_are_contiguous_runs_that_share_one_token(data: Shards) -> None:
    pages = [Page(3990, 96), Page(0, 32)]
    found = sequences(data.train, pages, 32)
    expected = [data.train.tokens(first, 33) for first in (3990, 3990 + 32, 3990 + 64, 0)]
    assert found.dtype == torch.int64
    assert np.array_equal(found.numpy(), np.stack(expected))


def test_the_last_page_of_a_split_can_be_read(data: Shards) -> None:
    page_tokens = 96
    num_pages = (data.train.num_tokens - 1) // page_tokens
    assert sequences(data.train, [Page((num_pages - 1) * page_tokens, page_tokens)], 32).shape == (3, 33)


def test_no_pages_give_no_sequences(data: Shards) -> None:
    assert sequences(data.train, [], 32).shape == (0, 33)


def test_a_page_of_broken_sequences_is_refused(data: Shards) -> None:
    with pytest.raises(ValueError, match="whole sequences"):
        sequences(data.train, [Page(0, 33)], 32)


def test_batches_keep_the_order_and_leave_the_tail() -> None:
    rows = torch.arange(11)[:, None]
    assert [batch.flatten().tolist() for batch in batches(rows, 2, 5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    with pytest.raises(ValueError, match="need 12 sequences, got 11"):
        batches(rows, 3, 4)


def test_on_the_cpu_what_is_trained_on_is_what_was_given() -> None:
    items = [(torch.arange(5), torch.ones(2)), (torch.arange(3), torch.zeros(1))]
    found = list(ahead(items, torch.device("cpu")))
    assert all(
        mine is given for item, its in zip(found, items, strict=True) for mine, given in zip(item, its, strict=True)
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_same_tensors_come_in_the_same_order() -> None:
    items = [(torch.randint(0, 9, (300, 40)), torch.full((3,), float(turn))) for turn in range(20)]
    found = list(ahead(items, torch.device("cuda")))
    assert all(
        torch.equal(a.cpu(), b) for item, its in zip(found, items, strict=True) for a, b in zip(item, its, strict=True)
    )


def test_a_thread_prepares_one_item_ahead_and_no_more() -> None:
    drawn: list[int] = []
    prepared = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for number in range(6):
            drawn.append(number)
            yield number

    def prepare(number: int) -> tuple[int, int]:
        prepared.release()
        return number, threading.get_ident()

    taken = []
    for turn, (number, thread) in enumerate(one_ahead(source(), prepare)):
        assert thread != threading.get_ident()
        for _ in range(2 if turn == 0 else 1):
            # The one after this comes without being asked for.
            if len(taken) < 5:
                assert prepared.acquire(timeout=10)
        assert len(drawn) <= turn + 2
        taken.append(number)
    assert taken == list(range(6))


def test_what_the_thread_raises_comes_out_where_the_item_would() -> None:
    def prepare(number: int) -> int:
        if number == 2:
            raise ValueError("broken item")
        return number

    items = one_ahead(range(5), prepare)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="broken item"):
        next(items)


def test_a_loop_that_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    items = one_ahead(iter(range(100)), lambda number: number)
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before
