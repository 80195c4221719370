"""compose.yml agrees with the compose specification, the Makefile and what a node does."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from murmur.lab.localnet.processes import STOP_SECONDS
from murmur.node.config import settings
from murmur.protocol.spec import ClockSpec
from tests.docker_files.files import (
    COMPOSE_FILES,
    DOCKER,
    KINDS,
    MONITORS,
    NODES,
    ROOT,
    arguments,
    compose,
    composed,
    required,
)


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    loaded = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    Draft202012Validator.check_schema(loaded)
    return Draft202012Validator(loaded)


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
    for name in [*files, "Dockerfile"]:
        shutil.copy(DOCKER / name, tmp_path)
    shutil.copy(DOCKER / ".env.example", tmp_path / ".env")
    chosen = [word for name in files for word in ("-f", name)]
    profiles = {"": [], "page": ["page"], "monitoring": MONITORS} | {name: [name] for name in KINDS}
    for profile, services in profiles.items():
        told = composed(tmp_path, *chosen, "--profile", profile, "config", "--services")
        assert set(told.split()) == {"localnet", *services}


def test_without_a_profile_the_local_network_starts_and_nothing_else() -> None:
    profiles = {name: service.get("profiles") for name, service in compose()["services"].items()}
    alone = {name: [name] for name in ("page", *KINDS)}
    assert profiles == {"localnet": None, **alone, **{name: ["monitoring"] for name in MONITORS}}


def test_what_is_shown_is_shown_to_this_machine_alone() -> None:
    services = compose()["services"]
    published = {port for service in services.values() for port in service.get("ports", ())}
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z]+_PORT:-\d+\}:\d+", port) for port in published)
    assert not any("ports" in services[name] for name in KINDS)


def test_down_as_it_is_documented_leaves_nothing(tmp_path: Path) -> None:
    """Without its profiles Compose ends the local network, and leaves nodes and monitors running."""
    pages = [*ROOT.glob("*.md"), *(path for name in ("docs", "docker") for path in (ROOT / name).rglob("*.md"))]
    texts = [path.read_text() for path in (*pages, DOCKER / "compose.yml")]
    said = [command for text in texts for command in re.findall(r"docker compose[^`\n]*? down\b", text)]
    assert len(said) > 1
    assert all(re.fullmatch(r"docker compose --profile ['\"]\*['\"] down", command) for command in said)
    shutil.copy(DOCKER / "compose.yml", tmp_path)
    assert set(composed(tmp_path, "--profile", "*", "config", "--services").split()) == set(compose()["services"])


def test_every_service_limits_its_log() -> None:
    for service in compose()["services"].values():
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys()


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


@pytest.mark.parametrize("name", KINDS)
def test_a_node_keeps_its_state_reads_its_secret_and_starts_again(name: str) -> None:
    service = compose()["services"][name]
    state, secret = service["volumes"]
    assert state == f"{name}-state:/home/murmur/.murmur"
    assert state.split(":")[0] in compose()["volumes"]
    assert (secret["type"], secret["read_only"]) == ("bind", True)
    assert secret["target"] == ("/home/murmur/token" if name == "member" else "/home/murmur/.bittensor/wallets")
    assert secret["bind"] == {"create_host_path": False}, "the engine would make a folder that is missing, as root"
    assert service["restart"] == "unless-stopped"
    assert (ROOT / service["command"][1]).is_file()
    assert (ROOT / service["entrypoint"][1]).is_file()


@pytest.mark.parametrize("name", KINDS)
def test_a_nodes_command_is_one_that_its_program_takes(name: str) -> None:
    """A member of the cluster finds its token, and needs its name besides."""
    python, program, *flags = compose()["services"][name]["command"]
    assert (python, program) == ("python", f"neurons/{name}.py")
    cuda = compose("compose.cuda.yml")["services"][name]["command"]
    assert cuda == ["torchrun", "--nproc_per_node=gpu", program, *flags]
    if name == "member":
        secret = compose()["services"][name]["volumes"][1]["target"]
        config = settings.load_cluster(program, "", flags, {"MURMUR_NAME": "lab-a"})
        assert config.token_file == Path(secret)
    else:
        assert settings.load(program, "", flags, required())


def test_the_local_network_has_time_to_end_its_nodes_and_to_write_its_report() -> None:
    """Docker's own 10 seconds are what a node of it may take."""
    for name in ("localnet", "page"):
        assert 60 * minutes(compose()["services"][name]["stop_grace_period"]) > 2 * STOP_SECONDS + 10


def minutes(duration: str) -> int:
    (found,) = re.fullmatch(r"(\d+)m", duration).groups()  # type: ignore[union-attr]
    return int(found)


PRESETS = [
    pytest.param(clock, id=path.stem)
    for path in sorted((ROOT / "murmur/configs").glob("*.toml"))
    if (clock := tomllib.loads(path.read_text()).get("clock")) is not None
]


@pytest.mark.parametrize("clock", PRESETS)
@pytest.mark.parametrize("name", NODES)
def test_a_stopped_node_has_time_until_its_reveal(name: str, clock: dict[str, Any]) -> None:
    """A miner that has committed goes on until then; the earliest commits when the round begins."""
    planned = ClockSpec.model_validate({"start_block": 0, **clock})
    seconds = planned.reveal * planned.block_seconds
    assert seconds < 60 * minutes(compose()["services"][name]["stop_grace_period"])
    assert seconds > 60


def test_the_documented_update_stops_a_node_last() -> None:
    """A node that is stopped before the build stands still for it, and one without its grace is killed."""
    (row,) = re.findall(r"^\| update \| (.*) \|$", (DOCKER / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"`(git pull|docker compose [^`]*)`", row) == [
        "git pull",
        "docker compose build miner",
        "docker compose up -d miner",
    ]


@pytest.mark.parametrize("clock", PRESETS)
def test_a_node_that_waits_for_somebody_is_unhealthy_within_two_rounds(clock: dict[str, Any]) -> None:
    """Docker counts no failed check before the start period has passed."""
    planned = ClockSpec.model_validate({"start_block": 0, **clock})
    (check,) = arguments("HEALTHCHECK")
    began, between = (minutes(*re.findall(rf"--{name}=(\w+)", check)) for name in ("start-period", "interval"))
    (retries,) = re.findall(r"--retries=(\d+)", check)
    late = 60 * (began + between * int(retries))
    assert 0 < late <= 2 * planned.round_blocks * planned.block_seconds


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
        assert any(isinstance(volume, str) and not volume.endswith(":ro") for volume in service["volumes"]), name
    (environment,) = arguments("ENV", "runtime")
    caches = re.findall(r"(?:_DIR|HF_HOME)=(\S+)", environment)
    assert len(caches) == 4
    assert all(cache.startswith("/tmp/") for cache in caches)


def test_what_is_compiled_for_a_gpu_can_be_loaded_from_where_it_is_put() -> None:
    for name in KINDS:
        assert ":exec," in compose()["services"][name]["tmpfs"][0]


def test_each_service_builds_its_own_stage_of_the_dockerfile() -> None:
    stages = [rest.split(" AS ")[1] for rest in arguments("FROM")]
    assert stages[-2:] == ["localnet", "node"], "the last is what is built without a target"
    services = compose()["services"]
    for name, image in (("localnet", "murmuration:localnet"), ("page", "murmuration:localnet")):
        assert (services[name]["build"]["target"], services[name]["image"]) == ("localnet", image)
    for name in KINDS:
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
    assert found["names"] == KINDS
    for name in KINDS:
        settings.load("miner", "", [], required() | services[name]["environment"])
        given = {key: value for key, value in services[name]["environment"].items() if key.startswith(settings.PREFIX)}
        assert given == {"MURMUR_METRICS_PORT": str(found["port"]), "MURMUR_METRICS_ADDRESS": "0.0.0.0"}
    (source,) = yaml.safe_load((DOCKER / "grafana/datasources.yml").read_text())["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert services[host]["ports"][0].endswith(f":{port}")


def test_every_file_that_a_service_mounts_is_there_and_found() -> None:
    mounted = {}
    for service in compose()["services"].values():
        for volume in (volume for volume in service["volumes"] if isinstance(volume, str)):
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
