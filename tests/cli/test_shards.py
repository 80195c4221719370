"""`murmur shards build`: a data set and its digest, or one line that says what to change."""

import shutil
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.data.shards import Shards
from murmur.protocol.types import Digest

TEXT = "".join(f"line {number} of some text to train on\n" for number in range(2000))


def build(*words: str | Path) -> int:
    return main(["shards", "build", *map(str, words)])


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
    separators = shards.train.num_tokens + shards.held_out.num_tokens - 2 * len(TEXT)
    assert 2 <= separators < 20


def test_a_file_gives_the_same_data_set_every_time_and_a_limit_a_smaller_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "text.txt"
    source.write_text(TEXT)
    sizes, digests = [], []
    for name, words in (("one", []), ("two", []), ("short", ["--limit-bytes", "40000"])):
        assert build("--from", source, "--out", tmp_path / name, *words) == 0
        digests.append(capsys.readouterr().out)
        shards = Shards.open(tmp_path / name)
        sizes.append(shards.train.num_tokens + shards.held_out.num_tokens)
    assert digests[0] == digests[1] != digests[2]
    assert sizes[0] == sizes[1] > 2000 * 30 > 41_000 > sizes[2] >= 40_000


def test_what_cannot_be_built_is_one_line_and_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, binary, tiny = tmp_path / "text.txt", tmp_path / "binary", tmp_path / "tiny.txt"
    text.write_text(TEXT)
    binary.write_bytes(b"\xff\xfe\x00" * 100)
    tiny.write_text("one document")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for words, expected in (
        (["--from", tmp_path / "nowhere", "--out", out], "no such source"),
        (["--from", text, "--weight", "1", "--weight", "2", "--out", out], "2 times --weight"),
        (["--from", text, "--from", text, "--out", out], "named twice"),
        (["--from", text, "--weight", "-1", "--out", out], "weight above 0"),
        (["--from", text, "--processes", "0", "--out", out], "--processes is 0"),
        (["--from", binary, "--out", tmp_path / "out-1"], "not UTF-8"),
        (["--from", tiny, "--out", tmp_path / "out-2"], "too small"),
        (["--from", tmp_path / "empty", "--out", out], "holds no files"),
        (["--from", text, "--out", out, "--held-out", "1.5"], "between 0 and 1"),
        (["--from", text, "--out", out, "--held-out", "nan"], "between 0 and 1"),
        (["--from", text, "--out", out, "--limit-bytes", "-5"], "--limit-bytes is -5"),
        (["--from", text, "--out", out, "--tokenizer", tmp_path / "none.json"], "cannot read the tokenizer"),
        (["--from", text, "--out", text], f"cannot use {text}"),
        (["--from", text, "--out", text / "below"], f"cannot use {text / 'below'}"),
    ):
        assert build(*words) == 2, expected
        shown = capsys.readouterr()
        assert expected in shown.err
        assert shown.err.count("\n") == 1
        assert shown.out == ""
    assert not (out / "index.json").exists()


def test_a_data_set_that_exists_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert build("--from", text, "--out", tmp_path / "data") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    capsys.readouterr()
    text.write_text(TEXT.upper())
    assert build("--from", text, "--out", tmp_path / "data") == 2
    assert "already holds a data set" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


@pytest.mark.parametrize("words", [["shards"], ["shards", "biuld"], ["shards", "build"]], ids=" ".join)
def test_missing_words_are_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert "usage: murmur shards" in capsys.readouterr().err


def test_an_unfinished_build_goes_on_only_with_its_own_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(TEXT.encode() + b"\xff")
    assert build("--from", text, "--out", tmp_path / "data") == 2
    text.write_text(TEXT)
    assert build("--from", text, "--out", tmp_path / "data", "--seed", "1") == 2
    assert "other options" in capsys.readouterr().err
    assert build("--from", text, "--out", tmp_path / "data") == 0
    assert build("--from", text, "--out", tmp_path / "other") == 0
    first, second = capsys.readouterr().out.split()
    assert first == second


def test_sources_are_mixed_and_data_sets_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a", TEXT), ("b", TEXT.upper())):
        (tmp_path / name).write_text(text)
    a, b = tmp_path / "a", tmp_path / "b"
    mixed, alone, both = tmp_path / "mixed", tmp_path / "alone", tmp_path / "both"
    assert build("--from", a, "--from", b, "--weight", "1", "--weight", "1", "--processes", "1", "--out", mixed) == 0
    assert build("--from", a, "--out", alone) == 0
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
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert build("--from", text, "--out", tmp_path / "one") == 0
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    index = tmp_path / "two" / "index.json"
    index.write_text(index.read_text().replace('"vocabulary":264', '"vocabulary":300'))
    assert main(["shards", "join", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "out")]) == 2
    assert "another tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
