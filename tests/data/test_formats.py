"""Text in the formats that people have it in, with rows that cannot be used: each is read whole, or counted, or refused
by name."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from warcio.warcwriter import WARCWriter

from murmur.cli.main import main
from murmur.data.build import build
from murmur.data.place import place_of
from murmur.data.recipe import Source, made, read
from murmur.data.shards import Shards
from murmur.data.sources import files_of
from murmur.protocol.errors import ConfigError
from tests.data.test_build import documents
from tests.data.test_tokenizer import word_tokenizer

pytestmark = pytest.mark.check

TEXTS = [f"document {number} ä € 🙂\nits second line\n" + "words " * (number % 7) for number in range(60)]
"""What each file below holds."""


def jsonl(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({"id": number, key: text}) + "\n" for number, text in enumerate(texts)).encode()


def frames(data: bytes) -> bytes:
    """Two frames, as parallel compressors write them."""
    half = len(data) // 2
    return zstandard.compress(data[:half]) + zstandard.compress(data[half:])


def as_csv(texts: list[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["id", "text"], *([str(number), each] for number, each in enumerate(texts))])
    return b"\xef\xbb\xbf" + text.getvalue().encode()


def as_parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), sink, row_group_size=17)
    return sink.getvalue()


def as_arrow(texts: list[str]) -> bytes:
    sink, table = io.BytesIO(), pa.table({"text": texts})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def as_wet(texts: list[str], kind: str = "conversion", mime: str = "text/plain") -> bytes:
    sink = io.BytesIO()
    writer = WARCWriter(sink, gzip=True)
    head = b"HTTP/1.0 200 OK\r\n\r\n" if kind == "response" else b""
    for number, text in enumerate(texts):
        writer.write_record(
            writer.create_warc_record(
                f"https://example.org/{number}",
                kind,
                payload=io.BytesIO(head + text.encode(errors="surrogateescape")),
                warc_headers_dict={"WARC-Identified-Payload-Type": mime},
            )
        )
    return sink.getvalue()


FILES: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": jsonl,
    "a.ndjson": jsonl,
    "bom.jsonl": lambda texts: b"\xef\xbb\xbf" + jsonl(texts).replace(b"\n", b"\r\n"),
    "a.json.gz": lambda texts: gzip.compress(jsonl(texts[:30])) + gzip.compress(jsonl(texts[30:])),
    "a.jsonl.zst": lambda texts: frames(jsonl(texts)),
    "a.jsonl.bz2": lambda texts: bz2.compress(jsonl(texts)),
    "a.jsonl.xz": lambda texts: lzma.compress(jsonl(texts)),
    "a.parquet": as_parquet,
    "a.csv": as_csv,
    "a.csv.gz": lambda texts: gzip.compress(as_csv(texts)),
    "a.arrow": as_arrow,
    "a.warc.wet.gz": as_wet,
    "a.wet": lambda texts: gzip.decompress(as_wet(texts)),
}


@pytest.mark.parametrize("name", FILES)
def test_each_format_gives_the_documents_that_are_in_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name](TEXTS))
    build(str(tmp_path / name), tmp_path / "out")
    assert sorted(documents(tmp_path / "out")) == sorted(text.encode() for text in TEXTS)
    (source,) = Shards.open(tmp_path / "out").index.sources
    assert (source.name, source.documents, source.skipped) == (name, len(TEXTS), {})


def test_a_folder_of_all_formats_is_read_with_those_behind_links_and_without_hidden_files(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "text", tmp_path / "elsewhere"
    (folder / "deep" / "er").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "deep" / "er" / "a.txt").write_text("a text")
    (folder / "b.md").write_bytes(b"\xef\xbb\xbfline\r\nline\r\n")
    (folder / ".hidden.jsonl").write_text("{}")
    (folder / "c.parquet").write_bytes(as_parquet(["c"]))
    (elsewhere / "d.jsonl.gz").write_bytes(gzip.compress(jsonl(["d"])))
    (folder / "linked").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(folder)
    build(str(folder), tmp_path / "out")
    assert sorted(documents(tmp_path / "out")) == [b"a text", b"c", b"d", b"line\nline\n"]
    assert Shards.open(tmp_path / "out").index.sources[0].changed == 1, "the file with a byte order mark"


def test_an_address_is_read_as_a_folder_is(tmp_path: Path) -> None:
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "text" / "deep" / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS)))
    for address in (f"file://{tmp_path}/text", f"file://{tmp_path}/text/deep/a.jsonl.gz", f"file://{tmp_path}/**/*.gz"):
        out = tmp_path / f"out-{len(address)}"
        build(address, out)
        assert sorted(documents(out)) == sorted(text.encode() for text in TEXTS)


def test_a_saved_data_set_is_read_without_its_cache_and_a_saved_choice_of_splits_is_refused(tmp_path: Path) -> None:
    saved = datasets.Dataset.from_dict({"text": TEXTS})
    saved.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved" / "cache-1.arrow").write_bytes(as_arrow(["not this"]))
    build(str(tmp_path / "saved"), tmp_path / "out")
    assert sorted(documents(tmp_path / "out")) == sorted(text.encode() for text in TEXTS)
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(ConfigError, match="several splits"):
        build(str(tmp_path / "both"), tmp_path / "never")
    build(str(tmp_path / "both" / "train"), tmp_path / "one")


def test_a_pattern_names_some_files(tmp_path: Path) -> None:
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "text" / "deep" / "a.jsonl").write_bytes(jsonl(["a", "b"]))
    (tmp_path / "text" / "notes.pdf").write_bytes(b"%PDF")
    with pytest.raises(ConfigError, match=r"no reader knows notes\.pdf"):
        build(str(tmp_path / "text"), tmp_path / "never")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.jsonl").write_bytes(jsonl(["c"]))
    (tmp_path / "text" / "link").symlink_to(tmp_path / "elsewhere")
    build(f"{tmp_path}/text/**/*.jsonl", tmp_path / "out")
    assert sorted(documents(tmp_path / "out")) == [b"a", b"b", b"c"]


def test_another_key_is_named_and_its_absence_names_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS, "content"))
    with pytest.raises(ConfigError, match=r"60 no text: .*row 1: it has no 'text', but id, content"):
        build(str(tmp_path / "a.jsonl"), tmp_path / "never")
    build(str(tmp_path / "a.jsonl"), tmp_path / "out", text_key="content")
    assert len(documents(tmp_path / "out")) == 60


BAD: dict[str, tuple[bytes, str]] = {
    "null": (b'{"text": null}\n', "null"),
    "empty": (b'{"text": " "}\n', "empty"),
    "a number": (b'{"text": 5}\n', "not a string"),
    "a list": (b"[1, 2]\n", "not an object"),
    "a string": (b'"text"\n', "not an object"),
    "other columns": (b'{"body": "x"}\n', "no text"),
    "no JSON": (b"hello\n", "not JSON"),
    "cut": (b'{"text": "abc', "cut"),
    "a surrogate": (b'{"text": "\\ud800"}\n', "bad coding"),
    "no UTF-8": (b'{"text": "\xff"}\n', "bad coding"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_row_in_a_hundred_is_counted_and_shown_and_too_many_end_the_build(name: str, tmp_path: Path) -> None:
    row, kind = BAD[name]
    texts = [f"text {number}" for number in range(99)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts) + row)
    with pytest.raises(ConfigError, match=rf"1 of 100 rows cannot be used.*\n  1 {kind}: .*a\.jsonl, row 100"):
        build(str(tmp_path / "a.jsonl"), tmp_path / "never")
    build(str(tmp_path / "a.jsonl"), tmp_path / "out", max_bad=0.01)
    assert sorted(documents(tmp_path / "out")) == sorted(text.encode() for text in texts)
    assert Shards.open(tmp_path / "out").index.sources[0].skipped == {kind: 1}


@pytest.mark.parametrize(("name", "make"), [("a.parquet", as_parquet), ("a.arrow", as_arrow)])
def test_rows_without_text_of_a_table_are_counted(name: str, make: Callable[[Any], bytes], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(make(["a", None, "b", "", "c"]))
    build(str(tmp_path / name), tmp_path / "out", max_bad=0.5)
    assert sorted(documents(tmp_path / "out")) == [b"a", b"b", b"c"]
    assert Shards.open(tmp_path / "out").index.sources[0].skipped == {"empty": 1, "null": 1}


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("a.jsonl", "a.ndjson", "bom.jsonl")])
def test_a_file_that_is_cut_ends_the_build_and_is_named(name: str, tmp_path: Path) -> None:
    data = FILES[name](TEXTS)
    # Not between two of the WET file's members: such a file is whole.
    at = data.index(b"its second", len(data) // 2) if name in ("a.csv", "a.wet") else len(data) * 2 // 3 + 100
    (tmp_path / name).write_bytes(data[:at])
    with pytest.raises(ConfigError, match=rf"{name}.*(cannot be read to its end|cannot be used)"):
        build(str(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out" / "index.json").exists()


@pytest.mark.parametrize("page", ["<!DOCTYPE html><p>words</p>", "<!-- saved --><div>words</div>", "plain words"])
def test_pages_are_no_text(page: str, tmp_path: Path) -> None:
    (tmp_path / "a.warc.gz").write_bytes(as_wet([page], "response", "text/html"))
    with pytest.raises(ConfigError, match=r"a\.warc\.gz.*holds pages"):
        build(str(tmp_path / "a.warc.gz"), tmp_path / "out")


def test_every_record_of_a_crawls_text_counts_whatever_it_looks_like(tmp_path: Path) -> None:
    texts = ['{"a": 1}', "#!/bin/sh\nls", "import os\n", "%PDF-1.4 words", "words"]
    data = as_wet(texts, mime="application/octet-stream") + as_wet(["x\udcff"] * 2)
    (tmp_path / "a.wet.gz").write_bytes(data)
    build(str(tmp_path / "a.wet.gz"), tmp_path / "out", max_bad=0.3)
    assert sorted(documents(tmp_path / "out")) == sorted(text.encode() for text in texts)
    assert Shards.open(tmp_path / "out").index.sources[0].skipped == {"bad coding": 2}


def test_fields_beyond_a_csvs_header_and_broken_quotes_are_no_text(tmp_path: Path) -> None:
    rows = "id,text\n" + "".join(f"{number},text {number}\n" for number in range(20))
    (tmp_path / "a.csv").write_text(rows + "20,some text, with a comma\n")
    build(str(tmp_path / "a.csv"), tmp_path / "out", max_bad=0.1)
    assert len(documents(tmp_path / "out")) == 20
    assert Shards.open(tmp_path / "out").index.sources[0].skipped == {"more fields than columns": 1}
    (tmp_path / "b.csv").write_text(rows + '20,"a quote \\" in it"\n')
    with pytest.raises(ConfigError, match=r"b\.csv cannot be read to its end"):
        build(str(tmp_path / "b.csv"), tmp_path / "never")


def test_a_file_that_two_sources_have_is_refused(tmp_path: Path) -> None:
    """What is held out of one would be trained on in the other."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_bytes(jsonl(TEXTS))
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "text" / "a.jsonl")
    paths = ({"path": str(tmp_path / "text")}, {"path": str(tmp_path / "b.jsonl")})
    with pytest.raises(ConfigError, match="read twice"):
        build(made(sources=paths), tmp_path / "out")
    with pytest.raises(ConfigError, match="lies inside"):
        build(str(tmp_path / "text"), tmp_path / "text" / "out")


def test_a_recipe_names_its_files_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, text in (("here", "not this"), ("there", "this")):
        (tmp_path / folder / "web").mkdir(parents=True)
        (tmp_path / folder / "web" / "a.jsonl").write_bytes(jsonl([text, text + " too"]))
    (tmp_path / "there" / "data.toml").write_text('[[sources]]\npath = "web/**/*.jsonl"\nrepeats = 2.0\n')
    monkeypatch.chdir(tmp_path / "here")
    build(read(tmp_path / "there" / "data.toml")[0], tmp_path / "out")
    assert set(documents(tmp_path / "out")) == {b"this", b"this too"}
    (tmp_path / "there" / "data.toml").write_text('tokenizer = 5\n[[sources]]\npath = "x"\nweigth = 2\n')
    with pytest.raises(ConfigError, match=r"weigth(.|\n)*tokenizer|tokenizer(.|\n)*weigth"):
        read(tmp_path / "there" / "data.toml")


def test_compression_and_repeats_change_neither_order_nor_the_share_of_bad_rows(tmp_path: Path) -> None:
    found = []
    for name, data in (("plain", jsonl(TEXTS)), ("packed", gzip.compress(jsonl(TEXTS)))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / ("a.jsonl.gz" if name == "packed" else "a.jsonl")).write_bytes(data)
        build(str(folder), tmp_path / f"out-{name}")
        found.append(documents(tmp_path / f"out-{name}"))
    assert found[0] == found[1]
    (tmp_path / "bad.jsonl").write_bytes(jsonl(TEXTS) + b'{"text": null}\n')
    build(str(tmp_path / "bad.jsonl"), tmp_path / "out", repeats=0.3, max_bad=0.02)
    (source,) = Shards.open(tmp_path / "out").index.sources
    assert source.documents < 40
    assert source.skipped == {"null": 1}


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    os.mkfifo(tmp_path / "text" / "a.jsonl")
    with pytest.raises(ConfigError, match=r"a\.jsonl is no file"):
        build(str(tmp_path / "text"), tmp_path / "out")


def test_a_text_file_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.txt").write_text(f"text {number}")
    (folder / "latin.txt").write_bytes(b"gr\xfcn")
    with pytest.raises(ConfigError, match=r"1 bad coding: .*latin\.txt"):
        build(str(folder), tmp_path / "never")
    build(str(folder), tmp_path / "out", max_bad=0.1)
    assert len(documents(tmp_path / "out")) == 9


def test_a_hugging_face_data_set_is_the_files_of_its_training_split(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(jsonl(["a", "b"]))
    (folder / "test.jsonl").write_bytes(jsonl(["not this"]))
    build(f"hf:{folder}", tmp_path / "out")
    assert sorted(documents(tmp_path / "out")) == [b"a", b"b"]
    with pytest.raises(ConfigError, match="cannot open the Hugging Face data set"):
        build(f"hf:{tmp_path}/nowhere", tmp_path / "never")


def test_what_does_not_exist_or_holds_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "spaces.txt").write_text(" \n")
    for source, message in (
        (tmp_path / "nowhere", "no such source"),
        (tmp_path / "empty", "holds no files"),
        (tmp_path / "spaces.txt", r"spaces\.txt: 1 of 1 rows"),
        ("nosuch://bucket/x", "cannot list"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(str(source), tmp_path / "out" / Path(str(source)).name)


def test_botocores_documentation_is_plain_unique_text(tmp_path: Path) -> None:
    (file,) = files_of(0, Source(path="botocore"))
    assert (file.format, file.source) == ("botocore", 0)
    build(made(sources=({"path": "botocore", "limit_bytes": 300_000},), max_bad=0.0), tmp_path / "out")
    found = documents(tmp_path / "out")
    assert len(found) > 2
    lines = [line for document in found for line in document.decode(errors="ignore").split("\n")]
    assert not any("<p>" in line for line in lines)
    assert len(lines) == len(set(lines))


def test_text_with_null_characters_is_a_bad_row_such_as_utf_16_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_bytes("no mark tells what this is".encode("utf-16-le"))
    (tmp_path / "text" / "b.jsonl").write_bytes(jsonl(TEXTS))
    with pytest.raises(ConfigError, match=r"1 null characters: .*a\.txt, row 1: it may be UTF-16"):
        build(str(tmp_path / "text"), tmp_path / "out")


def test_a_source_of_which_a_weight_leaves_nothing_is_refused(tmp_path: Path) -> None:
    for name, count in (("large", 2000), ("small", 2)):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl([f"{name} text {n}" for n in range(count)]))
    sources = (
        {"path": str(tmp_path / "large.jsonl"), "weight": 1e-6},
        {"path": str(tmp_path / "small.jsonl"), "weight": 1.0},
    )
    with pytest.raises(ConfigError, match=r"large\.jsonl: its weight is so small"):
        build(made(sources=sources), tmp_path / "out")


def test_text_that_the_tokenizer_does_not_know_is_counted_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha", "beta"])
    (tmp_path / "a.jsonl").write_bytes(jsonl(["alpha beta", "alpha gamma delta"]))
    words = ["--tokenizer", str(tokenizer), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(["shards", "build", "--from", str(tmp_path / "a.jsonl"), *words]) == 0
    assert "a.jsonl: 2 tokens for text that the tokenizer does not know" in capsys.readouterr().err
    assert Shards.open(tmp_path / "out").index.sources[0].unknown == 2


def test_a_csv_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,text\none,two\n")
    with pytest.raises(ConfigError, match="two of its columns have one name"):
        build(str(tmp_path / "a.csv"), tmp_path / "out")


def test_an_out_that_is_empty_or_of_no_known_kind_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    for out in ("", "nosuch://a/b"):
        assert main(["shards", "build", "--from", str(tmp_path / "a.jsonl"), "--out", out]) == 2
        with pytest.raises(ConfigError, match=r"is empty|cannot use the address"):
            place_of(out)


def test_text_that_does_not_come_back_from_its_tokens_is_said(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha", "beta"])
    (tmp_path / "a.jsonl").write_bytes(jsonl(["alpha beta", "alpha gamma", "beta alpha"]))
    said = list[str]()
    build(str(tmp_path / "a.jsonl"), tmp_path / "out", tokenizer=str(tokenizer), say=said.append)
    assert any("of 3 documents' beginnings, 1 do not come back" in line for line in said), said
