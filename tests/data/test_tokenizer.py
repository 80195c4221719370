"""Byte-level tokens, and a local tokenizer.json."""

import json
from hashlib import sha256
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from jinja2 import Environment
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from tokenizers import Tokenizer as Native
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from murmur.data.build import build
from murmur.data.shards import Shards
from murmur.data.sorted_runs import draw
from murmur.data.tokenizer import RESERVED, TURN_BEGIN, TURN_END, byte_tokenizer, open_tokenizer
from murmur.protocol.errors import ConfigError

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
    assert codec.file is not None
    assert codec.name == sha256(codec.file).hexdigest()
    assert codec.encode("beta alpha gamma").tolist() == [3, 2, 0]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "1").write_text("alpha")
    (tmp_path / "text" / "2").write_text("beta beta beta")
    build(str(tmp_path / "text"), tmp_path / "out", tokenizer=path, seed=IN_ORDER)
    data = Shards.open(tmp_path / "out")
    assert np.array_equal(data.held_out.tokens(0, 2), [2, 1])
    assert np.array_equal(data.train.tokens(0, 4), [3, 3, 3, 1])
    assert (data.index.tokenizer, data.index.vocabulary, data.index.dtype) == (codec.name, 4 + 7, "uint16")
    for name, digest in data.index.tokenizer_files.items():
        assert sha256((tmp_path / "out" / name).read_bytes()).digest() == digest
    assert list(data.index.tokenizer_files) == ["tokenizer.json", "tokenizer_config.json"]


class Generation(Extension):
    """What transformers knows beside jinja: {% generation %} marks what a fine-tuning learns."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def chat(config: bytes, messages: list[dict[str, str]], *, prompt: bool) -> str:
    template = Environment(extensions=[Generation], autoescape=False).from_string(json.loads(config)["chat_template"])
    return template.render(messages=messages, add_generation_prompt=prompt)


def test_ids_for_turns_are_reserved_behind_the_tokenizers_own(tmp_path: Path) -> None:
    codec = open_tokenizer(word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha", "beta"]))
    assert codec.file is not None
    native = Native.from_buffer(codec.file)
    assert [native.token_to_id(token) for token in RESERVED] == list(range(4, 4 + 7))
    text = chat(codec.config, [{"role": "user", "content": "alpha"}], prompt=True)
    assert text == f"{TURN_BEGIN}user\nalpha{TURN_END}\n{TURN_BEGIN}assistant\n"
    assert native.encode(text).ids == [4, 0, 2, 5, 4, 0], "a turn's marks are one token each"
    # In text that is trained on the same words are words.
    assert set(codec.encode(text).tolist()) <= {0, 2, 3}
    for bytes_of in (codec.config, byte_tokenizer().config):
        assert json.loads(bytes_of)["additional_special_tokens"] == list(RESERVED)
    assert byte_tokenizer().vocabulary == 256 + 1 + len(RESERVED)


def test_what_has_its_turns_already_stays_as_it_is(tmp_path: Path) -> None:
    codec = open_tokenizer(word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha"]))
    assert codec.file is not None
    for name, config in (("a data set's", codec.config), ("nobody's", None), ("its own", b'{"chat_template": "x"}')):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(codec.file)
        if config is not None:
            (folder / "tokenizer_config.json").write_bytes(config)
        again = open_tokenizer(folder / "tokenizer.json")
        assert (again.file, again.vocabulary) == (codec.file, codec.vocabulary)
        assert again.config == (config or codec.config)
    own = tmp_path / "chats"
    own.mkdir()
    path = word_tokenizer(own / "tokenizer.json", ["?", "</s>", "<|user|>"])
    (own / "tokenizer_config.json").write_text('{"chat_template": "<|user|>"}')
    assert open_tokenizer(path).file == path.read_bytes(), "who brings a template needs no ids of ours"
    (own / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="tokenizer's configuration"):
        open_tokenizer(path)


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
