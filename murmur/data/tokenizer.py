"""Text to token ids: bytes by default, or a local tokenizer.json. Nothing is ever downloaded.

The layout fixes a model's vocabulary for good, so the ids for chat are reserved before a model exists. The vocabulary
of a data set holds TURNS and a few spare ids, which occur in no training text. Next to its tokenizer lies the
configuration (tokenizer_config.json, as Hugging Face's libraries read it) whose chat template uses them. A tokenizer
with its own chat template keeps it, and gets no ids.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.data.index import TOKENIZER_CONFIG
from murmur.protocol.errors import ConfigError

BYTES = "bytes"
"""Name of the byte-level tokenizer: ids 0 to 255 are UTF-8 bytes, then END, which ends a document, then RESERVED."""

END = "<|end_of_text|>"
TURNS = TURN_BEGIN, TURN_END = "<|start_of_turn|>", "<|end_of_turn|>"
"""A turn is TURN_BEGIN, the speaker's role, a new line, the text, TURN_END."""
RESERVED = (*TURNS, *(f"<|reserved_{number}|>" for number in range(5)))
"""Tokens after a tokenizer's own ids; the spare ones are for later needs of fine-tuning (tools, thoughts)."""

BYTE_VOCABULARY = 256 + 1 + len(RESERVED)

_SEPARATORS = (END, "<|endoftext|>", "<eos>", "</s>", "[SEP]")
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
    """`name` is "bytes" or the sha256 of `file`, a tokenizer.json, in hex. `config` is its tokenizer_config.json,
    `separator` the id that ends every document. All ids, reserved ones too, are below `vocabulary`."""

    name: str
    vocabulary: int
    separator: int
    encode: Callable[[str], NDArray[np.uint32]]
    config: bytes
    file: bytes | None = None


def byte_tokenizer() -> Tokenizer:
    """Return the default tokenizer: it works for every language and needs no file."""
    return Tokenizer(
        BYTES,
        BYTE_VOCABULARY,
        256,
        lambda text: np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32),
        _config(END),
    )


def open_tokenizer(path: Path) -> Tokenizer:
    """Open a local tokenizer.json, with ids for turns.

    They are its own where a tokenizer_config.json next to it has a chat template. Otherwise RESERVED follows all of its
    ids, which makes it another file. Raises ConfigError when it is missing, broken, or has no token that ends a
    document.
    """
    from tokenizers import Tokenizer as Native

    try:
        data = path.read_bytes()
        native = Native.from_buffer(data)
    except OSError as fault:
        raise ConfigError(f"cannot read the tokenizer {path}: {fault.strerror}") from None
    except Exception as fault:  # noqa: BLE001 - the native library raises nothing narrower for a bad file
        raise ConfigError(f"{path} is not a tokenizer.json: {fault}") from None
    ends = next((token for token in _SEPARATORS if native.token_to_id(token) is not None), None)
    if ends is None:
        raise ConfigError(f"{path} has no token that ends a document (one of {', '.join(_SEPARATORS)}); add one")
    config = _own_config(path.with_name(TOKENIZER_CONFIG))
    if config is None:
        config, data = _config(ends), _with_reserved(data, native.get_vocab(with_added_tokens=True))
        native = Native.from_buffer(data)
    # A document may contain the text of a turn token: that is text there, and no turn.
    native.encode_special_tokens = True

    def encode(text: str) -> NDArray[np.uint32]:
        return np.asarray(native.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    separator = native.token_to_id(ends)
    assert separator is not None
    vocabulary = 1 + max(native.get_vocab(with_added_tokens=True).values())
    return Tokenizer(sha256(data).hexdigest(), vocabulary, separator, encode, config, data)


def _with_reserved(data: bytes, known: dict[str, int]) -> bytes:
    """Return a tokenizer.json with all of RESERVED among its special tokens; the same bytes where they are there
    already."""
    missing = [token for token in RESERVED if token not in known]
    if not missing:
        return data
    table: dict[str, Any] = json.loads(data)
    first = 1 + max(known.values())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": first + place, "content": token, **plain} for place, token in enumerate(missing)]
    table["added_tokens"] = [*(table.get("added_tokens") or []), *added]
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()


def _config(ends: str) -> bytes:
    table = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": ends,
        "additional_special_tokens": list(RESERVED),
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    return (json.dumps(table, indent=2) + "\n").encode()


def _own_config(path: Path) -> bytes | None:
    """Return a tokenizer's configuration with a chat template; None without one."""
    try:
        data = path.read_bytes()
        table = json.loads(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot read the tokenizer's configuration {path}: {fault}") from None
    return data if isinstance(table, dict) and table.get("chat_template") else None
