"""Text to token ids: bytes by default, or a local tokenizer.json. Nothing is ever downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError

BYTES = "bytes"
"""Name of the byte-level tokenizer: ids 0 to 255 are UTF-8 bytes, 256 ends a document."""

BYTE_VOCABULARY = 257

_SEPARATORS = ("<|end_of_text|>", "<|endoftext|>", "<eos>", "</s>", "[SEP]")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """`name` is "bytes" or the sha256 of tokenizer.json in hex; `separator` is the id that ends every document."""

    name: str
    vocabulary: int
    separator: int
    encode: Callable[[str], NDArray[np.uint32]]


def byte_tokenizer() -> Tokenizer:
    """The default: works for every language and needs no file."""
    return Tokenizer(
        BYTES, BYTE_VOCABULARY, 256, lambda text: np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
    )


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a local tokenizer.json. Raises ConfigError when it is missing, broken, or lacks a token that
    ends a document."""
    from tokenizers import Tokenizer as Native

    try:
        data = path.read_bytes()
        native = Native.from_buffer(data)
    except OSError as fault:
        raise ConfigError(f"cannot read the tokenizer {path}: {fault.strerror}") from None
    except Exception as fault:  # noqa: BLE001 - the native library raises nothing narrower for a bad file
        raise ConfigError(f"{path} is not a tokenizer.json: {fault}") from None
    separator = next((token for token in map(native.token_to_id, _SEPARATORS) if token is not None), None)
    if separator is None:
        raise ConfigError(f"{path} has no token that ends a document (one of {', '.join(_SEPARATORS)}); add one")

    def encode(text: str) -> NDArray[np.uint32]:
        return np.asarray(native.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    return Tokenizer(sha256(data).hexdigest(), native.get_vocab_size(with_added_tokens=True), separator, encode)
