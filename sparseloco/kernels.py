"""The codec's shared library in C++ (csrc/kernels/murmur_codec.h): load it by ctypes, describe to it where a layout's
blocks are in tensors and records, and interpret its statuses. The library does not use torch."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import Layout, Region, TensorLayout
from murmur.protocol.types import Reason
from sparseloco.update import Records

LIBRARY = Path(__file__).with_name("murmur_codec.so")
ISAS = ("plain", "avx2", "avx512")
_ABI = 5
OK, NOT_FINITE = 0, 2
_MALFORMED = {
    10: "a chunk does not hold exactly k' indices",
    11: "padding bits are not zero",
    12: "an index lies outside its chunk",
    13: "indices are not strictly ascending",
    14: "the low level is above the high level",
    15: "equal levels must use magnitude bit 0",
    16: "a zero level must have sign bit 0",
    17: "a scale is neither 0 nor within 2^-126 and 2^64",
    18: "a code is -128",
    19: "no code of a chunk is 127 or -127, or a chunk of zeros has others",
}
REGION_FIELDS = 11
_ALIGNMENT = 64
CPU = torch.device("cpu")


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
    """Load the library in a file, whose function `version` has to return `needed`. `builder`: the tool that builds it,
    for people. Raises Unavailable."""
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
    """Return the loaded library. Raises Unavailable."""
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
    loaded.murmur_dense_encode.argtypes = (plan, pointer, pointer, pointer)
    loaded.murmur_dense_validate.argtypes = (plan, pointer)
    loaded.murmur_dense_sum.argtypes = (plan, pointer, u64, ctypes.c_float, pointer)
    loaded.murmur_dense_step.argtypes = (plan, pointer, ctypes.c_float, ctypes.c_float, pointer, pointer, pointer)
    return loaded


def supported() -> tuple[str, ...]:
    """Return the instruction sets that this build and processor have, slowest first. Raises Unavailable."""
    return tuple(name for isa, name in enumerate(ISAS) if library().murmur_supports(isa))


def region_table(regions: Sequence[tuple[int, TensorLayout, Region]]) -> Tensor:
    """Return int64 [num, 11] as in struct murmur_region: each region with its tensor and that tensor's number."""
    rows: list[tuple[int, ...]] = []
    first = 0
    for number, tensor, r in regions:
        start = r.row * tensor.columns + r.column
        record = tensor.offset + r.offset
        rows.append((number, first, start, tensor.columns, r.down, r.across, r.height, r.width, r.k, record, r.stride))
        first += r.down * r.across
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, REGION_FIELDS)


def within(region: Region, tensor: TensorLayout, begin: int, end: int) -> Region:
    """Return the rows of a region's blocks that contain elements begin <= element < end of its tensor, maybe none."""
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
def tables(layout: Layout, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """Return (regions int64 [num, 11] as in struct murmur_region, elements of each tensor int64 [num])."""
    regions = region_table([(number, tensor, r) for number, tensor in enumerate(layout) for r in tensor.regions])
    sizes = torch.tensor([tensor.numel for tensor in layout], dtype=torch.int64)
    return regions.to(device), sizes.to(device)


class Call:
    """A plan and the memory that it points to, which lives as long as this object."""

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


def pointers(tensors: Sequence[Tensor]) -> Any:
    """Return an array of the tensors' addresses; the tensors have to outlive it."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def refusal(status: int) -> InvalidSubmission | None:
    """Return the library's objection to a payload; None if the status is no objection."""
    return InvalidSubmission(Reason.MALFORMED, _MALFORMED[status]) if status in _MALFORMED else None


def require_ok(status: int) -> None:
    """Raise the error of a call's status. The caller handles NOT_FINITE."""
    refused = refusal(status)
    if refused is not None:
        raise refused
    if status != OK:
        raise RuntimeError(f"the native codec refused its plan (status {status}): sparseloco/kernels.py made a bad one")


class _View:
    """Bytes as an array that numpy and torch consider writable; nothing here writes to one."""

    def __init__(self, data: Records) -> None:
        self._data = data
        address = np.frombuffer(data, dtype=np.uint8).ctypes.data
        self.__array_interface__ = {"shape": (len(data),), "typestr": "|u1", "data": (address, False), "version": 3}


def tensor_over(data: Records) -> Tensor:
    """Return uint8 [len(data)] on the same memory; read only."""
    return torch.from_numpy(np.asarray(_View(data))) if data else torch.empty(0, dtype=torch.uint8)
