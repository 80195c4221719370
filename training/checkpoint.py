"""Saved state: fp32 tensors in safetensors files and a JSON manifest, all under their sha256. Never pickle.

Files may come from strangers: sizes are known beforehand, headers are capped, and only the expected names, shapes and
the one dtype pass; anything else is CheckpointCorrupt. Files are written whole and renamed, so one that exists is
complete.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from protocol.errors import CheckpointCorrupt, InvalidMessage
from protocol.messages import canonical_json, parse_json
from protocol.types import DIGEST_BYTES, Digest
from training.shards import Fetch

Shapes = Mapping[str, tuple[int, ...]]

FILE_BYTES = 4 << 30
"""Tensors are grouped, in order of name, into files of at most this size; a larger tensor has a file of its own."""

MAX_MANIFEST_BYTES = 16 << 20
_LENGTH_BYTES = 8
_ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Saved:
    """Something worth saving: fp32 tensors on the CPU by name, and a few facts that JSON can hold."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save(folder: Path, saved: Saved) -> Digest:
    """Write tensors files and manifest under their digests; returns the manifest's, by which `load` finds it.

    The manifest is written last. Saving the same state twice gives the same digests and the same files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for group in _groups(saved.tensors):
        data = _encode({name: saved.tensors[name] for name in group})
        digest = Digest(sha256(data).digest())
        _write(tensors_path(folder, digest), data)
        files.append({"sha256": digest.hex(), "num_bytes": len(data), "tensors": group})
    manifest = canonical_json({"version": 1, "facts": dict(saved.facts), "files": files})
    digest = Digest(sha256(manifest).digest())
    _write(manifest_path(folder, digest), manifest)
    return digest


def load(folder: Path, digest: Digest, shapes: Shapes, *, fetch: Fetch | None = None) -> Saved:
    """The state whose manifest has `digest`, with exactly the tensors of `shapes`; missing files are fetched.

    Facts are returned as they stand: their reader judges them. Raises CheckpointCorrupt.
    """
    path = manifest_path(folder, digest)
    if fetch is not None and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fetch(digest, MAX_MANIFEST_BYTES, path)
    facts, files = _parse_manifest(_read(path, MAX_MANIFEST_BYTES, digest))
    if sorted(name for file in files for name in file.tensors) != sorted(shapes):
        raise CheckpointCorrupt(f"checkpoint {digest.hex()} does not hold this model's tensors, each once")
    tensors: dict[str, Tensor] = {}
    for file in files:
        expected = {name: shapes[name] for name in file.tensors}
        path = tensors_path(folder, file.digest)
        if fetch is not None and not path.exists():
            fetch(file.digest, _max_bytes(expected), path)
        tensors |= load_tensors(path, expected, digest=file.digest)
    return Saved(tensors, facts)


def blobs(folder: Path, digest: Digest) -> tuple[tuple[Digest, Path], ...]:
    """Every file of a saved state, tensors first, the manifest last: the order in which to publish them."""
    path = manifest_path(folder, digest)
    _, files = _parse_manifest(_read(path, MAX_MANIFEST_BYTES, digest))
    return (*((file.digest, tensors_path(folder, file.digest)) for file in files), (digest, path))


def manifest_path(folder: Path, digest: Digest) -> Path:
    return folder / f"{digest.hex()}.json"


def tensors_path(folder: Path, digest: Digest) -> Path:
    return folder / f"{digest.hex()}.safetensors"


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Digest:
    """Write fp32 tensors to one safetensors file; returns its sha256. The same tensors give the same bytes."""
    data = _encode(tensors)
    _write(path, data)
    return Digest(sha256(data).digest())


def load_tensors(source: Path | bytes, shapes: Shapes, *, digest: Digest | None = None) -> dict[str, Tensor]:
    """Exactly the fp32 tensors of `shapes` from a safetensors file or its bytes, as fresh CPU tensors.

    Raises CheckpointCorrupt when the file is missing, larger than these tensors can be, of another digest, or holds
    anything but these tensors. The safetensors library accepts duplicate keys, overlaps and 100 MB headers; the header
    is therefore read here.
    """
    max_bytes = _max_bytes(shapes)
    data = _read(source, max_bytes, digest) if isinstance(source, Path) else source
    if len(data) > max_bytes:
        raise CheckpointCorrupt(f"a tensors file of {len(data)} bytes; these tensors take at most {max_bytes}")
    if digest is not None and sha256(data).digest() != digest:
        raise CheckpointCorrupt(f"a tensors file does not hash to {digest.hex()}")
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
    return {
        name: torch.from_numpy(
            np.frombuffer(data, dtype="<f4", count=prod(shape), offset=begin + first).reshape(shape).copy()
        )
        for name, (shape, first, _) in header.items()
    }


@dataclass(frozen=True, slots=True)
class _File:
    digest: Digest
    tensors: tuple[str, ...]


def _parse_manifest(data: bytes) -> tuple[dict[str, Any], tuple[_File, ...]]:
    try:
        body = parse_json(data)
        if body.keys() != {"version", "facts", "files"} or body["version"] != 1:
            raise InvalidMessage("other fields than version 1's")
        if not isinstance(body["facts"], dict) or not isinstance(body["files"], list):
            raise InvalidMessage("facts or files have the wrong type")
        return body["facts"], tuple(_parse_file(entry) for entry in body["files"])
    except InvalidMessage as fault:
        raise CheckpointCorrupt(f"a checkpoint's manifest is malformed: {fault}") from None


def _parse_file(entry: Any) -> _File:
    if not isinstance(entry, dict) or entry.keys() != {"sha256", "num_bytes", "tensors"}:
        raise InvalidMessage("a file's fields are not sha256, num_bytes, tensors")
    digest, names = entry["sha256"], entry["tensors"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidMessage("a file's tensors are not a list of names")
    if not isinstance(digest, str) or len(digest) != 2 * DIGEST_BYTES or set(digest) - set("0123456789abcdef"):
        raise InvalidMessage("a file's sha256 is not 64 lower-case hex digits")
    return _File(Digest(bytes.fromhex(digest)), tuple(names))


def _parse_header(data: bytes, max_header_bytes: int) -> tuple[dict[str, tuple[tuple[int, ...], int, int]], int]:
    """Name -> (shape, first byte, end) of every tensor, and where the data begins."""
    if len(data) < _LENGTH_BYTES:
        raise CheckpointCorrupt(f"a tensors file of {len(data)} bytes is cut short")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > max_header_bytes or _LENGTH_BYTES + length > len(data):
        raise CheckpointCorrupt(
            f"a tensors file claims a header of {length} bytes; at most {max_header_bytes} expected"
        )
    try:
        table = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length], object_pairs_hook=_unique)
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
    """Data, and a header with room for every name (escaped at worst), shape and two offsets."""
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


def _encode(tensors: Mapping[str, Tensor]) -> bytes:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; saved state is fp32")
    data: bytes = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def _read(path: Path, max_bytes: int, digest: Digest | None) -> bytes:
    """A file's bytes, never more than `max_bytes` of them. Raises CheckpointCorrupt."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CheckpointCorrupt(f"{path} is missing") from None
    if len(data) > max_bytes:
        raise CheckpointCorrupt(f"{path} is larger than the {max_bytes} bytes that it can hold")
    if digest is not None and sha256(data).digest() != digest:
        raise CheckpointCorrupt(f"{path} does not hash to {digest.hex()}; delete it to get it from another source")
    return data


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, also when the machine loses power: data reach the disk before the name does."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
