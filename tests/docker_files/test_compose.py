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

from murmur.node.config import settings, settings_sources
from murmur.node.telemetry.events import Events

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE_FILES = ["compose.yml", "compose.cuda.yml"]
NODES = ["miner", "validator"]
MONITORS = ["prometheus", "grafana"]


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


def arguments(instruction: str, stage: str | None = None) -> list[str]:
    """Of all stages, or of one."""
    found, here = [], ""
    for name, rest in instructions():
        if name == "FROM":
            here = rest.split(" AS ")[1]
        if name == instruction and stage in (None, here):
            found.append(rest)
    return found


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
    profiles = {"": [], "miner": ["miner"], "validator": ["validator"], "page": ["page"], "monitoring": MONITORS}
    for profile, services in profiles.items():
        command = [docker, "compose", *chosen, "--profile", profile, "config", "--services"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (result.returncode, set(result.stdout.split())) == (0, {"localnet", *services}), result.stderr


def test_without_a_profile_the_local_network_starts_and_nothing_else() -> None:
    profiles = {name: service.get("profiles") for name, service in compose()["services"].items()}
    alone = {name: [name] for name in ("page", *NODES)}
    assert profiles == {"localnet": None, **alone, **{name: ["monitoring"] for name in MONITORS}}


def test_what_is_shown_is_shown_to_this_machine_alone() -> None:
    services = compose()["services"]
    published = {port for service in services.values() for port in service.get("ports", ())}
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z]+_PORT:-\d+\}:\d+", port) for port in published)
    assert not any("ports" in services[name] for name in NODES)


@pytest.mark.parametrize("name", ["localnet", "page"])
def test_the_published_port_of_the_page_is_the_one_that_it_listens_at(name: str) -> None:
    service = compose()["services"][name]
    words = " ".join(service["command"])
    (port,) = service["ports"]
    assert f"--host 0.0.0.0 --port {port.rpartition(':')[2]}" in words


def test_the_page_command_chooses_the_newest_run(tmp_path: Path) -> None:
    for run in ("2026-01-02-030405", "2026-01-02-030406", "2025-12-31-235959"):
        (tmp_path / "runs" / run / "nodes").mkdir(parents=True)
    shell, option, line = compose()["services"]["page"]["command"]
    line = line.replace("$$", "$").replace("exec murmur", "echo")  # $$ is how compose writes $
    assert not [word for word in line.split() if word == "murmur"]
    told = subprocess.run([shell, option, line], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert told.startswith("dashboard runs/2026-01-02-030406/ --host")


@pytest.mark.parametrize("name", NODES)
def test_a_node_keeps_its_state_reads_its_wallets_and_starts_again(name: str) -> None:
    service = compose()["services"][name]
    state, wallets = service["volumes"]
    assert state == f"{name}-state:/home/murmur/.murmur"
    assert wallets.endswith("/.bittensor/wallets:ro")
    assert state.split(":")[0] in compose()["volumes"]
    assert (service["restart"], service["env_file"]) == ("unless-stopped", [{"path": ".env", "required": False}])
    assert (ROOT / service["command"][1]).is_file()
    assert (ROOT / service["entrypoint"][1]).is_file()


@pytest.mark.parametrize("name", NODES)
def test_a_stopped_node_has_time_for_an_upload(name: str) -> None:
    """The largest object that the design plans for, a 72B model's, at the default link of a RunSpec."""
    from murmur.protocol.spec import ClockSpec

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
        assert service["read_only"] is True
        assert service["pids_limit"] >= 512
        assert re.fullmatch(r"\d+g|\$\{MEMORY_LIMIT:-\d+g\}", service["mem_limit"])


def test_what_is_written_in_a_read_only_container_has_a_place() -> None:
    for name, service in compose()["services"].items():
        (temporary,) = service["tmpfs"]
        assert temporary.startswith("/tmp:"), name
        assert any(not volume.endswith(":ro") for volume in service["volumes"]), name
    (environment,) = (rest for rest in arguments("ENV") if "PYTHONUNBUFFERED" in rest)
    caches = re.findall(r"(?:_DIR|HF_HOME)=(\S+)", environment)
    assert len(caches) == 4
    assert all(cache.startswith("/tmp/") for cache in caches)


def test_what_is_compiled_for_a_gpu_can_be_loaded_from_where_it_is_put() -> None:
    for name in NODES:
        assert ":exec," in compose()["services"][name]["tmpfs"][0]


def test_each_service_builds_its_own_stage_of_the_dockerfile() -> None:
    stages = [rest.split(" AS ")[1] for rest in arguments("FROM")]
    assert stages == ["build", "runtime", "localnet", "node"], "the last is what is built without a target"
    services = compose()["services"]
    for name, image in (("localnet", "murmuration:localnet"), ("page", "murmuration:localnet")):
        assert (services[name]["build"]["target"], services[name]["image"]) == ("localnet", image)
    for name in NODES:
        assert (services[name]["build"]["target"], services[name]["image"]) == ("node", "murmuration:cpu")


@pytest.mark.parametrize("name", ["localnet", "page", *MONITORS])
def test_only_nodes_see_a_secret_of_a_node(name: str) -> None:
    service = compose()["services"][name]
    assert "env_file" not in service
    assert all("wallets" not in volume and "state" not in volume for volume in service["volumes"])


def test_the_local_network_in_a_container_is_that_of_make_demo() -> None:
    demo = re.search(r"murmur (localnet .*)", (ROOT / "Makefile").read_text())
    assert demo is not None
    page = ["--host", "0.0.0.0", "--port", "8790"]
    assert compose()["services"]["localnet"]["command"] == ["murmur", *demo[1].split(), *page]


def test_prometheus_asks_where_the_nodes_answer_and_grafana_asks_prometheus() -> None:
    services = compose()["services"]
    (job,) = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert sorted(found["names"]) == NODES
    for name in NODES:
        settings.load("miner", "", [], required() | services[name]["environment"])
        assert services[name]["environment"] == {
            "MURMUR_METRICS_PORT": str(found["port"]),
            "MURMUR_METRICS_ADDRESS": "0.0.0.0",
        }
    (source,) = yaml.safe_load((DOCKER / "grafana/datasources.yml").read_text())["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert services[host]["ports"][0].endswith(f":{port}")


def test_every_file_that_a_service_mounts_is_there_and_found() -> None:
    mounted = {}
    for service in compose()["services"].values():
        for volume in service["volumes"]:
            source, target = volume.removesuffix(":ro").rsplit(":", maxsplit=1)
            if source.startswith("./"):
                assert (DOCKER / source).is_file()
                assert volume.endswith(":ro")
                mounted[target] = DOCKER / source
    (provider,) = yaml.safe_load((DOCKER / "grafana/dashboards.yml").read_text())["providers"]
    home = compose()["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(provider["options"]["path"] + "/")
    assert mounted[home] == DOCKER / "grafana.json"
    for rules in yaml.safe_load((DOCKER / "prometheus.yml").read_text())["rule_files"]:
        assert mounted[f"/etc/prometheus/{rules}"].is_file()


# --- variables -----------------------------------------------------------------------------------------------


def example() -> dict[str, str]:
    """Variables of .env.example, those that are commented out included."""
    text = (DOCKER / ".env.example").read_text()
    return dict(re.findall(r"^(?:# )?([A-Z][A-Z_]+)=(.*)$", text, flags=re.MULTILINE))


def readable() -> dict[str, str]:
    """Variables that a node reads and the field that each sets."""
    fields = {settings.variable_of(name): name for name, _ in settings_sources.leaves(settings.NodeConfig)}
    return fields | dict(settings_sources.BTCLI) | {"MURMUR_CONFIG": "config"}


def interpolated() -> dict[str, str]:
    """Variables that Docker Compose puts into the files, and the default of each."""
    text = "".join((DOCKER / name).read_text() for name in COMPOSE_FILES).replace("$$", "")
    assert text.count("$") == len(re.findall(r"\$\{[A-Z_]+:-[^}$]*\}", text)), (
        "one without a default, or of another form"
    )
    return dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))


def required() -> dict[str, str]:
    """The least that a node is started with."""
    bucket = ("ENDPOINT", "NAME", "ACCESS_KEY", "SECRET_KEY", "PUBLIC_URL")
    return {
        "MURMUR_WALLET__NAME": "a",
        "MURMUR_NETUID": "1",
        "MURMUR_OWNER": "o",
        **{f"MURMUR_BUCKET__{name}": name for name in bucket},
    }


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
    assert (DOCKER / ".gitignore").read_text().split() == [".env"]
    assert "**/.env" in (DOCKER / "Dockerfile.dockerignore").read_text().split()


def test_the_defaults_that_the_example_shows_are_those_of_the_node() -> None:
    values = {
        variable: value
        for variable, value in example().items()
        if value and variable.startswith(settings.PREFIX) and variable != "MURMUR_WALLET__HOTKEY"
    }
    assert values
    assert settings.load("miner", "", [], required() | values) == settings.load("miner", "", [], required())


def test_the_example_as_it_stands_names_what_is_missing() -> None:
    text = (DOCKER / ".env.example").read_text()
    variables = dict(re.findall(r"^([A-Z][A-Z_]+)=(.*)$", text, flags=re.MULTILINE))
    from murmur.protocol.errors import ConfigError

    with pytest.raises(ConfigError) as refusal:
        settings.load("miner", "", [], variables)
    for field in ("wallet.name", "netuid", "owner", "bucket.endpoint", "bucket.secret_key"):
        assert field in str(refusal.value)


# --- Dockerfile ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["node", "localnet"])
def test_the_image_runs_as_an_ordinary_user(stage: str) -> None:
    assert arguments("USER", stage) == ["murmur"]
    assert any("useradd" in rest for rest in arguments("RUN", "runtime"))
    order = [name for name, _ in instructions()]
    assert order[-3:] == ["USER", "HEALTHCHECK", "CMD"]


def test_the_image_installs_what_make_setup_installs_but_the_tools_of_developers() -> None:
    """What the project depends on comes before its sources, in a layer that a change of those leaves alone."""

    def steps(text: str) -> list[str]:
        found = re.findall(r"(?:pip install (?:-q )?-c|python -m murmur.lab.devnet)[^\n&;]*", text)
        found = [
            re.sub(r' -q| --no-deps| \$\{TORCH_INDEX:\+--index-url "\$TORCH_INDEX"\}', "", step).strip()
            for step in found
        ]
        return list(dict.fromkeys(found))  # of torch there is one step for each device

    build = steps("\n".join(arguments("RUN", "build")))
    ours = steps((ROOT / "Makefile").read_text())
    assert build == [
        *ours[:2],
        "pip install -c constraints.txt -r requirements.txt",
        ours[2].replace("'.[dev,localnet]'", "."),
    ]
    assert steps("\n".join(arguments("RUN", "localnet"))) == [ours[3]]
    order = [f"{name} {rest}" for name, rest in instructions()]
    assert order.index("COPY . .") > next(at for at, line in enumerate(order) if "-r requirements.txt" in line)


def test_a_nodes_image_has_no_compiler_but_tritons_and_no_s3_server() -> None:
    for stage in ("runtime", "node"):
        for rest in arguments("RUN", stage):
            assert "g++" not in rest
            assert "localnet" not in rest
            assert "gcc" not in rest or rest.startswith('if [ "$DEVICE" = cuda ]')
    assert any("g++" in rest for rest in arguments("RUN", "build"))


@pytest.mark.parametrize("extra", [None, "chain", "localnet"])
def test_the_layer_of_requirements_has_what_the_project_asks_for(extra: str | None) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [sys.executable, str(DOCKER / "requirements.py"), *([extra] if extra else [])]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    optional = project["optional-dependencies"]
    expected = {
        None: project["dependencies"],
        "chain": optional["chain"],
        "localnet": [line for name in ("chain", "dashboard", "data") for line in optional[name]]
        + optional["localnet"][1:],
    }
    assert told == expected[extra]


def test_the_index_of_cpu_builds_is_asked_for_torch_alone_and_an_image_without_it_says_what_it_holds() -> None:
    assert "DEVICE=cpu" in arguments("ARG")
    asked = [line for line in arguments("RUN") if "$TORCH_INDEX" in line]
    assert len(asked) == 1
    cpu, cuda = (re.search(rf"\b{device}\) pip install ([^;]*);;", asked[0]) for device in ("cpu", "cuda"))
    assert cpu is not None
    assert cuda is not None
    index = '${TORCH_INDEX:+--index-url "$TORCH_INDEX"}'
    assert cpu[1].split() == ["-c", "constraints.txt", "--no-deps", *index.split(), "torch"]
    assert "index" not in cuda[1]
    assert any("torch.version.cuda" in line for line in arguments("RUN"))


def test_every_package_goes_into_the_image_and_nothing_private_does() -> None:
    allowed = {
        line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    files = {"LICENSE", "README.md", "constraints.txt", "csrc", "pyproject.toml", "setup.py"}
    files |= {"docker/start.py", "docker/requirements.py"}
    assert allowed == packages | files


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
            known = {"outcome": outcome, "why": "", "selected": 2, "active": 4}
            unknown = dict.fromkeys(("loss", "pay", "sure", "next_set", "margin"))
            events.emit("round_outcome", round, **known, **unknown)
    for environment in ({"HOME": str(tmp_path)}, {"HOME": "/nowhere", "MURMUR_HOME": str(home)}):
        command = [sys.executable, "-m", "murmur", *words[1:]]
        result = subprocess.run(command, cwd=ROOT, env=environment, timeout=120)
        assert (result.returncode == 0) == healthy


def test_folders_beside_the_packages_are_no_packages() -> None:
    for name in ("docker", "configs", "docs", "benchmarks", "csrc"):
        assert not (ROOT / name / "__init__.py").exists()
