"""A data set as others see it: its documents, and its tokenizer as transformers reads it from an export."""

from pathlib import Path
from typing import Any

from murmur.data.shards import Shards
from murmur.export.tokenizer import run_tokenizer


def documents(data: Shards) -> list[list[int]]:
    """Return the ids of each document, without the one that ends it."""
    found, begin = list[list[int]](), 0
    tokens = [token for split in (data.held_out, data.train) for token in split.tokens(0, split.num_tokens).tolist()]
    for at, token in enumerate(tokens):
        if token == data.index.end:
            found.append(tokens[begin:at])
            begin = at + 1
    return found


def exported(data: Shards, folder: Path, export: Path) -> Any:
    """Return the tokenizer of the data set in `folder`, opened from an export's files by `AutoTokenizer`."""
    from transformers import AutoTokenizer

    files = run_tokenizer(data.index.tokenizer, data.index.tokenizer_config, folder)
    export.mkdir()
    (export / "tokenizer.json").write_bytes(files.data)
    (export / "tokenizer_config.json").write_bytes(files.config)
    return AutoTokenizer.from_pretrained(export)
