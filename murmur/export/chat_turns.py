"""A tokenizer's chat template, and which tokens of a chat the assistant says.

The template needs no marks for that. A turn begins where the generation prompt after all earlier messages ends, as it
does for a server. Where a template writes those otherwise once answers follow, the turn is not learned. It ends with
the last token that can end one, before the next message's text.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from murmur.export.chat_rows import BadRow, Chat, Message, texts
from murmur.protocol.errors import ConfigError

NO_LABEL = -100
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MARK = re.compile(r"[^\w\s]")
_QUESTION, _ANSWER, _NEXT, _TOOL = "question-1", "answer-1", "question-2", "tool_1"

Example = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Turns:
    """`template`: the tokenizer's own, made to begin as the run's documents do. `words`: what no text may hold.
    `stops`: the tokens that end a turn, each with the one that is learned for it. A model says one of `ends` last."""

    tokenizer: Any
    template: str
    words: "re.Pattern[str]"
    stops: Mapping[int, int]

    @property
    def ends(self) -> list[int]:
        return list(dict.fromkeys(self.stops.values()))

    def example(self, chat: Chat) -> tuple[Example, list[str]]:
        """Return `input_ids` and `labels`, and the names of what the template left out. Raises BadRow."""
        for text in texts(chat):
            if found := self.words.search(text):
                raise BadRow("special token", f"holds {found[0]!r} as text, which is a token of this tokenizer's")
        if "developer" not in self.template:
            chat = replace(chat, messages=[_as_system(message) for message in chat.messages])
        text = self.rendered(chat)
        ids, begins, ends = self.encoded(text)
        labels, left_out = [NO_LABEL] * len(ids), _left_out(chat, text)
        for place, learned in enumerate(chat.learned):
            if not learned:
                continue
            self._require_calls(chat, place, text)
            prompt = self.rendered(chat, place)
            if not text.startswith(prompt):
                left_out.add("earlier answers")
                continue
            at, end = bisect_left(begins, len(prompt)), bisect_right(ends, self._limit(chat, place, text))
            stop = next((at for at in reversed(range(at, end)) if ids[at] in self.stops), None)
            if stop is None:
                raise BadRow("template", f"has no token that ends message {place + 1}, by the chat template")
            # In the middle of a chat some templates end a turn otherwise. Whoever answers is always last.
            labels[at : stop + 1] = [*ids[at:stop], self.stops[ids[stop]]]
        if not any(label != NO_LABEL for label in labels):
            raise BadRow("template", "has another beginning once its answers follow, by the chat template")
        return {"input_ids": ids, "labels": labels}, sorted(left_out)

    def rendered(self, chat: Chat, count: int | None = None) -> str:
        """Return a chat as text; with `count` its first messages, and the prompt for the next one. Raises BadRow."""
        try:
            found = self.tokenizer.apply_chat_template(
                chat.messages[:count],
                tools=chat.tools,
                chat_template=self.template,
                add_generation_prompt=count is not None,
                tokenize=False,
            )
        except Exception as fault:  # noqa: BLE001 - a template is a program of somebody's
            raise BadRow("template", f"does not fit the tokenizer's chat template ({fault})") from None
        return str(found)

    def encoded(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens, and where in `text` each begins and ends."""
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = found["offset_mapping"]
        return list(found["input_ids"]), [begin for begin, _ in offsets], [end for _, end in offsets]

    def _limit(self, chat: Chat, place: int, text: str) -> int:
        """Return a point behind a turn's end, before the text of the next message."""
        if place + 1 == len(chat.messages):
            return len(text)
        following = chat.messages[place + 1]
        other = "1" if following["content"].lstrip().startswith("0") else "0"
        return _common(text, self.rendered(_changed(chat, place + 1, content=other)))

    def _require_calls(self, chat: Chat, place: int, text: str) -> None:
        """Raise BadRow where a tool call does not stand in the text: its turn would teach silence."""
        calls = chat.messages[place].get("tool_calls", [])
        for number, call in enumerate(calls):
            function = call["function"]
            other = call | {"function": function | {"name": function["name"] + "0"}}
            changed = _changed(chat, place, tool_calls=[*calls[:number], other, *calls[number + 1 :]])
            if self.rendered(changed) == text:
                raise BadRow("tool calls", "has tool calls, which the tokenizer's chat template leaves out")


def open_turns(tokenizer: Any) -> Turns:
    """Return the turns of transformers' tokenizer. Raises ConfigError where its chat template has none."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            "the tokenizer has no turn tokens, that is no chat template: its run's data set was built before ids were "
            "reserved for them. Bring a tokenizer_config.json with one, whose tokens the vocabulary has"
        )
    try:
        return _opened(Turns(tokenizer, template, re.compile(r"(?!)"), {}))
    except BadRow as fault:
        raise ConfigError(f"a question and its answer: it {fault}. Use another chat template") from None


def _opened(turns: Turns) -> Turns:
    tokenizer = turns.tokenizer
    asked, said = {"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}
    if not tokenizer("")["input_ids"]:  # what the run's documents begin with
        turns = replace(turns, template="{%- set bos_token = '' %}" * ("bos_token" in turns.template) + turns.template)
    elif not turns.rendered(Chat([asked, said], [])).startswith(tokenizer.bos_token):
        turns = replace(turns, template="{{- bos_token }}" + turns.template)
    added = tokenizer.added_tokens_decoder
    special = {token for token, word in added.items() if word.special} | set(tokenizer.all_special_ids)

    def closing(*messages: Message) -> list[int]:
        """Return the special tokens between the last answer and the next question, or the end."""
        text = turns.rendered(Chat(list(messages), []))
        if _ANSWER not in text:
            return []
        after = text.rindex(_ANSWER) + len(_ANSWER)
        before = text.find(_NEXT, after)
        ids, begins, _ = turns.encoded(text[:before] if before >= 0 else text)
        return [token for token, at in zip(ids, begins, strict=True) if at >= after and token in special]

    text, prompt = turns.rendered(Chat([asked, said], [])), turns.rendered(Chat([asked], []), 1)
    last = closing(asked, said)
    if not text.startswith(prompt) or _ANSWER not in text[len(prompt) :] or not last:
        raise ConfigError(
            "the tokenizer's chat template does not begin the assistant's turn with its generation prompt, or does not "
            "end it by a token of its own: a model that is tuned with it would never stop"
        )
    stops = {last[0]: last[0]}
    following = asked | {"content": _NEXT}
    if middle := closing(asked, said, following):
        stops.setdefault(middle[0], last[0])
    call = {"type": "function", "function": {"name": _TOOL, "arguments": {"a": _ANSWER}}}
    try:
        calls = closing(asked, {"role": "assistant", "content": "", "tool_calls": [call]})
    except BadRow:
        calls = []  # a template without tools
    if calls and not stops.keys() & set(calls):
        stops[calls[-1]] = calls[-1]
    around = turns.rendered(Chat([asked, said, following], []), 3)
    words = {tokenizer.convert_ids_to_tokens(token) for token in special}
    words |= {word.content for word in added.values() if word.content in around and _MARK.search(word.content)}
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return replace(turns, words=re.compile(pattern), stops=stops)


def _as_system(message: Message) -> Message:
    return message | {"role": "system"} if message["role"] == "developer" else message


def _changed(chat: Chat, place: int, **fields: Any) -> Chat:
    message = chat.messages[place] | fields
    return replace(chat, messages=[*chat.messages[:place], message, *chat.messages[place + 1 :]])


def _left_out(chat: Chat, text: str) -> set[str]:
    """Return the names of what stands in a chat, and not in its text."""

    def absent(value: Any) -> bool:
        found = value.strip() if isinstance(value, str) else ""
        return found not in text and json.dumps(found, ensure_ascii=False)[1:-1] not in text

    names = {name for message in chat.messages for name in _REASONING if absent(message.get(name))}
    names |= {f"content of {message['role']}" for message in chat.messages if absent(message["content"])}
    for tool in chat.tools or ():
        function = tool.get("function")
        if absent((function if isinstance(function, Mapping) else tool).get("name")):
            names.add("tools")
    return names


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
