"""The first step of a build: on the data set's own text, does its tokenizer do what the rest relies on?

Others will open the tokenizer's file and encode prompts with it: they must get the ids that are trained on. Where it
was converted, the library whose file it was has to give these ids too. Long documents are cut where no token reaches
across: that is tried out on these documents too.
"""

import json
from collections.abc import Sequence
from itertools import islice

from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from murmur import files
from murmur.data import by_tiktoken
from murmur.data.converted import Converted
from murmur.data.job import Job
from murmur.data.pieces import SAMPLES, safe_places
from murmur.data.reader import Reader
from murmur.data.tokenizer import Tokenizer
from murmur.protocol.errors import ConfigError

SAMPLE_DOCUMENTS = 1000
SAMPLE_CHARACTERS = 10_000
"""Of each document so much is looked at."""
_MOST_FILES = 100
HARD = (SAMPLES, "", " ", "  a  b ", " a", "\n\n a\n", "\ta\r\n b\0", "▁a ▁", "x" * 300, " " * 300, "１２ ﬁ e\u0301 Å")
"""Texts on which libraries differ, apart from a data set's own."""


class Proof(PipelineStep):  # type: ignore[misc]
    """Compare the ids of a thousand documents with those of the tokenizer's file as others read it, and decide where
    long documents may be cut, and whether tiktoken encodes. Raises ConfigError for a difference."""

    type, name = "proof", "are the tokenizer's ids what others will get"

    def __init__(self, job: Job, reader: Reader) -> None:
        super().__init__()
        self.job, self.reader = job, reader

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        codec, texts = self.job.open_tokenizer(), self._sample()
        if codec.file is not None:
            from tokenizers import Tokenizer as Native

            native = Native.from_buffer(codec.file)
            native.encode_special_tokens = True
            for text, ids in zip(texts, codec.encode(texts), strict=True):
                if not len(ids):
                    raise ConfigError(f"the tokenizer has no tokens for {text[:50]!r}: it would be lost")
                found = native.encode(text).ids
                if found != codec.document(ids)[:-1].tolist():
                    raise ConfigError(
                        f"the tokenizer gives other ids to whoever opens its file, such as of {text[:50]!r}: "
                        f"{found[:8]}, here {codec.document(ids)[:8].tolist()}"
                    )
        if codec.original is not None:
            require_same(codec, codec.original, [*texts, *HARD, *codec.original.hard])
        by_tiktoken.decide(self.job, codec, texts)
        files.write(
            self.job.cut, json.dumps(safe_places(lambda text: codec.encode([text])[0].tolist(), texts)).encode()
        )
        yield from ()

    def _sample(self) -> list[str]:
        texts, all_files = list[str](), self.job.files
        step = -(-len(all_files) // _MOST_FILES)
        chosen = all_files[::step]
        for file in chosen:
            documents = islice(self.reader.documents(file), -(-SAMPLE_DOCUMENTS // len(chosen)))
            texts += [document.text[:SAMPLE_CHARACTERS] for document in documents]
        return texts[:SAMPLE_DOCUMENTS]


def require_same(codec: Tokenizer, original: Converted, texts: Sequence[str]) -> None:
    """Raise ConfigError where a converted tokenizer gives other ids than the library whose file it was."""
    for text, ids in zip(texts, codec.encode(texts), strict=True):
        expected = list(original.encode(text))
        if ids.tolist() != expected:
            at = next((at for at, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1]), 0)
            raise ConfigError(
                f"converted to a tokenizer.json, the tokenizer gives other ids than {original.library} does, such as "
                f"of {text[:50]!r}: {ids[at : at + 8].tolist()}, there {expected[at : at + 8]}; give the model's "
                "tokenizer.json"
            )
