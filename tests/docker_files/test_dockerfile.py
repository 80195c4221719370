"""What the Dockerfile builds, of what, and in which order."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from murmur.node.telemetry.events import Events
from tests.docker_files.files import DOCKER, ROOT, arguments, instructions

IMAGES = ["node", "localnet"]
SOURCES = ("csrc", "gauntlet", "murmur", "neurons", "sparseloco", "storage")


@pytest.mark.parametrize("stage", ["node", "localnet"])
def test_the_image_runs_as_an_ordinary_user(stage: str) -> None:
    assert arguments("USER", stage) == ["murmur"]
    assert any("useradd" in rest for rest in arguments("RUN", "runtime"))
    order = [name for name, _ in instructions()]
    assert order[-3:] == ["USER", "HEALTHCHECK", "CMD"]


def test_the_image_installs_what_make_setup_installs_but_the_tools_of_developers() -> None:
    def steps(text: str) -> list[str]:
        found = re.findall(r"(?:pip install (?:-q )?-c|python -m murmur.lab.devnet)[^\n&;]*", text)
        left_out = r' -q| --no-deps| \$\{TORCH_INDEX:\+--index-url "\$TORCH_INDEX"\}| --prefix /opt/\w+'
        found = [re.sub(left_out, "", step).strip() for step in found]
        return list(dict.fromkeys(found))  # of torch there is one step for each device

    ours = steps((ROOT / "Makefile").read_text())
    libraries = "pip install -c constraints.txt -r requirements.txt"
    assert steps("\n".join(arguments("RUN", "deps"))) == [*ours[:2], libraries]
    assert steps("\n".join(arguments("RUN", "build"))) == [ours[2].replace("'.[dev,localnet]'", ".")]
    assert steps("\n".join(arguments("RUN", "localnet-cache"))) == [ours[3]]


def parents() -> dict[str, str]:
    """By stage, the stage or image that it begins with."""
    return {stage: base for rest in arguments("FROM") for base, stage in [rest.split(" AS ")]}


def test_no_line_of_the_sources_changes_the_layer_of_the_libraries() -> None:
    """It has over a gigabyte, and stands in each image before what the sources and the user change."""
    stage = "libraries"
    while stage in parents():
        copied = {word for rest in arguments("COPY", stage) for word in rest.split()[:-1]}
        assert copied <= {"constraints.txt", "pyproject.toml", "docker/requirements.py"}
        assert not any("USER_ID" in rest for rest in arguments("ARG", stage))
        stage = parents()[stage]
    assert {parents()[image] for image in IMAGES} == {"runtime"}
    order = [f"{name} {rest}" for name, rest in instructions()]
    base = order[order.index("FROM $PYTHON AS runtime") :]
    assert base.index("COPY --from=libraries /opt/venv /opt/venv") < base.index("ARG USER_ID=1000")
    copies = [rest for image in ("runtime", *IMAGES) for rest in arguments("COPY", image)]
    assert [rest for rest in copies if "/opt/venv " in rest] == ["--from=libraries /opt/venv /opt/venv"]
    assert "." in [rest.split()[0] for rest in arguments("COPY", "build")]
    for image in IMAGES:
        assert arguments("COPY", image)[-2:] == ["--from=build /opt/project /opt/venv", "--from=build /app /app"]


def test_an_argument_of_the_build_is_named_where_it_is_used_so_that_no_other_step_is_done_again_for_it() -> None:
    waiting = dict[str, str]()
    for name, rest in instructions():
        if name == "ARG":
            waiting[rest.split("=")[0]] = rest
        elif name == "FROM":
            assert waiting.keys() <= {"PYTHON"}
            waiting.clear()
        elif name in ("RUN", "COPY"):
            assert all(re.search(rf"\$\{{?{argument}\b", rest) for argument in waiting), (waiting, rest)
            waiting.clear()


def test_an_image_keeps_no_tests_of_torch_and_no_pip_and_its_sources_are_compiled() -> None:
    (trimmed,) = arguments("RUN", "libraries")
    assert trimmed.split(" && ") == [
        "rm -rf /opt/venv/lib/python3.*/site-packages/torch/test",
        "pip uninstall --yes pip",
    ]
    assert not any("pip" in rest for image in ("runtime", *IMAGES) for rest in arguments("RUN", image))
    *_, install, compiled = arguments("RUN", "build")
    assert "-e ." in install
    assert compiled == "python -m compileall -q --invalidation-mode unchecked-hash /app"


def test_what_the_local_network_fetches_is_fetched_where_pip_is() -> None:
    assert 'sys.executable, "-m", "pip"' in (ROOT / "murmur/lab/devnet/metadata.py").read_text()
    (stage,) = (stage for stage in parents() for rest in arguments("RUN", stage) if "devnet.metadata" in rest)
    ancestors = [stage]
    while ancestors[-1] in parents():
        ancestors.append(parents()[ancestors[-1]])
    assert "deps" in ancestors
    assert not any("pip uninstall" in rest for above in ancestors for rest in arguments("RUN", above))
    assert arguments("ENV", stage) == ["XDG_CACHE_HOME=/opt/cache"]
    kept = f"--from={stage} --chown=murmur:murmur /opt/cache /home/murmur/.cache"
    assert kept in arguments("COPY", "localnet"), "where the user's programs look for it"


def test_the_codec_is_compiled_before_the_sources_come_and_not_again_with_them() -> None:
    codec, install, _ = arguments("RUN", "build")
    assert arguments("COPY", "build") == ["setup.py ./", "csrc csrc", ". ."]
    order = instructions()
    assert order.index(("RUN", codec)) < order.index(("COPY", ". .")) < order.index(("RUN", install))
    assert "build_ext" in codec
    assert codec.endswith("test -f sparseloco/murmur_codec.so"), "setup.py goes on without a compiler"
    assert {"CC=false", "CXX=false"} <= set(install.split())


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_what_it_is(image: str) -> None:
    (labels,) = arguments("LABEL", image)
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert f"org.opencontainers.image.licenses={licence}" in labels
    assert 'org.opencontainers.image.title="Murmuration' in labels


@pytest.mark.parametrize("user", [0, 33, 1000])
def test_any_user_may_be_the_one_of_the_image(user: int, tmp_path: Path) -> None:
    """Root and the base image's own are in its file of users already."""
    if os.geteuid() or shutil.which("useradd") is None:
        pytest.skip("only root adds users")
    for name in ("passwd", "group"):
        (tmp_path / "etc").mkdir(exist_ok=True)
        shutil.copy(f"/etc/{name}", tmp_path / "etc" / name)
    (command,) = re.findall(r"useradd [^&]*", arguments("RUN", "runtime")[-1])
    line = command.replace("useradd", f"useradd --prefix {tmp_path}", 1)
    done = subprocess.run(["sh", "-c", line], env=os.environ | {"USER_ID": str(user)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^murmur:[^:]*:{user}:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)
    assert re.search(r"^murmur:", (tmp_path / "etc/group").read_text(), re.MULTILINE), "whose the folders are"
    assert "HOME=/home/murmur" in arguments("ENV", "runtime")[0].split(), "else that of the first user of this number"


def test_a_nodes_image_has_no_compiler_but_tritons_and_no_s3_server() -> None:
    for stage in ("libraries", "runtime", "node"):
        for rest in arguments("RUN", stage) + arguments("COPY", stage):
            assert "g++" not in rest
            assert "localnet" not in rest
            assert "gcc" not in rest or rest.startswith('if [ "$DEVICE" = cuda ]')
    assert any("g++" in rest for rest in arguments("RUN", "deps"))
    assert parents()["build"] == "deps"


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


def pattern(line: str) -> re.Pattern[str]:
    """Of a file of names to ignore, as the builder reads it: `**` for any folders, `*` within one."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", line)
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(signs.get(part, re.escape(part)) for part in parts))


def goes_in(path: str) -> bool:
    """Whether the builder gets this file: of all lines that match it, or a folder above it, the last one counts."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    above = [path, *(str(one) for one in PurePosixPath(path).parents if one.name)]
    found = True
    for line in (line for line in lines if line and not line.startswith("#")):
        if any(pattern(line.removeprefix("!")).fullmatch(one) for one in above):
            found = line.startswith("!")
    return found


def test_every_builder_reads_what_goes_in() -> None:
    """Without BuildKit Docker looks in the root alone, and with it at a file beside the Dockerfile first."""
    assert not list(DOCKER.glob("*.dockerignore"))
    assert not goes_in("docker/.env")
    assert "--ignorefile" not in (DOCKER / "try_image.sh").read_text()


def test_every_file_that_runs_goes_into_the_image() -> None:
    told = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = {path for path in told if goes_in(path)}
    files = {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.py"}
    files |= {"docker/start.py", "docker/requirements.py"}
    assert found == files | {path for path in told if path.startswith(SOURCES) and not path.endswith(".md")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert {*packages, "csrc"} == set(SOURCES)


@pytest.mark.parametrize("folder", ["", "docker/", "murmur/configs/", *(f"{name}/" for name in SOURCES)])
def test_nothing_of_ones_own_goes_into_the_image(folder: str) -> None:
    for name in (
        ".env",
        ".env.local",
        "second.env",
        "configs/node.toml",
        "node.toml",
        ".secrets/key",
        ".secrets/key.py",
        "token",
        "my-run.token",
        "id_ed25519",
        "bucket.pem",
        "wallets/miner/hotkeys/default",
        "runs/report.json",
        "notes.txt",
        "murmur_codec.so",
    ):
        assert not goes_in(folder + name), folder + name


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
    at_home, elsewhere = {"HOME": str(tmp_path)}, {"HOME": "/nowhere", "MURMUR_HOME": str(home)}
    for environment in (at_home, elsewhere, at_home | {"MURMUR_NAME": "lab-a"}):  # of a cluster's member
        command = [sys.executable, "-m", "murmur", *words[1:]]
        result = subprocess.run(command, cwd=ROOT, env=environment, timeout=120)
        assert (result.returncode == 0) == healthy


def test_folders_beside_the_packages_are_no_packages() -> None:
    for name in ("docker", "configs", "docs", "benchmarks", "csrc"):
        assert not (ROOT / name / "__init__.py").exists()
