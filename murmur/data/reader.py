"""Documents of the files of a data set: the readers are datatrove's, and what cannot be used is counted.

A reader that meets a bad row would pass over it, or end the file there, with a line in a log. Here each is counted by
its kind, and the first of a kind is shown.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson
import pyarrow
from datatrove.data import Document, DocumentsPipeline
from datatrove.io import DataFolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers.base import BaseDiskReader
from datatrove.pipeline.readers.ipc import IpcReader
from datatrove.pipeline.readers.parquet import ParquetReader
from warcio.archiveiterator import ArchiveIterator

from murmur.data import addresses, token_files
from murmur.data.botocore_text import documentation
from murmur.data.job import Job
from murmur.data.sources import BOTOCORE, TextFile
from murmur.protocol.errors import ConfigError

addresses.register()

_BATCH_ROWS = 64
"""Rows of a columnar file that are held at once: each may be long."""
_MORE = "\0"
"""Column of a CSV row's fields beyond the header."""
_ARROW_MAGIC = b"ARROW1"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class Bad:
    """Rows that could not be used: how many of each source and kind, and the first of each, in words. By source:
    `changed`, files whose byte order mark or carriage returns were kept out; `rows`, all rows; `unknown`, tokens that
    stand for text that the tokenizer does not know; `reframed`, documents of others' tokens that began or ended
    otherwise."""

    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    first: dict[tuple[int, str], str] = field(default_factory=dict)
    changed: Counter[int] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    reframed: Counter[int] = field(default_factory=Counter)

    def note(self, file: TextFile, row: int, kind: str, detail: str = "") -> None:
        self.counts[file.source, kind] += 1
        self.first.setdefault((file.source, kind), f"{file.path}, row {row + 1}{detail}")


class _Folder(DataFolder):  # type: ignore[misc]
    """Files of a folder or store. Text is UTF-8 whatever this machine's language; bytes that are not become surrogates,
    which no document may hold. All members and frames of a compressed file are read."""

    def open(self, path: str, mode: str = "rb", compression: str | None = "infer", **_: Any) -> Any:
        opened = super().open(path, "rb", compression=None)
        data = _unpacked(path, opened) if compression is not None else opened
        return data if "b" in mode else io.TextIOWrapper(data, "utf-8-sig", "surrogateescape", newline="")


class _Gzip(gzip.GzipFile):
    """A cut file is an OSError: warcio takes an EOFError for the end."""

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except EOFError as fault:
            raise OSError(str(fault)) from None


def _unpacked(path: str, data: Any) -> Any:
    match path.lower().rpartition(".")[2]:
        case "gz":
            return _Gzip(fileobj=data)
        case "zst":
            return io.BufferedReader(pyarrow.CompressedInputStream(data, "zstd"), 1 << 20)
        case "bz2":
            return bz2.BZ2File(data)
        case "xz":
            return lzma.LZMAFile(data)
    return data


class _Broken(str):
    """The kind of a row that could not be read."""

    __slots__ = ()


class _Lines(BaseDiskReader):  # type: ignore[misc]
    """JSON lines. datatrove's reader would end a file at a bad byte and pass over a bad line, without a count."""

    def read_file(self, filepath: str) -> DocumentsPipeline:
        with self.data_folder.open(filepath, "rb") as lines:
            for row, line in enumerate(lines):
                if not (line := line.removeprefix(b"\xef\xbb\xbf") if row == 0 else line).strip():
                    continue
                try:
                    data = orjson.loads(line)
                except orjson.JSONDecodeError:
                    data = _what_is_wrong(line)
                document = self.get_document_from_dict(data, filepath, row)
                line = data = b""  # they may be long, and this stands still while the text is used
                if document is not None:
                    yield document


def _what_is_wrong(line: bytes) -> Any:
    """Return the kind of a line that is not JSON; what Python reads in it, where that is wider."""
    try:
        return json.loads(line)  # NaN, and lone surrogates, which are seen to later
    except UnicodeDecodeError:
        return _Broken("bad coding")
    except (ValueError, RecursionError):
        return _Broken("not JSON" if line.endswith(b"\n") else "cut")


class _Texts(BaseDiskReader):  # type: ignore[misc]
    """A file is a document. `changed` counts those whose byte order mark or carriage returns are kept out."""

    def __init__(self, folder: DataFolder, changed: Counter[int], source: int) -> None:
        super().__init__(folder)
        self.changed, self.source = changed, source

    def read_file(self, filepath: str) -> DocumentsPipeline:
        with self.data_folder.open(filepath, "rb") as file:
            data = file.read()
        plain = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
        self.changed[self.source] += plain != data
        document = self.get_document_from_dict({"text": plain.decode(errors="surrogateescape")}, filepath, 0)
        if document is not None:
            yield document


class _Csv(BaseDiskReader):  # type: ignore[misc]
    """datatrove's reader takes a broken quote, and fields beyond the header, without a word."""

    def read_file(self, filepath: str) -> DocumentsPipeline:
        with self.data_folder.open(filepath, "r") as file:
            rows = csv.DictReader(file, restkey=_MORE, strict=True)
            if len(set(rows.fieldnames or ())) < len(rows.fieldnames or ()):
                raise ValueError("two of its columns have one name")
            for row, data in enumerate(rows):
                broken = _Broken("more fields than columns") if _MORE in data else data
                if (document := self.get_document_from_dict(broken, filepath, row)) is not None:
                    yield document


class _Wet(BaseDiskReader):  # type: ignore[misc]
    """Records of plain text, as a crawl's WET files hold them. datatrove's reader guesses kinds and codings, and passes
    over what it does not like. Pages as HTML are no text: taking their marks for it would be silently wrong."""

    def read_file(self, filepath: str) -> DocumentsPipeline:
        with self.data_folder.open(filepath, "rb") as file:
            for row, record in enumerate(ArchiveIterator(file)):
                if record.rec_type in ("response", "resource"):
                    raise ConfigError(
                        f"{filepath} holds pages, not their text: extract it first (datatrove's Trafilatura), or give "
                        "the crawl's .wet files"
                    )
                data = record.content_stream().read()
                if len(data) != int(record.rec_headers.get_header("Content-Length") or -1):
                    raise OSError("its last record is cut")
                if record.rec_type != "conversion":
                    continue
                text = {"text": data.decode(errors="surrogateescape")}
                if (document := self.get_document_from_dict(text, filepath, row)) is not None:
                    yield document


class Reader(PipelineStep):  # type: ignore[misc]
    """The first step of a pipeline: reads a task's files. `bad` counts for that task. Where a file holds tokens, a
    document has no text, but `ids` among its metadata: without what begins and ends it."""

    type, name = "reader", "text of many files"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.bad = Bad()

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        left: dict[int, int] = {}
        self.bad = Bad()
        for number in self.job.tasks[rank]:
            file = self.job.files[number]
            limit = self.job.recipe.sources[file.source].limit_bytes
            documents = self.documents(file)
            yield from documents if limit is None else _limited(documents, left, file.source, limit)

    def documents(self, file: TextFile) -> Iterator[Document]:
        """Yield the usable documents of a file."""
        text_key = self.job.recipe.sources[file.source].text_key
        if file.is_tokens:
            yield from self._of_tokens(file)
            return
        if file.format == BOTOCORE:
            for row, text in enumerate(documentation()):
                yield Document(text=text, id=str(row), metadata={"file": file})
            return
        folder, _, name = file.path.rpartition("/")
        reader = _reader(file, _Folder(folder or "/"), text_key, self.bad)
        rows = 0

        def adapted(_: Any, data: Any, path: str, id_in_file: int | str) -> dict[str, Any]:
            nonlocal rows
            row, rows = rows, rows + 1
            self.bad.rows[file.source] += 1
            text = data.get(text_key) if isinstance(data, dict) else None
            kind, detail = _fault(data, text_key)
            if kind:
                self.bad.note(file, row, kind, detail)
                return {"text": ""}
            return {"text": text, "id": str(row), "metadata": {"file": file}}

        reader.adapter = adapted.__get__(reader)
        reader.add_file_path, reader._empty_warning = False, True
        try:
            yield from reader.read_file(name)
        except (OSError, EOFError, ValueError, lzma.LZMAError, csv.Error) as fault:
            _refuse(file, fault)
        except Exception as fault:
            if type(fault).__module__.startswith(("pyarrow", "warcio", "zlib")):
                _refuse(file, fault)
            raise

    def _of_tokens(self, file: TextFile) -> Iterator[Document]:
        codec, dtype = self.job.open_tokenizer(), self.job.recipe.sources[file.source].dtype
        width = codec.token_bytes if dtype is None else 2 if dtype == "uint16" else 4
        folder, _, name = file.path.rpartition("/")
        opened = _Folder(folder or "/").open
        try:
            for row, ids in enumerate(token_files.documents(name, file.format, opened, codec.end, width)):
                if len(ids) and int(ids.max()) >= (codec.own or codec.vocabulary):
                    raise ValueError(f"it holds the id {ids.max()}, and the tokenizer's are below {codec.own}")
                self.bad.rows[file.source] += 1
                text = codec.text(ids)
                if not len(text):
                    self.bad.note(file, row, "empty")
                    continue
                self.bad.reframed[file.source] += len(ids) - len(text) != 1 + (codec.bos is not None)
                yield Document(text="", id=str(row), metadata={"file": file, "ids": text})
        except (OSError, ValueError) as fault:
            raise ConfigError(f"{file.path} cannot be used: {fault}") from None


def _refuse(file: TextFile, fault: Exception) -> NoReturn:
    """How much of a broken file is lost is not known: so the build ends."""
    raise ConfigError(f"{file.path} cannot be read to its end ({fault}): get it again, or remove it") from None


def _reader(file: TextFile, folder: DataFolder, text_key: str, bad: Bad) -> BaseDiskReader:
    match file.format:
        case "jsonl":
            return _Lines(folder)
        case "parquet":
            return ParquetReader(folder, batch_size=_BATCH_ROWS, text_key=text_key)
        case "csv":
            csv.field_size_limit(sys.maxsize)
            return _Csv(folder)
        case "arrow":
            with folder.open(file.path.rpartition("/")[2]) as begin:
                return IpcReader(folder, stream=begin.read(len(_ARROW_MAGIC)) != _ARROW_MAGIC)
        case "warc":
            return _Wet(folder)
    return _Texts(folder, bad.changed, file.source)


def _fault(data: Any, text_key: str) -> tuple[str, str]:
    """Return the kind of a row that cannot be used, "" for one that can; and what is to be said about the first."""
    if isinstance(data, _Broken):
        return str(data), ""
    if not isinstance(data, dict):
        return "not an object", ": JSON lines are read, an object in each"
    if text_key not in data:
        return "no text", f": it has no {text_key!r}, but {', '.join(map(str, list(data)[:20]))}; see --text-key"
    text = data[text_key]
    if text is None:
        return "null", ""
    if not isinstance(text, str):
        return "not a string", f": {type(text).__name__}"
    if not text or text.isspace():
        return "empty", ""
    if _SURROGATE.search(text):
        return "bad coding", ""
    return ("null characters", ": it may be UTF-16, or no text") if "\0" in text else ("", "")


def _limited(documents: Iterator[Document], left: dict[int, int], source: int, limit: int) -> Iterator[Document]:
    left.setdefault(source, limit)
    for document in documents:
        if left[source] <= 0:
            return
        data = document.text.encode()
        # By characters: the last document may end a few bytes early, never in the middle of a character.
        document.text = data[: left[source]].decode(errors="ignore")
        left[source] -= len(data)
        if document.text:
            yield document
