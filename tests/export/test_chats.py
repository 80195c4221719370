"""Rows of chats: what is learned of each kind, and why others cannot be used. Needs the extra `post`."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.data.index import TOKENIZER, TOKENIZER_CONFIG
from murmur.data.tokenizer import BYTES, byte_tokenizer
from murmur.export.chat_rows import BadRow, chat_of
from murmur.export.chat_turns import NO_LABEL, Turns, open_turns
from murmur.export.tokenizer import run_tokenizer
from murmur.protocol.errors import ConfigError, Spoilt
from tests.random_cases import CASES

transformers = pytest.importorskip("transformers", reason="the extra `post` is not installed")
Opened = Callable[..., Turns]
HI, YO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
END = "<|end_of_turn|>"
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"of": "Bo"}'}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ASKED_TOOL = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "1", "content": "42"}
THINKS = YO | {"reasoning_content": "let me see"}
CALLED = '{"name": "weather", "arguments": {"of": "Bo"}}'
MANY = r"""{%- if tools %}{{ '<|start_of_turn|>tools ' + (tools | tojson) + '<|end_of_turn|>\n' }}{% endif %}
{%- for message in messages %}
{%- set last = loop.last and not add_generation_prompt %}
{{- '<|start_of_turn|>' + message.role + '\n' }}
{%- if message.role == 'assistant' and last and message.thinking is defined %}
{{- '<think>' + message.thinking + '</think>' }}{% endif %}
{{- message.content | trim }}
{%- for call in message.tool_calls %}{{ (call.function | tojson) + '<|reserved_1|>' }}{% endfor %}
{%- if not message.tool_calls %}
{{- '<|end_of_turn|>' if last or message.role != 'assistant' else '<|reserved_0|>' }}{% endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_of_turn|>assistant\n' }}{% endif %}"""
"""As Qwen's, Gemma's and gpt-oss's have it: thoughts in the last turn only, calls, a line's end after a turn's, another
end in the middle."""


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """opened(chat_template=.., bos_token=..): the turns of a tokenizer of bytes."""

    def made(**changes: Any) -> Turns:
        config = (json.dumps(json.loads(byte_tokenizer().config) | changes) + "\n").encode()
        (tmp_path / TOKENIZER_CONFIG).write_bytes(config)
        (tmp_path / TOKENIZER).write_bytes(run_tokenizer(BYTES, sha256(config).hexdigest(), tmp_path).data)
        return open_turns(transformers.AutoTokenizer.from_pretrained(tmp_path))

    return made


def learned(turns: Turns, row: Any) -> tuple[list[str], list[str]]:
    """The texts that are learned, and what the template leaves out."""
    examples, left_out = turns.examples(chat_of(row))
    runs, before = list[list[int]](), NO_LABEL
    for label in (label for example in examples for label in [NO_LABEL, *example["labels"]]):
        if label != NO_LABEL:
            runs += [[label]] if before == NO_LABEL else []
            runs[-1] += [label] if before != NO_LABEL else []
        before = label
    return [turns.tokenizer.decode(run) for run in runs], left_out


@pytest.mark.parametrize(
    ("row", "said", "left_out"),
    [
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, ["yo"], []),
        ({"instruction": "add", "input": "1 2", "output": "3"}, ["3"], []),
        ({"prompt": "a", "completion": "b"}, ["b"], []),
        ({"messages": [{"role": "system", "content": "s"}, HI, YO]}, ["yo"], []),
        ({"messages": [{"role": "developer", "content": "s"}, HI, YO]}, ["yo"], []),
        ({"messages": [HI | {"content": [{"type": "text", "text": "hi"}]}, YO]}, ["yo"], []),
        ({"messages": [HI, ASKED_TOOL, TOLD, YO], "tools": []}, "tool calls", []),
        ({"messages": [HI, ASKED_TOOL | {"content": ""}, HI, YO]}, "tool calls", []),
        ({"messages": [HI, YO | {"weight": 0}, HI, YO | {"weight": 1}]}, ["yo"], []),
        ({"messages": [HI, THINKS]}, ["yo"], ["reasoning_content"]),
        ({"messages": [HI, YO | {"content": ""}, HI, YO]}, ["yo"], []),
        ({"messages": [HI, YO, HI]}, ["yo"], []),
        ({"messages": [HI | {"content": f"what is {END}?"}, YO]}, "special token", []),
    ],
    ids=[
        "ShareGPT",
        "Alpaca",
        "prompt and completion",
        "OpenAI's messages",
        "the role developer",
        "content in parts",
        "a tool call without content, which the template does not know",
        "a tool call with empty content, which the template does not know",
        "a turn of weight 0",
        "thoughts, which the template does not know",
        "an empty turn",
        "the user has the last word",
        "a special token as text",
    ],
)
def test_thirteen_kinds_of_rows(row: Any, said: list[str] | str, left_out: list[str], opened: Opened) -> None:
    if isinstance(said, str):
        with pytest.raises(BadRow) as fault:
            learned(opened(), row)
        assert fault.value.kind == said
    else:
        assert learned(opened(), row) == ([f"{each}{END}" for each in said], left_out)


@pytest.mark.parametrize(
    ("row", "said", "count"),
    [
        ({"messages": [HI, YO]}, [f"yo{END}"], 1),
        # Whoever answers is last, so this is the end to learn, in the middle too.
        ({"messages": [HI, YO, HI, YO]}, [f"yo{END}", f"yo{END}"], 1),
        ({"messages": [HI, THINKS]}, [f"<think>let me see</think>yo{END}"], 1),
        # In the whole chat the thoughts are not there any more.
        ({"messages": [HI, THINKS, HI, YO]}, [f"<think>let me see</think>yo{END}", f"yo{END}"], 2),
        ({"messages": [HI, THINKS, HI]}, [f"<think>let me see</think>yo{END}"], 1),
        ({"messages": [HI, ASKED_TOOL, TOLD, YO], "tools": TOOLS}, [f"{CALLED}<|reserved_1|>", f"yo{END}"], 1),
        ({"messages": [HI, ASKED_TOOL | {"content": "so"}]}, [f"so{CALLED}<|reserved_1|>"], 1),
        ({"messages": [HI, YO, YO, TOLD]}, [f"yo{END}", f"yo{END}"], 1),
    ],
)
def test_other_templates(row: Any, said: list[str], count: int, opened: Opened) -> None:
    turns, chat = opened(chat_template=MANY), chat_of(row)
    assert learned(turns, row) == (said, [])
    assert turns.tokenizer.convert_ids_to_tokens(turns.ends) == [END, "<|reserved_1|>"]
    examples, _ = turns.examples(chat)
    assert len(examples) == count
    made = [
        turns.tokenizer.apply_chat_template(chat.messages[:end], tools=chat.tools)["input_ids"]
        for end in range(1, 1 + len(chat.messages))
    ]
    assert all(example["input_ids"] in made for example in examples)


@pytest.mark.parametrize(
    ("row", "same"),
    [
        ({"conversations": [{"role": "user", "content": "hi"}, {"from": "gpt", "value": "yo"}]}, [HI, YO]),
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}], "system": "s"},
            [{"role": "system", "content": "s"}, HI, YO],
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "hi"},
                    {"from": "function_call", "value": '{"name": "weather", "arguments": {"of": "Bo"}}'},
                    {"from": "observation", "value": "42"},
                    {"from": "gpt", "value": "yo"},
                ],
                "tools": json.dumps(TOOLS),
            },
            [HI, ASKED_TOOL, {"role": "tool", "content": "42"}, YO],
        ),
        ({"instruction": "hi", "input": "", "output": "yo", "history": [["hi", "yo"]]}, [HI, YO, HI, YO]),
        ({"instruction": "hi", "input": "ho", "output": "yo"}, [HI | {"content": "hi\n\nho"}, YO]),
        ({"prompt": [HI], "completion": [YO]}, [HI, YO]),
        # A column that other rows of a data set have is null here.
        ({"messages": [HI | {"tool_calls": None, "weight": None}, YO], "prompt": "hi", "tools": None}, [HI, YO]),
        (
            {"messages": [HI, YO | {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            [HI, YO | {"content": "a\nb"}],
        ),
    ],
)
def test_rows_in_other_words_are_the_same_chat(row: Any, same: list[Any], opened: Opened) -> None:
    turns = opened(chat_template=MANY)
    tools = TOOLS if row.get("tools") else None
    assert turns.examples(chat_of(row)) == turns.examples(chat_of({"messages": same, "tools": tools}))


def test_what_other_rows_of_a_table_have_is_not_in_this_one(opened: Opened) -> None:
    """A column of objects has each key in every row."""
    call = {"function": {"name": "weather", "arguments": {"of": "Bo", "at": None}}}
    tool = {"function": {"name": "weather", "parameters": {"of": {"type": "string"}, "at": None}}}
    messages = [HI | {"tool_calls": None}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    row = {"messages": messages, "tools": [tool]}
    (found,), (same,) = (chat_of(row).tools or []), TOOLS
    assert found["function"] == same["function"] | {"parameters": {"of": {"type": "string"}}}
    assert learned(opened(chat_template=MANY), row) == ([f"{CALLED}<|reserved_1|>"], [])
    line = json.dumps(row).encode()
    assert '"at": null' in learned(opened(chat_template=MANY), {"line": line, "number": 1})[0][0]


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([HI, YO, HI, YO], [False, True, False, True]),
        ([HI, YO | {"train": False}, HI, YO], [False, False, False, True]),
        ([YO, HI, YO], [False, False, True]),
    ],
)
def test_who_is_learned(messages: list[Any], wanted: list[bool]) -> None:
    assert chat_of({"messages": messages}).learned == wanted
    assert chat_of({"prompt": messages, "completion": [YO]}).learned == [*([False] * len(messages)), True]


@pytest.mark.parametrize(
    ("row", "kind", "told"),
    [
        ({"line": b"nonsense\n"}, "not JSON", "is not JSON"),
        ({"line": b'{"messages": "\xff"}'}, "bad coding", "'utf-8' codec"),
        ({"line": b"[]"}, "not a chat", "is no object, but list"),
        ({"line": b"[" * 100_000}, "not JSON", "recursion"),
        ({}, "not a chat", "nothing"),
        ({"text": "a"}, "not a chat", 'has no "messages", .*, but text'),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "not a chat", "but prompt, chosen, rejected"),
        ({"messages": []}, "not a chat", "but messages"),
        ({"messages": "hi"}, "not a chat", "something else than messages"),
        ({"messages": [HI, 5]}, "not a chat", "something else than messages"),
        ({"messages": [HI, {"content": "a"}]}, "unknown role", "'None'"),
        ({"messages": [HI | {"role": ["user"]}]}, "unknown role", "user"),
        ({"messages": [HI | {"role": "robot"}]}, "unknown role", "has the role 'robot': the known ones are system"),
        ({"messages": [HI | {"content": None}, YO]}, "no content", "without text"),
        ({"messages": [HI | {"content": []}, YO]}, "no content", "without text"),
        ({"messages": [HI | {"content": [{"type": "image_url"}]}, YO]}, "content part", "type 'image_url'"),
        ({"messages": [HI | {"content": ["hi"]}, YO]}, "content part", "type 'str'"),
        ({"messages": [HI, YO | {"weight": 0.5}]}, "weight", "the weight 0.5"),
        ({"messages": [HI, YO | {"train": "no"}]}, "weight", "train no"),
        ({"messages": [HI, YO | {"weight": 0}]}, "no answer", "no answer"),
        ({"messages": [HI, YO | {"content": ""}]}, "no answer", "no answer"),
        ({"messages": [HI]}, "no answer", "no answer"),
        ({"messages": [YO]}, "no answer", "no answer"),
        ({"prompt": [HI, YO], "completion": [HI]}, "no answer", "no answer"),
        ({"messages": [HI, YO | {"content": "\ud83d"}]}, "bad coding", "lone surrogate"),
        ({"messages": [HI, YO | {"tool_calls": "f"}]}, "tool calls", "something else than a list"),
        ({"messages": [HI, YO | {"tool_calls": ["f"]}]}, "tool calls", "without a name"),
        ({"messages": [HI, YO | {"tool_calls": [{"function": "f"}]}]}, "tool calls", "without a name"),
        ({"messages": [HI, YO | {"tool_calls": [{"name": "f", "arguments": "{"}]}]}, "tool calls", "no JSON object"),
        ({"messages": [HI, YO], "tools": "f"}, "tools", "something else than a list"),
        ({"messages": [HI, YO], "tools": ["f"]}, "tools", "no objects"),
        ({"instruction": "a", "output": 3}, "no content", "without text"),
        ({"instruction": 1, "output": "a"}, "no content", "instruction"),
        ({"instruction": "a", "output": "b", "history": [["a"]]}, "not a chat", "history"),
        ({"instruction": "a", "output": "b", "history": 5}, "not a chat", "something else than a list"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(row: Any, kind: str, told: str) -> None:
    with pytest.raises(BadRow, match=told) as fault:
        chat_of(row)
    assert fault.value.kind == kind


KEYS = ["messages", "conversations", "prompt", "completion", "instruction", "output", "history", "system", "tools"]
KEYS += ["role", "from", "content", "value", "tool_calls", "function", "name", "arguments", "type", "text", "weight"]
WORDS = ["user", "assistant", "gpt", "tool", "function_call", "text", "{}", "[]", '{"name": "f"}', "\ud800", ""]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(WORDS[:4]), "content": ANYTHING}, optional={"tool_calls": ANYTHING}
)


@settings(max_examples=CASES, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS[:9]), ANYTHING | st.lists(MESSAGE, max_size=4), max_size=4))
def test_any_object_is_a_chat_or_a_bad_row(row: Any) -> None:
    try:
        chat = chat_of(row)
    except BadRow:
        return
    assert any(chat.learned)
    assert all(isinstance(message["content"], str) for message in chat.messages)


def test_a_template_may_refuse_a_chat_or_break(opened: Opened) -> None:
    template = json.loads(byte_tokenizer().config)["chat_template"]
    for first, told in (
        ("raise_exception('never')", "never"),
        ("'a' + 5", "str"),
        ("messages[0].nothing.more", "nothing"),
    ):
        guard = "{% if messages[0]['role'] == 'system' %}{{ " + first + " }}{% endif %}"
        turns = opened(chat_template=guard + template)
        assert learned(turns, {"messages": [HI, YO]}) == ([f"yo{END}"], [])
        with pytest.raises(BadRow, match=f"does not fit the tokenizer's chat template.*{told}") as fault:
            learned(turns, {"messages": [{"role": "system", "content": "s"}, HI, YO]})
        assert fault.value.kind == "template"


def test_a_template_whose_prompt_begins_the_answer(opened: Opened) -> None:
    """As those have it that open the thoughts, or leave them out."""
    empty = MANY.replace(" and message.thinking is defined", "").replace("message.thinking", "(message.thinking or '')")
    turns = opened(chat_template=empty.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>' }}{% endif %}"))
    assert learned(turns, {"messages": [HI, YO, HI, THINKS]}) == (
        [f"</think>yo{END}", f"let me see</think>yo{END}"],
        [],
    )
    turns = opened(chat_template=empty.replace("\\n' }}{% endif %}", "\\n<think></think>' }}{% endif %}"))
    assert learned(turns, {"messages": [HI, YO]}) == ([f"yo{END}"], [])
    with pytest.raises(BadRow, match="does not follow the prompt") as fault:
        learned(turns, {"messages": [HI, THINKS]})
    assert fault.value.kind == "template"


def test_examples_of_a_row_are_held_out_together(opened: Opened, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the extra `post` is not installed")
    from datasets import load_from_disk

    from murmur.export.chat import read_rows, tokenised
    from murmur.export.recipes import recipe
    from murmur.export.sft import Order, Ready

    rows = [{"messages": [HI, THINKS, HI, YO]}] * 3
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns, source = opened(chat_template=MANY), str(tmp_path / "rows.jsonl")
    tokenised(read_rows(source, tmp_path / "cache"), turns, source, tmp_path / "chats", 0.0)
    order = Order(tmp_path, tmp_path, source, "toy", recipe("toy"), None, 1, "cpu", 0.0)
    ready = Ready(order, None, turns, [], load_from_disk(str(tmp_path / "chats")), None, tmp_path)  # type: ignore[arg-type]
    held_out, trained = ready.held_out.tolist(), ready.trained(order.recipe.stages[0]).tolist()
    assert sorted(held_out + trained) == list(range(6))
    assert held_out in ([0, 1], [2, 3], [4, 5])


def test_what_a_template_leaves_out_is_named(opened: Opened) -> None:
    template = "{% for message in messages if message.role != 'system' %}<|start_of_turn|>{{ message.role + '\n' }}"
    template += "{{ message.content }}<|end_of_turn|>{% endfor %}"
    template += "{% if add_generation_prompt %}<|start_of_turn|>{{ 'assistant\n' }}{% endif %}"
    row = {"messages": [{"role": "developer", "content": "be kind"}, HI, THINKS], "tools": TOOLS}
    found = learned(opened(chat_template=template), row)
    assert found == ([f"yo{END}"], ["content of system", "reasoning_content", "tools"])


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (None, "has no turn tokens"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "would never stop"),
        ("{{ messages[0].content }}<|end_of_turn|>", "would never stop"),
        ("{{ raise_exception('never') }}", "a question and its answer: it does not fit .*never"),
        ("{% if %}", "a question and its answer: it does not fit"),
        (MANY.replace("'<|start_of_turn|>assistant\\n'", "'<|start_of_turn|>model\\n'"), "with its generation prompt"),
    ],
)
def test_a_template_without_turns_is_refused(template: str | None, told: str, opened: Opened) -> None:
    with pytest.raises(ConfigError, match=told):
        opened(chat_template=template)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("writes", ["", "{{ bos_token }}", "{{ bos_token + '' }}"])
def test_a_chat_begins_as_documents_do(begins: bool, writes: str, opened: Opened, tmp_path: Path) -> None:
    template = json.loads(byte_tokenizer().config)["chat_template"]
    opened(chat_template=writes + template, **({"bos_token": "<|reserved_4|>"} if begins else {}))
    if begins:
        table = json.loads((tmp_path / TOKENIZER).read_bytes())
        first = {"SpecialToken": {"id": "<|reserved_4|>", "type_id": 0}}
        table["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|reserved_4|>": {"id": "<|reserved_4|>", "ids": [263], "tokens": ["<|reserved_4|>"]}},
        }
        (tmp_path / TOKENIZER).write_text(json.dumps(table))
    turns = open_turns(transformers.AutoTokenizer.from_pretrained(tmp_path))
    (example,), _ = turns.examples(chat_of({"messages": [HI, YO]}))
    assert example["input_ids"].count(263) == begins
    assert (example["input_ids"][0] == 263) == begins
    # Whoever serves the model writes the same.
    turns.tokenizer.chat_template = turns.template
    assert turns.tokenizer.apply_chat_template([HI, YO])["input_ids"] == example["input_ids"]


# --- counting ----------------------------------------------------------------------------------------------------


def test_bad_rows_are_counted_and_too_many_end_it(opened: Opened, tmp_path: Path) -> None:
    from datasets import load_from_disk

    from murmur.export.chat import Counts, read_counts, read_rows, tokenised

    good = json.dumps({"messages": [HI, THINKS]}).encode()
    lines = [b"\xef\xbb\xbfnonsense", *[good] * 95, b"", b'{"messages": 5}', b"more nonsense", good[:-9]]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    rows, turns = read_rows(str(tmp_path / "rows.jsonl"), tmp_path / "cache"), opened()
    source, out = str(tmp_path / "rows.jsonl"), tmp_path / "chats"
    told = r"4 of 99 rows cannot be used, more than 4.00% \(--max-bad\)\."
    with pytest.raises(Spoilt, match=told + r"\n  3 not JSON: line 1 is .*\n  1 not a chat: line 98 "):
        tokenised(rows, turns, source, out, 0.04)
    assert not out.exists()
    tokenised(rows, turns, source, out, 0.05)
    assert read_counts(out) == Counts(bad={"not JSON": 3, "not a chat": 1}, left_out={"reasoning_content": 95})
    assert len(load_from_disk(str(out))) == 95
