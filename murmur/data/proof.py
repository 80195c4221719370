"""The first step of a build: on the data set's own text, does its tokenizer do what the rest relies on?

Others will open the tokenizer's file and encode prompts with it: they must get the ids that are trained on. Where it
was converted, the library whose file it was has to give these ids too. Long documents are cut where no token reaches
across: that is tried out on these documents too. Of tokens that others have made, most must be what the tokenizer makes
of their text.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from murmur.data import by_tiktoken, place
from murmur.data.converted import Converted
from murmur.data.job import Job
from murmur.data.pieces import SAMPLES, safe_places
from murmur.data.reader import Reader
from murmur.data.tokenizer import Ids, Tokenizer
from murmur.protocol.errors import ConfigError

SAMPLE_DOCUMENTS = 1000
SAMPLE_CHARACTERS = 2000
"""Of each document so much is looked at."""
_SAMPLE_TOKENS = 500
_EDGES = 20
"""So many of a part's tokens may differ, since it was cut out of its text."""
_MOST_ODD = 0.1
"""Share of a file's documents whose tokens may not be those of their text: special tokens are text to some."""
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
        codec, (texts, tokens) = self.job.open_tokenizer(), self._sample()
        known = {text: ids.tolist() for text, ids in zip(texts, codec.encode(texts), strict=True)}
        if codec.file is not None:
            from tokenizers import Tokenizer as Native

            native = Native.from_buffer(codec.file)
            native.encode_special_tokens = True
            for text, ids in known.items():
                if not len(ids):
                    raise ConfigError(f"the tokenizer has no tokens for {text[:50]!r}: it would be lost")
                found = native.encode(text).ids
                begin = [] if codec.bos is None else [codec.bos]
                if found != begin + ids:
                    raise ConfigError(
                        f"the tokenizer gives other ids to whoever opens its file, such as of {text[:50]!r}: "
                        f"{found[:8]}, here {begin + ids[:8]}"
                    )
            if tokens and self.job.recipe.end is not None and codec.end not in native.get_added_tokens_decoder():
                raise ConfigError(f"--end {self.job.recipe.end!r} is a token of text: name the special one")
            lines = [_require_own(codec, native, name, found) for name, found in tokens.items()]
            lines.append(_unlike(native, known))
            place.write(self.job.said, json.dumps([line for line in lines if line is not None]).encode())
        if codec.original is not None:
            require_same(codec, codec.original, [*texts, *HARD, *codec.original.hard])
        by_tiktoken.decide(self.job, codec, texts)
        places = safe_places(lambda text: codec.encode([text])[0].tolist(), known)
        place.write(self.job.cut, json.dumps(places).encode())
        yield from ()

    def _sample(self) -> tuple[list[str], dict[str, list[list[Ids]]]]:
        texts, tokens, all_files = list[str](), defaultdict[str, list[list[Ids]]](list), self.job.files
        step = -(-len(all_files) // _MOST_FILES)
        chosen = all_files[::step]
        for file in chosen:
            for document in islice(self.reader.documents(file), -(-SAMPLE_DOCUMENTS // len(chosen))):
                if file.is_tokens:
                    ids = document.metadata["ids"]
                    parts = (ids, ids[len(ids) // 2 :], ids[max(0, len(ids) - _SAMPLE_TOKENS) :])
                    tokens[file.path].append([part[:_SAMPLE_TOKENS].copy() for part in parts])
                else:
                    texts.append(document.text[:SAMPLE_CHARACTERS])
        return texts[:SAMPLE_DOCUMENTS], tokens


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


def _unlike(native: Any, known: Mapping[str, list[int]]) -> str | None:
    """Return what is to be said of texts whose tokens do not give them back."""
    found = [
        text for text, ids in known.items() if native.decode(ids, skip_special_tokens=False).strip() != text.strip()
    ]
    if not found:
        return None
    return (
        f"the tokenizer: of {len(known)} documents' beginnings, {len(found)} do not come back from their tokens as "
        f"they were: it changes text, or lacks tokens for some. The first begins {found[0][:40]!r}"
    )


def _require_own(codec: Tokenizer, native: Any, name: str, tokens: Sequence[list[Ids]]) -> str | None:
    """Raise ConfigError for a file's tokens that another tokenizer has made, and for those that begin with one of its
    own. Return what is to be said of the rest."""
    native.encode_special_tokens = False
    odd = sum(not _comes_back(native, head, others) for head, *others in tokens)
    if odd > _MOST_ODD * len(tokens):
        text = native.decode(tokens[0][0][:20].tolist(), skip_special_tokens=False)
        raise ConfigError(
            f"{name}: of {len(tokens)} documents, {odd} are not what this tokenizer makes of their text: they are "
            f"another one's, or --dtype or --end is wrong. The first would begin {text!r}"
        )
    begins = Counter(int(head[0]) for head, *_ in tokens).most_common(1)[0]
    added = native.get_added_tokens_decoder().get(begins[0])
    if begins[1] == len(tokens) > 1 and added is not None and added.special:
        if begins[0] == codec.bos:
            raise ConfigError(f"{name}: each document begins with {added.content!r} twice; have them made anew")
        raise ConfigError(
            f"{name}: each document begins with {added.content!r}, and the tokenizer's do not: give --bos"
        )
    return f"{name}: {odd} of {len(tokens)} documents have other tokens than their text's" if odd else None


def _comes_back(native: Any, head: Ids, others: Sequence[Ids]) -> bool:
    """Whether the text of these parts of a document has the same ids: the head's, but for where it was cut; that of the
    others, but for a few at the edges."""

    def again(part: list[int]) -> list[int]:
        text = native.decode(part, skip_special_tokens=False)
        found: list[int] = native.encode(text, add_special_tokens=False).ids
        return found

    most = len(head) - len(head) // 10
    return again(head.tolist())[:most] == head[:most].tolist() and all(
        (Counter(part.tolist()) & Counter(again(part.tolist()))).total() >= len(part) - _EDGES for part in others
    )
