"""Byte-level tokenizers encoded by tiktoken: the same ids, several times as fast.

It splits a text by the same pattern, and merges the pair whose result has the lowest id. That is what a tokenizer.json
says, too, where its merges are in the order of their results, and where for each token the merges of lower tokens leave
of its bytes two parts that are one of its merges: then no other pair of it ever meets. The few tokens of which this is
not so, and those made of them, are *doubtful*: a text that gets one is encoded anew by the tokenizer's own library. So
is one with a character that the two libraries put into different classes, and one with a run so long that tiktoken's
time, which grows with its square, matters.

The proof (murmur/data/proof.py) finds these out, compares ids on the data set's documents, and writes down for all
tasks whether tiktoken is used.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np

from murmur.data import place
from murmur.data.converted import CL100K, O200K, TEKKEN, letters
from murmur.data.job import Job
from murmur.data.tokenizer import Ids, Tokenizer

_DECISION = "tiktoken.json"
WORTH_BYTES = 1 << 27
"""Of less text, the proof would take longer than it saves."""
_LONGEST_RUN = 1000
"""Characters without a blank, or blanks, that tiktoken gets."""
_MOST_SLOW = 0.1
"""Share of documents that may need the tokenizer's own library."""
_CLASSES = (r"\s", *(rf"\p{{{name}}}" for name in ("L", "N", "M", "Lu", "Lt", "Lm", "Lo", "Ll")), "(?i:[sdmtlrve])")
"""All that the patterns ask of a character, but for single ones."""
_BLANK, _UNLIKE = 1, 2


class Encoder:
    """Encodes as `codec` does."""

    def __init__(self, codec: Tokenizer, pattern: str, ranks: dict[bytes, int], odd: "_Odd") -> None:
        import tiktoken

        self.codec = codec
        self._encoding = tiktoken.Encoding("quick", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        self._doubtful = np.zeros(codec.vocabulary, np.bool_)
        self._doubtful[odd["tokens"]] = True
        self._kinds = np.zeros(0x110000, np.uint8)
        self._kinds[[code for code in range(0x3001) if chr(code).isspace() and not 0x1C <= code <= 0x1F]] = _BLANK
        self._kinds[[*odd["characters"], *range(0xD800, 0xE000)]] = _UNLIKE

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """See Tokenizer."""
        found = [self.quickly(text) for text in texts]
        others = iter(self.codec.encode([text for text, ids in zip(texts, found, strict=True) if ids is None]))
        return [next(others) if ids is None else ids for ids in found]

    def quickly(self, text: str) -> Ids | None:
        """Return the ids of a text; None where only the tokenizer's own library is sure of them."""
        if not self._is_plain(text):
            return None
        ids = np.array(self._encoding.encode_ordinary(text), np.uint32)
        return None if self._doubtful[ids].any() else ids

    def _is_plain(self, text: str) -> bool:
        """Whether a text has no character of other classes, and no long run."""
        data = text.encode() if text.isascii() else text.encode("utf-32-le", "surrogatepass")
        kinds = self._kinds[np.frombuffer(data, np.uint8 if text.isascii() else "<u4")]
        if kinds.max(initial=0) >= _UNLIKE:
            return False
        edges = np.flatnonzero(np.diff(kinds, prepend=_UNLIKE, append=_UNLIKE))
        return bool(np.diff(edges).max(initial=0) <= _LONGEST_RUN)


class _Odd(TypedDict):
    """Ids of doubtful tokens, and characters of other classes."""

    tokens: list[int]
    characters: list[int]


def decide(job: Job, codec: Tokenizer, texts: Sequence[str]) -> None:
    """Find out whether tiktoken gives this tokenizer's ids, of these texts too, and write it down."""
    worth = sum(file.text_bytes for file in job.files) >= WORTH_BYTES
    place.write(job.work / _DECISION, json.dumps(proved(codec, texts) if worth else None).encode())


def open_quick(job: Job) -> Tokenizer:
    """Open the job's tokenizer for much text."""
    codec, odd = job.open_tokenizer(), _decision(job)
    kind = None if odd is None else kind_of(codec)
    return codec if odd is None or kind is None else replace(codec, encode=Encoder(codec, *kind, odd).encode)


def told(job: Job) -> list[str]:
    """Return what to say of it."""
    return [] if _decision(job) is None else ["tiktoken encoded the text: it gives the same ids, and is faster"]


def _decision(job: Job) -> _Odd | None:
    path = job.work / _DECISION
    found: _Odd | None = json.loads(path.read_bytes()) if path.exists() else None
    return found


def proved(codec: Tokenizer, texts: Sequence[str]) -> _Odd | None:
    """Return what tiktoken is not used for; None where it would be used little, or gives other ids."""
    kind = kind_of(codec)
    doubtful = None if kind is None else _doubtful(kind[1], json.loads(codec.file or b"")["model"]["merges"])
    if kind is None or doubtful is None:
        return None
    odd = _Odd(tokens=doubtful, characters=_unlike())
    encoder = Encoder(codec, *kind, odd)
    found = [encoder.quickly(text) for text in texts]
    if sum(ids is None for ids in found) > _MOST_SLOW * len(texts):
        return None
    both = zip(found, codec.encode(texts), strict=True)
    return odd if all(ids is None or np.array_equal(ids, own) for ids, own in both) else None


def kind_of(codec: Tokenizer) -> tuple[str, dict[bytes, int]] | None:
    """Return a tokenizer's pattern, and the ids of its tokens by their bytes; None where tiktoken cannot do it."""
    if codec.file is None:
        return None
    table: dict[str, Any] = json.loads(codec.file)
    model, steps = table["model"], table.get("pre_tokenizer") or {}
    match steps.get("pretokenizers"):
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": how, "invert": bool(invert)},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if pattern in (CL100K, O200K, TEKKEN) and (how, invert) in (("Isolated", False), ("Removed", True)):
            pass
        case _:
            return None
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    found_in_text = any(not each["special"] for each in table.get("added_tokens") or ())
    if model["type"] != "BPE" or affixes or found_in_text or table.get("normalizer") is not None:
        return None
    byte = {letter: number for number, letter in enumerate(letters())}
    ranks = {_bytes(token, byte): rank for token, rank in model["vocab"].items() if byte.keys() >= set(token)}
    return (pattern, ranks) if all(bytes([each]) in ranks for each in range(256)) else None


def _bytes(token: str, byte: dict[str, int]) -> bytes:
    return bytes(byte[letter] for letter in token)


def _doubtful(ranks: dict[bytes, int], merges: Sequence[Any]) -> list[int] | None:
    """Return the ids of doubtful tokens; None where merges are not in the order of what they make,
    or not of bytes."""
    byte, listed, last = {letter: number for number, letter in enumerate(letters())}, set[tuple[bytes, bytes]](), -1
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not all(byte.keys() >= set(part) for part in parts):
            return None
        left, right = (_bytes(part, byte) for part in parts)
        if ranks[left + right] < last:
            return None
        last = ranks[left + right]
        listed.add((left, right))
    found = set[int]()
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        left_over, made = _merged(token, ranks, rank)
        if len(token) > 1 and (tuple(left_over) not in listed or not found.isdisjoint(made)):
            found.add(rank)
    return sorted(found)


def _merged(token: bytes, ranks: dict[bytes, int], limit: int) -> tuple[list[bytes], list[int]]:
    """Return what the merges into tokens below `limit` leave of a token's bytes, and these tokens."""
    parts, made = [token[at : at + 1] for at in range(len(token))], list[int]()
    while True:
        each = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        lowest = min(each, default=limit)
        if lowest >= limit:
            return parts, made
        at = each.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        made.append(lowest)


def _unlike() -> list[int]:
    """Return the characters that tiktoken and tokenizers put into different classes: they know other releases of
    Unicode."""
    import tiktoken
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    every = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    single, found = {bytes([each]): each for each in range(256)}, set[str]()
    for name in _CLASSES:
        there = tiktoken.Encoding(name, pat_str=name, mergeable_ranks=single, special_tokens={}).encode_ordinary(every)
        split = Split(Regex(name), "removed", invert=True)
        here = {each for at in range(0, len(every), 4096) for each, _ in split.pre_tokenize_str(every[at : at + 4096])}
        found |= here ^ {*bytes(there).decode()}
    return sorted(map(ord, found))
