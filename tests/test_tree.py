"""The tree itself: packages are ours, folders of files are no packages, nothing runs or unpickles foreign bytes."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NO_PACKAGES = ("docker", "csrc", "benchmarks", "docs", "configs")

FORBIDDEN_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml"}
FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {"torch.load", "torch.jit.load", "os.system", "os.popen", "subprocess.getoutput"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def listed_packages() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(project["tool"]["setuptools"]["packages"])


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that the source imports, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden(source: str) -> list[str]:
    """What a source holds that would run or unpickle foreign bytes, as `line: what`."""
    tree = ast.parse(source)
    found = [name for name in imported(tree) if name.split(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in FORBIDDEN_BUILTINS | FORBIDDEN_CALLS:
            found.append(f"{node.lineno}: {called}")
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if (keyword.arg, value) in (("shell", True), ("allow_pickle", True), ("weights_only", False)):
                found.append(f"{node.lineno}: {keyword.arg}={value!r}")
    return found


def test_pyproject_lists_every_package_of_the_tree() -> None:
    inits = [path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    assert {relative(path).replace("/", ".") for path in inits} == listed_packages() - {"configs", "dashboard.static"}


def test_every_package_that_our_code_imports_is_the_one_of_this_tree(tmp_path: Path) -> None:
    """Asked from another folder: there, a namesake in site-packages would win over this project's installation."""
    used = {name.split(".")[0] for path in SOURCES for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
    ours = sorted(used & {path.name for path in ROOT.iterdir() if path.is_dir()})
    assert {"protocol", "node", "storage", "training"} <= set(ours)
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


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name == "__init__.py"], ids=relative)
def test_a_package_imports_nothing_by_itself(path: Path) -> None:
    """Help texts must not pay for torch, boto3, bittensor or datasets."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert [type(node) for node in body] == [ast.Expr]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import yaml\nyaml.load(text)",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load",
        "eval(text)",
        "exec(text)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_search_for_forbidden_calls_finds(source: str) -> None:
    assert forbidden(source)


def test_the_search_for_forbidden_calls_lets_harmless_ones_pass() -> None:
    assert not forbidden(
        "import json\nmodel.eval()\nnp.load(path, allow_pickle=False)\nsubprocess.run([a], check=True)"
    )


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_source_runs_or_unpickles_foreign_bytes(path: Path) -> None:
    assert not forbidden(path.read_text(encoding="utf-8"))


LONGEST_FUNCTION, LONGEST_FILE = 60, 450
"""Lines. What is longer has a seam with a name."""
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))


def too_long(source: str) -> list[str]:
    """The functions of a source that are over LONGEST_FUNCTION, as `name: lines`."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    counted = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions]
    return [f"{name}: {lines}" for name, lines in counted if lines > LONGEST_FUNCTION]


def test_the_search_for_long_functions_finds() -> None:
    body = "    pass\n" * (LONGEST_FUNCTION - 1)
    assert not too_long(f"def f():\n{body}")
    assert too_long(f"class C:\n  def f():\n{body}    pass\n") == [f"f: {LONGEST_FUNCTION + 1}"]


@pytest.mark.parametrize("path", [*SOURCES, *BENCHMARKS], ids=relative)
def test_no_function_and_no_file_is_too_long(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not too_long(source)
    assert len(source.splitlines()) <= LONGEST_FILE


KNOW_THE_RANK = ("murmur/training/parallel.py", "murmur/export/trainer.py")
"""Of the nodes, and of fine-tuning, which is accelerate's to spread."""


@pytest.mark.parametrize("path", [p for p in SOURCES if relative(p) not in KNOW_THE_RANK], ids=relative)
def test_only_one_module_knows_which_rank_it_is(path: Path) -> None:
    assert not re.search(r"\b(rank|ranks\.index)(\(\))? *[=!]=|get_rank|\bRANK\b|LOCAL_RANK", path.read_text("utf-8"))
