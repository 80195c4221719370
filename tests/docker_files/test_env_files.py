"""The env file of docker/.env.example agrees with a node and with Docker Compose; so do two of them in one checkout."""

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from murmur.node.config import settings
from murmur.protocol.errors import ConfigError
from tests.docker_files.files import (
    COMPOSE_FILES,
    DOCKER,
    NODES,
    arguments,
    compose,
    composed,
    example,
    instructions,
    interpolated,
    readable,
    required,
)


def test_every_variable_of_the_example_is_read_by_a_node_or_by_compose_and_every_other_way_round() -> None:
    assert set(example()) == set(readable()) | set(interpolated())
    assert not set(readable()) & set(interpolated())


def test_the_defaults_that_the_example_shows_are_those_of_compose() -> None:
    assert {name: example()[name] for name in interpolated()} == interpolated()
    assert dict(rest.split("=", 1) for rest in arguments("ARG"))["TORCH_INDEX"] == interpolated()["TORCH_INDEX"]


def test_every_variable_of_the_example_is_explained_in_the_lines_above_it() -> None:
    lines = (DOCKER / ".env.example").read_text().splitlines()
    names = re.compile(r"^(# )?[A-Z][A-Z_]+=")
    for at, line in enumerate(lines):
        if names.match(line):
            above = at - 1
            while names.match(lines[above]):
                above -= 1
            assert re.match(r"# \w.{9,}", lines[above]), line


def test_no_secret_stands_in_the_files() -> None:
    assert [value for name, value in example().items() if "KEY" in name and "HOTKEY" not in name] == [""] * 4
    assert not [
        rest for name, rest in instructions() if name in ("ENV", "ARG") and re.search("(?i)secret|key|token", rest)
    ]


def test_the_defaults_that_the_example_shows_are_those_of_the_node() -> None:
    values = {
        variable: value
        for variable, value in example().items()
        if value and variable.startswith(settings.PREFIX) and variable != "MURMUR_WALLET__HOTKEY"
    }
    assert values
    assert settings.load("miner", "", [], required() | values) == settings.load("miner", "", [], required())


def test_the_example_as_it_stands_names_what_is_missing() -> None:
    given = re.findall(r"^([A-Z][A-Z_]+)=", (DOCKER / ".env.example").read_text(), flags=re.MULTILINE)
    variables = {name: example()[name] for name in given}
    with pytest.raises(ConfigError) as refusal:
        settings.load("miner", "", [], variables)
    for field in ("wallet.name", "netuid", "owner", "bucket.endpoint", "bucket.secret_key"):
        assert field in str(refusal.value)


@pytest.mark.parametrize("name", [".env", "second.env", ".env.second", ".env.local", "token"])
def test_what_is_filled_in_is_not_committed(name: str, tmp_path: Path) -> None:
    shutil.copy(DOCKER / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    ignored = subprocess.run(
        ["git", "check-ignore", name, ".env.example"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ignored.stdout.split() == [name]


# --- as Docker Compose reads them ------------------------------------------------------------------------------------


SECRET = """pa$b${c}"d #e\\f=g"""


def test_secrets_are_between_single_quotes_where_compose_eats_nothing() -> None:
    text = (DOCKER / ".env.example").read_text()
    for name in (name for name in example() if name.endswith("SECRET_KEY")):
        assert f"\n{name}=''\n" in text
    assert "single quotes" in text.partition("# ---")[0]
    assert "No quotes" not in text


def node(folder: Path, *words: str, service: str = "miner", **environment: str) -> tuple[str, dict[str, Any]]:
    """The project's name and a service, as Compose would create it. Of our own environment it gets the least."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "COMPOSE_"))}
    for name in COMPOSE_FILES:
        shutil.copy(DOCKER / name, folder)
    command = (*words, "--profile", "*", "config", "--format", "json")
    read = json.loads(composed(folder, *command, environment=kept | environment))
    return read["name"], read["services"][service]


def filled_in(path: Path, **values: str) -> None:
    """The example with these values, where it has them: between the quotes that it has."""
    text = (DOCKER / ".env.example").read_text()
    for name, value in values.items():
        text, count = re.subn(
            rf"(?m)^(?:# )?{name}=('?)[^'\n]*('?)$", lambda m, n=name, v=value: f"{n}={m[1]}{v}{m[2]}", text
        )
        assert count == 1, name
    path.write_text(text)


def test_a_secret_of_odd_letters_reaches_the_node_whole(tmp_path: Path) -> None:
    filled_in(tmp_path / ".env", MURMUR_BUCKET__SECRET_KEY=SECRET)
    _, miner = node(tmp_path)
    assert miner["environment"]["MURMUR_BUCKET__SECRET_KEY"].replace("$$", "$") == SECRET  # as it writes $


def test_two_nodes_of_one_checkout_have_their_own_wallets_states_and_limits(tmp_path: Path) -> None:
    filled_in(tmp_path / ".env", MURMUR_WALLET__NAME="first")
    filled_in(
        tmp_path / "second.env",
        MURMUR_WALLET__NAME="second",
        COMPOSE_PROJECT_NAME="second",
        MEMORY_LIMIT="3g",
        WALLETS="/elsewhere",
    )
    first, second = node(tmp_path), node(tmp_path, COMPOSE_ENV_FILES="second.env")
    assert [name for name, _ in (first, second)] == ["murmuration", "second"], "which its volumes are called after"
    assert [one["environment"]["MURMUR_WALLET__NAME"] for _, one in (first, second)] == ["first", "second"]
    assert second[1]["mem_limit"] == str(3 << 30)
    assert [volume["source"] for volume in second[1]["volumes"]] == ["miner-state", "/elsewhere"]
    start = runpy.run_path(str(DOCKER / "start.py"))
    _, mixed = node(tmp_path, "--env-file", "second.env")
    refusals = [start["other_nodes_file"](one["environment"]) for one in (first[1], second[1], mixed)]
    assert refusals[:2] == [None, None]
    assert "'second/default'" in refusals[2]
    assert "'first/default'" in refusals[2]


def test_the_file_of_a_node_is_the_one_that_compose_reads() -> None:
    for name in NODES:
        (file,) = compose()["services"][name]["env_file"]
        assert file == {"path": "${COMPOSE_ENV_FILES:-.env}", "required": False}
        read = compose()["services"][name]["environment"]["COMPOSE_READ_WALLET"]
        assert read == "${MURMUR_WALLET__NAME:-}/${MURMUR_WALLET__HOTKEY:-}"
    assert "export COMPOSE_ENV_FILES=second.env" in (DOCKER / "README.md").read_text()
