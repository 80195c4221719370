"""Long documents: encoded in pieces, so that memory stays small, without a token that another cut would change.

A tokenizer applies its merges to a whole text, and holds many times as much as the text for it. A text may be cut where
no token can reach across: that is tried out for each kind of place, with each tokenizer, on samples.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

PIECE_CHARACTERS = 1 << 16
"""Longer documents are cut."""
_SAMPLE_CHARACTERS = 200
PLACES = (re.compile(r"(?<=\S)\n(?=[^\s/])"), re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])"))
"""Behind a single line end between two lines' texts, but for a slash, which o200k takes with it; in front of a blank
between two words."""
SAMPLES = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune\nmust be in want of a "
    "wife.\n\nHe asked\n\n\nnothing. However little known the feelings or views of such a man may be,\n\n"
    "\tdef f(x): return x ** 2  # 12345\n;\n// x\n"
    "    if x:\r\n        print('ä')\nEs war einmal mitten im Winter, und die Schneeflocken fielen wie Federn\nvom "
    "Himmel herab.\nВсе счастливые семьи похожи друг на друга, каждая\nнесчастливая семья несчастлива по-своему.\n"
    "吾輩は猫である。名前はまだ無い。\n道可道,非常道。\n모든 인간은 태어날 때부터 자유로우며\n한국어 문장 사이\n"
    "don't won't I'll we'VE THE END the  end   of a\n\n\nline \n x\n  y\n- item one\n- item two\n🙂🙂 smile 🙂\n1 2 3 "
    '1234 5678 90\n{"a": [1, 2, {"b": null}]}\n<p>html text</p>\nhttps://example.org/a?b=c d e\n'
)

Encode = Callable[[str], Sequence[int]]


def safe_places(encode: Encode, known: Mapping[str, Sequence[int]] = MappingProxyType({})) -> tuple[int, ...]:
    """Return which of PLACES serve for this tokenizer: at each of them, in a sample and in the texts whose tokens are
    known, the parts give the tokens of the whole."""

    def holds(place: re.Pattern[str], text: str, characters: int, whole: Sequence[int]) -> bool:
        parts = list(_cut(text, (place,), characters))
        return len(parts) == 1 or [token for part in parts for token in encode(part)] == list(whole)

    own = encode(SAMPLES)
    return tuple(
        kind
        for kind, place in enumerate(PLACES)
        if holds(place, SAMPLES, 1, own)
        and all(holds(place, text, _SAMPLE_CHARACTERS, whole) for text, whole in known.items())
    )


def pieces(text: str, places: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    """Yield a text's pieces; one where it is short, or may be cut nowhere."""
    return iter([text]) if len(text) <= PIECE_CHARACTERS or not places else _cut(text, places, PIECE_CHARACTERS)


def _cut(text: str, places: tuple[re.Pattern[str], ...], characters: int) -> Iterator[str]:
    """Yield pieces of at least so many characters, each cut at the first place behind them."""
    begin = 0
    while begin < len(text):
        found = [place.search(text, begin + max(1, characters - 1)) for place in places]
        end = min((each.end() for each in found if each is not None), default=len(text))
        yield text[begin:end]
        begin = end
