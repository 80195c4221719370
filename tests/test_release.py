"""What is handed out: a wheel and a source distribution that are whole, and a version that is told."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]


def tracked(*patterns: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


def test_the_changelog_begins_with_the_version() -> None:
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == VERSION


def test_every_package_is_named_and_typed() -> None:
    named = PROJECT["tool"]["setuptools"]["packages"]
    folders = {str(Path(path).parent).replace("/", ".") for path in tracked("*/__init__.py")}
    ours = {name for name in folders if name.partition(".")[0] not in ("tests", "benchmarks")}
    assert ours <= set(named)
    assert {f"{name}/py.typed" for name in ours if "." not in name} <= tracked("*/py.typed")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_wheel_and_source_distribution_are_whole(tmp_path: Path) -> None:
    clone, built = tmp_path / "clone", tmp_path / "built"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(built)]
    make = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    built.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", make, str(built)], cwd=clone, capture_output=True, text=True, check=True
    )
    source = built / done.stdout.split()[-1]
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "source", filter="data")
    assert tracked("csrc", "docs", "docker", "configs", "constraints.txt", "README.md", "LICENSE") <= held
    subprocess.run([*pip, str(tmp_path / "source" / source.name.removesuffix(".tar.gz"))], check=True)
    (wheel,) = built.glob("*.whl")
    assert wheel.name.startswith(f"murmuration_node-{VERSION}-py3-none-")
    packages = PROJECT["tool"]["setuptools"]["packages"]
    code = {path for path in tracked("*.py") if str(Path(path).parent).replace("/", ".") in packages}
    others = tracked("murmur/configs/*.toml", "murmur/export/*.toml", "murmur/page/static/*", "*/py.typed")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert code | others | {"sparseloco/murmur_codec.so"} <= held
    assert not {name for name in held if name.startswith(("tests/", "benchmarks/"))}
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), wheel], check=True
    )
    run = (
        "import sparseloco.ops as ops, murmur.presets as p; print(ops.backend(), ops.__file__, p.read('8b').first.name)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", run],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.startswith("native")
    assert str(target) in shown
