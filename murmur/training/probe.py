"""The losses that the Gauntlet requests: of theta, or of theta moved by one peer's bounded update, on given sequences.

Probed weights are kept between calls for the same update. At the end of the block theta is restored bit for bit from a
copy.
"""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from torch import Tensor

from murmur.data.shards import Split
from murmur.protocol.types import Page
from murmur.training.loader import sequences
from murmur.training.replica import Replica
from sparseloco.outer import Scales
from sparseloco.update import Update


class Prober:
    """`with Prober(replica, split, step) as prober: prober.losses(update, scales, pages)`."""

    def __init__(self, replica: Replica, split: Split, step: float) -> None:
        """step: the spec's probe step beta_t."""
        self._replica, self._split, self._step = replica, split, step
        self._probed: Update | None = None
        self._probe = ExitStack()
        self._sequences: dict[tuple[Page, ...], Tensor] = {}

    def losses(self, update: Update | None, scales: Scales, pages: tuple[Page, ...]) -> list[float]:
        """Return the loss of each of the pages' sequences, nats per token; `update` None: of theta itself."""
        if update is not self._probed:
            self._probe.close()
            self._probed = update
            if update is not None:
                self._probe.enter_context(self._replica.probe(update, scales, self._step))
        if pages not in self._sequences:
            self._sequences[pages] = sequences(self._split, pages, self._replica.spec.model.context)
        return self._replica.losses(self._sequences[pages])

    def __enter__(self) -> Self:
        self._replica.reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._probe.close()
        self._probed = None
