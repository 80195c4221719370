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
from tokenizers import decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.trainers import BpeTrainer

from murmur.data.build import build
from murmur.data.pieces import PLACES, pieces, safe_places
from murmur.data.scatter import draws, tokens_of
from murmur.data.shards import Shards
from murmur.data.tokenizer import RESERVED, TURN_BEGIN, TURN_END, byte_tokenizer, open_tokenizer
from murmur.protocol.errors import ConfigError
from tests.data.exported import documents, exported

IN_ORDER = next(seed for seed in count() if draws(seed, 0, "1.txt", "0", 0) < draws(seed, 0, "2.txt", "0", 0))
"""A seed that leaves two documents as they are."""


def word_tokenizer(path: Path, words: list[str]) -> Path:
    native = Native(WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    native.pre_tokenizer = Whitespace()
    native.save(str(path))
    return path


def test_bytes_are_utf8() -> None:
    codec = byte_tokenizer()
    assert bytes(codec.encode(["ä €"])[0].tolist()) == "ä €".encode()
    assert (codec.vocabulary, codec.bos, codec.end) == (264, None, 256)


def test_a_local_tokenizer_is_named_by_its_sha256_and_used_for_shards(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha", "beta"])
    codec = open_tokenizer(path)
    assert codec.file is not None
    assert codec.name == sha256(codec.file).hexdigest()
    assert [ids.tolist() for ids in codec.encode(["beta alpha gamma", "beta"])] == [[3, 2, 0], [3]]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "1.txt").write_text("alpha")
    (tmp_path / "text" / "2.txt").write_text("beta beta beta")
    build(str(tmp_path / "text"), tmp_path / "out", tokenizer=str(path), seed=IN_ORDER)
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
    assert set(codec.encode([text])[0].tolist()) <= {0, 2, 3}
    for bytes_of in (codec.config, byte_tokenizer().config):
        assert json.loads(bytes_of)["additional_special_tokens"] == list(RESERVED)
    assert byte_tokenizer().vocabulary == 256 + 1 + len(RESERVED)


def test_what_has_its_turns_already_stays_as_it_is(tmp_path: Path) -> None:
    codec = open_tokenizer(word_tokenizer(tmp_path / "tokenizer.json", ["?", "</s>", "alpha"]))
    assert codec.file is not None
    for name, config in (("a data set's", codec.config), ("nobody's", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(codec.file)
        if config is not None:
            (folder / "tokenizer_config.json").write_bytes(config)
        again = open_tokenizer(folder / "tokenizer.json")
        assert (again.file, again.vocabulary) == (codec.file, codec.vocabulary)
        assert again.config == codec.config
    own = tmp_path / "chats"
    own.mkdir()
    path = word_tokenizer(own / "tokenizer.json", ["?", "</s>", "<|user|>"])
    (own / "tokenizer_config.json").write_text('{"chat_template": "<|user|>"}')
    again = open_tokenizer(path)
    assert again.file == path.read_bytes(), "who brings a template needs no ids of ours"
    assert json.loads(again.config)["chat_template"] == "<|user|>"
    (own / "chat_template.jinja").write_text("<|user|> anew")
    assert json.loads(open_tokenizer(path).config)["chat_template"] == "<|user|> anew"
    (own / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="tokenizer's configuration"):
        open_tokenizer(path)


def test_a_vocabulary_beyond_uint16_takes_uint32(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path / "tokenizer.json", ["</s>", "?", *(f"w{number}" for number in range(1 << 16))])
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "1.txt").write_text("w0")
    (tmp_path / "text" / "2.txt").write_text("w65535 w1")
    build(str(tmp_path / "text"), tmp_path / "out", tokenizer=str(path), seed=IN_ORDER)
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


def bpe(path: Path, **changes: object) -> Path:
    """A byte-level BPE of some text, whose tokenizer.json has these fields."""
    native = Native(BPE())
    native.pre_tokenizer = ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    special = ["<bos>", "<eos>", "<pad>"]
    trainer = BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    native.train_from_iterator([TEXT], trainer)
    table = json.loads(native.to_str())
    for name, value in changes.items():
        if name == "model":
            table["model"] |= value  # type: ignore[operator]
        else:
            table[name] = value
    path.write_text(json.dumps(table))
    return path


TEXT = Path(__file__).read_text()
BEGINS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<bos>": {"id": "<bos>", "ids": [0], "tokens": ["<bos>"]}},
}
ENDS_TOO = BEGINS | {
    "single": [*BEGINS["single"], {"SpecialToken": {"id": "<eos>", "type_id": 0}}],  # type: ignore[misc]
    "special_tokens": {
        "<bos>": {"id": "<bos>", "ids": [0], "tokens": ["<bos>"]},
        "<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]},
    },
}
TRUNCATION = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 16},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 2,
    "pad_type_id": 0,
    "pad_token": "<pad>",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"truncation": TRUNCATION}, "truncation"),
        ({"padding": PADDING}, "padding"),
        ({"model": {"dropout": 0.5}}, "dropout"),
        ({"post_processor": ENDS_TOO}, "post-processor"),
    ],
)
def test_what_would_cut_or_change_text_is_left_out_and_said(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    plain = open_tokenizer(bpe(tmp_path / "plain.json")).encode([TEXT])[0].tolist()
    codec = open_tokenizer(bpe(tmp_path / "tokenizer.json", **changes))
    assert codec.encode([TEXT])[0].tolist() == plain
    assert any(said in line for line in codec.said)
    assert not open_tokenizer(bpe(tmp_path / "other.json")).said


@pytest.mark.parametrize(
    ("processor", "bos", "expected"),
    [(None, None, None), (BEGINS, None, 0), (ENDS_TOO, None, 0), (BEGINS, False, None), (None, True, 0)],
)
def test_an_export_begins_a_text_as_the_data_set_does_and_gives_the_same_ids(
    processor: object, bos: bool | None, expected: int | None, tmp_path: Path
) -> None:
    """Read as people read it: by the class that the configuration of the original names, it would be others."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    path = bpe(source / "tokenizer.json", post_processor=processor)
    own = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "bos_token": "<bos>", "eos_token": "<eos>"}
    (source / "tokenizer_config.json").write_text(json.dumps(own))
    texts = [TEXT[at : at + 200] for at in range(0, 8000, 200)] + ["<eos> is text here", " a", "a", "\n"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(str(tmp_path / "a.jsonl"), out, tokenizer=str(path), bos=bos, max_bad=0.1)
    data = Shards.open(out)
    assert (data.index.bos, data.index.end) == (expected, 1)
    read, found = exported(data, out, tmp_path / "export"), documents(data)
    assert len(found) == len(texts) - 1, "of white space alone there is no document"
    expected_ids = [read(text, split_special_tokens=True)["input_ids"] for text in texts if text.strip()]
    assert sorted(found) == sorted(expected_ids)
    assert read.eos_token_id == 1
    assert (read.bos_token_id if expected is not None else None) == expected


def test_ids_for_turns_lie_above_all_others_where_those_have_holes(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    native = Native(WordLevel({"?": 0, "</s>": 1, "alpha": 50}, unk_token="?"))
    native.pre_tokenizer = Whitespace()
    native.save(str(path))
    codec = open_tokenizer(path)
    assert codec.file is not None
    again = Native.from_buffer(codec.file)
    assert [again.token_to_id(token) for token in RESERVED] == list(range(51, 58))
    assert again.encode(f"{TURN_BEGIN}alpha").ids == [51, 50]
    assert codec.vocabulary == 58


def test_the_token_that_ends_documents_is_the_configurations_or_the_named_one(tmp_path: Path) -> None:
    path = bpe(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<pad>"}}')
    assert open_tokenizer(path).end == 2
    codec = open_tokenizer(path, end="<eos>")
    assert codec.end == 1
    assert json.loads(codec.config)["eos_token"] == "<eos>"
    with pytest.raises(ConfigError, match=r"'<x>' is not one of its tokens; name one with --end"):
        open_tokenizer(path, end="<x>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<none>"}')
    with pytest.raises(ConfigError, match="ends a document"):
        open_tokenizer(path)


def test_a_long_document_is_encoded_in_pieces_that_change_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("murmur.data.pieces.PIECE_CHARACTERS", 50)
    codec = open_tokenizer(bpe(tmp_path / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return [int(each) for each in codec.encode([text])[0]]

    kinds = safe_places(encode)
    assert kinds == (0, 1)
    places = tuple(PLACES[kind] for kind in kinds)
    assert len(list(pieces(TEXT, places))) > 50
    assert "".join(pieces(TEXT, places)) == TEXT
    assert np.concatenate([*tokens_of(codec, TEXT, places)]).tolist() == encode(TEXT)
    assert list(pieces("x" * 1000, places)) == ["x" * 1000], "nowhere to cut"


def test_a_build_goes_on_with_the_same_tokenizer_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a document stands in a file of its own beside the tokenizer's."""
    from murmur.data import build as building

    path = bpe(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(20)))
    with monkeypatch.context() as patch:
        patch.setattr(building, "_run", lambda *words: None)
        patch.setattr(building, "_tidied", lambda out: b"")
        build(str(tmp_path / "a.jsonl"), tmp_path / "out", tokenizer=str(path))
    (tmp_path / "out" / "building" / "tables" / "00000.table").touch()  # a task has made tokens
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<pad>"}')
    with pytest.raises(ConfigError, match="tokenizer has changed"):
        build(str(tmp_path / "a.jsonl"), tmp_path / "out", tokenizer=str(path))


def test_a_tokenizer_without_tokens_for_a_text_is_refused_and_padding_hides_no_begin(tmp_path: Path) -> None:
    bare = Native(BPE({"a": 0, "b": 1, "</s>": 2}, []))
    bare.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}\n{"text": "吾輩"}\n')
    with pytest.raises(ConfigError, match="it would be lost"):
        build(str(tmp_path / "a.jsonl"), tmp_path / "out", tokenizer=str(tmp_path / "tokenizer.json"))
    (tmp_path / "padded").mkdir()
    padded = bpe(tmp_path / "padded" / "tokenizer.json", post_processor=BEGINS, padding=PADDING | {"direction": "Left"})
    assert open_tokenizer(padded).bos == 0


def test_o200ks_words_that_go_on_behind_a_line_end_are_not_cut() -> None:
    """Its pattern lets line ends and slashes follow punctuation."""
    assert not any(place.search("x;\n// comment") for place in PLACES[:1])


def test_a_tokenizer_that_reads_across_a_place_is_not_cut_there() -> None:
    def pairs(text: str) -> list[int]:
        """Every two characters are a token."""
        return [hash(text[at : at + 2]) for at in range(0, len(text), 2)]

    assert safe_places(pairs) == ()
