"""The tree itself: packages are ours, folders of files are no packages, no files import each other in a circle, and
nothing is too long. What ruff can say stands in pyproject.toml: nothing runs or unpickles foreign bytes."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from setuptools import find_packages

from tests.conftest import CHECKED, CHECKED_FIXTURES, LONGEST_FIRST

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
NO_PACKAGES = ("docker", "csrc", "benchmarks", "docs", "configs")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that the source imports, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert not node.level, "an import from here"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# --- packages --------------------------------------------------------------------------------------------------------


def test_every_package_of_the_tree_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    find = project["tool"]["setuptools"]["packages"]["find"]
    inits = {relative(path.parent).replace("/", ".") for path in SOURCES if path.name == "__init__.py"}
    assert inits - {"neurons"} == set(find_packages(str(ROOT), include=find["include"]))


def test_every_package_that_our_code_imports_is_the_one_of_this_tree(tmp_path: Path) -> None:
    """Asked from another folder: there, a namesake in site-packages would win over this project's installation."""
    used = {name.split(".")[0] for path in SOURCES for name in imported(parsed(path))}
    ours = sorted(used & {path.name for path in ROOT.iterdir() if path.is_dir()})
    assert set(ours) == set(PACKAGES) - {"neurons"}
    script = (
        "import importlib.util, json, sys\n"
        "found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({name: spec and spec.origin for name, spec in found.items()}))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, *ours],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(answer.stdout) == {name: str(ROOT / name / "__init__.py") for name in ours}


@pytest.mark.parametrize("folder", NO_PACKAGES)
def test_a_folder_of_files_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_program_shadows_the_standard_library() -> None:
    """`python neurons/miner.py` puts neurons/ first on the path."""
    assert not {path.stem for path in (ROOT / "neurons").glob("*.py")} & sys.stdlib_module_names


def test_a_package_imports_nothing_by_itself() -> None:
    """Help texts must not pay for torch, boto3, bittensor or datasets."""
    inits = [path for path in SOURCES if path.name == "__init__.py"]
    assert [relative(path) for path in inits if [type(node) for node in parsed(path).body] != [ast.Expr]] == []


# --- the suite's own lists -------------------------------------------------------------------------------------------


def is_there(place: str) -> bool:
    """Whether something in the tree begins so."""
    path, _, name = place.partition("::")
    found = [ROOT / path] if path.endswith("/") else sorted(ROOT.glob(f"{path}*"))
    return bool(found) and found[0].exists() and (not name or f"\ndef {name}" in found[0].read_text("utf-8"))


def test_what_conftest_lists_is_there() -> None:
    """Else a test that was renamed would move to `make test` unseen."""
    assert [place for place in (*CHECKED, *LONGEST_FIRST) if not is_there(place)] == []
    assert not is_there("tests/no_such_file.py")
    assert not is_there("tests/test_tree.py::test_no_such_test")


def test_every_fixture_that_conftest_lists_is_there() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name in CHECKED_FIXTURES if not re.search(rf"@pytest\.fixture.*\ndef {name}\(", sources)] == []


# --- no circle of files ----------------------------------------------------------------------------------------------


def circle(sources: Mapping[str, ast.AST], packages: Iterable[str] = ()) -> list[str]:
    """Modules each of which imports the one before it, the first of them at both ends; none if there is no circle. A
    package holds no code, so that importing it is no reason."""
    known = sources.keys() - set(packages)
    graph = {name: known & set(imported(tree)) - {name} for name, tree in sources.items() if name in known}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_no_circle_of_files() -> None:
    names = {path: relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in SOURCES}
    packages = [name for path, name in names.items() if path.name == "__init__.py"]
    assert circle({name: parsed(path) for path, name in names.items()}, packages) == []


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p import a",
        "from p.a import name",
        "def f():\n    from p.a import name",
        "if TYPE_CHECKING:\n    from p.a import Name",
    ],
)
def test_the_search_for_circles_finds(back: str) -> None:
    sources = {"p": "'A package.'", "p.a": "from p import b", "p.b": "from p.c import name", "p.c": back, "p.d": back}
    found = circle({name: ast.parse(source) for name, source in sources.items()}, ["p"])
    assert set(found) == {"p.a", "p.b", "p.c"}
    del sources["p.c"]
    assert circle({name: ast.parse(source) for name, source in sources.items()}, ["p"]) == []


# --- nothing runs or unpickles foreign bytes -------------------------------------------------------------------------

REFUSED = (
    "import pickle",
    "def f():\n    from marshal import loads",
    "import yaml",
    "import torch\ntorch.load(path, weights_only=True)",
    "from torch import load",
    "eval(text)",
    "exec(text)",
    "import subprocess\nsubprocess.run(text, shell=True)",
    "import os\nos.system(text)",
    "import os\nos.popen(text)",
)
ALLOWED = "import json\nimport re\nimport subprocess\nmodel.eval()\nre.compile('a')\nsubprocess.run([a], check=True)"


def test_the_linter_refuses_what_would_run_or_unpickle_foreign_bytes(tmp_path: Path) -> None:
    package = tmp_path / "murmur"
    package.mkdir()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for number, source in enumerate((*REFUSED, ALLOWED)):
        (package / f"case_{number}.py").write_text(source)
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts"), "ruff"), "check", "--no-cache", "--output-format", "json", "murmur"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    refused = [one for one in json.loads(done.stdout) if re.match("S|TID", one["code"])]
    assert {Path(one["filename"]).stem for one in refused} == {f"case_{number}" for number in range(len(REFUSED))}


def unsafe(tree: ast.AST) -> list[str]:
    """What ruff knows no rule for, as `line: what`."""
    found = list[str]()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = ast.unparse(call.func)
        if called in ("compile", "__import__"):
            found.append(f"{call.lineno}: {called}")
        for keyword in call.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if (keyword.arg, value) in (("allow_pickle", True), ("weights_only", False)):
                found.append(f"{call.lineno}: {keyword.arg}={value!r}")
    return found


def test_the_search_for_unsafe_calls_finds() -> None:
    source = "np.load(p, allow_pickle=True)\nload(p, weights_only=False)\n__import__(p)\ncompile(p, p, 'exec')"
    assert len(unsafe(ast.parse(source))) == 4
    assert not unsafe(ast.parse("np.load(p, allow_pickle=False)\nload(p, weights_only=True)\nmodel.compile()"))


def test_no_source_runs_or_unpickles_foreign_bytes_nor_silences_the_linter_about_it() -> None:
    assert {relative(path): found for path in SOURCES if (found := unsafe(parsed(path)))} == {}
    assert [relative(path) for path in SOURCES if re.search("noqa: *(S|TID)\\d", path.read_text("utf-8"))] == []


# --- nothing is too long ---------------------------------------------------------------------------------------------

LONGEST_FUNCTION, LONGEST_FILE = 60, 450
"""Lines. What is longer has a seam with a name."""


def too_long(tree: ast.AST) -> list[str]:
    """The functions of a source that are over LONGEST_FUNCTION, as `name: lines`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    counted = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions]
    return [f"{name}: {lines}" for name, lines in counted if lines > LONGEST_FUNCTION]


def test_the_search_for_long_functions_finds() -> None:
    body = "    pass\n" * (LONGEST_FUNCTION - 1)
    assert not too_long(ast.parse(f"def f():\n{body}"))
    assert too_long(ast.parse(f"class C:\n  def f():\n{body}    pass\n")) == [f"f: {LONGEST_FUNCTION + 1}"]


def test_no_function_is_too_long() -> None:
    assert {relative(path): found for path in (*SOURCES, *BENCHMARKS) if (found := too_long(parsed(path)))} == {}


def test_no_file_is_too_long() -> None:
    lines = {relative(path): len(path.read_text("utf-8").splitlines()) for path in (*SOURCES, *BENCHMARKS)}
    assert {path: count for path, count in lines.items() if count > LONGEST_FILE} == {}


ANY_SHAPE = {
    "gauntlet/audit.py": "our own table",
    "murmur/cluster/group_keys.py": "a token that a friend gave",
    "murmur/data/shards.py": "the data set's index, whose digest the spec names",
    "murmur/node/config/run_file.py": "our own file",
    "murmur/node/doctor/start.py": "our own file",
    "murmur/node/state/saved.py": "our own rows",
    "murmur/node/telemetry/events.py": "our own events",
    "murmur/owner/folder.py": "the owner's own file",
    "murmur/protocol/cluster.py": "friends' documents, once the group's tag is right",
    "murmur/protocol/messages.py": "the functions themselves",
    "murmur/protocol/run.py": "an amendment whose digest the owner has posted",
    "murmur/protocol/spec.py": "a spec whose digest the owner has posted, or the operator's file",
    "murmur/training/checkpoint.py": "the head of a file of tensors, at most as long as the model's names need",
    "murmur/training/parallel.py": "our own ranks' calls",
    "murmur/training/trainer.py": "our own ranks' spec",
}
"""Who may turn JSON of any shape into objects, and whose it is. A stranger's goes through parse_as. The table in
docs/threat-model.md names all bytes of strangers and their bounds."""


def test_only_who_reads_friends_or_ourselves_takes_json_of_any_shape() -> None:
    reads = re.compile(r"\b(json\.loads?|parse_json|parse_document|model_validate_json)\(")
    packages = ("gauntlet/", "storage/", "sparseloco/", "neurons/")
    floors = ("node", "rounds", "owner", "protocol", "training", "cluster", "chain")
    within = (*packages, *(f"murmur/{floor}/" for floor in floors), "murmur/data/shards.py", "murmur/data/ranges.py")
    found = {relative(path) for path in SOURCES if reads.search(path.read_text("utf-8"))}
    assert {name for name in found if name.startswith(within)} == ANY_SHAPE.keys()


KNOW_THE_RANK = (
    *(f"murmur/training/{name}.py" for name in ("parallel", "meeting", "launch")),
    "murmur/export/trainer.py",
)
"""Of the nodes, of what starts their ranks and where they meet, and of fine-tuning, which is accelerate's to spread."""


def test_no_other_module_knows_which_rank_it_is() -> None:
    asks = re.compile(r"\b(rank|ranks\.index)(\(\))? *[=!]=|get_rank|\bRANK\b|LOCAL_RANK")
    assert {relative(path) for path in SOURCES if asks.search(path.read_text("utf-8"))} <= set(KNOW_THE_RANK)
