"""Tensors in sharded safetensors files: the layout of the bytes, written and hashed 16 MiB at a time.

The whole form of an export's files follows from the model, the dtype and the file size limit (`Plan`), headers and
index included. So a reader needs no parser for strangers' files: it compares them with what it would have written.

The digest of an export's tensors is computed like theta's (sparseloco/digest.py) over the exported bytes: for an fp32
export it is the theta digest itself.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from murmur.export.llama import Dtype, names
from murmur.protocol import merkle
from murmur.protocol.layout import Layout
from murmur.protocol.spec import ModelSpec
from murmur.protocol.types import Digest
from sparseloco.outer import OuterState

SHARD_BYTES = 5_000_000_000
"""Most bytes of values in a file; a larger tensor has its own file."""
INDEX = "model.safetensors.index.json"
_TYPES: dict[Dtype, tuple[torch.dtype, str]] = {"float32": (torch.float32, "F32"), "bfloat16": (torch.bfloat16, "BF16")}
_LENGTH_BYTES = 8

Told = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True, slots=True)
class File:
    """One safetensors file. `begins`: our name of each tensor -> position of its values in the file."""

    name: str
    header: bytes
    begins: Mapping[str, int]
    size: int


@dataclass(frozen=True, slots=True)
class Section:
    """At most 16 MiB of one tensor's values: a leaf of the digest. first: byte in the tensor; place: in the file."""

    tensor: str
    first: int
    size: int
    file: int
    place: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Every byte of an export's tensors except the values. `index`: that of the shards, None for a single file."""

    dtype: Dtype
    files: tuple[File, ...]
    index: bytes | None
    sections: tuple[Section, ...]
    """In the order of the digest: tensors in layout order."""

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)


def plan(model: ModelSpec, layout: Layout, dtype: Dtype, shard_bytes: int = SHARD_BYTES) -> Plan:
    """Return the plan of the files, in the order of the model: embedding, layers, head."""
    item = _TYPES[dtype][0].itemsize
    sizes = {name: item * prod(shape) for name, shape in model.shapes().items()}
    groups: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in sizes.items():
        if groups[-1] and size > room:
            groups.append([])
            room = shard_bytes
        groups[-1].append(name)
        room -= size
    theirs = names(model)
    files = tuple(_file(model, group, dtype, _file_name(number, len(groups))) for number, group in enumerate(groups, 1))
    where = {name: number for number, group in enumerate(groups) for name in group}
    sections = tuple(
        Section(
            tensor.name,
            first,
            min(merkle.SECTION_BYTES, sizes[tensor.name] - first),
            where[tensor.name],
            files[where[tensor.name]].begins[tensor.name] + first,
        )
        for tensor in layout
        for first in range(0, sizes[tensor.name], merkle.SECTION_BYTES)
    )
    index = None
    if len(files) > 1:
        weight_map = {theirs[name]: files[number].name for name, number in where.items()}
        total = {"total_size": sum(sizes.values()), "total_parameters": layout.num_parameters}
        index = as_json({"metadata": total, "weight_map": dict(sorted(weight_map.items()))})
    return Plan(dtype, files, index, sections)


def _file_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _file(model: ModelSpec, group: Iterable[str], dtype: Dtype, name: str) -> File:
    kind, written = _TYPES[dtype]
    theirs, shapes = names(model), model.shapes()
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    firsts, end = dict[str, int](), 0
    for tensor in group:
        firsts[tensor], end = end, end + kind.itemsize * prod(shapes[tensor])
        offsets = [firsts[tensor], end]
        table[theirs[tensor]] = {"dtype": written, "shape": list(shapes[tensor]), "data_offsets": offsets}
    text = json.dumps(table, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _LENGTH_BYTES) * _LENGTH_BYTES)
    header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    return File(name, header, {tensor: len(header) + first for tensor, first in firsts.items()}, len(header) + end)


def as_json(table: Mapping[str, Any]) -> bytes:
    """Return a JSON file for people and programs."""
    return json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


# --- values ------------------------------------------------------------------------------------------------------


def write(folder: Path, plan: Plan, theta: Mapping[str, Tensor], outer: OuterState, told: Told) -> Digest:
    """Write the files and flush them to disk; return the digest of the written values. theta: fp32 on the CPU, may be
    mapped files: 16 MiB for each of torch's threads are in memory at once. Raises OSError."""
    with ExitStack() as stack:
        opened = []
        for file in plan.files:
            handle = os.open(folder / file.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            stack.callback(os.close, handle)
            os.posix_fallocate(handle, 0, file.size)  # a disk that is too small fails here
            _write_at(handle, file.header, 0)
            opened.append(handle)

        def leaf(section: Section) -> Digest:
            data = _values(theta[section.tensor], plan.dtype, section)
            _write_at(opened[section.file], data, section.place)
            return merkle.leaf(data)

        digest = _digest(leaf, plan, outer, told)
        for handle in opened:
            os.fsync(handle)
    return digest


def digest_of_files(folder: Path, plan: Plan, outer: OuterState, told: Told) -> Digest:
    """Return the digest of the values in an export's files. Raises OSError for files that do not exist, or are
    shorter."""
    with ExitStack() as stack:
        opened = []
        for file in plan.files:
            opened.append(os.open(folder / file.name, os.O_RDONLY))
            stack.callback(os.close, opened[-1])

        def leaf(section: Section) -> Digest:
            return merkle.leaf(_read_at(opened[section.file], section.size, section.place))

        return _digest(leaf, plan, outer, told)


def digest_of(theta: Mapping[str, Tensor], plan: Plan, outer: OuterState, told: Told) -> Digest:
    """Return the digest that an export of this theta has."""
    return _digest(lambda s: merkle.leaf(_values(theta[s.tensor], plan.dtype, s)), plan, outer, told)


def mapped(folder: Path, plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the values of an fp32 export, over its mapped files: read from disk on access."""
    if plan.dtype != "float32":
        raise ValueError("only an fp32 export holds theta")
    tensors = {}
    for file in plan.files:
        data = np.memmap(folder / file.name, dtype=np.uint8, mode="c", shape=(file.size,))
        for name, begin in file.begins.items():
            values = data[begin : begin + 4 * prod(shapes[name])].view("<f4").reshape(shapes[name])
            tensors[name] = torch.from_numpy(values)
    return tensors


def _digest(leaf: Callable[[Section], Digest], plan: Plan, outer: OuterState, told: Told) -> Digest:
    leaves: list[Digest] = []
    done, total = 0, sum(section.size for section in plan.sections)
    for section, found in zip(plan.sections, _parallel_map(leaf, plan.sections), strict=True):
        leaves.append(found)
        done += section.size
        told(done, total)
    return merkle.root([*leaves, merkle.leaf(outer.encode())])


def _parallel_map(leaf: Callable[[Section], Digest], sections: Iterable[Section]) -> Iterator[Digest]:
    """Yield the results in order, computed on as many threads as torch uses: hashing and files release the
    interpreter's lock."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            yield from pool.map(leaf, sections)
        finally:
            pool.shutdown(cancel_futures=True)


def _values(tensor: Tensor, dtype: Dtype, section: Section) -> memoryview:
    """Return a section's bytes: fp32 unchanged, bf16 rounded to nearest, ties to even."""
    kind = _TYPES[dtype][0]
    first, count = section.first // kind.itemsize, section.size // kind.itemsize
    part = tensor.detach().view(-1)[first : first + count].to(kind)
    data: memoryview = part.view(torch.uint8).numpy().data
    return data


def _write_at(handle: int, data: bytes | memoryview, place: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(handle, left, place)
        left, place = left[done:], place + done


def _read_at(handle: int, size: int, place: int) -> bytes:
    parts = []
    while size:
        part = os.pread(handle, size, place)
        if not part:
            raise OSError("a file of tensors is too short for its model")
        parts.append(part)
        size, place = size - len(part), place + len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]
