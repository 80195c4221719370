"""Saved state: fp32 tensors in safetensors files and a JSON manifest, all named by their sha256. Never pickle.

Files may come from strangers: sizes are known beforehand, headers are capped, and only the expected names, shapes and
dtype pass; anything else is CheckpointCorrupt. Files are written whole and then renamed, so an existing file is
complete.

The model is a node's largest object, so it is never copied in memory here. Its files are hashed and written
concurrently, on as many threads as torch computes with.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from murmur.data.shards import Fetch
from murmur.files import whole
from murmur.protocol.errors import CheckpointCorrupt, InvalidMessage
from murmur.protocol.layout import Layout
from murmur.protocol.messages import U32, Hex32, Shape, canonical_json, from_hex, parse_as
from murmur.protocol.types import Digest
from murmur.training.sizes import FILE_BYTES
from sparseloco.outer import OuterState

Shapes = Mapping[str, tuple[int, ...]]
S = TypeVar("S")
T = TypeVar("T")

MAX_MANIFEST_BYTES = 2 << 20
_MOST_FACTS = 16
_LENGTH_BYTES = 8
_ITEM_BYTES = 4
_WRITE_BYTES = 16 << 20
"""Bytes hashed, and then written, at once."""


class GivenUp(Exception):
    """The save was stopped by its caller."""


class Damaged(CheckpointCorrupt):
    """A file does not have the digest in its name: the disk changed it, or it was not verified on arrival."""


@dataclass(frozen=True, slots=True)
class TensorState:
    """State to save: fp32 tensors on the CPU by name, and a few facts that fit in JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save(folder: Path, saved: TensorState, *, stopped: Callable[[], bool] = lambda: False) -> Digest:
    """Write tensors files and manifest under their digests; return the manifest's digest, by which `load` finds it.

    The manifest is written last. Saving the same state twice gives the same digests and files. Several threads call
    `stopped` before every 16 MiB; raises GivenUp when it returns True.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = [{name: saved.tensors[name] for name in group} for group in _groups(saved.tensors)]
    written = _parallel_map(lambda group: _write(folder, ".safetensors", _encoded(group), stopped), groups)
    files = [
        {"sha256": digest.hex(), "num_bytes": num_bytes, "tensors": list(group)}
        for group, (digest, num_bytes) in zip(groups, written, strict=True)
    ]
    digest, _ = _write(folder, ".json", [canonical_json({"version": 1, "facts": dict(saved.facts), "files": files})])
    return digest


def load(
    folder: Path, digest: Digest, shapes: Shapes, *, also: Shapes | None = None, fetch: Fetch | None = None
) -> TensorState:
    """Return the state whose manifest has `digest`, with exactly the tensors of `shapes`, and all or none of `also`;
    missing files are fetched.

    The tensors lie in the mapped files and are read from disk on access. Facts are returned unchecked: the caller
    validates them. Raises CheckpointCorrupt.
    """
    path = manifest_path(folder, digest)
    if fetch is not None and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fetch(digest, MAX_MANIFEST_BYTES, path)
    facts, files = _parse_manifest(bytes(_read(path, MAX_MANIFEST_BYTES, digest)))
    names = sorted(name for file in files for name in file.tensors)
    if also and names != sorted(shapes):
        shapes = {**shapes, **also}
    if names != sorted(shapes):
        raise CheckpointCorrupt(f"checkpoint {digest.hex()} does not hold this model's tensors, each once")
    for file in files:
        path = tensors_path(folder, file.digest)
        if fetch is not None and not path.exists():
            fetch(file.digest, _max_bytes({name: shapes[name] for name in file.tensors}), path)

    def read(file: _File) -> dict[str, Tensor]:
        expected = {name: shapes[name] for name in file.tensors}
        return load_tensors(tensors_path(folder, file.digest), expected, digest=file.digest)

    return TensorState({name: tensor for part in _parallel_map(read, files) for name, tensor in part.items()}, facts)


def blobs(folder: Path, digest: Digest) -> tuple[tuple[Digest, Path], ...]:
    """Return every file of a saved state: its tensors, then its manifest."""
    path = manifest_path(folder, digest)
    _, files = _parse_manifest(bytes(_read(path, MAX_MANIFEST_BYTES, digest)))
    return (*((file.digest, tensors_path(folder, file.digest)) for file in files), (digest, path))


def manifest_path(folder: Path, digest: Digest) -> Path:
    return folder / f"{digest.hex()}.json"


def tensors_path(folder: Path, digest: Digest) -> Path:
    return folder / f"{digest.hex()}.safetensors"


def load_tensors(path: Path, shapes: Shapes, *, digest: Digest) -> dict[str, Tensor]:
    """Return exactly the fp32 tensors of `shapes` from a safetensors file, over its mapped bytes. Writing to them
    changes neither the file nor other readers' view.

    Raises CheckpointCorrupt when the file is missing, larger than these tensors can be, of another digest, or has other
    tensors. The safetensors library accepts duplicate keys, overlaps and 100 MB headers, so the header is parsed here.
    """
    max_bytes = _max_bytes(shapes)
    data = _read(path, max_bytes, digest)
    header, begin = _parse_header(data, max_bytes - _num_bytes(shapes))
    if header.keys() != shapes.keys():
        odd = sorted(header.keys() ^ shapes.keys())
        raise CheckpointCorrupt(f"a tensors file has other tensors than expected; {len(odd)} differ")
    position = 0
    for name in sorted(header, key=lambda name: header[name][1:]):
        shape, first, end = header[name]
        if shape != shapes[name] or first != position or end != first + _ITEM_BYTES * prod(shape):
            raise CheckpointCorrupt(
                f"tensor {name!r} of a tensors file: shape {shape} at bytes {first} to {end}, expected {shapes[name]} "
                f"from byte {position}"
            )
        position = end
    if begin + position != len(data):
        raise CheckpointCorrupt(f"a tensors file has {len(data)} bytes, its header accounts for {begin + position}")
    return {name: _tensor(data, shape, begin + first) for name, (shape, first, _) in header.items()}


def _tensor(data: memoryview, shape: tuple[int, ...], first: int) -> Tensor:
    values = np.frombuffer(data, dtype="<f4", count=prod(shape), offset=first).reshape(shape)
    # The file's writer chooses where its data begins, so it may be unaligned.
    return torch.from_numpy(values if values.flags.aligned and values.flags.writeable else values.copy())


_Text = Annotated[str, Meta(max_length=256)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class _FileShape(Shape):
    sha256: Hex32
    num_bytes: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
    tensors: list[_Name]


class _ManifestShape(Shape):
    version: Literal[1]
    facts: Annotated[dict[_Name, bool | U32 | _Text | list[_Text]], Meta(max_length=_MOST_FACTS)]
    files: list[_FileShape]


@dataclass(frozen=True, slots=True)
class _File:
    digest: Digest
    tensors: tuple[str, ...]


def _parse_manifest(data: bytes) -> tuple[dict[str, Any], tuple[_File, ...]]:
    try:
        body = parse_as(data, _ManifestShape)
        files = tuple(_File(Digest(from_hex(file["sha256"])), tuple(file["tensors"])) for file in body["files"])
    except (InvalidMessage, ValueError) as fault:
        raise CheckpointCorrupt(f"a checkpoint's manifest is malformed: {fault}") from None
    return body["facts"], files


def _parse_header(data: memoryview, max_header_bytes: int) -> tuple[dict[str, tuple[tuple[int, ...], int, int]], int]:
    """Return name -> (shape, first byte, end) of every tensor, and the position where the data begins."""
    if len(data) < _LENGTH_BYTES:
        raise CheckpointCorrupt(f"a tensors file of {len(data)} bytes is cut short")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > max_header_bytes or _LENGTH_BYTES + length > len(data):
        raise CheckpointCorrupt(
            f"a tensors file claims a header of {length} bytes; at most {max_header_bytes} expected"
        )
    try:
        table = json.loads(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length]), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as fault:
        raise CheckpointCorrupt(f"the header of a tensors file is not JSON with unique keys: {fault}") from None
    if not isinstance(table, dict):
        raise CheckpointCorrupt("the header of a tensors file is not a table")
    return {name: _parse_entry(entry) for name, entry in table.items()}, _LENGTH_BYTES + length


def _parse_entry(entry: Any) -> tuple[tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"} or entry["dtype"] != "F32":
        raise CheckpointCorrupt("a tensor's entry in a tensors file is not dtype F32, shape, data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise CheckpointCorrupt("a tensor's shape or offsets in a tensors file are not lists of counts")
    return tuple(shape), offsets[0], offsets[1]


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key comes twice")
    return table


def _num_bytes(shapes: Shapes) -> int:
    return sum(_ITEM_BYTES * prod(shape) for shape in shapes.values())


def _max_bytes(shapes: Shapes) -> int:
    """Return the size of the data and of a header with room for every name (escaped at worst), shape and two
    offsets."""
    return _num_bytes(shapes) + 1024 + sum(256 + 6 * len(name) for name in shapes)


def _groups(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in sorted(tensors):
        num_bytes = tensors[name].numel() * _ITEM_BYTES
        if group and size + num_bytes > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += num_bytes
    if group:
        yield group


def _encoded(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file piece by piece: length of the header, header, data in order of name."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype != torch.float32:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; saved state is fp32")
        first, end = end, end + tensor.numel() * _ITEM_BYTES
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // _LENGTH_BYTES) * _LENGTH_BYTES)
    yield len(text).to_bytes(_LENGTH_BYTES, "little") + text
    for _, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous().numpy().astype("<f4", copy=False)
        data: memoryview = values.reshape(-1).view(np.uint8).data
        for first in range(0, len(data), _WRITE_BYTES):
            yield data[first : first + _WRITE_BYTES]


def _parallel_map(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Run the work on every item concurrently, results in order: hashing and writing release the interpreter's lock."""
    items = list(items)
    threads = min(torch.get_num_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def _read(path: Path, max_bytes: int, digest: Digest) -> memoryview:
    """Return a file's mapped bytes, if they are at most `max_bytes` and have this digest. Raises CheckpointCorrupt."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise CheckpointCorrupt(f"{path} is larger than the {max_bytes} bytes that it can hold")
            data = memoryview(mmap(file.fileno(), size, access=ACCESS_COPY) if size else b"")
    except FileNotFoundError:
        raise CheckpointCorrupt(f"{path} is missing") from None
    if sha256(data).digest() != digest:
        raise Damaged(f"{path} does not hash to {digest.hex()}; delete it to get it from another source")
    return data


def _write(
    folder: Path, suffix: str, pieces: Iterable[bytes | memoryview], stopped: Callable[[], bool] = lambda: False
) -> tuple[Digest, int]:
    """Write a file under its sha256, whole or not at all; return its digest and size."""
    hashed = sha256()
    with whole(folder, lambda: f"{hashed.hexdigest()}{suffix}", mode=0o600) as file:
        for piece in pieces:
            if stopped():
                raise GivenUp
            hashed.update(piece)
            file.write(piece)
        size = file.tell()
    return Digest(hashed.digest()), size


def parse_outer(facts: Mapping[str, Any], layout: Layout) -> OuterState:
    """Return the outer state from a checkpoint's facts. Raises CheckpointCorrupt."""
    try:
        rounds, averages = facts["rounds"], facts["averages"]
        values = [float.fromhex(text) for text in [*averages, facts["whole"]]]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CheckpointCorrupt("a checkpoint's outer state is malformed") from None
    in_range = all(0.0 <= value < float("inf") for value in values)
    if type(rounds) is not int or not 0 <= rounds < 1 << 32 or len(values) != len(layout.tensors) + 1 or not in_range:
        raise CheckpointCorrupt("a checkpoint's outer state does not belong to this layout")
    return OuterState(rounds, tuple(values[:-1]), values[-1])


def require_shapes(tensors: Mapping[str, Tensor], shapes: Shapes) -> None:
    """Raise CheckpointCorrupt for other names, shapes or dtypes than fp32."""
    if tensors.keys() != shapes.keys():
        raise CheckpointCorrupt("saved state has other tensors than this model")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or tensors[name].dtype != torch.float32:
            raise CheckpointCorrupt(f"saved tensor {name!r} is not fp32 of shape {shape}")
