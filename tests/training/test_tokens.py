"""Byte-level tokens, and a local tokenizer.json."""

from hashlib import sha256
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Native
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from protocol.errors import ConfigError
from training.build import build
from training.runs import draw
from training.shards import Shards
from training.tokens import byte_tokenizer, open_tokenizer

IN_ORDER = next(seed for seed in count() if draw(seed, 0, 0) < draw(seed, 0, 1))
"""A seed that leaves two documents as they are."""


def word_tokenizer(path: Path, words: list[str]) -> Path:
    native = Native(WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    native.pre_tokenizer = Whitespace()
    native.save(str(path))
    return path


def test_bytes_are_utf8() -> None:
    codec = byte_tokenizer()
    assert bytes(codec.encode("ä €").tolist()) == "ä €".encode()
    assert (codec.vocabulary, codec.separator) == (264, 256)


def test_a_local_tokenizer_is_named_by_its_sha256_and_used_for_shards(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha", "beta"])
    codec = open_tokenizer(path)
    assert codec.name == sha256(path.read_bytes()).hexdigest()
    assert codec.encode("beta alpha gamma").tolist() == [3, 2, 0]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "1").write_text("alpha")
    (tmp_path / "text" / "2").write_text("beta beta beta")
    build(str(tmp_path / "text"), tmp_path / "out", tokenizer=path, seed=IN_ORDER)
    data = Shards.open(tmp_path / "out")
    assert np.array_equal(data.held_out.tokens(0, 2), [2, 1])
    assert np.array_equal(data.train.tokens(0, 4), [3, 3, 3, 1])
    assert (data.index.tokenizer, data.index.vocabulary, data.index.dtype) == (codec.name, 4 + 7, "uint16")


def test_a_vocabulary_beyond_uint16_takes_uint32(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path / "tokenizer.json", ["</s>", "?", *(f"w{number}" for number in range(1 << 16))])
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "1").write_text("w0")
    (tmp_path / "text" / "2").write_text("w65535 w1")
    build(str(tmp_path / "text"), tmp_path / "out", tokenizer=path, seed=IN_ORDER)
    data = Shards.open(tmp_path / "out")
    assert data.index.dtype == "uint32"
    assert data.train.tokens(0, 3).tolist() == [65537, 3, 0]


def test_a_tokenizer_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        open_tokenizer(tmp_path / "nowhere.json")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"not a tokenizer\.json"):
        open_tokenizer(tmp_path / "broken.json")
    with pytest.raises(ConfigError, match="ends a document"):
        open_tokenizer(word_tokenizer(tmp_path / "bare.json", ["?", "alpha"]))
