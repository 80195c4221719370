"""Tokenizers in the formats of other libraries, written as tokenizer.json: SentencePiece, tekken.json, tiktoken.

All are byte pair encodings, and their merges are those that transformers finds. It is done here, so that the result
follows from the file and from no library's release. Besides, transformers gives other ids than SentencePiece to texts
with blanks at their beginning, or behind a line end. The build compares ids with those of the original library
(murmur/data/proof.py).
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.protocol.errors import ConfigError

Table = dict[str, Any]

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
"""How GPT-4's and Llama 3's tokenizers split a text, .."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
""".. GPT-4o's, .."""
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
""".. and Mistral's."""

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]{1,9}\r?(\n|\Z)")
_RESERVED = [f"<|reserved_special_token_{number}|>" for number in range(251)]
_LLAMA_3 = [
    *("<|begin_of_text|>", "<|end_of_text|>", *_RESERVED[:4], "<|start_header_id|>", "<|end_header_id|>"),
    *(_RESERVED[4], "<|eot_id|>", *_RESERVED[5:]),
]
_PUBLISHED: dict[str, tuple[str, dict[str, int], Table]] = {
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": (
        CL100K,
        {token: 128_000 + number for number, token in enumerate(_LLAMA_3)},
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "add_bos_token": True},
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": (
        CL100K,
        {
            "<|endoftext|>": 100_257,
            "<|fim_prefix|>": 100_258,
            "<|fim_middle|>": 100_259,
            "<|fim_suffix|>": 100_260,
            "<|endofprompt|>": 100_276,
        },
        {"eos_token": "<|endoftext|>"},
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": (
        O200K,
        {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018},
        {"eos_token": "<|endoftext|>"},
    ),
}
"""Of tiktoken files that everybody has, by their sha256: Llama 3, cl100k_base, o200k_base. What the file itself does
not hold: pattern, special tokens, configuration."""
_TEKKEN_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Special tokens of a tekken.json that names none."""
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = 1, 2, 3, 4, 5
"""Types of pieces of SentencePiece; 6 is a byte."""
_BPE = 2


@dataclass(frozen=True, slots=True)
class Converted:
    """`table`: the tokenizer.json. `config`: what tokenizer_config.json would say, unless it says otherwise. `encode`:
    a text's ids by `library`, whose format it is, without tokens that begin or end it. `hard`: texts whose ids a
    conversion may change. `said`: where ids differ."""

    library: str
    table: Table
    config: Table
    encode: Callable[[str], Sequence[int]]
    hard: tuple[str, ...]
    said: tuple[str, ...] = ()


def convert(data: bytes, path: Path, config: Mapping[str, Any]) -> Converted | None:
    """Convert a tokenizer's file; None for what may be a tokenizer.json. config: of the tokenizer_config.json next to
    it. Raises ConfigError for a file that is broken or says too little."""
    try:
        if data[:100].lstrip()[:1] in (b"{", b""):
            return _tekken(json.loads(data)) if b'"default_num_special_tokens"' in data else None
        return _tiktoken(data, path, config) if _TIKTOKEN_LINE.match(data) else _sentencepiece(data)
    except ImportError as fault:
        raise ConfigError(f"{path} needs the package {fault.name}: pip install 'murmuration-node[data]'") from None
    except ConfigError as fault:
        raise ConfigError(f"cannot use the tokenizer {path}: {fault}") from None
    except Exception as fault:  # noqa: BLE001 - the libraries raise anything for a bad file
        raise ConfigError(
            f"{path} is not a tokenizer.json, nor a SentencePiece model, a tekken.json or a tiktoken file: {fault!r}"
        ) from None


def letters() -> list[str]:
    """Return the printable letter for each byte in byte-level vocabularies (GPT-2's): the byte itself where it is
    printable Latin-1, else the next letter from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


# --- bytes -------------------------------------------------------------------------------------------------------


def _tiktoken(data: bytes, path: Path, config: Mapping[str, Any]) -> Converted:
    pattern, special, known = _PUBLISHED.get(sha256(data).hexdigest(), (None, dict[str, int](), Table()))
    pattern = config.get("pat_str", pattern)
    if "added_tokens_decoder" in config:
        special = {each["content"]: int(number) for number, each in config["added_tokens_decoder"].items()}
    if not isinstance(pattern, str) or not special:
        raise ConfigError(
            "a tiktoken file holds neither the pattern that splits a text nor the special tokens. Use the model's "
            f"tokenizer.json, or write both into {path.with_name('tokenizer_config.json')}, as pat_str and "
            "added_tokens_decoder"
        )
    lines = [line.split() for line in data.splitlines() if line]
    return _byte_level({b64decode(token): int(rank) for token, rank in lines}, pattern, special, known)


def _tekken(table: Table) -> Converted:
    config = table["config"]
    pieces = table.get("special_tokens") or [
        {"rank": rank, "token_str": token} for rank, token in enumerate(_TEKKEN_TOKENS)
    ]
    named = {each["rank"]: each["token_str"] for each in pieces}
    first = config["default_num_special_tokens"]
    if not 0 < len(named) <= first <= 1 << 20:
        raise ConfigError(f"it has {len(named)} special tokens, and says {first}")
    special = {named.get(rank, f"<SPECIAL_{rank}>"): rank for rank in range(first)}
    tokens = table["vocab"][: config["default_vocab_size"] - first]
    ranks = {b64decode(each["token_bytes"]): first + rank for rank, each in enumerate(tokens)}
    begins = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    return _byte_level(ranks, config["pattern"], special, begins)


def _byte_level(ranks: dict[bytes, int], pattern: str, special: dict[str, int], config: Table) -> Converted:
    """Return the byte-level BPE in which a pair of tokens is merged by the rank of what it becomes, its id."""
    import tiktoken

    letter = letters()
    names = {token: "".join(letter[byte] for byte in token) for token in ranks}
    vocabulary = {names[token]: rank for token, rank in ranks.items()}
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ConfigError("it has no tokens for some bytes")
    if vocabulary.keys() & special.keys() or len({*ranks.values(), *special.values()}) < len(ranks) + len(special):
        raise ConfigError("two of its tokens have one name or one id")
    pairs = [
        (rank, ranks[token[:at]], ranks[token[at:]], token[:at], token[at:])
        for token, rank in ranks.items()
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    table = _table(
        vocabulary | special,
        [(names[left], names[right]) for *_, left, right in sorted(pairs)],
        [(rank, token, True) for token, rank in special.items()],
        ignore_merges=True,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]},
        decoder=level,
    )
    original = tiktoken.Encoding("original", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return Converted("tiktoken", table, config, original.encode_ordinary, _around(special))


# --- SentencePiece -----------------------------------------------------------------------------------------------


def _sentencepiece(data: bytes) -> Converted:
    from sentencepiece import SentencePieceProcessor
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    original, model = SentencePieceProcessor(model_proto=data), ModelProto.FromString(data)
    trained, normal = model.trainer_spec, model.normalizer_spec
    pieces = [(piece.piece, piece.score, piece.type) for piece in model.pieces]
    for wrong, what in (
        (trained.model_type != _BPE, "is no BPE"),
        (trained.treat_whitespace_as_suffix or not normal.escape_whitespaces, "marks blanks in another way"),
        (any(kind == _UNUSED for *_, kind in pieces), "has pieces that are not used"),
    ):
        if wrong:
            raise ConfigError(f"this SentencePiece model {what}: give the model's tokenizer.json")
    vocabulary = {piece: number for number, (piece, *_) in enumerate(pieces)}
    merged = {piece: (kind != _USER, -score) for piece, score, kind in pieces if kind in (_NORMAL, _USER)}
    pairs = [
        (*order, -at, at - len(piece), piece[:at], piece[at:])  # of equal scores a long left part first
        for piece, order in merged.items()
        for at in range(1, len(piece))
        if piece[:at] in merged and piece[at:] in merged
    ]
    steps: list[Table] = []
    if normal.precompiled_charsmap:
        charsmap = b64encode(normal.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if normal.remove_extra_whitespaces:
        steps += [_replaced({"Regex": r"\A +| +\z"}, ""), _replaced({"Regex": " {2,}"}, " ")]
    if normal.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": "▁"})
    steps.append(_replaced({"String": " "}, "▁"))
    decoder: list[Table] = [_replaced({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if normal.add_dummy_prefix:
        decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    # Between tokens that are found in any text, a tokenizer.json would put the blank in front of every part of it.
    unfound = sum(kind == _USER for *_, kind in pieces) if normal.add_dummy_prefix else 0
    named = [
        (number, piece, kind != _USER or unfound > 0)
        for number, (piece, _, kind) in enumerate(pieces)
        if kind in (_UNKNOWN, _CONTROL, _USER)
    ]
    table = _table(
        vocabulary,
        [(left, right) for *_, left, right in sorted(pairs)],
        named,
        unk_token=next((piece for piece, _, kind in pieces if kind == _UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=trained.byte_fallback,
        normalizer={"type": "Sequence", "normalizers": steps},
        decoder={"type": "Sequence", "decoders": decoder},
    )
    config: Table = {}
    if original.eos_id() >= 0:
        config["eos_token"] = pieces[original.eos_id()][0]
    if original.bos_id() >= 0:
        config |= {"bos_token": pieces[original.bos_id()][0], "add_bos_token": True}
    hard = _around(piece.replace("▁", " ") for piece, _, kind in pieces if kind != _USER or not unfound)
    said = (f"{unfound} tokens of its users, which sentencepiece finds in text, are text there",) if unfound else ()
    return Converted("sentencepiece", table, config, original.encode, hard, said)


# --- both --------------------------------------------------------------------------------------------------------


def _replaced(pattern: Table, content: str) -> Table:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _around(tokens: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"a {token} b{token}" for token in tokens)


def _table(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    added: Iterable[tuple[int, str, bool]],
    *,
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
    **parts: Any,
) -> Table:
    """Return the tokenizer.json of a BPE. added: id, text, and whether it is special, else it is found in any text."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **plain, "special": special} for number, token, special in sorted(added)
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        **parts,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": fuse_unk,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
