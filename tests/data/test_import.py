"""Tokens that others have made become a data set: the same documents, whoever wrote their files."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer

from murmur.cli.main import main
from murmur.data.build import build
from murmur.data.recipe import made
from murmur.data.shards import Shards
from murmur.data.tokenizer import open_tokenizer
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.training.inner import inner_round
from murmur.training.loader import batches
from murmur.training.model import Transformer, initialise
from murmur.training.optimizer import make_optimizer
from tests.data import exported
from tests.data.test_tokenizer import BEGINS, bpe, word_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
END = 1
WORDS = ["?", "</s>", *(f"w{number}" for number in range(98))]
DOCUMENTS = [[(k * 7 + i * 3) % 98 + 2 for i in range(k % 9 + 1)] for k in range(40)]
"""Those of golden/megatron.bin, which Megatron's own IndexedDatasetBuilder wrote, each as two sequences."""


def flat(begins: bool = False) -> list[int]:
    return [token for ids in DOCUMENTS for token in ([END, *ids] if begins else [*ids, END])]


def datatrove(path: Path) -> None:
    sizes = np.cumsum([len(ids) + 1 for ids in DOCUMENTS])
    np.array(flat(), "<u2").tofile(path)
    np.array(sizes, "<u8").tofile(f"{path}.index")


def megatron(path: Path) -> None:
    for ending in (".bin", ".idx"):
        shutil.copyfile((GOLDEN / "megatron").with_suffix(ending), path.with_suffix(ending))


def llm_c(path: Path) -> None:
    ids = np.array(flat(begins=True), "<u2")
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, len(ids)
    path.write_bytes(head.tobytes() + ids.tobytes())


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.ds": datatrove,
    "megatron.bin": megatron,
    "nano.bin": lambda path: np.array(flat(), "<u2").tofile(path),
    "begins.bin": lambda path: np.array(flat(begins=True), "<u2").tofile(path),
    "llm.bin": llm_c,
    "narrow.npy": lambda path: np.save(path, np.array(flat(), "<u2")),
    "wide.npy": lambda path: np.save(path, np.array(flat(), "<i8")),
}


def documents(folder: Path) -> list[list[int]]:
    data = Shards.open(folder)
    data.train.verify()
    data.held_out.verify()
    return sorted(exported.documents(data))


@pytest.mark.parametrize("name", WRITERS)
def test_documents_of_a_file_of_tokens_are_those_of_the_data_set(name: str, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", WORDS)
    (tmp_path / "tokens").mkdir()
    WRITERS[name](tmp_path / "tokens" / name)
    for number, source in enumerate((tmp_path / "tokens", tmp_path / "tokens" / name)):
        build(str(source), tmp_path / f"out{number}", tokenizer=str(tokenizer), shard_tokens=60)
        assert documents(tmp_path / f"out{number}") == sorted(DOCUMENTS)
    (source,) = Shards.open(tmp_path / "out0").index.sources
    assert (source.documents, source.tokens) == (40, len(flat()))
    assert source.reframed == (1 if name in ("begins.bin", "llm.bin") else 0), "the last document has no end there"


def test_datatroves_own_tokens_are_the_ids_of_a_build_of_the_same_text(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path / "tokenizer.json")
    texts = [f"document {number}: " + "def f(x): return x\n" * (number % 7 + 1) for number in range(60)]
    made_by = DocumentTokenizer(
        str(tmp_path / "others"), tokenizer_name_or_path=str(tokenizer), eos_token="<eos>", save_final_metadata=True
    )
    list(made_by([Document(text=text, id=str(number)) for number, text in enumerate(texts)]) or ())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(str(tmp_path / "a.jsonl"), tmp_path / "text", tokenizer=str(tokenizer))
    build(str(tmp_path / "others"), tmp_path / "tokens", tokenizer=str(tokenizer), workers=2, tasks=3)
    assert documents(tmp_path / "tokens") == documents(tmp_path / "text")
    mixed = made(
        sources=({"path": str(tmp_path / "a.jsonl")}, {"path": str(tmp_path / "others")}), tokenizer=str(tokenizer)
    )
    build(mixed, tmp_path / "mixed")
    data = Shards.open(tmp_path / "mixed")
    lost = sum(source.skipped.get("of which another is held out", 0) for source in data.index.sources)
    found = Counter(map(tuple, documents(tmp_path / "mixed")))
    assert found.keys() == set(map(tuple, documents(tmp_path / "text")))
    assert (found.total(), min(found.values()), max(found.values())) == (2 * 60 - lost, 1, 2)
    assert lost > 0


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.bin", b"\x02\x00\x03", "cut, or of another type"),
        ("a.bin", np.array([5, 6, 7], "<u2").tobytes(), "no token 1 in it ends a document"),
        ("a.bin", np.array([5, 60_000, END], "<u2").tobytes(), "the id 60000"),
        ("a.npy", b"no numpy", "cannot be used"),
        ("a.ds", b"\x02\x00", "a.ds.index, which says"),
    ],
)
def test_a_file_that_is_not_whole_or_anothers_is_refused(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", WORDS)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=reason):
        build(str(tmp_path / name), tmp_path / "out", tokenizer=str(tokenizer))


def test_numpy_files_of_another_shape_or_kind_are_refused(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", WORDS)
    for number, array in enumerate((np.zeros((4, 4), "<u2"), np.zeros(4, "<f4"), np.array([3, -1, END], "<i4"))):
        np.save(tmp_path / f"{number}.npy", array)
        with pytest.raises(ConfigError, match=r"one row of whole numbers|which is no id"):
            build(str(tmp_path / f"{number}.npy"), tmp_path / "out", tokenizer=str(tokenizer))


@pytest.mark.parametrize("cut", [".bin", ".idx"])
def test_megatrons_files_that_were_cut_are_refused(cut: str, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", WORDS)
    megatron(tmp_path / "a.bin")
    path = (tmp_path / "a").with_suffix(cut)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ConfigError, match=r"size is not what its \.idx says|\.idx is cut"):
        build(str(tmp_path / "a.bin"), tmp_path / "out", tokenizer=str(tokenizer))


def test_tokens_of_another_tokenizer_and_of_another_type_are_refused(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path / "tokenizer.json")
    texts = [f"def another(tokenizer{number}): pass\n" * 5 for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(str(tmp_path / "a.jsonl"), tmp_path / "made", tokenizer=str(tokenizer))
    data = Shards.open(tmp_path / "made").train
    tokens = data.tokens(0, data.num_tokens)
    shifted = np.where(tokens > 2, (tokens - 3 + 50) % 590 + 3, tokens)
    np.save(tmp_path / "a.npy", shifted)
    tokens.astype("<u4").tofile(tmp_path / "a.bin")
    with pytest.raises(ConfigError, match="are not what this tokenizer makes of their text"):
        build(str(tmp_path / "a.npy"), tmp_path / "out", tokenizer=str(tokenizer))
    with pytest.raises(ConfigError, match="give --dtype uint32"):
        build(str(tmp_path / "a.bin"), tmp_path / "out", tokenizer=str(tokenizer))
    build(str(tmp_path / "a.bin"), tmp_path / "out", tokenizer=str(tokenizer), dtype="uint32")
    with pytest.raises(ConfigError, match="give the tokenizer that made them"):
        build(str(tmp_path / "a.npy"), tmp_path / "bytes")


def test_imported_tokens_are_trained_on(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", WORDS)
    np.save(tmp_path / "a.npy", np.array(flat() * 5, "<u2"))
    options = ["--tokenizer", str(tokenizer), "--out", str(tmp_path / "out"), "--workers", "1", "--held-out", "0.2"]
    assert main(["shards", "import", str(tmp_path / "a.npy"), *options]) == 0
    data = Shards.open(tmp_path / "out")
    model = Transformer(
        ModelSpec(vocabulary=data.index.vocabulary, layers=1, width=16, heads=2, kv_heads=1, ffn=16, context=16)
    )
    initialise(model, 3)
    inner = InnerSpec(steps=20, sequences=4, peak_lr=3e-2, final_lr=3e-3, warmup_steps=2, decay_steps=100)
    pages = torch.stack([torch.from_numpy(data.train.tokens(17 * number, 17)) for number in range(16)])
    before = float(model.loss(pages).mean().detach())
    inner_round(model, make_optimizer(model, inner), batches(pages.repeat(5, 1), 4, 4), inner, first_step=0)
    assert float(model.loss(pages).mean().detach()) < 0.9 * before


def test_one_files_wrong_tokens_are_found_among_others_right_ones_and_behind_a_right_beginning(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path / "tokenizer.json")
    texts = [f"def another(tokenizer{number}): pass\n" * 200 for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(str(tmp_path / "a.jsonl"), tmp_path / "made", tokenizer=str(tokenizer))
    right = Shards.open(tmp_path / "made").train
    tokens = right.tokens(0, right.num_tokens)
    wrong = np.where(tokens > 2, (tokens - 3 + 50) % 590 + 3, tokens)
    folder = tmp_path / "tokens"
    folder.mkdir()
    np.save(folder / "right.npy", np.tile(tokens, 5))
    np.save(folder / "wrong.npy", wrong)
    with pytest.raises(ConfigError, match=r"wrong\.npy: of \d+ documents, \d+ are not what"):
        build(str(folder), tmp_path / "out", tokenizer=str(tokenizer))
    ends = np.flatnonzero(tokens == END)
    late = tokens.copy()
    for begin, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        late[begin + 600 : end] = wrong[begin + 600 : end]
    np.save(folder / "wrong.npy", late)
    with pytest.raises(ConfigError, match=r"wrong\.npy: of \d+ documents, \d+ are not what"):
        build(str(folder), tmp_path / "out", tokenizer=str(tokenizer))


def test_what_is_odd_in_tokens_is_refused_with_its_own_words(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path / "tokenizer.json", post_processor=BEGINS)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    np.save(tmp_path / "twice.npy", np.array([0, 0, 40, 41, 1] * 20, "<u2"))
    with pytest.raises(ConfigError, match="begins with '<bos>' twice"):
        build(str(tmp_path / "twice.npy"), tmp_path / "out", tokenizer=str(tokenizer))
    reserved = open_tokenizer(tokenizer).own
    assert reserved is not None
    np.save(tmp_path / "reserved.npy", np.array([0, 40, reserved, 1] * 20, "<u2"))
    with pytest.raises(ConfigError, match=f"the id {reserved}"):
        build(str(tmp_path / "reserved.npy"), tmp_path / "out", tokenizer=str(tokenizer))
    np.save(tmp_path / "empty.npy", np.array([], "<u2"))
    with pytest.raises(ConfigError, match="it is empty"):
        build(str(tmp_path / "empty.npy"), tmp_path / "out", tokenizer=str(tokenizer))
    np.save(tmp_path / "word.npy", np.array([0, 40, 41, 1] * 20, "<u2"))
    word = json.loads(tokenizer.read_text())["model"]["vocab"]
    with pytest.raises(ConfigError, match="is a token of text"):
        build(
            str(tmp_path / "word.npy"),
            tmp_path / "out",
            tokenizer=str(tokenizer),
            end=next(t for t in word if word[t] == 41),
        )
    megatron(tmp_path / "long.bin")
    with (tmp_path / "long.bin").open("ab") as file:
        file.write(bytes(20))
    with pytest.raises(ConfigError, match="size is not what"):
        build(str(tmp_path / "long.bin"), tmp_path / "out", tokenizer=str(tokenizer))
