"""The files of a source of text, and the format of each. What they hold is read by murmur/data/reader.py."""

import json
import os
from collections.abc import Iterator
from glob import glob, has_magic
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from murmur.data.recipe import Source
from murmur.homes import expanded
from murmur.protocol.errors import ConfigError

BOTOCORE = "botocore"
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
    ".warc": "warc",
    ".wet": "warc",
    ".txt": "text",
    ".md": "text",
    ".ds": "ds",
    ".npy": "npy",
    ".bin": "bin",
}
"""By the ending of a file's name, a compressed one's without that. Those of `_WHOLE` are compressed inside."""
TOKENS = ("ds", "npy", "bin")
"""Formats of tokens that others have made (murmur/data/token_files.py)."""
_WHOLE = ("parquet", "arrow", *TOKENS)
_COMPANIONS = ((".idx", ".bin"), (".ds.index", ".ds"), (".ds.metadata", ".ds"))
"""Files that are read with another one, of the other ending."""
_GROWS = {"parquet": 3, "arrow": 1, BOTOCORE: 1}
_INFLATES = 4
"""Text is about so much longer than its file."""
_SHOWN = 3


class TextFile(NamedTuple):
    """One file. source: its source's number. name: within its source; the order of its documents follows from it. path:
    a local path or an address. num_bytes, stamp: change with its content."""

    source: int
    name: str
    path: str
    format: str
    num_bytes: int
    stamp: str

    @property
    def plain_name(self) -> str:
        """The name without the ending of a compressed file: compression changes no order."""
        return os.path.splitext(self.name)[0] if self.name.endswith(COMPRESSED) else self.name

    @property
    def is_tokens(self) -> bool:
        return self.format in TOKENS

    @property
    def text_bytes(self) -> int:
        """An estimate of the text in it."""
        packed = _INFLATES if self.name.endswith(COMPRESSED) else 1
        return self.num_bytes * packed * _GROWS.get(self.format, 1)


def files_of(number: int, source: Source) -> list[TextFile]:
    """Return the files of a source, by name. Raises ConfigError for a source that does not exist, and for files in a
    format that is not read."""
    found = _with_companions(sorted(_found(source.path)))
    if not found:
        raise ConfigError(f"{source.path} holds no files to build shards from")
    unknown = [name for name, *_ in found if _format(name) is None and source.path != BOTOCORE]
    if unknown:
        shown = ", ".join(unknown[:_SHOWN]) + (f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else "")
        alone = next((name for name in unknown for own, _ in _COMPANIONS if name.endswith(own)), None)
        if alone is not None:
            raise ConfigError(
                f"{source.path}: {alone} belongs to a file of tokens of the same name, which is not there"
            )
        raise ConfigError(
            f"{source.path}: no reader knows {shown}. Known endings: {', '.join(FORMATS)}, also with "
            f"{', '.join(COMPRESSED)}. Name the files to read by a pattern, such as 'FOLDER/**/*.jsonl'"
        )
    return [TextFile(number, name, path, _format(name) or BOTOCORE, size, stamp) for name, path, size, stamp in found]


def _with_companions(found: list[tuple[str, str, int, str]]) -> list[tuple[str, str, int, str]]:
    """Return the files without those that are read with another one, whose stamp then holds theirs."""
    stamps, others = {name: stamp for name, _, _, stamp in found}, set[str]()
    for name, _, _, stamp in found:
        for own, of in _COMPANIONS:
            main = name.removesuffix(own) + of
            if name.endswith(own) and main in stamps:
                stamps[main] += f" {stamp}"
                others.add(name)
    return [(name, path, size, stamps[name]) for name, path, size, _ in found if name not in others]


def _format(name: str) -> str | None:
    stem, ending = os.path.splitext(name.lower())
    packed = ending in COMPRESSED
    found = FORMATS.get(os.path.splitext(stem)[1] if packed else ending)
    return None if packed and found in _WHOLE else found


def _found(path: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield each file's name in the source, its path, size and stamp."""
    if path == BOTOCORE:
        yield BOTOCORE, BOTOCORE, 30 << 20, version(BOTOCORE)
        return
    if path.startswith("hf:") and not path.startswith("hf://"):
        yield from _hugging_face(path.removeprefix("hf:"))
        return
    if "://" in path:
        yield from _remote(path)
        return
    local = Path(str(expanded(path)))
    if local.is_dir():
        yield from ((str(file.relative_to(local)), *_facts(file)) for file in _walk(local))
    elif local.is_file():
        yield local.name, *_facts(local)
    elif has_magic(path):
        fixed = Path(*takewhile(lambda part: not has_magic(part), local.parts))
        for name in sorted(glob(str(local.relative_to(fixed)), root_dir=fixed, recursive=True)):
            if (fixed / name).is_file() and not _hidden(Path(name)):
                yield name, *_facts(fixed / name)
    else:
        raise ConfigError(
            f"no such source: {path!r}. Use {BOTOCORE}, a folder, a file, a pattern, hf:NAME, or an address such as "
            "s3://BUCKET/FOLDER"
        )


def _facts(file: Path) -> tuple[str, int, str]:
    stat = file.stat()
    return str(file.absolute()), stat.st_size, str(stat.st_mtime_ns)


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_SUCCESS")) for part in path.parts)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below, those behind links too, each folder once. Of a saved data set (`save_to_disk`), those
    that hold its rows."""
    seen = set[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        here = os.path.realpath(root)
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(name for name in folders if not _hidden(Path(name)))
        if "dataset_dict.json" in names:
            raise ConfigError(f"{root} holds several splits: name one, such as {Path(root) / 'train'}")
        if {"state.json", "dataset_info.json"} <= set(names):
            names = [each["filename"] for each in json.loads((Path(root) / "state.json").read_bytes())["_data_files"]]
        for name in sorted(names):
            file = Path(root) / name
            if not _hidden(Path(name)):
                if not file.is_file():
                    raise ConfigError(f"{file} is no file that can be read: remove it")
                yield file


def _remote(address: str) -> Iterator[tuple[str, str, int, str]]:
    from fsspec.core import url_to_fs

    from murmur.data import addresses

    addresses.register()
    try:
        system, path = url_to_fs(address)
        listed: dict[str, Any] = system.glob(path, detail=True) if has_magic(path) else system.find(path, detail=True)
    except (OSError, ValueError, ImportError) as fault:
        raise ConfigError(f"cannot list {address}: {fault}") from None
    base = path.split("*")[0].rpartition("/")[0] if has_magic(path) else path
    for at, facts in listed.items():
        name = at.removeprefix(base).lstrip("/") or at.rpartition("/")[2]
        if facts["type"] not in ("file", "directory"):
            raise ConfigError(f"{system.unstrip_protocol(at)} is neither a file nor a folder: name what it stands for")
        if facts["type"] == "file" and not _hidden(Path(name)):
            stamp = facts.get("ETag") or facts.get("etag") or facts.get("mtime") or facts.get("LastModified") or ""
            yield name, system.unstrip_protocol(at), int(facts["size"]), str(stamp)


def _hugging_face(name: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield the files of the training split of NAME or NAME:CONFIGURATION, each at the revision that is newest now."""
    from datasets import load_dataset_builder
    from fsspec.core import url_to_fs

    name, _, configuration = name.partition(":")
    try:
        data_files = load_dataset_builder(name, configuration or None).config.data_files
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot open the Hugging Face data set {name!r}: {fault}") from None
    if not data_files or "train" not in data_files:
        raise ConfigError(f"the Hugging Face data set {name!r} has no split 'train' of files")
    for path in map(str, data_files["train"]):
        system, at = url_to_fs(path)
        facts = system.info(at)
        yield path.rpartition("@")[2] if "://" in path else path, path, int(facts["size"] or 0), path
