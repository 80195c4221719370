"""Documents of files of token ids that others have made, read from their beginning to their end.

`.ds` is datatrove's, `.bin` with an `.idx` Megatron's: both say where documents end. A `.npy` and any other `.bin` are
ids one after the other (nanoGPT, llm.c), in which a token ends each document, or begins it.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from murmur.data.tokenizer import Ids

_CHUNK_TOKENS = 1 << 22
_MEGATRON = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LLM_C = {20240520: "<u2", 20240801: "<u4"}
"""First number of a header of 256, and the type of the ids behind it."""
_LLM_C_HEADER_BYTES = 1024

_Array = NDArray[Any]
Open = Callable[[str], BinaryIO]
"""Opens a file of the folder by its name; raises FileNotFoundError."""


def documents(name: str, form: str, open_file: Open, end: int, width: int) -> Iterator[Ids]:
    """Yield the ids of each document, with whatever begins and ends it there. end: the token between documents, where
    only that says so. width: bytes of an id, where nothing in the file says so. Raises ValueError for a file that is
    not such a one, or not whole."""
    if form == "ds":
        yield from _datatrove(name, open_file)
    elif form == "npy":
        with open_file(name) as file:
            yield from _separated(_npy(file), end)
    else:
        try:
            index = open_file(name.removesuffix(".bin") + ".idx")
        except FileNotFoundError:
            with open_file(name) as file:
                yield from _separated(_raw(file, width), end)
        else:
            with index:
                yield from _megatron(name, index, open_file)


def _datatrove(name: str, open_file: Open) -> Iterator[Ids]:
    try:
        with open_file(f"{name}.index") as file:
            ends = _all(file, "<u8").astype(np.int64)
    except FileNotFoundError:
        raise ValueError(f"{name}.index, which says where documents end, is missing") from None
    with open_file(name) as file:
        num_bytes = _size(file)
        if (np.diff(ends, prepend=0) < 0).any():
            raise ValueError("its index does not ascend")
        total = int(ends[-1]) if len(ends) else 0
        if num_bytes not in (2 * total, 4 * total):
            raise ValueError(f"its index says {total} tokens, and it has {num_bytes} bytes")
        dtype = "<u2" if num_bytes == 2 * total else "<u4"
        for length in np.diff(ends, prepend=0).tolist():
            yield _ids(_exactly(file, length, dtype))


def _megatron(name: str, index: BinaryIO, open_file: Open) -> Iterator[Ids]:
    head = index.read(34)
    if head[:9] != _MEGATRON or head[9:17] != (1).to_bytes(8, "little") or head[17] not in _MEGATRON_TYPES:
        raise ValueError("its .idx is not Megatron's, version 1, with whole numbers")
    dtype = _MEGATRON_TYPES[head[17]]
    sequences, marks = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    if _size(index) != 34 + 12 * sequences + 8 * marks:
        raise ValueError("its .idx is cut, or holds more than documents")
    lengths, places = _exactly(index, sequences, "<i4"), _exactly(index, sequences, "<i8")
    ends = _exactly(index, marks, "<i8")
    if (lengths < 0).any() or (np.diff(ends) < 0).any() or (marks and (ends[0] or ends[-1] != sequences)):
        raise ValueError("its .idx contradicts itself")
    with open_file(name) as file:
        size = np.dtype(dtype).itemsize
        reached = np.cumsum(lengths.astype(np.int64) * size)
        if int(reached[-1] if len(reached) else 0) != _size(file):
            raise ValueError("its size is not what its .idx says")
        if not np.array_equal(places, reached - lengths.astype(np.int64) * size):
            raise ValueError("its .idx has sequences that overlap, or in another order than they stand")
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            parts = [np.empty(0, np.uint32)]
            for number in range(first, last):
                file.seek(int(places[number]))
                parts.append(_ids(_exactly(file, int(lengths[number]), dtype)))
            yield np.concatenate(parts)


def _npy(file: BinaryIO) -> Iterator[_Array]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(f"it holds {dtype} of shape {shape}, and not one row of whole numbers")
    left = shape[0]
    if _size(file) - file.tell() != left * dtype.itemsize:
        raise ValueError("its size is not what its header says")
    while left:
        yield _exactly(file, min(left, _CHUNK_TOKENS), dtype)
        left -= min(left, _CHUNK_TOKENS)


def _raw(file: BinaryIO, width: int) -> Iterator[_Array]:
    head = file.read(12)
    dtype, begin = _LLM_C.get(int.from_bytes(head[:4], "little"), f"<u{width}"), 0
    if int.from_bytes(head[:4], "little") in _LLM_C:
        begin = _LLM_C_HEADER_BYTES
    left, rest = divmod(_size(file) - begin, np.dtype(dtype).itemsize)
    if rest or left < 0 or (begin and int.from_bytes(head[8:12], "little") != left):
        raise ValueError("its size is not that of so many ids: it is cut, or of another type (--dtype)")
    file.seek(begin)
    while left:
        chunk = _exactly(file, min(left, _CHUNK_TOKENS), dtype)
        if dtype == "<u2" and len(chunk) > 2 and not chunk[1::2].any():
            raise ValueError("each second id in it is 0: give --dtype uint32")
        yield chunk
        left -= len(chunk)


def _separated(chunks: Iterator[_Array], end: int) -> Iterator[Ids]:
    """Yield what stands up to each `end`, and what is left behind the last one."""
    held, found = list[Ids](), False
    for chunk in chunks:
        ids, begin = _ids(chunk), 0
        for place in np.flatnonzero(ids == end).tolist():
            piece = np.concatenate([*held, ids[begin : place + 1]])
            if found or len(piece) > 1:  # else documents begin with it
                yield piece
            found = True
            held, begin = [], place + 1
        held.append(ids[begin:])
    if not found and not held:
        raise ValueError("it is empty")
    if not found:
        raise ValueError(f"no token {end} in it ends a document: name the right one with --end")
    if sum(map(len, held)):
        yield np.concatenate(held)


def _ids(found: _Array) -> Ids:
    """Raises ValueError for a number that can be no id."""
    if found.dtype.kind == "i" and len(found) and int(found.min()) < 0:
        raise ValueError(f"it holds {int(found.min())}, which is no id")
    if found.dtype.itemsize > 4 and len(found) and int(found.max()) >= 1 << 32:
        raise ValueError(f"it holds {int(found.max())}, which is no id")
    return found.astype(np.uint32)


def _size(file: BinaryIO) -> int:
    at = file.tell()
    found = file.seek(0, 2)
    file.seek(at)
    return found


def _all(file: BinaryIO, dtype: Any) -> _Array:
    data = file.read()
    if len(data) % np.dtype(dtype).itemsize:
        raise ValueError("its index is cut")
    return np.frombuffer(data, dtype)


def _exactly(file: BinaryIO, count: int, dtype: Any) -> _Array:
    data = file.read(count * np.dtype(dtype).itemsize)
    if len(data) != count * np.dtype(dtype).itemsize:
        raise ValueError("it is cut")
    return np.frombuffer(data, dtype)
