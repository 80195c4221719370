"""Sources give the text that stands on disk, in a fixed order."""

import sys
import types
from itertools import islice
from pathlib import Path

import pytest

from murmur.data.sources import PIECE_BYTES, documents
from murmur.protocol.errors import ConfigError


def test_a_file_is_cut_at_line_ends_and_loses_nothing(tmp_path: Path) -> None:
    text = "".join(f"line {number} ä\n" for number in range(5000))
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    pieces = list(documents(str(tmp_path / "book.txt")))
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert all(piece.endswith("\n") and len(piece) <= PIECE_BYTES + 20 for piece in pieces)


def test_a_folder_is_read_in_order_of_path_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.txt", "b/1.txt", ".git/config", "b/.hidden", "blank.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("  \n" if name == "blank.txt" else name)
    assert list(documents(str(tmp_path))) == ["a.txt", "b/1.txt", "b/2.txt"]


def test_botocores_documentation_is_plain_unique_text() -> None:
    texts = list(islice(documents("botocore"), 12))
    assert texts == list(islice(documents("botocore"), 12))
    lines = [line for text in texts for line in text.split("\n")]
    assert len(lines) > 200
    assert len(set(lines)) == len(lines)
    joined = "\n".join(lines)
    assert "<p>" not in joined
    assert "</" not in joined
    assert "  " not in joined
    assert joined.count("the ") > 100


def test_what_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such source"):
        documents(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="holds no files"):
        documents(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"fine\n" + b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        list(documents(str(tmp_path / "binary")))


def fake_datasets(monkeypatch: pytest.MonkeyPatch, load: object) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_hugging_face_data_set_is_streamed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, configuration: str | None, *, split: str, streaming: bool) -> list[dict[str, str]]:
        asked.append((name, configuration, split, streaming))
        return [{"text": "one"}, {"text": "  "}, {"text": "two"}]

    fake_datasets(monkeypatch, load)
    assert list(documents("hf:owner/name:subset")) == ["one", "two"]
    assert asked == [("owner/name", "subset", "train", True)]


def test_an_unusable_hugging_face_data_set_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such data set")

    fake_datasets(monkeypatch, refuse)
    with pytest.raises(ConfigError, match="cannot open"):
        list(documents("hf:owner/name"))
    fake_datasets(monkeypatch, lambda *_, **__: [{"content": "x"}])
    with pytest.raises(ConfigError, match="no text column"):
        list(documents("hf:owner/name"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        list(documents("hf:owner/name"))
