"""The run's tokenizer as the files that transformers and tokenizers read: tokenizer.json and tokenizer_config.json.

A data set's index names both. The byte tokenizer has no file: it becomes a byte-level BPE without merges, whose 256
letters have the ids of their bytes. It is written by hand, so that it does not depend on the library's release.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.data.converted import letters
from murmur.data.index import TOKENIZER, TOKENIZER_CONFIG
from murmur.data.tokenizer import BYTES, END, RESERVED, byte_tokenizer, open_tokenizer
from murmur.protocol.errors import ConfigError

MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Both files, and the id that ends a document. `name` and `config_digest`: as in the index."""

    name: str
    config_digest: str
    data: bytes
    config: bytes
    end: int


def run_tokenizer(name: str, config_digest: str, folder: Path) -> TokenizerFiles:
    """Return the tokenizer that a data set's index names, with files from `folder`. Raises ConfigError for missing or
    different files."""
    config = _named(folder / TOKENIZER_CONFIG, config_digest)
    if name == BYTES:
        return TokenizerFiles(name, config_digest, _byte_level((END, *RESERVED)), config, byte_tokenizer().end)
    data = _named(folder / TOKENIZER, name)
    return TokenizerFiles(name, config_digest, data, config, open_tokenizer(folder / TOKENIZER).end)


def _named(path: Path, digest: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as fault:
        raise ConfigError(f"cannot read {path}: {fault.strerror}") from None
    if sha256(data).hexdigest() != digest:
        raise ConfigError(f"{path} is not the run's: its sha256 is not {digest}")
    return data


def _byte_level(tokens: tuple[str, ...]) -> bytes:
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    table: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256 + place, "content": token, **plain, "special": True} for place, token in enumerate(tokens)
        ],
        "normalizer": None,
        "pre_tokenizer": pieces,
        "post_processor": None,
        "decoder": pieces,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(letters())},
            "merges": [],
        },
    }
    return json.dumps(table, ensure_ascii=False, indent=1).encode() + b"\n"
