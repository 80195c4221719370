"""A tokenizer's chat template, and which tokens of a chat the assistant says.

The template needs no marks for that. An answer is what follows the generation prompt where it is the last message, up
to the token that ends it: so it is for a server. Some templates write it otherwise once more follows, without thoughts.
Then it is learned in an example of its own, which ends there.
"""

import json
import re
from bisect import bisect_left
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
class _Answer:
    """Where an answer begins and stops in a text, and the token that is learned for its end."""

    begin: int
    stop: int
    end: int


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

    def examples(self, chat: Chat) -> tuple[list[Example], list[str]]:
        """Return `input_ids` and `labels` of the whole chat, and of its beginning up to each answer that it has in
        another form; and the names of what stands in none of them. Raises BadRow."""
        for text in texts(chat):
            if found := self.words.search(text):
                raise BadRow("special token", f"holds {found[0]!r} as text, which is a token of this tokenizer's")
        if "developer" not in self.template:
            chat = replace(chat, messages=[_as_system(message) for message in chat.messages])
        text = self.rendered(chat)
        answers: dict[str, list[_Answer]] = {}
        for place in (place for place, learned in enumerate(chat.learned) if learned):
            whole, answer = self._answer(chat, place)
            ends = [self._word(stop) for stop, end in self.stops.items() if end == answer.end]
            same = text.startswith(tuple(whole[: answer.stop] + end for end in ends))
            answers.setdefault(text if same else whole, []).append(answer)
        return [self._example(*each) for each in answers.items()], _left_out(chat, "\n".join([text, *answers]))

    def _answer(self, chat: Chat, place: int) -> tuple[str, _Answer]:
        """Return a chat up to an answer, as text, and where that is in it. Raises BadRow."""
        asked, told = chat.messages[:place], chat.messages[place]
        prompt, whole = self.rendered(chat, asked, prompt=True), self.rendered(chat, [*asked, told])
        calls = told.get("tool_calls", [])
        for number, call in enumerate(calls):
            function = call["function"] | {"name": call["function"]["name"] + "0"}
            others = [*calls[:number], call | {"function": function}, *calls[number + 1 :]]
            if self.rendered(chat, [*asked, told | {"tool_calls": others}]) == whole:
                raise BadRow("tool calls", "has tool calls, which the tokenizer's chat template leaves out")
        stop, end = max((whole.rfind(self._word(end)), end) for end in self.ends)
        if not whole.startswith(prompt) or stop < len(prompt):
            raise BadRow("template", "has an answer that does not follow the prompt for one, by the chat template")
        return whole, _Answer(len(prompt), stop, end)

    def _example(self, text: str, answers: Sequence[_Answer]) -> Example:
        ids, begins = self.encoded(text)
        labels = [NO_LABEL] * len(ids)
        for answer in answers:
            begin, stop = bisect_left(begins, answer.begin), bisect_left(begins, answer.stop)
            labels[begin : stop + 1] = [*ids[begin:stop], answer.end]
        return {"input_ids": ids, "labels": labels}

    def _word(self, token: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token))

    def rendered(self, chat: Chat, messages: Sequence[Message] | None = None, *, prompt: bool = False) -> str:
        """Return a chat as text, with other messages if given; `prompt`: and what asks for an answer. Raises BadRow."""
        try:
            found = self.tokenizer.apply_chat_template(
                list(chat.messages if messages is None else messages),
                tools=chat.tools,
                chat_template=self.template,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except Exception as fault:  # noqa: BLE001 - a template is a program of somebody's
            raise BadRow("template", f"does not fit the tokenizer's chat template ({fault})") from None
        return str(found)

    def encoded(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens, and where in `text` each begins."""
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(found["input_ids"]), [begin for begin, _ in found["offset_mapping"]]


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
        ids, begins = turns.encoded(text[:before] if before >= 0 else text)
        return [token for token, at in zip(ids, begins, strict=True) if at >= after and token in special]

    text, prompt = turns.rendered(Chat([asked, said], [])), turns.rendered(Chat([asked], []), prompt=True)
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
    around = turns.rendered(Chat([asked, said, following], []), prompt=True)
    words = {turns._word(token) for token in special}
    words |= {word.content for word in added.values() if word.content in around and _MARK.search(word.content)}
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return replace(turns, words=re.compile(pattern), stops=stops)


def _as_system(message: Message) -> Message:
    return message | {"role": "system"} if message["role"] == "developer" else message


def _left_out(chat: Chat, text: str) -> list[str]:
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
    return sorted(names)
