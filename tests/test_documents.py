"""The documents say what is there: links and citations resolve, the packages of docs/architecture.md and the list of
events match the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
SOURCES = sorted(path for package in [*PACKAGES, ROOT / "tests"] for path in package.rglob("*.py"))
MARKDOWN = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for name in ("docs", "csrc", "docker", "benchmarks") for path in (ROOT / name).rglob("*.md")),
    ]
)

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CITED_FILE = re.compile(r"(?<![\w/.-])docs/[\w./-]*[\w-]")
NAMED_PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(path.name for path in PACKAGES)}|tests|docs)/[\w./-]*[\w/-]")
CITED_SECTIONS = re.compile(r"\bprotocol\.md (?:sections? )?(\d+(?:(?:, | and )\d+)*)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def flowing(path: Path) -> str:
    """The text with line breaks, and the marks of comments that go on, as single spaces."""
    return re.sub(r"\s*\n\s*(?:#\s*)?", " ", path.read_text(encoding="utf-8"))


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Anchors of a document's headings, as code forges make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return frozenset(heading.replace(" ", "-") for heading in plain)


@pytest.mark.parametrize("document", MARKDOWN, ids=relative)
def test_every_relative_link_of_a_document_resolves(document: Path) -> None:
    broken = []
    for target in LINK.findall(without_code(document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("document", MARKDOWN, ids=relative)
def test_every_path_of_ours_that_a_document_names_exists(document: Path) -> None:
    named = set(NAMED_PATH.findall(document.read_text(encoding="utf-8")))
    placeholders = {"tests/"}  # followed by <package> in CONTRIBUTING.md
    assert not [path for path in sorted(named - placeholders) if not (ROOT / path).exists()]


def test_every_document_that_the_code_cites_exists() -> None:
    cited = {(relative(path), name) for path in SOURCES for name in CITED_FILE.findall(flowing(path))}
    assert ("murmur/protocol/types.py", "docs/protocol.md") in cited
    assert not [(source, name) for source, name in sorted(cited) if not (ROOT / name).exists()]


def test_every_cited_section_of_the_protocol_exists() -> None:
    protocol = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (\d+)\. ", protocol, flags=re.MULTILINE))
    cited = {
        (relative(path), number)
        for path in [*SOURCES, *MARKDOWN]
        for numbers in CITED_SECTIONS.findall(flowing(path))
        for number in re.findall(r"\d+", numbers)
    }
    assert ("gauntlet/agreement.py", "6") in cited
    assert not [(source, number) for source, number in sorted(cited) if number not in sections]


# --- docs/architecture.md -------------------------------------------------------------------------------------


def test_the_architecture_has_a_line_for_every_package_and_for_the_rooms_of_node_and_lab() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    inner = [path.parent for name in ("", "node/", "lab/") for path in ROOT.glob(f"murmur/{name}*/__init__.py")]
    packages = [path for path in [*PACKAGES, *inner] if path.name != "murmur"]
    assert len(inner) > 20
    assert not [f"{relative(path)}/" for path in packages if f"`{relative(path)}/`" not in text]


# --- events --------------------------------------------------------------------------------------------------


def emitted() -> Iterator[tuple[str, frozenset[str]]]:
    """(kind, names of its fields) of every event that the nodes emit; a field of phases as "seconds.NAME"."""
    chain = ROOT / "murmur/lab/devnet"  # what the devnet emits are the chain's own events
    for path in SOURCES:
        if path.is_relative_to(ROOT / "tests") or path.is_relative_to(chain):
            continue
        source = ast.parse(path.read_text(encoding="utf-8"))
        for call in ast.walk(source):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "emit":
                kind = call.args[0]
                assert isinstance(kind, ast.Constant), f"{relative(path)} emits an event whose kind is computed"
                assert isinstance(kind.value, str)
                yield kind.value, frozenset(name for keyword in call.keywords for name in names_of(keyword, source))


def names_of(keyword: ast.keyword, source: ast.Module) -> Iterator[str]:
    """Fields that one argument of `emit` stands for: NAME=.., seconds={PHASE: ..}, or **VALUE, whose fields are those
    of the non-empty dict literals that the module assigns to VALUE."""
    if keyword.arg is not None:
        yield keyword.arg
        if keyword.arg == "seconds" and isinstance(keyword.value, ast.Dict):
            yield from (f"seconds.{ast.literal_eval(key)}" for key in keyword.value.keys if key)
        return
    target = ast.unparse(keyword.value)
    assigned = (
        node for node in ast.walk(source) if isinstance(node, ast.Assign) and target == ast.unparse(node.targets[0])
    )
    for literal in (node.value for node in assigned if isinstance(node.value, ast.Dict)):
        for key, value in zip(literal.keys, literal.values, strict=True):
            yield from names_of(ast.keyword(ast.literal_eval(key) if key else None, value), source)


def documented() -> Iterator[tuple[str, frozenset[str]]]:
    """The same as docs/events.md lists them in its tables of | event | fields | when |."""
    text = (ROOT / "docs/events.md").read_text(encoding="utf-8")
    for table in re.findall(r"\| event \| fields \| when \|\n\|[-|]+\n((?:\|.*\n)+)", text):
        for row in table.splitlines():
            event, fields = (cell.strip() for cell in row.split("|")[1:3])
            phases = re.search(r"`seconds` \((.*?)\)", fields)
            names = set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", fields)))
            if phases:
                names |= {f"seconds.{name}" for name in re.findall(r"`(\w+)`", phases.group(1))}
            yield event.strip("`"), frozenset(names)


def test_every_event_is_documented_with_its_fields_and_nothing_else_is() -> None:
    assert set(documented()) == set(emitted())
