"""The commands of the documents: each one parses, and what needs no chain, store or GPU of one's own runs."""

import argparse
import ast
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from murmur.cli.doctor import slow_checks
from murmur.cli.main import parse
from murmur.data import recipe
from murmur.node.config import settings
from murmur.node.config.settings_sources import leaves, variable_of
from murmur.node.doctor.start import CHECKS, NODE
from murmur.node.telemetry import round_line
from tests.lab.localnet.harness import Run
from tests.stuck import table
from tests.test_documents import MARKDOWN, PACKAGES, ROOT, relative

HANDBOOK = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "local-network",
            "run-a-miner",
            "run-a-validator",
            "settings",
            "troubleshooting",
            "upgrade-and-backup",
            "data",
        )
    ),
]
"""Written for people who run it: every command is run here, or says what it needs."""
HISTORY = [ROOT / "CHANGELOG.md", *(ROOT / "docs/decisions").rglob("*.md")]
"""What was true once."""
ELSEWHERE = {
    "make setup": "how else would this run",
    "make test": "this is it",
    "make demo": "test_the_demo_of_the_makefile_is_the_one_that_is_described",
    ".venv/bin/murmur localnet --chaos 7 --rounds 20 --validators 2 --miners 4": "tests/lab/localnet/test_chaos.py",
}
NEEDS = re.compile(r"# needs (?:finney|R2|a clone|text)")
PLACEHOLDERS = {"P": "8790", "NETUID": "1", "N": "1", "SEED": "1"}
PROGRAMS = ("murmur", "make", "python", "docker", "btcli", "git", "export", "cp")


@dataclass(frozen=True)
class Command:
    """One line of a document that somebody would type. `comment`: what stands behind it."""

    document: Path
    line: str

    @property
    def words(self) -> list[str]:
        """Without `.venv/bin/`, brackets of what may be left out, and with values for what stands for one."""
        plain = shlex.split(self.line.replace("[", "").replace("]", ""), comments=True)
        return [PLACEHOLDERS.get(word, word).removeprefix(".venv/bin/") for word in plain]

    @property
    def said(self) -> str:
        """Without the comment."""
        return " ".join(shlex.split(self.line, comments=True))

    def __str__(self) -> str:
        return f"{relative(self.document)}: {self.said}"


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of every block of code; of an indented one the language is ""."""
    text = document.read_text(encoding="utf-8")
    fenced = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
    for indent, language, body in fenced.findall(text):
        yield language, "\n".join(line.removeprefix(indent) for line in body.splitlines())
    for block in re.findall(r"(?:^|\n)\n((?: {4}.*\n)+)", fenced.sub("\n", text)):
        yield "", re.sub(r"^ {4}", "", block, flags=re.MULTILINE)


def commands(document: Path) -> list[Command]:
    lines = [
        line.strip()
        for language, text in blocks(document)
        if language in ("", "sh")
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip()
    ]
    found = [Command(document, line) for line in lines]
    return [command for command in found if re.match(rf"(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)})(?= |$)", command.line)]


def gone(command: Command) -> bool:
    """Whether its script is deleted, as its page of results says."""
    text = (ROOT / command.document).read_text(encoding="utf-8")
    return "git has them in c5dc10f" in text and not all(
        (ROOT / w).exists() for w in command.words if w.endswith(".py")
    )


ALL = [command for path in MARKDOWN if path not in HISTORY for command in commands(path) if not gone(command)]


def test_the_search_for_commands_finds_them() -> None:
    found = {command.said for command in ALL}
    assert {"make demo", ".venv/bin/murmur status --run FOLDER"} <= found
    assert ".venv/bin/murmur doctor --config node.toml" in found
    assert "docker compose up -d miner" in found
    assert len(ALL) > 50


@pytest.mark.parametrize("document", HANDBOOK, ids=relative)
def test_every_line_of_a_block_of_commands_begins_with_a_program_that_is_known(document: Path) -> None:
    typed = [line for language, text in blocks(document) if language == "sh" for line in text.splitlines() if line]
    assert typed == [command.line for command in commands(document)]


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_of_a_document_parses(command: Command) -> None:
    program, *words = command.words
    if program == "murmur":
        parse_murmur(words)
        if words[0] == "torchrun":
            parse_script(words)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert next(word for word in words if "=" not in word) in targets
    elif program == "python":
        parse_script(words)
    elif program == "docker":
        parse_docker(words)
    elif program == "export":
        # Compose reads its own one: which env file is a node's.
        names = {word.partition("=")[0] for word in words} - {"COMPOSE_ENV_FILES"}
        assert names <= set(map(variable_of, node_fields()))
    else:
        assert program in ("btcli", "git", "cp")


def parse_script(words: list[str]) -> None:
    script = next((word for word in words if word.endswith(".py")), None)
    if script is not None:
        assert (ROOT / script).is_file()
        if script.startswith("neurons/"):
            parse_node(script, words[words.index(script) + 1 :])


def node_fields() -> dict[str, str]:
    return dict(leaves(settings.NodeConfig))


def parse_node(script: str, words: list[str]) -> None:
    parser = argparse.ArgumentParser(script, allow_abbrev=False)
    settings.add_flags(parser, settings.ClusterConfig if script == "neurons/member.py" else settings.NodeConfig)
    ends_well(parser.parse_args, words)


def parse_murmur(words: list[str]) -> None:
    ends_well(parse, words)


def ends_well(parses: Callable[[list[str]], object], words: list[str]) -> None:
    try:
        parses(words)
    except SystemExit as ended:
        assert ended.code == 0, words  # noqa: PT017


def parse_docker(words: list[str]) -> None:
    """Every name behind an action of compose is a service, or what is run in one."""
    if words[0] == "build":
        assert (ROOT / words[words.index("-f") + 1]).is_file()
        return
    services = yaml.safe_load((ROOT / "docker/compose.yml").read_text())["services"]
    assert words[0] == "compose"
    action, *rest = words[1:]
    named = [word for word in rest if not word.startswith("-")]
    if action == "run":
        named = [word for word in named if word != "murmur"]
    assert action in ("up", "build", "run", "logs", "stop", "exec")
    assert set(named[: 1 if action in ("run", "exec") else None]) <= set(services)
    if action in ("run", "exec"):
        parse_murmur([word for word in rest[rest.index(named[0]) + 1 :] if word != "murmur"])


@pytest.mark.parametrize("document", [path for path in HANDBOOK if "```toml" in path.read_text()], ids=relative)
def test_a_configuration_that_a_document_shows_is_complete_but_for_the_secrets(document: Path, tmp_path: Path) -> None:
    for language, text in blocks(document):
        if language == "toml":
            assert tomllib.loads(text)
            if "[[sources]]" in text:
                (tmp_path / "data.toml").write_text(text)
                _, executor = recipe.read(tmp_path / "data.toml")
                recipe.executed(**executor)
                continue
            (tmp_path / "node.toml").write_text(text)
            secrets = {"MURMUR_BUCKET__SECRET_KEY": "a", "MURMUR_BUCKET__READ_SECRET_KEY": "b"}
            shown = text.replace('read_access_key = "..."', 'read_access_key = "other"')  # all dots are one value
            (tmp_path / "node.toml").write_text(shown)
            settings.load("", "", ["--config", str(tmp_path / "node.toml")], secrets)


def test_the_demo_of_the_makefile_is_the_one_that_is_described() -> None:
    demo = re.search(r"\$\(BIN\)/(murmur localnet .*)", (ROOT / "Makefile").read_text())
    assert demo is not None
    assert commands(ROOT / "docs/local-network.md")[0].said == f".venv/bin/{demo[1]}"


def test_what_is_tried_in_an_image_parses() -> None:
    script = ROOT / "docker/try_image.sh"
    subprocess.run(["bash", "-n", script], check=True)
    tried = re.findall(r"^inside murmur (.*)$", script.read_text(), re.MULTILINE)
    assert len(tried) > 3
    for line in tried:
        parse_murmur(shlex.split(line))


# --- what the documents say of the programs ------------------------------------------------------------------


def test_the_settings_are_all_there() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    named = set(re.findall(r"`(MURMUR_\w+)`", text))
    assert named - {"MURMUR_"} == set(map(variable_of, node_fields())) | {"MURMUR_CONFIG"}


def test_every_check_of_the_doctor_is_explained_in_its_order() -> None:
    table = (ROOT / "docs/troubleshooting.md").read_text().partition("## The checks")[2]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [
        check.name for check in (*CHECKS, NODE, *slow_checks.CHECKS)
    ]


def test_the_causes_of_troubleshooting_are_those_that_nodes_name() -> None:
    assert f"{table.BEGIN}{table.causes()}{table.END}" in table.TROUBLESHOOTING.read_text()


@cache
def literals() -> tuple[str, ...]:
    """Texts of the sources, values in them as one sign."""
    found = [(ROOT / "Makefile").read_text()]
    for path in (path for package in PACKAGES for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"\{\w+\}", "\0", node.value))
    return tuple(found)


FROM_LIBRARIES = {"Invalid host header"}  # Starlette's


def test_what_troubleshooting_quotes_is_what_the_programs_say() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text()
    rows = [row for table in re.findall(r"\| it says \|.*\n\|[-|]+\n((?:\|.*\n)+)", text) for row in table.splitlines()]
    quoted = {quote for row in rows for quote in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    assert len(quoted) > 25
    unknown = []
    for quote in quoted - FROM_LIBRARIES - {"logs/"}:
        words = ".+".join(re.escape(part.strip()) for part in quote.split("..") if part.strip())
        if not any(re.search(words, literal, re.DOTALL) for literal in literals()):
            unknown.append(quote)
    assert not unknown


STOOD = {
    "event": "round_outcome",
    "round": 2,
    "outcome": "contributing",
    "why": "",
    "selected": 2,
    "active": 4,
    "loss": 4.96,
    "pay": 0.078,
    "next_set": 540,
    "sure": "learning, 3 evaluations",
    "margin": 11,
}
JUDGED = {
    "event": "judged",
    "round": 41,
    "unobserved": None,
    "active": 24,
    "evaluated": 12,
    "rejected": {"LATE": 1},
    "selected": 20,
    "loss": 3.12,
    "unrevealed": 0,
    "set_in": 4711,
    "next_set": 4911,
}


@pytest.mark.parametrize(("name", "event"), [("run-a-miner", STOOD), ("run-a-validator", JUDGED)])
def test_the_line_of_a_round_that_is_shown_is_one_that_a_node_tells(name: str, event: dict[str, object]) -> None:
    assert round_line.line(event) in (ROOT / f"docs/{name}.md").read_text().splitlines()


def test_every_outcome_of_a_round_is_explained() -> None:
    from murmur.protocol.types import Reason, Standing

    text = (ROOT / "docs/troubleshooting.md").read_text().partition("earns nothing")[2].partition("## ")[0]
    named = {name for row in text.splitlines() for name in re.findall(r"`([A-Z_]+)`", row.split(" | ")[0])}
    assert named == {*map(str, Reason), *map(str, Standing)}


# --- running them --------------------------------------------------------------------------------------------

TO_RUN = [
    command
    for path in HANDBOOK
    for command in commands(path)
    if command.said not in ELSEWHERE and not NEEDS.search(command.line) and not command.line.startswith("export")
]
NETWORKS = {command.said: command for command in TO_RUN if command.words[:2] == ["murmur", "localnet"]}
ROUNDS = ("--rounds", "2")
"""In place of those of the document: that they come to an end is the matter here."""
SECONDS = 900.0


def test_what_needs_something_of_ones_own_says_so() -> None:
    """What is left is run below."""
    assert {command.words[0] for command in TO_RUN} == {"murmur", "python"}
    assert not [command.said for command in TO_RUN if command.words[0] == "python" and command.words[-1] != "--help"]
    assert len(TO_RUN) > 20


@pytest.mark.slow
@pytest.mark.parametrize("words", [command.words[2:] for command in NETWORKS.values()], ids=" ".join)
def test_a_network_of_the_documents_comes_to_its_end(words: list[str], tmp_path: Path) -> None:
    run = Run(tmp_path / "run", *words, *ROUNDS)
    try:
        assert run.process.wait(SECONDS) == 0, run.screen
    finally:
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where somebody has run the demo: FOLDER is its run folder, node.toml the file of one of its nodes."""
    place = tmp_path_factory.mktemp("clone")
    run = Run(place / "FOLDER", *commands(ROOT / "docs/local-network.md")[0].words[2:], *ROUNDS)
    try:
        assert run.process.wait(SECONDS) == 0, run.screen
    finally:
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(60)
    (place / "node.toml").write_bytes((place / "FOLDER/nodes/miner-1/node.toml").read_bytes())
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", {command.said: command for command in TO_RUN if command.said not in NETWORKS}.values(), ids=str
)
def test_a_command_of_the_documents_runs(command: Command, place: Path) -> None:
    program, *words = command.words
    if program == "python":
        line = [sys.executable, str(ROOT / words[0]), *words[1:]]
    else:
        line = [sys.executable, "-m", "murmur", *words]
    if words[0] == "dashboard":
        show_page(line, place)
        return
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, timeout=SECONDS)
    # Of a node that has ended with its network `status` says, with 1, that it is silent.
    assert done.returncode in ((0, 1) if words[0] == "status" else (0,)), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def show_page(line: list[str], place: Path) -> None:
    served = subprocess.Popen([*line, "--port", "0"], cwd=place, stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        found = re.search(r"http://\S+", served.stdout.readline())
        assert found is not None
        assert b"<title>" in urllib.request.urlopen(found[0], timeout=60).read()
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(60)
