"""The codec in C++ (csrc/kernels/murmur_codec.h): the reference's results, bit for bit, at the speed of memory.

The shared library is loaded by ctypes and knows nothing of torch; the torch operators `murmuration::compress`,
`validate` and `aggregate` wrap it for whoever traces or compiles. `Codec` calls it directly: the first call of such an
operator loads torch's compiler, which takes seconds. CPU tensors only. May not decide whether it is used: that is
sparseloco/ops.py's.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.errors import ConfigError, InvalidSubmission
from protocol.layout import Layout, Region, TensorLayout
from protocol.types import DIGEST_BYTES, Digest, PeerId, Reason
from sparseloco.floats import FLUSHES, NonFinite, destination, tensor_of
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
from sparseloco.update import LEVELS, Records, Update, as_tensor
from sparseloco.wire import Submission, require_size

LIBRARY = Path(__file__).with_name("murmur_codec.so")
ISAS = ("plain", "avx2", "avx512")
_ABI = 4
_OK, _NOT_FINITE = 0, 2
_MALFORMED = {
    10: "a chunk does not hold exactly k' indices",
    11: "padding bits are not zero",
    12: "an index lies outside its chunk",
    13: "indices are not strictly ascending",
    14: "the low level is above the high level",
    15: "equal levels must use magnitude bit 0",
    16: "a zero level must have sign bit 0",
}
_RULES = {"mean": 0, "contributor_mean": 1, "filtered_mean": 0}
_PROBE = 2
_REGION_FIELDS = 11
_ALIGNMENT = 64
_CPU = torch.device("cpu")


class Unavailable(RuntimeError):
    """The native codec cannot run here; the message says why and what to do."""


class _Plan(ctypes.Structure):
    _fields_ = (
        ("regions", ctypes.c_void_p),
        ("num_regions", ctypes.c_uint64),
        ("tensor_elements", ctypes.c_void_p),
        ("num_tensors", ctypes.c_uint64),
        ("records_bytes", ctypes.c_uint64),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_uint64),
        ("threads", ctypes.c_uint32),
        ("isa", ctypes.c_uint32),
    )


def load(path: Path, builder: str, version: str, needed: int) -> ctypes.CDLL:
    """The library in a file, whose function `version` has to answer `needed`. `builder`: what it takes to make it, for
    people. Raises Unavailable."""
    if not path.exists():
        raise Unavailable(f"{path.name} is not built; install {builder} and run: make native")
    try:
        loaded = ctypes.CDLL(str(path))
        abi = getattr(loaded, version)()
    except (OSError, AttributeError) as fault:
        raise Unavailable(f"{path.name} cannot be loaded ({fault}); build it again: make native") from None
    if abi != needed:
        raise Unavailable(f"{path.name} has interface {abi}, this release needs {needed}; build it again: make native")
    return loaded


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises Unavailable."""
    loaded = load(LIBRARY, "a C++ compiler (g++)", "murmur_abi", _ABI)
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    plan = ctypes.POINTER(_Plan)
    loaded.murmur_scratch_bytes.restype = u64
    loaded.murmur_supports.argtypes = (u32,)
    loaded.murmur_compress.argtypes = (
        *(plan, pointer, pointer, ctypes.c_int, pointer),
        *(ctypes.c_float, pointer, pointer),
    )
    loaded.murmur_validate.argtypes = (plan, pointer, u64, pointer, pointer, pointer)
    loaded.murmur_products.argtypes = (plan, pointer, u64, pointer, pointer)
    loaded.murmur_aggregate.argtypes = (plan, pointer, u64, pointer, u32, pointer, pointer)
    loaded.murmur_probe.argtypes = (
        *(plan, pointer, pointer, pointer, pointer),
        *(pointer, pointer, pointer, ctypes.c_int),
    )
    loaded.murmur_moves.argtypes = (plan, *(pointer,) * 7)
    return loaded


def supported() -> tuple[str, ...]:
    """Instruction sets that this build and processor have, slowest first. Raises Unavailable."""
    return tuple(name for isa, name in enumerate(ISAS) if library().murmur_supports(isa))


def _region_table(regions: Sequence[tuple[int, TensorLayout, Region]]) -> Tensor:
    """int64 [num, 11] as struct murmur_region has them: each with its tensor and that one's number."""
    rows: list[tuple[int, ...]] = []
    first = 0
    for number, tensor, r in regions:
        start = r.row * tensor.columns + r.column
        record = tensor.offset + r.offset
        rows.append((number, first, start, tensor.columns, r.down, r.across, r.height, r.width, r.k, record, r.stride))
        first += r.down * r.across
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, _REGION_FIELDS)


def _within(region: Region, tensor: TensorLayout, begin: int, end: int) -> Region:
    """The rows of a region's blocks in which elements begin <= element < end of its tensor lie, maybe none."""
    top, bottom = begin // tensor.columns - region.row, -(-end // tensor.columns) - region.row
    first = min(max(0, top // region.height), region.down)
    behind = max(first, min(region.down, -(-bottom // region.height)))
    return replace(
        region,
        row=region.row + first * region.height,
        down=behind - first,
        offset=region.offset + first * region.stride,
    )


@lru_cache(maxsize=16)
def _tables(layout: Layout, device: torch.device = _CPU) -> tuple[Tensor, Tensor]:
    """(regions int64 [num, 11] as struct murmur_region has them, elements of each tensor int64 [num])."""
    regions = _region_table([(number, tensor, r) for number, tensor in enumerate(layout) for r in tensor.regions])
    sizes = torch.tensor([tensor.numel for tensor in layout], dtype=torch.int64)
    return regions.to(device), sizes.to(device)


class _Call:
    """A plan and the memory it points to, alive as long as this is."""

    def __init__(self, regions: Tensor, sizes: Tensor, records_bytes: int, threads: int, isa: int) -> None:
        scratch_bytes = threads * int(library().murmur_scratch_bytes())
        self._kept = (regions, sizes, torch.empty(scratch_bytes + _ALIGNMENT, dtype=torch.uint8))
        address = self._kept[2].data_ptr()
        self.plan = ctypes.byref(
            _Plan(
                regions.data_ptr(),
                regions.shape[0],
                sizes.data_ptr(),
                sizes.numel(),
                records_bytes,
                address + -address % _ALIGNMENT,
                scratch_bytes,
                threads,
                isa,
            )
        )


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


# --- the library's functions on tensors --------------------------------------------------------------------------


def _compress(
    regions: Tensor,
    sizes: Tensor,
    theta: Sequence[Tensor],
    theta_r: Sequence[Tensor],
    error: Sequence[Tensor],
    beta: float,
    new_error: Sequence[Tensor],
    records: Tensor,
    threads: int,
    isa: int,
) -> None:
    call = _Call(regions, sizes, records.numel(), threads, isa)
    status = library().murmur_compress(
        call.plan,
        _pointers(theta),
        _pointers(theta_r),
        int(any(end.dtype == torch.bfloat16 for end in theta_r)),
        _pointers(error) if error else None,
        beta,
        _pointers(new_error),
        records.data_ptr(),
    )
    if status == _NOT_FINITE:
        raise NonFinite("the values to compress hold a NaN or an infinity")
    _require_ok(status)


def _validate(
    regions: Tensor, sizes: Tensor, records: Sequence[Tensor], threads: int, isa: int
) -> tuple[Tensor, Tensor]:
    """Level counts, int64 [payloads, tensors, 256], and statuses, int32 [payloads]."""
    call = _Call(regions, sizes, min(record.numel() for record in records), threads, isa)
    counts = torch.from_numpy(np.zeros((len(records), sizes.numel(), LEVELS), dtype=np.int64))
    status = torch.empty(len(records), dtype=torch.int32)
    faults = torch.empty(len(records), dtype=torch.int64)
    outputs = (counts.data_ptr(), status.data_ptr(), faults.data_ptr())
    _require_ok(library().murmur_validate(call.plan, _pointers(records), len(records), *outputs))
    return counts, status


def _aggregate(
    regions: Tensor,
    sizes: Tensor,
    records: Sequence[Tensor],
    weights: Tensor,
    rule: int,
    theta: Sequence[Tensor],
    out: Sequence[Tensor],
    threads: int,
    isa: int,
) -> None:
    call = _Call(regions, sizes, min(record.numel() for record in records), threads, isa)
    _require_ok(
        library().murmur_aggregate(
            call.plan,
            _pointers(records),
            len(records),
            weights.data_ptr(),
            rule,
            _pointers(theta),
            _pointers(out),
        )
    )


def _require_ok(status: int) -> None:
    if status in _MALFORMED:
        raise _refusal(status)
    if status != _OK:
        raise RuntimeError(f"the native codec refused its plan (status {status}): sparseloco/native.py made a bad one")


def _refusal(status: int) -> InvalidSubmission:
    return InvalidSubmission(Reason.MALFORMED, _MALFORMED[status])


# --- operators: schema, kernel, fake kernel ----------------------------------------------------------------------

compress_operator = torch.library.custom_op(
    "murmuration::compress",
    _compress,
    mutates_args=("new_error", "records"),
    device_types="cpu",
    schema="(Tensor regions, Tensor sizes, Tensor[] theta, Tensor[] theta_r, Tensor[] error, float beta,"
    " Tensor(a!)[] new_error, Tensor(b!) records, int threads, int isa) -> ()",
)
validate_operator = torch.library.custom_op(
    "murmuration::validate",
    _validate,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor regions, Tensor sizes, Tensor[] records, int threads, int isa) -> (Tensor, Tensor)",
)
aggregate_operator = torch.library.custom_op(
    "murmuration::aggregate",
    _aggregate,
    mutates_args=("out",),
    device_types="cpu",
    schema="(Tensor regions, Tensor sizes, Tensor[] records, Tensor weights, int rule, Tensor[] theta,"
    " Tensor(a!)[] out, int threads, int isa) -> ()",
)


@compress_operator.register_fake
@aggregate_operator.register_fake
def _(*_: Any) -> None:
    return None


@validate_operator.register_fake
def _(regions: Tensor, sizes: Tensor, records: Sequence[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
    counts = sizes.new_empty(len(records), sizes.numel(), LEVELS, dtype=torch.int64)
    return counts, sizes.new_empty(len(records), dtype=torch.int32)


# --- what ops.py calls -------------------------------------------------------------------------------------------


class Kernels(NamedTuple):
    """The library's functions on tensors of one kind of device, as the operators call them."""

    compress: Callable[..., None]
    validate: Callable[..., tuple[Tensor, Tensor]]
    aggregate: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Codec:
    """The native codec for one instruction set (a name of `supported()`) and number of threads (0: torch's own).

    Its methods mirror the reference's functions: same arguments, results and errors. `out` tensors, contiguous fp32
    of the layout's shapes, receive a result in place of new ones. All tensors are on `device`.
    """

    isa: str
    threads: int = 0
    device: torch.device = _CPU
    kernels: ClassVar[Kernels] = Kernels(_compress, _validate, _aggregate)

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
        self.kernels.compress(*_tables(layout, self.device), *values, *self._how())
        return Update(layout, records.cpu().numpy().tobytes()), new_error

    def parse(self, plaintext: Records, layout: Layout) -> Update:
        """As wire.parse; the update knows its level counts. Of several faults, the one named is the first chunk's."""
        require_size(plaintext, layout)
        return self.counted(Update(layout, plaintext[DIGEST_BYTES:]))

    def parse_submission(self, peer: PeerId, round: int, plaintext: Records, layout: Layout) -> Submission:
        """As wire.parse_submission."""
        update = self.parse(plaintext, layout)
        return Submission(peer, round, Digest(bytes(plaintext[:DIGEST_BYTES])), update)

    def counted(self, update: Update) -> Update:
        """The update with its level counts, validated on the way. Raises InvalidSubmission(MALFORMED)."""
        return _require_valid(*self.judged([update]))

    def judged(self, updates: Sequence[Update]) -> list[Update | InvalidSubmission]:
        """Each update of one layout with its level counts, or why it is refused: all are validated in one call."""
        fresh = [place for place, update in enumerate(updates) if update.counts is None]
        found: list[Update | InvalidSubmission] = list(updates)
        if fresh:
            layout = common_layout(updates)
            counts, statuses = self._validated(layout, [updates[place] for place in fresh])
            for place, own, status in zip(fresh, counts, statuses, strict=True):
                update = Update(layout, updates[place].records, own)
                found[place] = _refusal(status) if status in _MALFORMED else update
        return found

    def _validated(self, layout: Layout, updates: list[Update]) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Level counts [payloads, tensors, 256] and statuses of payloads."""
        records = [self._records(update) for update in updates]
        counts, statuses = self.kernels.validate(*_tables(layout, self.device), records, *self._how())
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
        new = self._move(theta, [update for update, _ in present], np.array(weights), _RULES[aggregate], out)
        return new, new_state, factors

    def products(self, updates: Sequence[Update], numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """As spectral.exact_products, for at most 4096 updates."""
        layout = common_layout(updates)
        records = [as_tensor(update.records) for update in updates]
        regions, sizes = _tables(layout)
        call = _Call(regions, sizes, min(record.numel() for record in records), *self._how())
        numbers = np.ascontiguousarray(numbers, dtype=np.int32)
        found = np.zeros((len(layout.tensors), len(updates), len(updates)), dtype=np.int64)
        addresses = (numbers.ctypes.data, found.ctypes.data)
        _require_ok(library().murmur_products(call.plan, _pointers(records), len(records), *addresses))
        return found

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
        begin, end = spans = np.zeros((2, len(tensors)), dtype=np.uint64)
        spans[:, index] = first, behind = span(tensor, rows)
        held = [part for region in tensor.regions if (part := _within(region, tensor, first, behind)).down]
        if not held:
            return
        places = np.cumsum([0, *(r.down * r.across * r.k for r in held)], dtype=np.uint64)
        regions, sizes = _region_table([(index, tensor, region) for region in held]), _tables(update.layout)[1]
        weights = weight.expand(len(tensors)).contiguous()
        elements, moved = torch.empty(int(places[-1]), dtype=torch.int64), torch.empty(int(places[-1]))
        call = _Call(regions, sizes, record.numel(), *self._how())
        where = (begin.ctypes.data, end.ctypes.data, places.ctypes.data, elements.data_ptr(), moved.data_ptr())
        _require_ok(library().murmur_moves(call.plan, record.data_ptr(), weights.data_ptr(), *where))
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
        rounded = prepared(weights)
        regions, sizes = _tables(layout)
        call = _Call(regions, sizes, record.numel(), *self._how())
        begin, end = spans
        where = (begin.ctypes.data, end.ctypes.data, _pointers(held), places.ctypes.data, kept.data_ptr(), int(undo))
        _require_ok(library().murmur_probe(call.plan, record.data_ptr(), rounded.data_ptr(), *where))

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
        self.kernels.aggregate(*_tables(layout, self.device), *values, *self._how())
        return new

    def _records(self, update: Update) -> Tensor:
        """An update's records where the kernels read them."""
        return as_tensor(update.records)

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
        """Raise ConfigError when the calling thread flushes denormals to zero: those of the library inherit that."""
        if not library().murmur_keeps_denormals():
            raise ConfigError(FLUSHES)

    def _how(self) -> tuple[int, int]:
        return self.threads or torch.get_num_threads(), ISAS.index(self.isa)


def _require_valid(found: Update | InvalidSubmission) -> Update:
    if isinstance(found, InvalidSubmission):
        raise found
    return found


def common_layout(updates: Sequence[Update]) -> Layout:
    """The layout of all updates. Raises ValueError when they have several."""
    layout = updates[0].layout
    if any(update.layout != layout for update in updates):
        raise ValueError("updates of different layouts cannot be applied together")
    return layout


def prepared(weights: npt.NDArray[np.float64]) -> Tensor:
    """Weights as kernels take them: fp32, 0 below SMALLEST_WEIGHT."""
    return torch.from_numpy(np.where(weights >= SMALLEST_WEIGHT, weights, 0.0).astype(np.float32))
