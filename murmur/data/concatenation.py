"""Concatenation of several data sets into one: a run that continues with another mix trains on later pages."""

import os
import shutil
from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path

from murmur.data.index import INDEX, Index, ShardEntry
from murmur.data.job import BUILDING
from murmur.data.place import alone
from murmur.data.shards import Shards
from murmur.files import PARTIAL, whole, write
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest


def join(folders: Sequence[Path], out: Path) -> Digest:
    """Write a data set under `out` of these data sets' tokens, in this order, in both splits; return its index's
    digest.

    Files are hard links where the disk supports them, else copies. What a join that was killed has left is replaced.
    Raises ConfigError for a folder without a data set, a damaged shard, one that already holds another or in which one
    is being made, and data sets of different tokenizers.
    """
    with alone(out):
        if (out / INDEX).exists():
            raise ConfigError(f"{out} already holds a data set; choose another folder or delete it")
        if (out / BUILDING).exists():
            raise ConfigError(f"{out} holds an unfinished build: choose another folder, or delete {out / BUILDING}")
        return _join(folders, out)


def _join(folders: Sequence[Path], out: Path) -> Digest:
    opened = [Shards.open(folder) for folder in folders]
    for each in opened:
        each.held_out.verify()
        each.train.verify()
    indices = [each.index for each in opened]
    first = indices[0]
    for folder, index in zip(folders, indices, strict=True):
        if _tokens_of(index) != _tokens_of(first):
            raise ConfigError(f"{folder} was built with another tokenizer than {folders[0]}: build it again")
    for left in (*out.glob("train-*"), *out.glob("held-out-*"), *out.glob(f"*{PARTIAL}")):
        left.unlink()
    for name in first.tokenizer_files:
        _place(folders[0] / name, out / name)
    joined = first.model_copy(
        update={
            "train": _joined("train", folders, [index.train for index in indices], out),
            "held_out": _joined("held-out", folders, [index.held_out for index in indices], out),
            "sources": tuple(source for index in indices for source in index.sources),
        }
    )
    data = joined.to_bytes()
    write(out / INDEX, data)
    return Digest(sha256(data).digest())


def _tokens_of(index: Index) -> tuple[object, ...]:
    """Return the fields that must be equal in all data sets."""
    return index.tokenizer, index.tokenizer_config, index.vocabulary, index.dtype, index.bos, index.end


def _joined(
    split: str, folders: Sequence[Path], entries: Sequence[tuple[ShardEntry, ...]], out: Path
) -> tuple[ShardEntry, ...]:
    """Return one split's entries under new names, with their files in place."""
    number, found = count(), list[ShardEntry]()
    for folder, own in zip(folders, entries, strict=True):
        for entry in own:
            named = entry.model_copy(update={"file": f"{split}-{next(number):05d}.npy"})
            _place(folder / entry.file, out / named.file)
            _place(folder / entry.leaves_file, out / named.leaves_file)
            found.append(named)
    return tuple(found)


def _place(source: Path, target: Path) -> None:
    if not source.exists():
        raise ConfigError(f"{source} is missing; build the data set again")
    target.unlink(missing_ok=True)  # of a join that was killed, perhaps of others
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without hard links
        with source.open("rb") as read, whole(target.parent, target.name) as file:
            shutil.copyfileobj(read, file, 1 << 20)
