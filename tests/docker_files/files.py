"""The files of docker/, read as the tests need them."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from murmur.node.config import settings, settings_sources

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE_FILES = ["compose.yml", "compose.cuda.yml"]
NODES = ["miner", "validator"]
KINDS = [*NODES, "member"]
MONITORS = ["prometheus", "grafana"]


def compose(name: str = "compose.yml") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return loaded


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined and comments dropped."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line]


def arguments(instruction: str, stage: str | None = None) -> list[str]:
    """Of all stages, or of one."""
    found, here = [], ""
    for name, rest in instructions():
        if name == "FROM":
            here = rest.split(" AS ")[1]
        if name == instruction and stage in (None, here):
            found.append(rest)
    return found


def example() -> dict[str, str]:
    """Variables of .env.example as Docker Compose reads them, those that are commented out included."""
    text = (DOCKER / ".env.example").read_text()
    found = re.findall(r"^(?:# )?([A-Z][A-Z_]+)=(.*)$", text, flags=re.MULTILINE)
    return {name: value.removeprefix("'").removesuffix("'") for name, value in found}


def readable() -> dict[str, str]:
    """Variables that a node reads and the field that each sets. A member is given its token's file as a flag. Trackers
    are not in the image: `murmur track` shows a home from outside."""
    names = [name for name, _ in settings_sources.leaves(settings.NodeConfig) if not name.startswith("track.")]
    fields = {settings.variable_of(name): name for name in names}
    return fields | dict(settings_sources.BTCLI) | {"MURMUR_CONFIG": "config", "MURMUR_NAME": "name"}


def interpolated() -> dict[str, str]:
    """Variables that Docker Compose alone reads from the env file, and the default of each."""
    text = "".join((DOCKER / name).read_text() for name in COMPOSE_FILES).replace("$$", "")
    assert text.count("$") == len(re.findall(r"\$\{[A-Z_]+:-[^}$]*\}", text)), (
        "one without a default, or of another form"
    )
    found = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    assert found.pop("COMPOSE_ENV_FILES") == ".env", "of the shell: it says which env file is read"
    own = {name: value for name, value in found.items() if name not in readable()}
    assert set(found) - set(own) == {"MURMUR_WALLET__NAME", "MURMUR_WALLET__HOTKEY"}
    return own | {"COMPOSE_PROJECT_NAME": compose()["name"]}


def required() -> dict[str, str]:
    """The least that a node is started with."""
    bucket = ("ENDPOINT", "NAME", "ACCESS_KEY", "SECRET_KEY", "PUBLIC_URL")
    return {
        "MURMUR_WALLET__NAME": "a",
        "MURMUR_NETUID": "1",
        "MURMUR_OWNER": "o",
        **{f"MURMUR_BUCKET__{name}": name for name in bucket},
    }


def composed(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """What Docker Compose prints of the files in `folder`; it needs no engine for that. Skips where it is not here."""
    for program in (["docker", "compose"], ["docker-compose"], ["/usr/libexec/docker/cli-plugins/docker-compose"]):
        if shutil.which(program[0]) is None:
            continue
        told = subprocess.run([*program, "version", "--short"], capture_output=True, text=True, check=False)
        version = re.match(r"v?(\d+)\.(\d+)", told.stdout)
        if told.returncode == 0 and version is not None and (int(version[1]), int(version[2])) >= (2, 24):
            done = subprocess.run([*program, *words], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout
    pytest.skip("no Docker Compose here, or one before 2.24")
