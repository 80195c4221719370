"""Tokenizers of other libraries: converted, they give the ids of the library whose file they are, or are refused."""

import json
from base64 import b64encode
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer as Native

from murmur.data.build import build
from murmur.data.converted import CL100K, TEKKEN, letters
from murmur.data.proof import HARD, require_same
from murmur.data.shards import Shards
from murmur.data.tokenizer import open_tokenizer
from murmur.protocol.errors import ConfigError
from tests.data.exported import documents, exported
from tests.data.test_tokenizer import TEXT, bpe

TEXTS = [TEXT[at : at + 300] for at in range(0, 12_000, 300)] + [" begins with a blank", "🙂 é\n\n  吾輩", "<s> </s>"]
LLAMA = {"add_dummy_prefix": True, "remove_extra_whitespaces": False, "byte_fallback": True}
MODELS: dict[str, dict[str, Any]] = {
    "as Llama's": LLAMA,
    "as Gemma's": LLAMA | {"add_dummy_prefix": False, "user_defined_symbols": ["[X]", "\n\n", "▁▁", "▁▁▁"]},
    "normalising": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "with users' tokens": LLAMA | {"user_defined_symbols": ["[X]"]},
    "a unigram": {"model_type": "unigram"},
    "with a blank behind a word": LLAMA | {"treat_whitespace_as_suffix": True},
}


def sentencepiece(kind: str) -> bytes:
    model = BytesIO()
    options = {"model_type": "bpe", "normalization_rule_name": "identity", "vocab_size": 500} | MODELS[kind]
    lines = iter([line for line in TEXT.splitlines() if line.strip()] * 3)
    SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, minloglevel=2, **options)
    return model.getvalue()


def ranks(folder: Path) -> list[bytes]:
    """A byte-level BPE's tokens, in the order of its merges."""
    byte = {letter: number for number, letter in enumerate(letters())}
    vocabulary = Native.from_file(str(bpe(folder / "trained.json"))).get_vocab()
    found = sorted((number, token) for token, number in vocabulary.items() if not token.startswith("<"))
    tokens = [bytes(byte[letter] for letter in token) for _, token in found]
    return [bytes([each]) for each in range(256)] + [token for token in tokens if len(token) > 1]


def tiktoken(folder: Path, **config: Any) -> Path:
    path = folder / "vocabulary.tiktoken"
    lines = [b64encode(token) + f" {rank}".encode() for rank, token in enumerate(ranks(folder))]
    path.write_bytes(b"\n".join(lines) + b"\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def tekken(folder: Path, **changes: Any) -> Path:
    path, tokens = folder / "tekken.json", ranks(folder)
    vocabulary = [{"rank": rank, "token_bytes": b64encode(each).decode()} for rank, each in enumerate(tokens)]
    sizes = {"default_vocab_size": 30 + len(tokens) - 5, "default_num_special_tokens": 30}
    table = {"config": {"pattern": TEKKEN, "version": "v3", **sizes}, "vocab": vocabulary, **changes}
    path.write_text(json.dumps(table))
    return path


SPECIAL = {"pat_str": CL100K, "added_tokens_decoder": {"700": {"content": "<eos>"}, "702": {"content": "<bos>"}}}


@pytest.mark.parametrize("kind", ["as Llama's", "as Gemma's", "normalising", "with users' tokens"])
def test_a_sentencepiece_model_gives_sentencepieces_ids(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentencepiece(kind))
    codec = open_tokenizer(path)
    assert codec.original is not None
    require_same(codec, codec.original, [*TEXTS, *HARD, *codec.original.hard])
    assert (codec.bos, codec.end) == (1, 2), "as its tokens are named in the file"
    assert open_tokenizer(path, bos=False).bos is None
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    assert open_tokenizer(path).bos is None
    unfound = kind == "with users' tokens"
    assert any("users" in line for line in codec.said) == unfound
    assert (codec.encode(["a [X]"])[0].tolist() == codec.original.encode("a [X]")) != unfound


@pytest.mark.parametrize(
    ("kind", "reason"), [("a unigram", "is no BPE"), ("with a blank behind a word", "marks blanks in another way")]
)
def test_other_models_of_sentencepiece_are_refused(kind: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(kind))
    with pytest.raises(ConfigError, match=reason):
        open_tokenizer(tmp_path / "tokenizer.model")


def test_tekken_and_tiktoken_files_give_tiktokens_ids(tmp_path: Path) -> None:
    (tmp_path / "tekken").mkdir()
    for path in (tekken(tmp_path / "tekken"), tiktoken(tmp_path, **SPECIAL, eos_token="<eos>", bos_token="<bos>")):
        codec = open_tokenizer(path)
        assert codec.original is not None
        require_same(codec, codec.original, [*TEXTS, *HARD, *codec.original.hard])
        assert (codec.bos, codec.end) == ((1, 2) if path.name == "tekken.json" else (None, 700))
    assert open_tokenizer(path, bos=True).bos == 702


def test_what_a_tiktoken_file_does_not_say_is_not_guessed(tmp_path: Path) -> None:
    for config in ({}, {"pat_str": CL100K}, {"added_tokens_decoder": SPECIAL["added_tokens_decoder"]}):
        with pytest.raises(ConfigError, match="neither the pattern that splits a text nor the special tokens"):
            open_tokenizer(tiktoken(tmp_path, **config))


def test_a_data_set_by_a_sentencepiece_model_has_the_ids_that_others_get(tmp_path: Path) -> None:
    path, out = tmp_path / "tokenizer.model", tmp_path / "out"
    path.write_bytes(sentencepiece("as Llama's"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    said = list[str]()
    build(str(tmp_path / "a.jsonl"), out, tokenizer=str(path), say=said.append)
    assert any("compared with those of sentencepiece" in line for line in said)
    data = Shards.open(out)
    read = exported(data, out, tmp_path / "export")
    others = [read(text, split_special_tokens=True)["input_ids"] for text in TEXTS]
    assert sorted(documents(data)) == sorted(others)
    assert all(ids[0] == read.bos_token_id == 1 for ids in others)


def test_ids_that_differ_from_the_librarys_are_refused(tmp_path: Path) -> None:
    """tiktoken takes the `+` behind a count for possessive, other libraries for a repetition."""
    path = tiktoken(tmp_path, **SPECIAL | {"pat_str": r"\p{L}{1,2}+|\P{L}+"}, eos_token="<eos>")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with pytest.raises(ConfigError, match="gives other ids than tiktoken does"):
        build(str(tmp_path / "a.jsonl"), tmp_path / "out", tokenizer=str(path))


@pytest.mark.parametrize("data", [b"", b"\0", b"PK\3\4" + bytes(99), b"\n\x0e\n\x05<unk>", b"[1]", b"YQ==  0\n"])
def test_what_is_no_tokenizer_is_a_config_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ConfigError, match=r"not a tokenizer\.json"):
        open_tokenizer(tmp_path / "tokenizer.model")


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab": []},
        {"vocab": None},
        {"vocab": [{"token_bytes": "?"}]},
        {"config": {"default_num_special_tokens": -5}},
        {"special_tokens": [{"rank": 99, "token_str": "a"}]},
        {"config": {"pattern": "(", "default_num_special_tokens": 30, "default_vocab_size": 999}},
    ],
)
def test_a_tekken_file_of_another_kind_is_a_config_error(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tekken"):
        open_tokenizer(tekken(tmp_path, **changes))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["as Llama's", "tekken", "tiktoken"]), st.integers(0, 1 << 30), st.integers(0, 255))
def test_a_damaged_file_is_a_config_error_or_another_tokenizer(
    files: dict[str, bytes], kind: str, at: int, byte: int
) -> None:
    path, data = Path(files["folder"].decode()) / "damaged", bytearray(files[kind])
    data[at % len(data)] = byte
    path.write_bytes(data[: at % 7919 or None] if at % 3 == 0 else data)
    with suppress(ConfigError):
        open_tokenizer(path).encode(TEXTS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("damaged")
    found = {"as Llama's": sentencepiece("as Llama's"), "tekken": tekken(folder).read_bytes()}
    return found | {"tiktoken": tiktoken(folder, **SPECIAL).read_bytes(), "folder": str(folder).encode()}
