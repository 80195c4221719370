"""The run's tokenizer as the files that transformers and tokenizers read: tokenizer.json and tokenizer_config.json.

The byte tokenizer becomes a byte-level BPE without merges, whose 256 letters have the ids of their bytes. Written by
hand, so that the file is the same whatever release of that library is installed.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from training.tokens import BYTE_VOCABULARY, BYTES, byte_tokenizer, open_tokenizer

END = "<|end_of_text|>"
"""What the byte tokenizer's id 256 is called."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """tokenizer.json, the token that ends a document, and its id. `name`: "bytes" or the sha256 of the run's file."""

    name: str
    data: bytes
    end: str
    end_id: int


def run_tokenizer(name: str, path: Path | None) -> TokenizerFile:
    """The tokenizer that a data set's index names: the byte tokenizer, or the local file with that digest. Raises
    ConfigError for another file, or where it is needed and not given."""
    if name == BYTES:
        if path is not None:
            raise ConfigError("the run was trained on bytes: leave out --tokenizer")
        return TokenizerFile(BYTES, _byte_level(), END, byte_tokenizer().separator)
    if path is None:
        raise ConfigError(
            f"the run's text was tokenised with a tokenizer.json whose sha256 is {name}: give that file as --tokenizer "
            "(it is not part of the data set)"
        )
    codec = open_tokenizer(path)
    data = path.read_bytes()
    if codec.name != name or sha256(data).hexdigest() != name:
        raise ConfigError(f"{path} is not the run's tokenizer: its sha256 is {codec.name}, the data set names {name}")
    return TokenizerFile(name, data, _token(data, codec.separator), codec.separator)


def tokenizer_config(tokenizer: TokenizerFile, context: int) -> dict[str, Any]:
    """tokenizer_config.json. The class is named: transformers would else take Llama's own, which builds another
    tokenizer from the same vocabulary."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.end,
        "pad_token": tokenizer.end,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level vocabularies (GPT-2's): itself where it is printable
    Latin-1, else the next one from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _byte_level() -> bytes:
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    table: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": BYTE_VOCABULARY - 1, "content": END, **plain, "special": True}],
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


def _token(data: bytes, number: int) -> str:
    """The text of an id in a tokenizer.json that opens."""
    from tokenizers import Tokenizer

    return str(Tokenizer.from_buffer(data).id_to_token(number))
