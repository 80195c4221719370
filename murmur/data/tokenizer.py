"""Text to token ids: bytes by default, or a local tokenizer. Nothing is ever downloaded.

The layout fixes a model's vocabulary for good, so the ids for chat are reserved before a model exists. The vocabulary
of a data set holds TURNS and a few spare ids, which occur in no training text. Next to its tokenizer lies the
configuration (tokenizer_config.json, as Hugging Face's libraries read it) whose chat template uses them. A tokenizer
with its own chat template keeps it, and gets no ids. Both files say all that the ids of a text depend on, so an export
of the run makes the ids that it was trained on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.data.converted import Converted, convert
from murmur.data.index import TOKENIZER_CONFIG
from murmur.protocol.errors import ConfigError

Ids = NDArray[np.uint32]

BYTES = "bytes"
"""Name of the byte-level tokenizer: ids 0 to 255 are UTF-8 bytes, then END, which ends a document, then RESERVED."""

END = "<|end_of_text|>"
TURNS = TURN_BEGIN, TURN_END = "<|start_of_turn|>", "<|end_of_turn|>"
"""A turn is TURN_BEGIN, the speaker's role, a new line, the text, TURN_END."""
RESERVED = (*TURNS, *(f"<|reserved_{number}|>" for number in range(5)))
"""Tokens after a tokenizer's own ids; the spare ones are for later needs of fine-tuning (tools, thoughts)."""

BYTE_VOCABULARY = 256 + 1 + len(RESERVED)

_ENDS = (END, "<|endoftext|>", "<eos>", "</s>", "[SEP]")
"""Looked for where a tokenizer's configuration names no `eos_token`."""
TEMPLATE = "chat_template.jinja"
_KEPT = ("additional_special_tokens", "model_max_length", "pad_token", "unk_token")
"""What an export says as the tokenizer's own configuration did."""
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{{{ '{TURN_BEGIN}' + message['role'] + '\\n' }}}}"
    "{% if message['role'] == 'assistant' %}"
    f"{{% generation %}}{{{{ message['content'] + '{TURN_END}' }}}}{{% endgeneration %}}"
    f"{{% else %}}{{{{ message['content'] + '{TURN_END}' }}}}{{% endif %}}"
    "{{ '\\n' }}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{TURN_BEGIN}assistant\\n' }}}}{{% endif %}}"
)
"""The assistant's turns are marked as the text that a fine-tuning learns to generate, their ends included."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """`name` is "bytes" or the sha256 of `file`, a tokenizer.json, in hex. `config` is its tokenizer_config.json, `end`
    the id that ends every document, `bos` the one that begins it, if any. All ids, reserved ones too, are below
    `vocabulary`. `encode`: texts to their ids, without `bos` and `end`. `said`: what was changed in the file.
    `unk`: the id that stands for text without tokens, if any. `own`: ids from here on are reserved. `original`: what
    the file was converted from, if it was."""

    name: str
    vocabulary: int
    bos: int | None
    end: int
    encode: Callable[[Sequence[str]], list[Ids]]
    config: bytes
    file: bytes | None = None
    said: tuple[str, ...] = ()
    unk: int | None = None
    own: int | None = None
    original: Converted | None = None

    @property
    def identity(self) -> str:
        """A digest of all that a data set's tokens and files follow from."""
        return sha256(f"{self.name} {self.bos} {self.end} ".encode() + self.config).hexdigest()

    @property
    def token_bytes(self) -> int:
        return 2 if self.vocabulary <= 1 << 16 else 4

    def document(self, ids: Sequence[Ids]) -> list[Ids]:
        """Return a document's tokens, in parts: `bos`, its text's, `end`."""
        begin = [] if self.bos is None else [np.array([self.bos], np.uint32)]
        return [*begin, *ids, np.array([self.end], np.uint32)]

    def text(self, document: Ids) -> Ids:
        """Return a document's tokens without those that begin and end it, as far as it has them."""
        begin = int(len(document) > 0 and int(document[0]) in (self.bos, self.end))
        last = len(document) - int(len(document) > begin and int(document[-1]) == self.end)
        return document[begin:last]


def byte_tokenizer() -> Tokenizer:
    """Return the default tokenizer: it works for every language and needs no file."""

    def encode(texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]

    return Tokenizer(BYTES, BYTE_VOCABULARY, None, 256, encode, _config({}, END, None, own_turns=False))


def open_tokenizer(path: Path, *, bos: bool | None = None, end: str | None = None) -> Tokenizer:
    """Open a local tokenizer as one that gives all ids of a text, always the same, and has ids for turns. What is no
    tokenizer.json becomes one (murmur/data/converted.py).

    Truncation, padding and dropout are removed. Its post-processor adds nothing but the token that begins documents:
    the one that it or its configuration adds already, or none; bos: with True the `bos_token`, with False none. end:
    the token that ends documents; by default the configuration's `eos_token`.

    The ids for turns are its own where the files next to it have a chat template. Otherwise RESERVED follows all of its
    ids. Raises ConfigError when it is missing, broken, or has no token that ends a document.
    """
    from tokenizers import Tokenizer as Native

    data, config, original = _read(path)
    try:
        native = Native.from_buffer(data)
        table: dict[str, Any] = json.loads(data)
    except Exception as fault:  # noqa: BLE001 - the native library raises nothing narrower for a bad file
        raise ConfigError(f"{path} is not a tokenizer.json: {fault}") from None
    native.no_truncation()
    native.no_padding()
    known = native.get_vocab(with_added_tokens=True)
    first = _first_token(native, known, config, bos, path)
    changed = bool(said := _plain(table, first, known))
    if original is not None:
        said = [f"it becomes a tokenizer.json, whose ids are compared with those of {original.library}", *original.said]
    last = _end_token(known, config, end, path)
    own_turns = bool(config.get("chat_template"))
    if not own_turns:
        changed |= _reserve(table, known)
    if changed:
        data = _dumped(table)
        native = Native.from_buffer(data)
    ids = native.get_vocab(with_added_tokens=True)
    moved = sorted(token for token, number in known.items() if ids.get(token) != number)
    if moved or len(set(ids.values())) < len(ids):
        raise ConfigError(f"{path} has two tokens with one id, or no room for those of chat turns ({moved[:3]})")
    # A document may contain the text of a special token: that is text there.
    native.encode_special_tokens = True

    def encode(texts: Sequence[str]) -> list[Ids]:
        found = native.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(each.ids, dtype=np.uint32) for each in found]

    for token in (last, *([first] if first else ()), *(RESERVED if not own_turns else ())):
        if ids[token] in native.encode(f"a {token} b", add_special_tokens=False).ids:
            said.append(f"the text {token!r} in a document becomes that token, as this kind of tokenizer does")
    return Tokenizer(
        sha256(data).hexdigest(),
        1 + max(ids.values()),
        None if first is None else ids[first],
        ids[last],
        encode,
        _config(config, last, first, own_turns=own_turns),
        data,
        tuple(said),
        _unknown(table, ids),
        1 + max(known.values()),
        original,
    )


def _read(path: Path) -> tuple[bytes, dict[str, Any], Converted | None]:
    """Return a tokenizer.json, its configuration, and what it was converted from, if anything."""
    config = _own_config(path)
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise ConfigError(f"cannot read the tokenizer {path}: {fault.strerror}") from None
    original = convert(data, path, config)
    if original is None:
        return data, config, None
    return _dumped(original.table), original.config | config, original


def _unknown(table: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """Return the id that stands for text without tokens."""
    model = table["model"]
    found = ids.get(model.get("unk_token") or "", model.get("unk_id"))
    return found if isinstance(found, int) else None


def _dumped(table: dict[str, Any]) -> bytes:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(table: dict[str, Any], first: str | None, known: Mapping[str, int]) -> list[str]:
    """Take out of a tokenizer.json what would cut or change a text, or add to it; return what was taken out."""
    said = list[str]()
    for name in ("truncation", "padding"):
        if table.get(name) is not None:
            table[name] = None
            said.append(f"its {name} is left out")
    if table["model"].get("dropout"):
        table["model"]["dropout"] = None
        said.append("its dropout is left out")
    processor = _processor(table.get("post_processor"), first, known)
    if processor != table.get("post_processor"):
        table["post_processor"] = processor
        said.append("its post-processor begins a document with " + (first or "nothing") + ", and does no more")
    return said


def _end_token(known: Mapping[str, int], config: Mapping[str, Any], end: str | None, path: Path) -> str:
    named = end or _content(config.get("eos_token"))
    found = named if named is not None else next((token for token in _ENDS if token in known), None)
    if found is None or found not in known:
        which = f"{named!r} is not one of its tokens" if named else f"it has none of {', '.join(_ENDS)}"
        raise ConfigError(f"{path} has no token that ends a document: {which}; name one with --end")
    return found


def _first_token(
    native: Any, known: Mapping[str, int], config: Mapping[str, Any], bos: bool | None, path: Path
) -> str | None:
    """Return the token that begins a document."""
    named = _content(config.get("bos_token"))
    if bos is False:
        return None
    plain, full = (native.encode("a", add_special_tokens=added).ids for added in (False, True))
    added = full[: len(full) - len(plain)] if full[len(full) - len(plain) :] == plain else full[:1]
    bos = bos or config.get("add_bos_token") is True  # which others' classes do, whatever tokenizer.json says
    if not bos and (not added or added == plain[:1]):
        return None
    found = named if bos and not added else native.id_to_token(added[0]) if added else None
    if found is None or found not in known:
        raise ConfigError(f"{path} names no token that begins a document: leave out --bos")
    return str(found)


def _content(token: Any) -> str | None:
    """Return the text of a token in a configuration: a name, or a table with one."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) and found else None


def _processor(own: Any, first: str | None, known: Mapping[str, int]) -> Any:
    """Return a post-processor that puts `first` in front, and does nothing else."""
    bytes_only = [each for each in ((own or {}).get("processors") or [own]) if each and each["type"] == "ByteLevel"]
    if first is None:
        return bytes_only[0] if bytes_only else None
    begins = {"SpecialToken": {"id": first, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [begins, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            begins,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": first, "type_id": 1}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {first: {"id": first, "ids": [known[first]], "tokens": [first]}},
    }
    return {"type": "Sequence", "processors": [*bytes_only, template]} if bytes_only else template


def _reserve(table: dict[str, Any], known: Mapping[str, int]) -> bool:
    """Put all of RESERVED among its special tokens, with ids above all others; return whether any was missing."""
    missing = [token for token in RESERVED if token not in known]
    first = 1 + max(known.values())
    vocabulary = table["model"].get("vocab")
    for number, token in enumerate(missing, first):
        if isinstance(vocabulary, dict) and len(known) < first:
            vocabulary[token] = number  # where ids have holes, the library would number an added token into one
        added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        table["added_tokens"] = [*(table.get("added_tokens") or []), {"id": number, "content": token, **added}]
    return bool(missing)


def _config(own: Mapping[str, Any], end: str, first: str | None, *, own_turns: bool) -> bytes:
    """Return a tokenizer_config.json by which others make the same ids: tokenizer.json says all, no class of theirs."""
    table = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({} if first is None else {"bos_token": first}),
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
        "chat_template": own["chat_template"] if own_turns else _CHAT_TEMPLATE,
    }
    table |= {name: own[name] for name in _KEPT if name in own}
    if not own_turns:
        table["additional_special_tokens"] = list(RESERVED)
    return (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()


def _own_config(path: Path) -> dict[str, Any]:
    """Return what the files next to a tokenizer say, its chat template included."""
    beside, template = path.with_name(TOKENIZER_CONFIG), path.with_name(TEMPLATE)
    try:
        table = json.loads(beside.read_bytes()) if beside.exists() else {}
        if not isinstance(table, dict):
            raise ValueError("it is no table")
        if template.exists():
            table["chat_template"] = template.read_text(encoding="utf-8")
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot read the tokenizer's configuration {beside}: {fault}") from None
    return table
