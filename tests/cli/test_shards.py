"""`murmur shards build`: a data set and its digest, or a message that says what to change."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from murmur.cli import shards as command
from murmur.cli.main import main
from murmur.data import build as building
from murmur.data.index import INDEX
from murmur.data.job import BUILDING
from murmur.data.shards import Shards
from murmur.protocol.types import Digest

TEXT = "".join(f"line {number} of some text to train on\n" for number in range(2000))
NUM_DOCUMENTS = 40


def build(*words: str | Path) -> int:
    return main(["shards", "build", *map(str, words)])


def documents(path: Path, text: str = TEXT) -> Path:
    """Write a text as JSON lines, NUM_DOCUMENTS documents."""
    lines = text.splitlines(keepends=True)
    each = len(lines) // NUM_DOCUMENTS
    parts = ("".join(lines[at : at + each]) for at in range(0, len(lines), each))
    path.write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
    return path


def num_tokens(shards: Shards) -> int:
    return shards.train.num_tokens + shards.held_out.num_tokens


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_becomes_the_data_set_whose_digest_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    (source / "a.txt").write_text(TEXT)
    (source / "b.txt").write_text(TEXT.upper())
    assert build("--from", source, "--out", tmp_path / "data") == 0
    digest = Digest(bytes.fromhex(capsys.readouterr().out.strip()))
    shards = Shards.open(tmp_path / "data", index_digest=digest)
    shards.train.verify()
    shards.held_out.verify()
    assert num_tokens(shards) == 2 * len(TEXT) + 2, "each file is a document, and a token ends it"


def test_a_file_gives_the_same_data_set_every_time_and_a_limit_a_smaller_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = documents(tmp_path / "text.jsonl")
    sizes, digests = [], []
    for name, words in (
        ("one", ["--workers", "1"]),
        ("two", ["--workers", "2"]),
        ("short", ["--limit-bytes", "40000"]),
    ):
        assert build("--from", source, "--out", tmp_path / name, *words) == 0
        digests.append(capsys.readouterr().out)
        sizes.append(num_tokens(Shards.open(tmp_path / name)))
    assert digests[0] == digests[1] != digests[2]
    assert sizes[0] == sizes[1] == len(TEXT) + NUM_DOCUMENTS
    assert len(TEXT) > 41_000 > sizes[2] >= 40_000


def test_what_cannot_be_built_is_said_with_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUIET_SECONDS", 1000)  # what is counted are the lines of a message
    text, tiny = documents(tmp_path / "text.jsonl"), tmp_path / "tiny.txt"
    tiny.write_text("one document")
    binary, unknown = tmp_path / "binary.txt", tmp_path / "binary"
    for path in (binary, unknown):
        path.write_bytes(b"\xff\xfe\x00" * 100)
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for num_lines, words, expected in (
        (1, ["--out", out], "name what to build from"),
        (1, ["--from", tmp_path / "nowhere", "--out", out], "no such source"),
        (1, ["--from", text, "--weight", "1", "--weight", "2", "--out", out], "2 times --weight"),
        (2, ["--from", text, "--from", text, "--out", out], "named twice"),
        (None, ["--from", text, "--weight", "-1", "--out", out], "weight: Input should be greater than 0"),
        (2, ["--from", text, "--workers", "0", "--out", out], "workers: Input should be greater than 0"),
        (2, ["--from", text, "--tasks", "0", "--out", out], "tasks: Input should be greater than 0"),
        (1, ["--from", unknown, "--out", out], "no reader knows binary."),
        (2, ["--from", binary, "--out", tmp_path / "out-1"], f"1 bad coding: {binary}, row 1"),
        (1, ["--from", tiny, "--out", tmp_path / "out-2"], "too small"),
        (1, ["--from", text, "--out", tmp_path / "out-3", "--held-out", "1e6"], "1,000,000 are to be held out"),
        (1, ["--from", tmp_path / "empty", "--out", out], "holds no files"),
        (2, ["--from", text, "--out", out, "--held-out", "-0.5"], "held_out: Input should be greater than 0"),
        (2, ["--from", text, "--out", out, "--held-out", "nan"], "held_out: Input should be a finite number"),
        (None, ["--from", text, "--out", out, "--limit-bytes", "-5"], "limit_bytes: Input should be greater than 0"),
        (1, ["--from", text, "--out", out, "--tokenizer", tmp_path / "none.json"], "cannot read the tokenizer"),
        (1, ["--from", text, "--out", text], f"cannot use {text}"),
        (1, ["--from", text, "--out", text / "below"], f"cannot use {text / 'below'}"),
    ):
        assert build(*words) == 2, expected
        shown = capsys.readouterr()
        assert expected in shown.err
        lines = shown.err.splitlines()
        assert num_lines in (None, len(lines)), shown.err
        assert [line for line in lines[1:] if not line.startswith("  ")] == [], "a fault has a line of its own"
        assert shown.out == ""
    assert list(tmp_path.rglob(INDEX)) == []
    assert not out.exists()


def test_a_data_set_that_exists_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = documents(tmp_path / "text.jsonl")
    assert build("--from", text, "--out", tmp_path / "data") == 0
    before = contents(tmp_path / "data")
    capsys.readouterr()
    documents(text, TEXT.upper())
    assert build("--from", text, "--out", tmp_path / "data") == 2
    assert "already holds a data set" in capsys.readouterr().err
    assert contents(tmp_path / "data") == before


@pytest.mark.parametrize("words", [["shards"], ["shards", "biuld"], ["shards", "build"]], ids=" ".join)
def test_missing_words_are_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert "usage: murmur shards" in capsys.readouterr().err


def test_an_unfinished_build_goes_on_only_with_its_own_text_and_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = documents(tmp_path / "text.jsonl"), tmp_path / "data"
    kept = text.stat().st_mtime_ns

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building, "_tell", interrupt)  # it is called while the first step runs
        assert build("--from", text, "--out", out) == 130
    assert (out / BUILDING).exists()
    assert not (out / INDEX).exists()
    (out / BUILDING / "tables" / "00000.table").touch()  # a task has made tokens: without any, nothing is lost
    assert build("--from", text, "--out", out, "--seed", "1") == 2
    assert "other options" in capsys.readouterr().err
    documents(text, TEXT.upper())
    assert build("--from", text, "--out", out) == 2
    assert "the text has changed" in capsys.readouterr().err
    documents(text)
    os.utime(text, ns=(kept, kept))
    assert build("--from", text, "--out", out) == 0
    assert build("--from", text, "--out", tmp_path / "other") == 0
    first, second = capsys.readouterr().out.split()
    assert first == second


def test_sources_are_mixed_and_data_sets_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = documents(tmp_path / "a.jsonl"), documents(tmp_path / "b.jsonl", TEXT.upper())
    mixed, alone, both = tmp_path / "mixed", tmp_path / "alone", tmp_path / "both"
    assert build("--from", a, "--from", b, "--weight", "1", "--weight", "1", "--workers", "1", "--out", mixed) == 0
    assert build("--from", a, "--out", alone) == 0
    assert num_tokens(Shards.open(mixed)) == 2 * num_tokens(Shards.open(alone))
    capsys.readouterr()
    join = ["shards", "join", str(alone), str(mixed), "--out", str(both)]
    assert main(join) == 0
    digest = Digest(bytes.fromhex(capsys.readouterr().out.strip()))
    assert main(join) == 2
    assert "already holds" in capsys.readouterr().err
    parts, joined = [Shards.open(alone), Shards.open(mixed)], Shards.open(both, index_digest=digest)
    for split in ("train", "held_out"):
        tokens = [getattr(part, split).tokens(0, getattr(part, split).num_tokens) for part in parts]
        whole = getattr(joined, split)
        assert whole.tokens(0, whole.num_tokens).tolist() == [*tokens[0], *tokens[1]]


def test_data_sets_of_other_tokenizers_are_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--from", documents(tmp_path / "text.jsonl"), "--out", tmp_path / "one") == 0
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    index = tmp_path / "two" / "index.json"
    index.write_text(index.read_text().replace('"vocabulary":264', '"vocabulary":300'))
    assert main(["shards", "join", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "out")]) == 2
    assert "another tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
