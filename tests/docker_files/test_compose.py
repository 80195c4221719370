"""compose.yml, the Dockerfile and .env.example agree with the compose specification, the Makefile and NodeConfig."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from node import config, given
from node.events import Events

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE_FILES = ["compose.yml", "compose.cuda.yml"]
NODES = ["miner", "validator"]


def compose(name: str = "compose.yml") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return loaded


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    loaded = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    Draft202012Validator.check_schema(loaded)
    return Draft202012Validator(loaded)


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined and comments dropped."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in instructions() if name == instruction]


# --- compose -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_compose_files_fit_the_compose_specification(name: str, schema: Draft202012Validator) -> None:
    assert [error.message for error in schema.iter_errors(compose(name))] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop_grace", "10m"), ("restart", 1), ("profiles", "miner"), ("healthcheck", {"intervall": "5m"})],
)
def test_the_schema_would_find_a_mistake(field: str, value: Any, schema: Draft202012Validator) -> None:
    broken = compose()
    broken["services"]["miner"][field] = value
    assert list(schema.iter_errors(broken))


@pytest.mark.parametrize("files", [COMPOSE_FILES[:1], COMPOSE_FILES])
def test_docker_compose_itself_reads_the_files(files: list[str], tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("no docker compose here")
    for name in [*files, "Dockerfile"]:
        shutil.copy(DOCKER / name, tmp_path)
    shutil.copy(DOCKER / ".env.example", tmp_path / ".env")
    chosen = [word for name in files for word in ("-f", name)]
    for profile in ("localnet", *NODES):
        command = [docker, "compose", *chosen, "--profile", profile, "config", "--services"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stdout.split()) == (0, [profile]), result.stderr


def test_each_profile_starts_the_service_of_its_name_and_nothing_starts_without_one() -> None:
    profiles = {name: service["profiles"] for name, service in compose()["services"].items()}
    assert profiles == {name: [name] for name in ("localnet", "miner", "validator")}


@pytest.mark.parametrize("name", NODES)
def test_a_node_keeps_its_state_reads_its_wallets_and_starts_again(name: str) -> None:
    service = compose()["services"][name]
    state, wallets = service["volumes"]
    assert state == f"{name}-state:/home/murmur/.murmur"
    assert wallets.endswith("/.bittensor/wallets:ro")
    assert state.split(":")[0] in compose()["volumes"]
    assert (service["restart"], service["env_file"]) == ("unless-stopped", [".env"])
    assert (ROOT / service["command"][1]).is_file()


@pytest.mark.parametrize("name", NODES)
def test_a_stopped_node_has_time_for_an_upload(name: str) -> None:
    """The largest object that the design plans for, a 72B model's, at the default link of a RunSpec."""
    from protocol.spec import ClockSpec

    upload_mbps = ClockSpec.model_fields["upload_mbps"].default
    seconds = 72e9 / 4096 * 82 * 8e-6 / upload_mbps
    (minutes,) = re.fullmatch(r"(\d+)m", compose()["services"][name]["stop_grace_period"]).groups()  # type: ignore[union-attr]
    assert int(minutes) * 60 > 2 * seconds > 200


def test_no_service_gets_the_docker_socket_or_more_rights_than_it_needs() -> None:
    for name in COMPOSE_FILES:
        text = (DOCKER / name).read_text()
        assert not re.search(r"docker\.sock|watchtower|privileged: true|network_mode|cap_add", text)
    for service in compose()["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_local_network_sees_no_secret_of_a_node() -> None:
    localnet = compose()["services"]["localnet"]
    assert "env_file" not in localnet
    assert all("wallets" not in volume for volume in localnet["volumes"])


def test_the_local_network_in_a_container_is_that_of_make_demo() -> None:
    demo = re.search(r"murmur (localnet .*)", (ROOT / "Makefile").read_text())
    assert demo is not None
    assert compose()["services"]["localnet"]["command"] == ["murmur", *demo[1].split()]


# --- variables -----------------------------------------------------------------------------------------------


def example() -> dict[str, str]:
    """Variables of .env.example, those that are commented out included."""
    text = (DOCKER / ".env.example").read_text()
    return dict(re.findall(r"^(?:# )?([A-Z][A-Z_]+)=(.*)$", text, flags=re.MULTILINE))


def readable() -> dict[str, str]:
    """Variables that a node reads and the field that each sets."""
    fields = {config.variable_of(name): name for name, _ in given.leaves(config.NodeConfig)}
    return fields | dict(given.BTCLI) | {"MURMUR_CONFIG": "config"}


def test_every_variable_of_the_example_is_read_by_a_node_and_every_other_way_round() -> None:
    assert set(example()) == set(readable())


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
    assert (DOCKER / ".gitignore").read_text().split() == [".env"]
    assert "**/.env" in (DOCKER / "Dockerfile.dockerignore").read_text().split()


def test_the_defaults_that_the_example_shows_are_those_of_the_node() -> None:
    values = {
        variable: value
        for variable, value in example().items()
        if value and variable.startswith(config.PREFIX) and variable != "MURMUR_WALLET__HOTKEY"
    }
    required = {
        "MURMUR_WALLET__NAME": "a",
        "MURMUR_NETUID": "1",
        "MURMUR_OWNER": "o",
        **{f"MURMUR_BUCKET__{name}": name for name in ("ENDPOINT", "NAME", "ACCESS_KEY", "SECRET_KEY", "PUBLIC_URL")},
    }
    assert values
    assert config.load("miner", "", [], required | values) == config.load("miner", "", [], required)


def test_the_example_as_it_stands_names_what_is_missing() -> None:
    text = (DOCKER / ".env.example").read_text()
    variables = dict(re.findall(r"^([A-Z][A-Z_]+)=(.*)$", text, flags=re.MULTILINE))
    from protocol.errors import ConfigError

    with pytest.raises(ConfigError) as refusal:
        config.load("miner", "", [], variables)
    for field in ("wallet.name", "netuid", "owner", "bucket.endpoint", "bucket.secret_key"):
        assert field in str(refusal.value)


# --- Dockerfile ----------------------------------------------------------------------------------------------


def test_the_image_runs_as_an_ordinary_user() -> None:
    order = [name for name, _ in instructions()]
    assert arguments("USER") == ["murmur"]
    assert order.index("USER") < order.index("HEALTHCHECK") < order.index("CMD")
    assert any("useradd" in rest for rest in arguments("RUN"))


def test_the_image_installs_what_make_setup_installs_but_the_tools_of_developers() -> None:
    INDEX = '${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '

    def steps(text: str) -> list[str]:
        found = re.findall(r"(?:pip install -c|pip install -q -c|python -m chain)[^\n&]*", text)
        return [step.replace(" -q", "").replace(INDEX, "").replace("dev,", "").strip() for step in found]

    assert steps("\n".join(arguments("RUN"))) == steps((ROOT / "Makefile").read_text())


def test_every_package_goes_into_the_image_and_nothing_private_does() -> None:
    allowed = {
        line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.split(".")[0] for name in project["tool"]["setuptools"]["packages"]}
    assert allowed == packages | {"LICENSE", "README.md", "constraints.txt", "csrc", "pyproject.toml", "setup.py"}


@pytest.mark.parametrize(("outcome", "healthy"), [("contributing", True), ("LOW_SCORE", False), (None, False)])
def test_a_node_is_healthy_while_it_counts(outcome: str | None, healthy: bool, tmp_path: Path) -> None:
    (check,) = arguments("HEALTHCHECK")
    words = check.split("CMD ", maxsplit=1)[1].split()
    assert words[0] == "murmur"
    home = tmp_path / ".murmur"
    home.mkdir()
    if outcome is not None:
        events = Events(home / "events.jsonl", "w/default")
        for round in range(5):
            events.emit("stood", round, outcome=outcome, next_set=None)
    for environment in ({"HOME": str(tmp_path)}, {"HOME": "/nowhere", "MURMUR_HOME": str(home)}):
        command = [sys.executable, "-m", "murmur.command", *words[1:]]
        result = subprocess.run(command, cwd=ROOT, env=environment, timeout=120)
        assert (result.returncode == 0) == healthy


def test_folders_beside_the_packages_are_no_packages() -> None:
    for name in ("docker", "configs", "docs", "benchmarks", "csrc"):
        assert not (ROOT / name / "__init__.py").exists()
