"""Published tokenizers from text to a chat model: a data set, an export that has learned it, tasks, and fine-tuning on
chats. Needs npm and the extra `post`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from murmur.cli.main import main
from murmur.data.build import build
from murmur.data.scatter import draws
from murmur.data.shards import Shards
from murmur.data.tokenizer import open_tokenizer
from murmur.export.chat_rows import chat_of
from murmur.export.chat_turns import Turns, open_turns
from murmur.export.folder import write
from murmur.export.llama import config, names
from murmur.export.states import Named, Rebuilt
from murmur.export.tokenizer import run_tokenizer
from murmur.protocol.messages import first_link
from murmur.training.model import genesis_theta
from sparseloco.digest import theta_digest
from sparseloco.outer import OuterState
from tests.export.conftest import quiet
from tests.export.test_evaluate import tasks
from tests.real_tokenizers import MISTRAL, NAMES, fetched, needs_npm
from tests.specs import toy_spec

__all__ = ["tasks"]

pytestmark = [pytest.mark.slow, needs_npm, pytest.mark.filterwarnings("ignore")]
transformers = pytest.importorskip("transformers", reason="the extra `post` is not installed")

STOPS = {
    "gemma3": "<end_of_turn>",
    "llama3_1": "<|eot_id|>",
    "qwen3": "<|im_end|>",
    "gpt4o": "<|end_of_turn|>",
    "gptoss": "<|end_of_turn|>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
    MISTRAL: "<|end_of_turn|>",
}
BEGIN = {"gemma3", "llama3_1", "deepseek_v3", MISTRAL}
TEXTS = [
    f"{one} and {other} went to {place}."
    for one, other, place in [
        ("Ada", "Bo", "the sea"),
        ("Cleo", "Dan", "a market"),
        ("Eve", "Finn", "town"),
        ("Gus", "Hal", "my garden"),
    ]
]
RECIPE = """
betas = [0.9, 0.95]
weight_decay = 0.01
clip = 1.0
save_steps = 4
held_out_rows = 2

[[stages]]
context = 64
sequences = 2
steps = 4
warmup_steps = 1
peak_lr = 1e-3
"""


def learned(spec: Any, data: Shards, end: int) -> Any:
    """A model that knows the documents of a data set by heart, each from its beginning, after another's end."""
    tokens = data.train.tokens(0, data.train.num_tokens).tolist()
    documents, begin = list[list[int]](), 0
    for at, token in enumerate(tokens):
        if token == end:
            documents.append([end, *tokens[begin : at + 1]])
            begin = at + 1
    documents = [list(each) for each in sorted({tuple(each) for each in documents})]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config(spec.model, "float32", end)))
    theta = genesis_theta(spec.model, 1)
    with torch.no_grad():
        for ours, theirs in names(spec.model).items():
            model.get_parameter(theirs).copy_(theta[ours])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    longest = max(map(len, documents))
    ids = torch.tensor([[*each, *[end] * (longest - len(each))] for each in documents])
    labels = torch.tensor([[*each, *[-100] * (longest - len(each))] for each in documents])
    for step in range(120):
        first = step % 2  # with and without the end of another document before it
        model(input_ids=ids[:, first:], labels=labels[:, first:]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@torch.no_grad()
def loss(model: Any, before: list[int], ids: list[int], skip: int = 0) -> float:
    """The mean loss of `ids` behind `before`, without the first ones."""
    logits = model(input_ids=torch.tensor([[*before, *ids]])).logits[0]
    places = range(skip, len(ids))
    found = torch.log_softmax(logits.double(), -1)
    return -sum(float(found[len(before) + at - 1, ids[at]]) for at in places) / len(places)


def opened(name: str, template: str, folder: Path) -> Turns:
    """The turns of an export with a published tokenizer and a template that TRL has."""
    trl = pytest.importorskip("trl", reason="the extra `post` is not installed")
    path = fetched(name, folder)
    source = Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja"
    path.with_name("chat_template.jinja").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    made = open_tokenizer(path)
    (folder / "tokenizer.json").write_bytes(made.file or b"")
    (folder / "tokenizer_config.json").write_bytes(made.config)
    return open_turns(transformers.AutoTokenizer.from_pretrained(folder))


def runs(turns: Turns, ids: list[int], mask: list[Any]) -> list[str]:
    """The texts of what is marked, without the line's end that some mark behind a turn."""
    found, before = list[list[int]](), False
    for token, marked in zip(ids, mask, strict=True):
        if marked:
            found = [*found[:-1], [*found[-1], token]] if before else [*found, [token]]
        before = marked
    return [turns.tokenizer.decode(run).strip("\n") for run in found]


def said(turns: Turns, row: Any) -> list[str]:
    examples, _ = turns.examples(chat_of(row))
    return sorted(
        run for one in examples for run in runs(turns, one["labels"], [label >= 0 for label in one["labels"]])
    )


HI, YO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
OK = {"role": "assistant", "content": "ok"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"of": "Bo"}}}
CALLS = [HI, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "42"}, YO]
THINKS = [HI, YO | {"reasoning_content": "let me"}, HI, OK | {"reasoning_content": "hm hm"}]
CHATS = [[HI, YO], [HI, YO, HI, OK], [{"role": "system", "content": "be kind"}, HI, YO], THINKS]


@pytest.mark.parametrize(
    ("name", "template", "chats"),
    [
        ("gemma3", "gemma3", CHATS),
        ("llama3_1", "llama3", CHATS),
        ("qwen3", "qwen3", [*CHATS, CALLS]),
        ("qwen3", "qwen2_5", [*CHATS, CALLS]),
    ],
)
def test_what_is_learned_is_what_trls_own_templates_mark(name: str, template: str, chats: Any, tmp_path: Path) -> None:
    turns = opened(name, template, tmp_path)
    trl = pytest.importorskip("trl")
    theirs = (Path(trl.__file__).parent / "chat_templates" / f"{template}_training.jinja").read_text(encoding="utf-8")
    for messages in chats:
        marked = turns.tokenizer.apply_chat_template(
            messages, chat_template=theirs, return_dict=True, return_assistant_tokens_mask=True
        )
        expected = runs(turns, marked["input_ids"], marked["assistant_masks"])
        assert said(turns, {"messages": messages}) == sorted(expected)


def test_gpt_oss_returns_wherever_it_answers(tmp_path: Path) -> None:
    turns = opened("gptoss", "gptoss", tmp_path)
    final, thought = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"
    assert turns.tokenizer.convert_ids_to_tokens(turns.ends) == ["<|return|>", "<|call|>"]
    assert said(turns, {"messages": [HI, YO, HI, OK]}) == [f"{final}ok<|return|>", f"{final}yo<|return|>"]
    assert said(turns, {"messages": THINKS}) == [
        f"{thought}hm hm<|end|><|start|>assistant{final}ok<|return|>",
        f"{thought}let me<|end|><|start|>assistant{final}yo<|return|>",
    ]
    call = ' to=functions.weather<|channel|>commentary json<|message|>{"of": "Bo"}<|call|>'
    assert said(turns, {"messages": CALLS}) == [call, f"{final}yo<|return|>"]


@pytest.mark.parametrize("name", [*NAMES, MISTRAL])
def test_from_text_to_a_chat_model(
    name: str, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason="the extra `post` is not installed")
    pytest.importorskip("lm_eval", reason="the extra `post` is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    path = fetched(name, tmp_path)
    texts = [*TEXTS * 40, "A text of its own, to be held out."]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    first = {seed: min(range(161), key=lambda row: draws(seed, 0, "text.jsonl", str(row), 0)) for seed in range(2000)}
    seed = next(seed for seed, row in first.items() if row == 160)
    build(str(tmp_path / "text.jsonl"), tmp_path / "data", tokenizer=str(path), workers=1, held_out=1e-9, seed=seed)
    data = Shards.open(tmp_path / "data")
    small = {"layers": 1, "width": 32, "ffn": 64, "context": 64, "tie_embeddings": True}
    spec = toy_spec(
        {
            "data.index": data.digest.hex(),
            "model.vocabulary": data.index.vocabulary,
            **{f"model.{field}": value for field, value in small.items()},
        }
    )
    files = run_tokenizer(data.index.tokenizer, data.index.tokenizer_config, tmp_path / "data")
    model = learned(spec, data, files.end)
    theta = {ours: model.get_parameter(theirs).detach().clone() for ours, theirs in names(spec.model).items()}
    outer = OuterState.initial(spec.layout)
    link = first_link(spec.digest)
    folder = tmp_path / "export"
    folder.mkdir()
    state = Rebuilt(theta, outer, theta_digest(theta, spec.layout, outer), link)
    write(folder, spec.digest, spec, Named(3, link, None), state, files, "float32", 5_000_000_000, quiet)

    # A prompt begins as documents do; with one token more, or one less, the model has never seen it.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    opened = transformers.AutoModelForCausalLM.from_pretrained(folder)
    bos = [data.index.bos] if data.index.bos is not None else []
    assert bool(bos) == (name in BEGIN)
    beginnings = {"as documents": bos, "more": [*(bos or [files.end - 1]), *bos], **({"less": []} if bos else {})}
    losses = dict.fromkeys(beginnings, 0.0)
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer(text)["input_ids"] == [*bos, *ids]
        for kind, before in beginnings.items():
            losses[kind] += loss(opened, before, ids, skip=1) / len(TEXTS)
    assert min(losses, key=losses.__getitem__) == "as documents", losses

    # What lm-eval measures of it is this loss.
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"question": text, "choices": ["a", "b"], "answer": 0}) + "\n" for text in TEXTS)
    )
    words = ["evaluate", str(folder), "--include", str(tasks), "--device", "cpu", "--json", "--tasks"]
    assert main([*words, "toy_choice,toy_perplexity"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    nats = 0.0
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        nats += len(ids) * loss(opened, bos or [files.end], ids)
    expected = math.exp(nats / sum(len(text.encode()) for text in TEXTS))
    assert results["toy_perplexity"]["metrics"]["byte_perplexity,none"] == pytest.approx(expected, rel=1e-4)

    chats = [
        {"messages": [{"role": "user", "content": f"Who? {at}"}, {"role": "assistant", "content": text}]}
        for at, text in enumerate(TEXTS * 3)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    (tmp_path / "short.toml").write_text(RECIPE)
    words = ["sft", str(folder), "--data", str(tmp_path / "chats.jsonl"), "--recipe", str(tmp_path / "short.toml")]
    assert main([*words, "--device", "cpu", "--out", str(tmp_path / "tuned")]) == 0
    capsys.readouterr()
    tuned = transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned")
    stop = tuned.convert_tokens_to_ids(STOPS[name])
    made = json.loads((tmp_path / "tuned" / "generation_config.json").read_bytes())
    assert made["eos_token_id"] == list(dict.fromkeys([stop, files.end]))
    turns = open_turns(tokenizer)
    (example,), _ = turns.examples(chat_of(chats[0]))
    answer = [label for label in example["labels"] if label >= 0]
    assert answer[-1] == stop
    assert TEXTS[0] in tuned.decode(answer)
    prompt = tuned.apply_chat_template(chats[0]["messages"][:1], add_generation_prompt=True)["input_ids"]
    assert prompt == example["input_ids"][: len(prompt)]
    assert [token for token in prompt if token in bos] == prompt[: len(bos)] == bos
    words = ["evaluate", str(tmp_path / "tuned"), "--include", str(tasks), "--device", "cpu", "--json", "--chat"]
    assert main([*words, "--tasks", "toy_choice"]) == 0
