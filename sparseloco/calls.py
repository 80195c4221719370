"""The C++ library's functions on CPU tensors. sparseloco/cuda.py has three of them for CUDA tensors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparseloco.floats import NonFinite
from sparseloco.kernels import NOT_FINITE, Call, library, pointers, require_ok
from sparseloco.update import LEVELS


def compress(
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
    call = Call(regions, sizes, records.numel(), threads, isa)
    status = library().murmur_compress(
        call.plan,
        pointers(theta),
        pointers(theta_r),
        int(any(end.dtype == torch.bfloat16 for end in theta_r)),
        pointers(error) if error else None,
        beta,
        pointers(new_error),
        records.data_ptr(),
    )
    if status == NOT_FINITE:
        raise NonFinite("the values to compress hold a NaN or an infinity")
    require_ok(status)


def validate(
    regions: Tensor, sizes: Tensor, records: Sequence[Tensor], threads: int, isa: int
) -> tuple[Tensor, Tensor]:
    """Return level counts, int64 [payloads, tensors, 256], and statuses, int32 [payloads]."""
    call = Call(regions, sizes, min(record.numel() for record in records), threads, isa)
    counts = torch.from_numpy(np.zeros((len(records), sizes.numel(), LEVELS), dtype=np.int64))
    status = torch.empty(len(records), dtype=torch.int32)
    faults = torch.empty(len(records), dtype=torch.int64)
    outputs = (counts.data_ptr(), status.data_ptr(), faults.data_ptr())
    require_ok(library().murmur_validate(call.plan, pointers(records), len(records), *outputs))
    return counts, status


def aggregate(
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
    call = Call(regions, sizes, min(record.numel() for record in records), threads, isa)
    require_ok(
        library().murmur_aggregate(
            call.plan,
            pointers(records),
            len(records),
            weights.data_ptr(),
            rule,
            pointers(theta),
            pointers(out),
        )
    )


def products(
    regions: Tensor, sizes: Tensor, records: Sequence[Tensor], numbers: npt.NDArray[np.int32], threads: int, isa: int
) -> npt.NDArray[np.int64]:
    """Return [tensors, payloads, payloads], as spectral.exact_products."""
    call = Call(regions, sizes, min(record.numel() for record in records), threads, isa)
    numbers = np.ascontiguousarray(numbers, dtype=np.int32)
    found = np.zeros((sizes.numel(), len(records), len(records)), dtype=np.int64)
    addresses = (numbers.ctypes.data, found.ctypes.data)
    require_ok(library().murmur_products(call.plan, pointers(records), len(records), *addresses))
    return found


def probe(
    regions: Tensor,
    sizes: Tensor,
    record: Tensor,
    weights: Tensor,
    spans: npt.NDArray[np.uint64],
    held: Sequence[Tensor],
    places: npt.NDArray[np.uint64],
    kept: Tensor,
    undo: bool,
    threads: int,
    isa: int,
) -> None:
    """Move the held values, elements spans[0] <= element < spans[1] of each tensor, and store their earlier values in
    `kept`, for each region from its `places` on; or restore them."""
    call = Call(regions, sizes, record.numel(), threads, isa)
    begin, end = spans
    where = (begin.ctypes.data, end.ctypes.data, pointers(held), places.ctypes.data, kept.data_ptr(), int(undo))
    require_ok(library().murmur_probe(call.plan, record.data_ptr(), weights.data_ptr(), *where))


def moves(
    regions: Tensor,
    sizes: Tensor,
    record: Tensor,
    weights: Tensor,
    spans: npt.NDArray[np.uint64],
    places: npt.NDArray[np.uint64],
    threads: int,
    isa: int,
) -> tuple[Tensor, Tensor]:
    """Return elements, int64, -1 outside the spans, and how far each moves, fp32: [places[-1]] each."""
    elements, moved = torch.empty(int(places[-1]), dtype=torch.int64), torch.empty(int(places[-1]))
    call = Call(regions, sizes, record.numel(), threads, isa)
    begin, end = spans
    where = (begin.ctypes.data, end.ctypes.data, places.ctypes.data, elements.data_ptr(), moved.data_ptr())
    require_ok(library().murmur_moves(call.plan, record.data_ptr(), weights.data_ptr(), *where))
    return elements, moved


class Functions(NamedTuple):
    """The calls of the codec, on tensors of one kind of device."""

    compress: Callable[..., None]
    validate: Callable[..., tuple[Tensor, Tensor]]
    aggregate: Callable[..., None]


ON_CPU = Functions(compress, validate, aggregate)
