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


TOP_LEVEL = {"murmur", "sparseloco", "gauntlet", "storage"}
"""What the wheel puts into site-packages: other names would be other projects'. neurons/ are scripts."""


def test_every_package_is_found_and_typed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert set(patterns) == {f"{name}*" for name in TOP_LEVEL}
    assert {f"{name}/py.typed" for name in TOP_LEVEL} <= tracked("*/py.typed")
    code = {Path(path).parent for path in tracked("*.py") if path.partition("/")[0] in TOP_LEVEL}
    assert {str(folder / "__init__.py") for folder in code} <= tracked("*/__init__.py")


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
    assert (
        tracked("csrc", "docs", "docker", "neurons", "murmur/configs", "constraints.txt", "README.md", "LICENSE")
        <= held
    )
    subprocess.run([*pip, str(tmp_path / "source" / source.name.removesuffix(".tar.gz"))], check=True)
    (wheel,) = built.glob("*.whl")
    wheel.unlink()
    subprocess.run([*pip, str(clone)], check=True)
    left = subprocess.run(
        ["git", "status", "--short", "--ignored"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert left.stdout == "", "building leaves nothing in the tree"
    (wheel,) = built.glob("*.whl")
    assert wheel.name.startswith(f"murmuration_node-{VERSION}-py3-none-")
    code = {path for path in tracked("*.py") if path.partition("/")[0] in TOP_LEVEL}
    others = tracked("murmur/configs/*.toml", "murmur/export/*.toml", "murmur/page/static/*", "*/py.typed")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert code | others | {"sparseloco/murmur_codec.so"} <= held
    assert {name.partition("/")[0] for name in held} - {f"murmuration_node-{VERSION}.dist-info"} == TOP_LEVEL
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), wheel], check=True
    )
    run = (
        "from murmur.plan import presets; from sparseloco import ops; "
        "print(ops.backend(), ops.__file__, presets.read('8b').first.name)"
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
