"""Rows of chats in the forms that people have them in, as one: messages, which of them are learned, and tools.

Read are `messages` (OpenAI), `conversations` (ShareGPT), `prompt` with `completion`, and `instruction` with `output`
(Alpaca). A row may also have `system` and `tools`. What cannot be used is a BadRow with its kind.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Message = dict[str, Any]

_CALL = "function_call"
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    _CALL: "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}


class BadRow(Exception):
    """A row that cannot be used: its `kind`, and a message that says what "it" does."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages as chat templates take them, with text as `content`; those that are `learned`; descriptions of tools."""

    messages: list[Message]
    learned: list[bool]
    tools: list[Any] | None = None


def chat_of(row: Row) -> Chat:
    """Return a row's chat. Raises BadRow."""
    row = _parsed(row["line"]) if isinstance(row.get("line"), bytes) else _filled(row)
    turns = list(_turns(row))
    tools = _tools(row.get("tools"))
    # Nobody has asked for what opens a chat, and nothing is learned from silence.
    learned = [
        place > 0 and wanted and message["role"] == "assistant" and bool(message["content"] or "tool_calls" in message)
        for place, (message, wanted) in enumerate(turns)
    ]
    chat = Chat([message for message, _ in turns], learned, tools)
    for text in texts(chat):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRow("bad coding", "has half a character, a lone surrogate") from None
    if not any(learned):
        raise BadRow("no answer", "has no answer of the assistant to learn")
    return chat


def texts(chat: Chat) -> Iterator[str]:
    """Yield every text in a chat, names and arguments included."""
    left: list[Any] = [chat.messages, chat.tools]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value


def _parsed(line: bytes) -> Row:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as fault:
        raise BadRow("bad coding", f"is not UTF-8 ({fault})") from None
    except (ValueError, RecursionError) as fault:
        raise BadRow("not JSON", f"is not JSON ({fault})") from None
    if not isinstance(row, Mapping):
        raise BadRow("not a chat", f"is no object, but {type(row).__name__}")
    return row


def _filled(value: Any) -> Any:
    """Return an object of a table, whose rows all have each other's keys, without those that are null in it."""
    if isinstance(value, Mapping):
        return {name: _filled(each) for name, each in value.items() if each is not None}
    return [_filled(each) for each in value] if isinstance(value, list) else value


def _turns(row: Row) -> Iterator[tuple[Message, bool]]:
    """Yield the messages, and whether they are to be learned if they are answers."""
    given = row.get("messages") or row.get("conversations")
    if row.get("system"):
        yield _message({"role": "system", "content": row["system"]})
    if given:
        yield from _side(given, "")
    elif row.get("prompt") is not None and row.get("completion") is not None:
        yield from ((message, False) for message, _ in _side(row["prompt"], "user"))
        yield from _side(row["completion"], "assistant")
    elif row.get("instruction") is not None and row.get("output") is not None:
        for pair in _listed(row.get("history") or [], "not a chat"):
            if not isinstance(pair, list) or len(pair) != 2:
                raise BadRow("not a chat", 'has a "history" that is no list of pairs')
            yield from (*_side(pair[0], "user"), *_side(pair[1], "assistant"))
        parts = [row["instruction"], *([row["input"]] if row.get("input") else [])]
        if not all(isinstance(part, str) for part in parts):
            raise BadRow("no content", 'has no text as "instruction" and "input"')
        yield _message({"role": "user", "content": "\n\n".join(parts)})
        yield _message({"role": "assistant", "content": row["output"]})
    else:
        raise BadRow(
            "not a chat",
            'has no "messages", "conversations", "prompt" with "completion", or "instruction" with "output", but '
            + (", ".join(str(name)[:40] for name in list(row)[:20]) or "nothing"),
        )


def _side(given: Any, role: str) -> Iterator[tuple[Message, bool]]:
    """Yield a list of messages, or a text as the one message of `role`."""
    if role and isinstance(given, str):
        yield _message({"role": role, "content": given})
    elif isinstance(given, list) and all(isinstance(each, Mapping) for each in given):
        yield from map(_message, given)
    else:
        raise BadRow("not a chat", "has something else than messages where they belong")


def _message(given: Row) -> tuple[Message, bool]:
    rest = {name: value for name, value in given.items() if value is not None}
    content, said = rest.pop("value", None), rest.pop("from", None)
    content, said = rest.pop("content", content), rest.pop("role", said)
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise BadRow("unknown role", f"has the role {str(said)[:40]!r}: the known ones are {', '.join(_ROLES)}")
    weight, wanted = rest.pop("weight", 1), rest.pop("train", True)
    if weight not in (0, 1) or not isinstance(wanted, bool):
        raise BadRow("weight", f"has the weight {str(weight)[:40]}, train {str(wanted)[:40]}: expected 0, 1, a boolean")
    if said == _CALL:
        content, rest["tool_calls"] = None, [content]
    calls = [_call(call) for call in _listed(rest.pop("tool_calls", None) or [], "tool calls")]
    if calls:
        rest["tool_calls"] = calls
    if content is None and calls:
        content = ""
    return {**rest, "role": role, "content": _content(content)}, wanted and weight == 1


def _content(content: Any) -> str:
    """Return text, or the text of all parts, in lines as servers join them for templates that take text."""
    if isinstance(content, list) and content:
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise BadRow("content part", f"has a content part of type {str(kind)[:40]!r}: expected text")
        return "\n".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRow("no content", "has a message without text")
    return content


def _call(given: Any) -> Message:
    """Return a tool call with `arguments` as an object, as servers hand it to templates."""
    call = _unpacked(given)
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function") or call
    arguments = _unpacked(function.get("arguments") or {}) if isinstance(function, Mapping) else None
    if not isinstance(arguments, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRow("tool calls", "has a tool call without a name, or whose arguments are no JSON object")
    rest = {name: value for name, value in call.items() if isinstance(value, str) and name not in ("name", "arguments")}
    return {"type": "function", **rest, "function": {"name": function["name"], "arguments": arguments}}


def _tools(given: Any) -> list[Any] | None:
    tools = _listed(_unpacked(given) if given else [], "tools")
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("tools", "has tools that are no objects")
    return tools or None


def _listed(given: Any, kind: str) -> list[Any]:
    if not isinstance(given, list):
        raise BadRow(kind, "has something else than a list where one belongs")
    return given


def _unpacked(given: Any) -> Any:
    """Return what a text holds as JSON, None where it is none; anything else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return None
