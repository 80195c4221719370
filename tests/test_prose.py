"""Documents stay short and their sentences too.

A word is a part between spaces with a letter or digit in it; a link counts by its text. Blocks of code, headings,
pictures and tables that a program writes are left out. A sentence ends at `.`, `:`, `;`, `?` or `!` before a capital, a
quote, a code span or a bracket, or at the end of a paragraph, a list item or a table's cell. Parts of up to three words
are no sentences.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
WORDS_OF_README = 900
WORDS_OF_PAGES = 34_000
MEAN_WORDS = 18.0
LONG_WORDS, LONG_SHARE = 30, 0.1


def words(text: str) -> int:
    return sum(bool(re.search(r"[A-Za-z0-9]", part)) for part in re.sub(r"\]\([^)]*\)", "]", text).split())


def prose(path: Path) -> str:
    text = re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", "", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?ms)^<!-- (\w+): .*?^<!-- end of \1 -->$", "", text)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "![")))


def paragraphs(text: str) -> Iterator[str]:
    """Also each item of a list and each cell of a table."""
    current = list[str]()
    for line in [*text.splitlines(), ""]:
        line = line.strip()
        begins = not line or line.startswith("|") or re.match(r"([-*]|\d+\.)\s", line)
        if begins and current:
            yield " ".join(current)
            current = []
        if line.startswith("|"):
            yield from line.strip("|").split("|")
        elif line:
            current.append(line)


def sentences(text: str) -> list[int]:
    """Words of each."""
    parts = (part for one in paragraphs(text) for part in re.split(r"(?<=[.:;?!])\s+(?=[A-Z`*\[(\"])", one))
    return [count for count in map(words, parts) if count > 3]


def test_words_and_sentences_are_counted() -> None:
    text = "One two three four. `Five` six [seven eight](nine.md) ten: 11 12\n\n- a b c d\n| e f g h | i |\n"
    assert sentences(text) == [4, 7, 4, 4]


def test_the_readme_reads_in_three_minutes() -> None:
    assert words(prose(README)) < WORDS_OF_README


def test_the_pages_together_do_not_grow() -> None:
    assert sum(words(prose(path)) for path in PAGES) < WORDS_OF_PAGES


@pytest.mark.parametrize("path", [README, *PAGES], ids=lambda path: path.name)
def test_sentences_are_short(path: Path) -> None:
    found = sentences(prose(path))
    assert mean(found) < MEAN_WORDS
    assert sum(count > LONG_WORDS for count in found) <= LONG_SHARE * len(found)
