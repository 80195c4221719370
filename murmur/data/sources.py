"""Sources of a data set's text: botocore's documentation, files, a folder, a Hugging Face data set.

Every source is a stream of documents in a fixed order, so the same source on disk always gives the same shards. Only
the shard builder uses this module; `datasets` is imported only when a source needs it.
"""

import gzip
import html
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from murmur.protocol.errors import ConfigError

PIECE_BYTES = 16 << 10
"""Files are cut into documents of about this size at line ends, so that a split holds out pieces of every file,"""
LINE_BYTES = 1 << 20
""".. or within a line that is longer than this: no file is ever held whole."""

_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s+")


def documents(source: str) -> Iterator[str]:
    """Return the non-empty texts of `botocore`, a folder, a file, or `hf:NAME`. Raises ConfigError for an unknown
    source."""
    if source == "botocore":
        return _botocore()
    if source.startswith("hf:"):
        return _hugging_face(source.removeprefix("hf:"))
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path)))
        if not files:
            raise ConfigError(f"the folder {path} holds no files to build shards from")
        return (piece for file in files for piece in _pieces(file))
    if path.is_file():
        return _pieces(path)
    raise ConfigError(f"no such source: {source!r}. Use botocore, a folder, a text file, or hf:NAME")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _pieces(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            while piece := lines.read(PIECE_BYTES) + lines.readline(LINE_BYTES):
                if piece.strip():
                    yield piece
    except UnicodeDecodeError as fault:
        raise ConfigError(
            f"{file} is not UTF-8 text ({fault.reason} at byte {fault.start}); convert or remove it"
        ) from None
    except OSError as fault:
        raise ConfigError(f"cannot read {file}: {fault.strerror}") from None


def _botocore() -> Iterator[str]:
    """Yield one document per service: the unique documentation strings of its newest API version, tags stripped.

    Services come in the order of their names' sha256: any prefix of the stream is a fair sample.
    """
    spec = find_spec("botocore")
    if spec is None or spec.origin is None:
        raise ConfigError("the source 'botocore' needs the package botocore: pip install boto3")
    services = sorted(
        (folder for folder in (Path(spec.origin).parent / "data").iterdir() if folder.is_dir()),
        key=lambda folder: sha256(folder.name.encode()).digest(),
    )
    seen: set[str] = set()
    for service in services:
        versions = sorted(service.glob("*/service-2.json.gz"))
        if not versions:
            continue
        texts: list[str] = []
        for text in _documentation(json.loads(gzip.decompress(versions[-1].read_bytes()))):
            plain = _SPACE.sub(" ", html.unescape(_TAG.sub(" ", text))).strip()
            if plain and plain not in seen:
                seen.add(plain)
                texts.append(plain)
        if texts:
            yield "\n".join(texts)


def _documentation(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _documentation(value)
    elif isinstance(node, list):
        for value in node:
            yield from _documentation(value)


def _hugging_face(name: str) -> Iterator[str]:
    """Yield the `text` column of the training split, streamed; NAME or NAME:CONFIGURATION."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError("the source hf: needs the package datasets: pip install datasets") from None
    name, _, configuration = name.partition(":")
    try:
        rows = load_dataset(name, configuration or None, split="train", streaming=True)
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot open the Hugging Face data set {name!r}: {fault}") from None
    for row in rows:
        text = row.get("text")
        if not isinstance(text, str):
            raise ConfigError(f"the data set {name!r} has no text column 'text'; its columns are {sorted(row)}")
        if text.strip():
            yield text
