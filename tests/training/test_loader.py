"""Pages become sequences and batches."""

import numpy as np
import pytest
import torch

from protocol.types import Page
from training.loader import batches, sequences
from training.shards import Shards


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
