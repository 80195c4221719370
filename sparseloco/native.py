"""The codec in C++: the reference's results, bit for bit, at the speed of memory.

CPU tensors only. It does not decide whether it is used: sparseloco/ops.py does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.protocol.errors import ConfigError, InvalidSubmission
from murmur.protocol.layout import Layout, TensorLayout
from murmur.protocol.types import DIGEST_BYTES, Digest, PeerId
from sparseloco import calls
from sparseloco.floats import FLUSHES, destination, tensor_of
from sparseloco.kernels import CPU, ISAS, library, refusal, region_table, tables, tensor_over, within
from sparseloco.outer import (
    SMALLEST_WEIGHT,
    Aggregate,
    OuterState,
    Scales,
    bounds,
    held_part,
    peer_weights,
    span,
    unchanged,
)
from sparseloco.update import Records, Update
from sparseloco.wire import Submission, require_size

_MEAN, _PROBE = 0, 2


@dataclass(frozen=True, slots=True)
class Codec:
    """The native codec for one instruction set (a name of `supported()`) and number of threads (0: torch's own).

    Its methods mirror the reference's functions: same arguments, results and errors. `out` tensors, contiguous fp32 of
    the layout's shapes, receive a result in place of new ones. All tensors are on `device`.
    """

    isa: str
    threads: int = 0
    device: torch.device = CPU
    functions: ClassVar[calls.Functions] = calls.ON_CPU

    def compress(
        self,
        theta: Mapping[str, Tensor],
        theta_r: Mapping[str, Tensor],
        error: Mapping[str, Tensor] | None,
        layout: Layout,
        beta: float,
        out: Mapping[str, Tensor] | None = None,
    ) -> tuple[Update, dict[str, Tensor]]:
        """As reference.compress. `out` may be `error` itself; after NonFinite its contents are undefined."""
        self._require_denormals()
        starts = [self._given(theta, tensor, torch.float32) for tensor in layout]
        ends = [self._given(theta_r, tensor, torch.float32, torch.bfloat16) for tensor in layout]
        if len({end.dtype for end in ends}) > 1:
            ends = [end.to(torch.float32) for end in ends]
        carried = [] if error is None else [self._given(error, tensor, torch.float32) for tensor in layout]
        new_error = self._destination(out, layout)
        records = torch.empty(layout.records_bytes, dtype=torch.uint8, device=self.device)
        values = (starts, ends, carried, beta, list(new_error.values()), records)
        self.functions.compress(*tables(layout, self.device), *values, *self._how())
        return Update(layout, records.cpu().numpy().tobytes()), new_error

    def parse(self, plaintext: Records, layout: Layout) -> Update:
        """As wire.parse; the update has its level counts. Of several faults, the first chunk's is named."""
        require_size(plaintext, layout)
        return self.counted(Update(layout, plaintext[DIGEST_BYTES:]))

    def parse_submission(self, peer: PeerId, round: int, plaintext: Records, layout: Layout) -> Submission:
        """As wire.parse_submission."""
        update = self.parse(plaintext, layout)
        return Submission(peer, round, Digest(bytes(plaintext[:DIGEST_BYTES])), update)

    def counted(self, update: Update) -> Update:
        """Validate the update and return it with its level counts. Raises InvalidSubmission(MALFORMED)."""
        return _require_valid(*self.judged([update]))

    def judged(self, updates: Sequence[Update]) -> list[Update | InvalidSubmission]:
        """Return each update of one layout with its level counts, or why it is refused: all are validated in one
        call."""
        fresh = [place for place, update in enumerate(updates) if update.counts is None]
        found: list[Update | InvalidSubmission] = list(updates)
        if fresh:
            layout = common_layout(updates)
            counts, statuses = self._validated(layout, [updates[place] for place in fresh])
            for place, own, status in zip(fresh, counts, statuses, strict=True):
                found[place] = refusal(status) or Update(layout, updates[place].records, own)
        return found

    def _validated(self, layout: Layout, updates: list[Update]) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Return level counts [payloads, tensors, 256] and statuses of payloads."""
        records = [self._records(update) for update in updates]
        counts, statuses = self.functions.validate(*tables(layout, self.device), records, *self._how())
        return counts.cpu().numpy(), statuses.tolist()

    def outer_step(
        self,
        theta: Mapping[str, Tensor],
        updates: Sequence[Update | None],
        state: OuterState,
        *,
        alpha: float,
        aggregate: Aggregate,
        out: Mapping[str, Tensor] | None = None,
    ) -> tuple[dict[str, Tensor], OuterState, tuple[Scales, ...]]:
        """As outer.outer_step. `out` may be `theta` itself."""
        self._require_denormals()
        judged = iter(self.judged([update for update in updates if update is not None]))
        parsed = [None if update is None else _require_valid(next(judged)) for update in updates]
        factors, new_state = bounds([None if update is None else update.norms for update in parsed], state)
        present = [(update, factor) for update, factor in zip(parsed, factors, strict=True) if update is not None]
        if not present:
            return unchanged(theta, out), new_state, factors
        weights = peer_weights(present, len(updates), alpha=alpha, aggregate=aggregate, products=self.products)
        new = self._move(theta, [update for update, _ in present], np.array(weights), _MEAN, out)
        return new, new_state, factors

    def products(self, updates: Sequence[Update], numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """As spectral.exact_products, for at most 4096 updates."""
        layout = common_layout(updates)
        records = [tensor_over(update.records) for update in updates]
        return calls.products(*tables(layout), records, numbers, *self._how())

    def apply_probe(
        self, theta: Mapping[str, Tensor], update: Update, factor: Scales, step: float
    ) -> dict[str, Tensor]:
        """As outer.apply_probe."""
        return self._move(theta, [update], step * np.array([factor], dtype=np.float64), _PROBE, None)

    def probe(
        self,
        values: Mapping[str, Tensor],
        update: Update,
        factor: Scales,
        step: float,
        rows: Mapping[str, slice] | None = None,
    ) -> Tensor:
        """As outer.probe."""
        kept = torch.empty(sum(r.down * r.across * r.k for t in update.layout for r in t.regions))
        self._probe(values, update, step * np.array(factor, dtype=np.float64), rows, kept, undo=False)
        return kept

    def undo_probe(
        self, values: Mapping[str, Tensor], update: Update, kept: Tensor, rows: Mapping[str, slice] | None = None
    ) -> None:
        """As outer.undo_probe."""
        self._probe(values, update, np.zeros(len(update.layout.tensors)), rows, kept, undo=True)

    def moves(
        self, update: Update, index: int, weight: Tensor, rows: Mapping[str, slice] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As outer.moves."""
        tensors, record = update.layout.tensors, self._records(update)
        tensor = tensors[index]
        spans = np.zeros((2, len(tensors)), dtype=np.uint64)
        spans[:, index] = first, behind = span(tensor, rows)
        held = [part for region in tensor.regions if (part := within(region, tensor, first, behind)).down]
        if not held:
            return
        places = np.cumsum([0, *(r.down * r.across * r.k for r in held)], dtype=np.uint64)
        regions, sizes = region_table([(index, tensor, region) for region in held]), tables(update.layout)[1]
        weights = weight.expand(len(tensors)).contiguous()
        elements, moved = calls.moves(regions, sizes, record, weights, spans, places, *self._how())
        ours = elements >= 0
        yield elements[ours], moved[ours]

    def _probe(
        self,
        values: Mapping[str, Tensor],
        update: Update,
        weights: npt.NDArray[np.float64],
        rows: Mapping[str, slice] | None,
        kept: Tensor,
        *,
        undo: bool,
    ) -> None:
        layout, record = update.layout, self._records(update)
        spans = np.array([span(tensor, rows) for tensor in layout], dtype=np.uint64).reshape(-1, 2).T.copy()
        held = [held_part(values, tensor, rows) for tensor in layout]
        counts = [r.down * r.across * r.k for tensor in layout for r in tensor.regions]
        places = np.cumsum([0, *counts], dtype=np.uint64)
        regions, sizes = tables(layout)
        calls.probe(regions, sizes, record, prepared(weights), spans, held, places, kept, undo, *self._how())

    def _move(
        self,
        theta: Mapping[str, Tensor],
        updates: list[Update],
        weights: npt.NDArray[np.float64],
        rule: int,
        out: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        layout, rounded = common_layout(updates), prepared(weights)
        before = [self._given(theta, tensor, torch.float32) for tensor in layout]
        new = self._destination(out, layout)
        records = [self._records(update) for update in updates]
        values = (records, rounded.to(self.device), rule, before, list(new.values()))
        self.functions.aggregate(*tables(layout, self.device), *values, *self._how())
        return new

    def _records(self, update: Update) -> Tensor:
        """Return an update's records where the kernels read them."""
        return tensor_over(update.records)

    def _given(self, tensors: Mapping[str, Tensor], tensor: TensorLayout, *dtypes: torch.dtype) -> Tensor:
        found = tensor_of(tensors, tensor, *dtypes)
        if found.device != self.device:
            raise ValueError(f"tensor {tensor.name!r} is on {found.device}, this codec works on {self.device}")
        return found.contiguous()

    def _destination(self, out: Mapping[str, Tensor] | None, layout: Layout) -> dict[str, Tensor]:
        if out is None:
            return {t.name: torch.empty(t.shape, dtype=torch.float32, device=self.device) for t in layout}
        for tensor in layout:
            self._given(out, tensor, torch.float32)
        return {tensor.name: destination(out, tensor) for tensor in layout}

    def _require_denormals(self) -> None:
        """Raise ConfigError if the calling thread flushes denormals to zero: the library's threads inherit that."""
        if not library().murmur_keeps_denormals():
            raise ConfigError(FLUSHES)

    def _how(self) -> tuple[int, int]:
        return self.threads or torch.get_num_threads(), ISAS.index(self.isa)


def _require_valid(found: Update | InvalidSubmission) -> Update:
    if isinstance(found, InvalidSubmission):
        raise found
    return found


def common_layout(updates: Sequence[Update]) -> Layout:
    """Return the layout of all updates. Raises ValueError if they have several."""
    layout = updates[0].layout
    if any(update.layout != layout for update in updates):
        raise ValueError("updates of different layouts cannot be applied together")
    return layout


def prepared(weights: npt.NDArray[np.float64]) -> Tensor:
    """Return weights as kernels take them: fp32, 0 below SMALLEST_WEIGHT."""
    return torch.from_numpy(np.where(weights >= SMALLEST_WEIGHT, weights, 0.0).astype(np.float32))
