"""tiktoken encodes only what it gives the tokenizer's own ids for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.data import build as building
from murmur.data import by_tiktoken
from murmur.data import job as jobs
from murmur.data.build import build
from murmur.data.by_tiktoken import Encoder, kind_of, open_quick, proved
from murmur.data.converted import O200K
from murmur.data.proof import HARD, Proof
from murmur.data.reader import Reader
from murmur.data.tokenizer import Tokenizer, open_tokenizer
from tests.data.test_converted import SPECIAL, TEXTS, tiktoken
from tests.data.test_tokenizer import bpe

SPLIT = {"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Isolated", "invert": False}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
STEPS = {"type": "Sequence", "pretokenizers": [SPLIT, LEVEL]}


@pytest.fixture(autouse=True)
def few_characters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing all characters takes seconds: one test does it."""
    if "all_characters" not in request.fixturenames:
        monkeypatch.setattr(by_tiktoken, "_unlike", lambda: [ord("é")])


@pytest.fixture
def all_characters() -> None: ...


def encoder(codec: Tokenizer, texts: list[str]) -> Encoder | None:
    odd, kind = proved(codec, texts), kind_of(codec)
    return None if odd is None or kind is None else Encoder(codec, *kind, odd)


@pytest.mark.parametrize("ignore_merges", [True, False])
def test_a_byte_level_tokenizer_has_the_same_ids_by_tiktoken(ignore_merges: bool, tmp_path: Path) -> None:
    codec = open_tokenizer(bpe(tmp_path / "a.json", pre_tokenizer=STEPS, model={"ignore_merges": ignore_merges}))
    quick = encoder(codec, TEXTS)
    assert quick is not None
    texts = [*TEXTS, *HARD, "ein Café", "x" * 5000, " " * 5000, "<eos> <bos>"]
    for ids, own in zip(quick.encode(texts), codec.encode(texts), strict=True):
        assert ids.dtype == own.dtype
        assert np.array_equal(ids, own)
    assert [quick.quickly(text) is None for text in texts[-4:]] == [True, True, True, False]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.text("ab \n.'sS1é", max_size=80))
def test_any_text_has_the_same_ids(shared: tuple[Tokenizer, Encoder], text: str) -> None:
    codec, quick = shared
    assert np.array_equal(quick.encode([text])[0], codec.encode([text])[0])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Encoder]:
    codec = open_tokenizer(bpe(tmp_path_factory.mktemp("any") / "a.json", pre_tokenizer=STEPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_tiktoken, "_unlike", lambda: [])
        quick = encoder(codec, TEXTS)
    assert quick is not None
    return codec, quick


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": STEPS | {"pretokenizers": [SPLIT | {"pattern": {"Regex": r"\S+|\s+"}}, LEVEL]}},
        {"pre_tokenizer": STEPS | {"pretokenizers": [SPLIT, LEVEL | {"add_prefix_space": True}]}},
        {"pre_tokenizer": STEPS | {"pretokenizers": [SPLIT | {"invert": True}, LEVEL]}},
    ],
)
def test_others_are_not_encoded_by_tiktoken(changes: dict[str, Any], tmp_path: Path) -> None:
    codec = open_tokenizer(bpe(tmp_path / "a.json", **({"pre_tokenizer": STEPS} | changes)))
    assert proved(codec, TEXTS) is None


def test_merges_in_another_order_and_words_found_in_text_are_not_for_tiktoken(tmp_path: Path) -> None:
    path = bpe(tmp_path / "a.json", pre_tokenizer=STEPS)
    table = json.loads(path.read_text())
    other = json.loads(path.read_text())
    other["model"]["merges"] = other["model"]["merges"][::-1]
    path.write_text(json.dumps(other))
    assert proved(open_tokenizer(path), TEXTS) is None
    table["added_tokens"][2]["special"] = False
    path.write_text(json.dumps(table))
    assert proved(open_tokenizer(path), TEXTS) is None


def test_tokens_that_no_merge_makes_are_doubtful(tmp_path: Path) -> None:
    """tiktoken would make them of any two tokens."""
    path = bpe(tmp_path / "a.json", pre_tokenizer=STEPS)
    table = json.loads(path.read_text())
    last = max(table["model"]["vocab"].values())
    left, right = table["model"]["merges"].pop()
    path.write_text(json.dumps(table))
    assert table["model"]["vocab"][left + right] == last
    codec = open_tokenizer(path)
    quick = encoder(codec, ["a"])
    assert quick is not None
    text = f"a {left.replace('Ġ', ' ')}{right.replace('Ġ', ' ')} b"
    assert quick.quickly(text) is None
    assert np.array_equal(quick.encode([text])[0], codec.encode([text])[0])


def test_both_libraries_put_characters_into_the_same_classes(all_characters: None) -> None:
    assert len(by_tiktoken._unlike()) < 20_000


def test_the_proof_decides_for_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiktoken(tmp_path, **SPECIAL, eos_token="<eos>")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    monkeypatch.setattr(building, "_run", lambda *words: None)
    monkeypatch.setattr(building, "_tidied", lambda out: b"")
    build(str(tmp_path / "a.jsonl"), tmp_path / "out", tokenizer=str(path))
    job = jobs.load(tmp_path / "out")
    assert job is not None
    for worth, quick in ((by_tiktoken.WORTH_BYTES, False), (1, True)):
        monkeypatch.setattr(by_tiktoken, "WORTH_BYTES", worth)
        list(Proof(job, Reader(job)).run())
        codec, own = open_quick(job), job.open_tokenizer()
        assert (codec.encode != own.encode) == quick
        assert [ids.tolist() for ids in codec.encode(TEXTS)] == [ids.tolist() for ids in own.encode(TEXTS)]
        assert len(by_tiktoken.told(job)) == quick
