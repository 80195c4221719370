"""The codec in CUDA (csrc/cuda/codec.cu): the reference's results, bit for bit, for tensors on an NVIDIA GPU.

The shared library is loaded by ctypes and does not use torch; it works on torch's current stream. It does not decide
whether it is used: sparseloco/ops.py does.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparseloco import calls, kernels, native
from sparseloco.floats import NonFinite
from sparseloco.kernels import Unavailable
from sparseloco.spectral import exact_products
from sparseloco.update import LEVELS, Update

LIBRARY = Path(__file__).with_name("murmur_cuda.so")
OLDEST = (8, 0)
"""Least compute capability for the kernels."""
_ABI = 1
_FINE = -1


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library. Raises Unavailable."""
    return load(LIBRARY)


def load(path: Path) -> ctypes.CDLL:
    """Load the library in a file, and declare its functions. Raises Unavailable."""
    loaded = kernels.load(path, "the CUDA toolkit (nvcc)", "murmur_cuda_abi", _ABI)
    pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
    begin = (ctypes.c_int, pointer, pointer, u32)  # device, stream, regions
    loaded.murmur_cuda_compress.argtypes = (
        *(*begin, pointer, pointer, ctypes.c_int),
        *(pointer, ctypes.c_float, pointer, pointer, pointer),
    )
    loaded.murmur_cuda_validate.argtypes = (*begin, pointer, pointer, pointer)
    loaded.murmur_cuda_aggregate.argtypes = (*begin, pointer, u32, u32, pointer, u32, pointer, pointer, pointer)
    loaded.murmur_cuda_error.restype = ctypes.c_char_p
    return loaded


@contextmanager
def _stream_of(device: torch.device) -> Iterator[int]:
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device).cuda_stream


def _run(name: str, regions: Tensor, *arguments: Any) -> None:
    """Call a function of the library with tensors' addresses, and wait for its end."""
    status = _status(name, regions, *arguments)
    if status == kernels.NOT_FINITE:
        raise NonFinite("the values to compress hold a NaN or an infinity")
    kernels.require_ok(status)


def _status(name: str, regions: Tensor, *arguments: Any) -> int:
    """Call it, and return the status that the function found, as in calls.py."""
    fault = torch.full((1,), _FINE, dtype=torch.int64, device=regions.device)
    addresses = [part.data_ptr() if isinstance(part, Tensor) else part for part in (*arguments, fault)]
    with _stream_of(regions.device) as stream:
        where = (regions.device.index or 0, stream, regions.data_ptr(), regions.shape[0])
        error = getattr(library(), name)(*where, *addresses)
        if error:
            raise RuntimeError(f"{name}: {library().murmur_cuda_error(error).decode()} (CUDA error {error})")
        found = int(fault.item())
    return kernels.OK if found == _FINE else found % 256


def _pointers(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64).to(device)


# --- as in calls.py, all tensors on one device; `threads` and `isa` are unused ----------------------------------------


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
    if not error:  # zeros; the results then replace them
        for value in new_error:
            value.zero_()
        error = new_error
    start, end, carried, new = (_pointers(group, regions.device) for group in (theta, theta_r, error, new_error))
    is_bf16 = int(any(value.dtype == torch.bfloat16 for value in theta_r))
    _run("murmur_cuda_compress", regions, start, end, is_bf16, carried, beta, new, records)


def _validate(
    regions: Tensor, sizes: Tensor, records: Sequence[Tensor], threads: int, isa: int
) -> tuple[Tensor, Tensor]:
    counts = torch.zeros(len(records), sizes.numel(), LEVELS, dtype=torch.int64, device=regions.device)
    statuses = [_status("murmur_cuda_validate", regions, *pair) for pair in zip(records, counts, strict=True)]
    return counts, torch.tensor(statuses, dtype=torch.int32, device=regions.device)


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
    payloads, start, end = (_pointers(group, regions.device) for group in (records, theta, out))
    count = (len(records), sizes.numel())
    _run("murmur_cuda_aggregate", regions, payloads, *count, weights, rule, start, end)


# --- interface for ops.py ----------------------------------------------------------------------------------------


def _uploaded(update: Update, device: torch.device) -> Tensor:
    """Copy the records to the device, padded to a whole word, as the kernels read them."""
    size = update.layout.records_bytes
    if len(update.records) != size:
        raise ValueError(f"an update of {len(update.records)} bytes, its layout makes {size}")
    room = torch.empty(size + -size % 4, dtype=torch.uint8, device=device)
    room[:size].copy_(kernels.tensor_over(update.records))
    return room[:size]


@dataclass(frozen=True, slots=True)
class Codec(native.Codec):
    """native.Codec for tensors on one GPU: same arguments, results and errors. `isa` is its architecture ("sm_90");
    `threads` is unused. Every method waits for its result."""

    functions: ClassVar[calls.Functions] = calls.Functions(_compress, _validate, _aggregate)

    def products(self, updates: Sequence[Update], numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """As native.Codec.products; computed on the CPU, where the records are."""
        try:
            isa = kernels.supported()[-1]
        except Unavailable:
            return exact_products(updates, numbers)
        return native.Codec(isa).products(updates, numbers)

    def _require_denormals(self) -> None:
        """Do nothing: a GPU's kernels are built not to flush denormals, whatever the thread that starts them does."""

    def _records(self, update: Update) -> Tensor:
        return _uploaded(update, self.device)

    def _how(self) -> tuple[int, int]:
        return 0, 0


@cache
def codec(device: torch.device) -> Codec:
    """Return the codec of a GPU. Raises Unavailable if the library is not built or the GPU too old for it."""
    library()
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        names = ["{}.{}".format(*pair) for pair in (capability, OLDEST)]
        raise Unavailable(f"{device} has compute capability {names[0]}, the CUDA codec needs {names[1]}; use the CPU")
    return Codec("sm_{}{}".format(*capability), device=device)
