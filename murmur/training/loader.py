"""Training sequences and batches from pages of a split, in order: the same pages always give the same batches.

Sequences are packed by concatenation: documents follow one another, each ended by the tokenizer's separator, and
attention crosses their borders. The published runs describe no other packing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from murmur.data.shards import Split
from murmur.protocol.types import Page

Item = TypeVar("Item")
Ready = TypeVar("Ready")


def sequences(split: Split, pages: Sequence[Page], context: int) -> Tensor:
    """Return int64 [num, context + 1] on the CPU: inputs and, shifted by one, targets, page by page in order.

    A page of n * context tokens gives n sequences. The last one's last target is the token after the page, so a split
    of m tokens holds (m - 1) // page_tokens pages. Raises ValueError for a page that is not a multiple of `context`.
    """
    for page in pages:
        if page.num_tokens % context:
            raise ValueError(f"a page of {page.num_tokens} tokens does not hold whole sequences of {context}")
    runs = split.read([(page.first, page.num_tokens + 1) for page in pages])
    parts = [torch.from_numpy(run).unfold(0, context + 1, context) for run in runs]
    return torch.cat(parts) if parts else torch.empty((0, context + 1), dtype=torch.int64)


def batches(sequences: Tensor, num_steps: int, batch_sequences: int) -> tuple[Tensor, ...]:
    """Return `num_steps` batches of `batch_sequences` in order; sequences left over (the tail of the last page) are
    unused.

    Raises ValueError when there are too few.
    """
    needed = num_steps * batch_sequences
    if len(sequences) < needed:
        raise ValueError(f"{num_steps} batches of {batch_sequences} need {needed} sequences, got {len(sequences)}")
    return torch.split(sequences[:needed], batch_sequences)


def ahead(items: Iterable[tuple[Tensor, ...]], device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same tensors in the same order on `device`.

    On CUDA a thread prepares and pins the next item during training on the current one, and copies do not block.
    Elsewhere items are made on demand.
    """
    if device.type != "cuda":
        for item in items:
            yield tuple(tensor.to(device) for tensor in item)
        return
    for item in one_ahead(items, lambda item: tuple(tensor.pin_memory() for tensor in item)):
        yield tuple(tensor.to(device, non_blocking=True) for tensor in item)


def one_ahead(items: Iterable[Item], prepare: Callable[[Item], Ready]) -> Iterator[Ready]:
    """Yield `prepare(item)` of each item in order; one thread draws and prepares the next while the caller uses the
    last. An exception of either is raised in place of its item."""
    source = iter(items)

    def draw() -> list[Ready]:
        return [prepare(item) for item in islice(source, 1)]

    with ThreadPoolExecutor(1, thread_name_prefix="loader") as thread:
        coming = thread.submit(draw)
        while ready := coming.result():
            coming = thread.submit(draw)
            yield ready[0]
