"""Pages of a split become training sequences and batches, in order: the same pages always give the same batches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.types import Page
from training.shards import Split


def sequences(split: Split, pages: Sequence[Page], context: int) -> Tensor:
    """int64 [num, context + 1] on the CPU: inputs and, shifted by one, targets, page by page in order.

    A page of n * context tokens gives n sequences; the last one's last target is the token after the page, so a split
    of m tokens holds (m - 1) // page_tokens pages. Raises ValueError for a page that is not a multiple of `context`.
    """
    runs = []
    for page in pages:
        if page.num_tokens % context:
            raise ValueError(f"a page of {page.num_tokens} tokens does not hold whole sequences of {context}")
        run = torch.from_numpy(split.tokens(page.first, page.num_tokens + 1))
        runs.append(run.unfold(0, context + 1, context))
    return torch.cat(runs) if runs else torch.empty((0, context + 1), dtype=torch.int64)


def batches(sequences: Tensor, num_steps: int, batch_sequences: int) -> tuple[Tensor, ...]:
    """`num_steps` batches of `batch_sequences` in order; sequences left over (the tail of the last page) are unused.

    Raises ValueError when there are too few.
    """
    needed = num_steps * batch_sequences
    if len(sequences) < needed:
        raise ValueError(f"{num_steps} batches of {batch_sequences} need {needed} sequences, got {len(sequences)}")
    return torch.split(sequences[:needed], batch_sequences)
