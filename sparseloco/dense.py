"""The dense exchange: every value of a pseudo-gradient in int8, and the outer step on their mean, as in INTELLECT-1.
Results are the same on every node, bit for bit. This is the executable specification: the native codec gives the same
bytes.

A tensor's values, row-major, are cut into chunks of 4096 (the last one may be shorter). A chunk's record:

    scale = fp32(absmax / 127), little-endian;  code_j = int8(round half to even(v_j * fp32(1 / scale)))

A chunk whose absmax / 127 is below 2^-126 is a chunk of zeros: scale +0, all codes 0. Values above 127 * 2^64 are
refused, so that every sum over payloads stays finite. Decoded, a value is fp32(code) * scale.

The mean of R payloads is the record of fp32(1 / R) * (((0 + v_1) + v_2) + ..) in PeerId order, quantised again: it
depends on the payloads alone. The outer step is torch's SGD with Nesterov's momentum on that mean. Every multiply, add
and subtract is rounded to fp32 separately. Source: INTELLECT-1 (arXiv 2412.01152), DiLoCo (arXiv 2311.08105).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import CHUNK, DenseLayout, TensorLayout
from murmur.protocol.types import DIGEST_BYTES, Reason
from sparseloco.floats import NonFinite, destination, require_denormals, tensor_of
from sparseloco.update import Records, Update
from sparseloco.wire import require_size

Floats = npt.NDArray[np.float32]
MOST_CODE = np.float32(127)
LEAST_SCALE, LARGEST_SCALE = np.float32(2.0**-126), np.float32(2.0**64)
TOO_LARGE = "the values to compress hold a NaN, an infinity, or a value above 2^71"


@dataclass(frozen=True)
class DenseUpdate(Update):
    """A pseudo-gradient, or a mean of several, with every value sent. `layout` is a DenseLayout. Only `digest` and
    `dense` of Update's methods are used."""

    def dense(self, which: int | str) -> Tensor:
        tensor = self._tensor_layout(which)
        values = np.empty(tensor.numel, dtype=np.float32)
        for part in _parts(dense_layout(self), tensor):
            values[part.values] = part.decoded(self.records).reshape(-1)
        return torch.from_numpy(values).reshape(tensor.shape)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Consecutive chunks of one size: elements `values` of their tensor, records from `offset` on."""

    values: slice
    size: int
    offset: int

    @property
    def count(self) -> int:
        return int(self.values.stop - self.values.start) // self.size

    def records(self, data: Records | npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
        """View the records, [count] of (scale, codes)."""
        kind = np.dtype([("scale", "<f4"), ("codes", "i1", (self.size,))])
        return np.frombuffer(data, dtype=kind, count=self.count, offset=self.offset)

    def decoded(self, data: Records) -> Floats:
        """Decode to fp32 [count, size]."""
        found = self.records(data)
        values: Floats = found["codes"].astype(np.float32) * found["scale"][:, None]
        return values


def dense_layout(update: Update) -> DenseLayout:
    """Return the layout of an update of the dense exchange. Raises ValueError for another."""
    if not isinstance(update.layout, DenseLayout):
        raise ValueError("an update of the sparse exchange was given to the dense one")
    return update.layout


def _parts(layout: DenseLayout, tensor: TensorLayout) -> Iterator[_Chunks]:
    """Yield at most two parts: whole chunks, and the rest."""
    offset, whole = layout.starts[tensor.name], tensor.numel // CHUNK * CHUNK
    if whole:
        yield _Chunks(slice(0, whole), CHUNK, offset)
    if whole < tensor.numel:
        yield _Chunks(slice(whole, tensor.numel), tensor.numel - whole, offset + whole // CHUNK * (4 + CHUNK))


def encode(theta: Mapping[str, Tensor], theta_r: Mapping[str, Tensor], layout: DenseLayout) -> DenseUpdate:
    """Encode a member's update after its inner steps: theta - theta_r, both fp32. Nothing is carried over: the rounding
    error of int8 is lost. Raises NonFinite for values that must not be sent, ValueError as `tensor_of`."""
    require_denormals()
    packed = np.empty(layout.records_bytes, dtype=np.uint8)
    for tensor in layout:
        delta = _flat(tensor_of(theta, tensor, torch.float32)) - _flat(tensor_of(theta_r, tensor, torch.float32))
        for part in _parts(layout, tensor):
            _quantise(delta[part.values].reshape(part.count, part.size), part.records(packed))
    return DenseUpdate(layout, packed.tobytes())


def _flat(tensor: Tensor) -> Floats:
    values: Floats = tensor.cpu().reshape(-1).numpy()
    return values


def _quantise(values: Floats, records: npt.NDArray[np.void]) -> None:
    """Write the records of chunks [count, size]."""
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.abs(values).max(axis=1) / MOST_CODE
        if not (scale <= LARGEST_SCALE).all():
            raise NonFinite(TOO_LARGE)
        used = scale >= LEAST_SCALE
        inverse = np.float32(1) / np.where(used, scale, np.float32(1))
        codes = np.rint(values * np.where(used, inverse, np.float32(0))[:, None])
    records["scale"] = np.where(used, scale, np.float32(0))
    records["codes"] = codes.astype(np.int8)


def parse(plaintext: Records, layout: DenseLayout) -> DenseUpdate:
    """Parse the update in a plaintext (theta digest, then records). Raises InvalidSubmission(MALFORMED) for a size or a
    record that `encode` never makes."""
    require_size(plaintext, layout)
    update = DenseUpdate(layout, plaintext[DIGEST_BYTES:])
    for tensor in layout:
        for part in _parts(layout, tensor):
            _judge(part.records(update.records))
    return update


def _judge(records: npt.NDArray[np.void]) -> None:
    """Raise InvalidSubmission(MALFORMED) for the first chunk that is not valid."""
    scale, codes = records["scale"], records["codes"]
    zero = scale.view(np.uint32) == 0
    with np.errstate(invalid="ignore"):
        scales = zero | ((scale >= LEAST_SCALE) & (scale <= LARGEST_SCALE))
    full = np.where(zero, ~codes.any(axis=1), (np.abs(codes) == 127).any(axis=1))
    faults = (
        (scales, "a scale is neither 0 nor within 2^-126 and 2^64"),
        ((codes > -128).all(axis=1), "a code is -128"),
    )
    found = [*faults, (full, "no code of a chunk is 127 or -127, or a chunk of zeros has others")]
    valid = np.logical_and.reduce([good for good, _ in found])
    if not valid.all():
        first = int(valid.argmin())
        raise InvalidSubmission(Reason.MALFORMED, next(why for good, why in found if not good[first]))


def mean(updates: Sequence[Update | None], layout: DenseLayout) -> DenseUpdate:
    """Return the mean of the contributors' updates, in this order; None for one that did not parse, which counts as
    zeros. At least one contributor."""
    require_denormals()
    weight = np.float32(1 / len(updates))
    packed = np.zeros(layout.records_bytes, dtype=np.uint8)
    for tensor in layout:
        for part in _parts(layout, tensor):
            total = np.zeros((part.count, part.size), dtype=np.float32)
            for update in updates:
                if update is not None:
                    total += part.decoded(update.records)
            _quantise(total * weight, part.records(packed))
    return DenseUpdate(layout, packed.tobytes())


def step(
    theta: Mapping[str, Tensor],
    gradient: Update,
    velocity: Mapping[str, Tensor] | None,
    *,
    alpha: float,
    momentum: float,
    out: Mapping[str, Tensor],
) -> None:
    """Compute out = theta - alpha * (g + momentum * m) with m = momentum * m + g; `velocity` holds m and changes in
    place. Without velocity out = theta - alpha * g. All tensors fp32, contiguous, on the CPU; alpha and momentum are
    rounded to fp32 once."""
    require_denormals()
    rate, kept = np.float32(alpha), np.float32(momentum)
    for index, tensor in enumerate(gradient.layout):
        moved = gradient.dense(index).numpy()
        if velocity is not None:
            moving = destination(velocity, tensor).numpy()
            np.add(moving * kept, moved, out=moving)
            moved = moved + moving * kept
        before = tensor_of(theta, tensor, torch.float32).numpy()
        destination(out, tensor).copy_(torch.from_numpy(np.asarray(before - moved * rate)))
