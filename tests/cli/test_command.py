"""The command's table: help is instant, wrong words and wrong paths are one clear message, never a traceback."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from murmur.cli import main as command
from murmur.cli.main import PROGRAMS, SUBCOMMANDS, Subcommand, main
from murmur.cli.run import questions
from murmur.lab.localnet.fault_kinds import FAULTS
from murmur.protocol.errors import ChainError
from murmur.protocol.types import PeerId, hotkey

HEAVY = ("torch", "boto3", "botocore", "bittensor", "datasets")
ROOT = Path(__file__).parents[2]
OWNER = hotkey(PeerId(bytes(32)))
SCRIPT = """
import json, sys
from contextlib import redirect_stdout
from io import StringIO
from murmur.cli.main import main
found = []
for words in json.load(sys.stdin):
    with redirect_stdout(StringIO()) as shown:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    loaded = {name.split(".")[0] for name in sys.modules} & {HEAVY}
    found.append((code or 0, sorted(loaded), shown.getvalue()))
print(json.dumps(found))
""".replace("{HEAVY}", repr(set(HEAVY)))


def nested(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """The words of every command below a parser, its own (none) first."""
    yield []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from ([name, *words] for words in nested(below))


def all_helps() -> list[list[str]]:
    helps = [["--help"], ["--version"]]
    for subcommand in SUBCOMMANDS:
        parser = argparse.ArgumentParser()
        if subcommand.name not in PROGRAMS:
            import_module(subcommand.module).add_arguments(parser)
        helps += [[subcommand.name, *words, "--help"] for words in nested(parser)]
    return helps


def murmur(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "murmur", *words], capture_output=True, text=True, timeout=120, check=False
    )


def assert_refused(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for words in expected:
        assert words in done.stderr


def ask(commands: list[list[str]]) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Run commands in one new process: of each its status, what is loaded after it, and what it shows."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(commands),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads(done.stdout)


@pytest.fixture(scope="module")
def helps() -> dict[str, list[Any]]:
    done, found = ask(all_helps())
    assert done.stderr == ""
    return dict(zip(map(" ".join, all_helps()), found, strict=True))


@pytest.mark.parametrize("words", all_helps(), ids=" ".join)
def test_no_help_loads_anything_heavy(words: list[str], helps: dict[str, list[Any]]) -> None:
    status, heavy, shown = helps[" ".join(words)]
    assert (status, heavy) == (0, [])
    assert shown.startswith(f"murmuration {version('murmuration-node')}" if "--version" in words else "usage: murmur")


WRONG = [
    ["audit", "--round", "2", "--run", "nowhere"],
    ["audit", "--round", "2", "--validator", "5nonsense"],
    ["cluster", "status", "--token-file", "nowhere"],
    ["dashboard", "no/where"],
    ["evaluate", "nowhere"],
    ["explain", "5nonsense"],
    ["explain", "miner-1", "--run", "nowhere"],
    ["export"],
    ["export", "nowhere", "out"],
    ["export", "--verify", "nowhere"],
    ["plan", "--spec", "nowhere"],
    ["sft", "nowhere", "--data", "x.jsonl", "--recipe", "nobodys"],
    ["run", "show", "nowhere"],
    ["shards", "build", "--from", "nowhere", "--out", "nowhere"],
    ["status", "--home", "nowhere"],
    ["status", "--run", "nowhere"],
]


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[Any]]:
    _, found = ask(WRONG)
    return dict(zip(map(" ".join, WRONG), found, strict=True))


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_word_is_refused_before_anything_heavy_loads(words: list[str], wrong: dict[str, list[Any]]) -> None:
    status, heavy, shown = wrong[" ".join(words)]
    assert (status, heavy, shown) == (2, [], "")


@pytest.mark.parametrize(("name", "program"), [("mine", "miner"), ("validate", "validator")])
def test_a_nodes_program_is_the_same_by_either_name(name: str, program: str) -> None:
    script = subprocess.run(
        [sys.executable, f"neurons/{program}.py"], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    done = murmur(name)
    assert_refused(done, f"murmur {name} is not configured yet", "wallet.name")
    assert done.stderr.replace(f"murmur {name}", f"neurons/{program}.py") == script.stderr
    assert f"usage: murmur {name}" in murmur(name, "--help").stdout


def test_the_nested_helps_are_found() -> None:
    assert ["shards", "build", "--help"] in all_helps()
    assert ["localnet", "--help"] in all_helps()


def test_help_names_every_subcommand_and_what_it_is_for() -> None:
    shown = murmur("--help").stdout
    assert all(subcommand.name in shown and subcommand.summary in shown for subcommand in SUBCOMMANDS)


@pytest.mark.parametrize("words", [[], ["loclnet"], ["loclnet", "--rounds", "3"]], ids=" ".join)
def test_an_unknown_or_missing_subcommand_is_answered_with_the_known_ones(words: list[str]) -> None:
    done = murmur(*words)
    assert_refused(done, "usage: murmur")
    if words:
        assert_refused(done, "'loclnet'", *(subcommand.name for subcommand in SUBCOMMANDS))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rounds", "0"], ["--rounds is 0, expected 1 to 100000"]),
        (["--rounds", "many"], ["--rounds", "many"]),
        (["--miners", "0"], ["--miners is 0, expected 1 to 200"]),
        (["--miners", "201"], ["--miners is 201"]),
        (["--validators", "-1"], ["--validators is -1, expected 1 to 8"]),
        (["--seed", "-1"], ["--seed is -1"]),
        (["--fault", "grabage"], ["'grabage'", *FAULTS]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_numbers_and_unknown_faults_are_refused_before_anything_starts(
    words: list[str], expected: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert_refused(murmur("localnet", "--folder", str(folder), *words), *expected)
    assert not folder.exists()


def test_a_run_folder_that_is_in_use_keeps_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    assert_refused(murmur("localnet", "--folder", str(tmp_path)), str(tmp_path), "not empty", "--folder")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_run_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for folder in (file, file / "below"):
        assert_refused(murmur("localnet", "--folder", str(folder)), str(folder), "choose another --folder")


def failing(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    """`murmur shards build` raises `fault`."""

    class Module:
        @staticmethod
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            pass

        @staticmethod
        def run(options: argparse.Namespace) -> int:
            raise fault

    monkeypatch.setattr(command, "SUBCOMMANDS", (Subcommand("try", "try it", "failing"),))
    monkeypatch.setattr(command, "import_module", lambda name: Module)


def test_the_outside_world_failing_is_one_line_and_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, ChainError("the chain does not answer"))
    assert main(["try"]) == 1
    assert capsys.readouterr().err == "stopped: the chain does not answer\n"


def test_a_disk_that_is_full_is_one_line_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, OSError(28, "No space left on device", "/data/x"))
    assert main(["try"]) == 2
    assert capsys.readouterr().err == "cannot use /data/x: No space left on device\n"


@pytest.mark.parametrize("bug", [ValueError("a bug"), OSError(9, "Bad file descriptor"), BrokenPipeError(32, "x", "y")])
def test_bugs_are_not_hidden(bug: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, bug)
    with pytest.raises(type(bug)):
        main(["try"])


def test_a_request_to_stop_is_exit_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["try"]) == 130


def test_a_reader_that_has_enough_ends_the_command_quietly():
    shell = f"{quote(sys.executable)} -m murmur plan --spec 8b | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--run", "nowhere"], "nowhere is not the run folder"),
        (["dashboard", "/nowhere"], "nowhere is not the run folder"),
        (["explain", "miner-1", "--run", "nowhere"], "nowhere is not the run folder"),
        (
            ["explain", "5FoO", "--network", "ws://127.0.0.1:1", "--netuid", "1", "--owner", OWNER],
            "MINER: not an SS58 address",
        ),
    ],
)
def test_a_mistyped_name_is_told_at_once_without_torch_and_without_the_chain(words: list[str], said: str) -> None:
    """They took up to 3.5 s of processor time, and a mistyped hotkey was told after the chain had answered."""
    done, ((status, heavy, _),) = ask([words])
    assert (status, heavy) == (2, [])
    assert said in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_has_no_room_ends_with_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "murmur", "plan", "--spec", "tiny"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "free disk space" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_to_copy_works_in_a_folder_with_a_blank() -> None:
    assert questions.command(argparse.Namespace(config="/my node/owner.toml"), "publish", Path("my run")) == (
        "murmur run publish 'my run' --config '/my node/owner.toml'"
    )
    before_a_path = "--config|--token-file|chmod [^ ]+|murmur dashboard|--verify|murmur run (publish|show|amend|void)"
    bare = re.compile(rf"({before_a_path}) (\{{(?!quote\(|verify\}})|\" *\+)")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in sorted((ROOT / "murmur").rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if bare.search(line)
    ]
    assert not found
