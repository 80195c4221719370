"""Settings on strange machines: an orchestrator's variables, secrets with what came along, no home, odd addresses."""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from murmur import homes
from murmur.chain.keys import open_wallet
from murmur.cli.main import main
from murmur.node.config.ports import is_local
from murmur.protocol.errors import ConfigError
from tests.node.test_settings import config, refused

LINKS = {
    "MURMUR_SERVICE_HOST": "10.0.0.1",
    "MURMUR_SERVICE_PORT": "9100",
    "MURMUR_SERVICE_PORT_METRICS": "9100",
    "MURMUR_PORT": "tcp://10.0.0.1:9100",
    "MURMUR_PORT_9100_TCP": "tcp://10.0.0.1:9100",
    "MURMUR_PORT_9100_TCP_PROTO": "tcp",
    "MURMUR_PORT_9100_TCP_PORT": "9100",
    "MURMUR_PORT_9100_TCP_ADDR": "10.0.0.1",
    "MURMUR_MINER_PORT": "tcp://10.0.0.1:9100",
    "MURMUR_METRICS_PORT": "tcp://10.0.0.1:9100",
}
"""What Kubernetes gives every container beside services `murmur`, `murmur-miner` and `murmur-metrics`."""


def test_an_orchestrators_variables_that_look_like_ours_are_no_settings() -> None:
    assert config(**LINKS) == config()


def test_a_mistyped_port_is_no_orchestrators() -> None:
    assert "did you mean MURMUR_METRICS_PORT?" in refused(MURMUR_METRIC_PORT="9100")
    assert config(MURMUR_METRICS_PORT="9100").metrics_port == 9100


def test_a_lines_end_belongs_to_no_value() -> None:
    found = config(MURMUR_BUCKET__SECRET_KEY="hush-writer\r\n", MURMUR_NETWORK="test\n", MURMUR_WALLET__NAME="alice\n")
    assert found == config(MURMUR_NETWORK="test")


@pytest.mark.parametrize("mark", ['"', "'"])
@pytest.mark.parametrize("variable", ["MURMUR_BUCKET__SECRET_KEY", "MURMUR_NETWORK", "BT_WALLET_NAME"])
def test_quotation_marks_around_a_value_are_named_and_the_value_is_not(mark: str, variable: str) -> None:
    told = refused(**{variable: f"{mark}hush-hush{mark}\n"})
    assert variable in told
    assert "quotation marks" in told
    assert "hush-hush" not in told


@pytest.mark.parametrize("name", ["access_key", "secret_key", "read_access_key", "read_secret_key"])
@pytest.mark.parametrize("value", ["two words", "h\u00fcsh", "hush\u200b", "hu\nsh"])
def test_a_key_that_no_provider_gives_is_named_and_not_shown(name: str, value: str) -> None:
    told = refused(**{f"MURMUR_BUCKET__{name.upper()}": value})
    assert f"bucket.{name}: a key has printable ASCII" in told
    assert value not in told


@pytest.mark.parametrize("url", ["ws://[::1:9944", "ws://host:port", "https://host", "ws://", "ws://::1:9944"])
def test_an_address_of_a_chain_that_is_none_is_told(url: str) -> None:
    assert "network: expected ws://HOST:PORT" in refused(MURMUR_NETWORK=url)


@pytest.mark.parametrize("url", ["ws://[::1]:9944", "ws://127.0.0.2:9944", "ws://localhost:9944", "local"])
def test_a_chain_on_this_machine_is_known_by_any_of_its_addresses(url: str) -> None:
    assert is_local(config(MURMUR_NETWORK=url).network)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a uid that no file of users knows, and without HOME."""

    def unknown(who: object) -> NoReturn:
        raise KeyError(who)

    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "MURMUR_CACHE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_a_command_that_needs_one_says_what_to_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert "set HOME" in capsys.readouterr().err
    assert not (tmp_path / "~").exists()


@pytest.mark.usefixtures("homeless")
def test_without_a_home_full_paths_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--home", str(tmp_path)]) == 1  # a node that has done nothing yet
    assert "no run yet" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="does not exist"):
        open_wallet("mine", "default", str(tmp_path))
    with pytest.raises(ConfigError, match="set HOME"):
        open_wallet("mine", "default")


@pytest.mark.usefixtures("homeless")
def test_libraries_that_ask_get_a_name_and_a_home() -> None:
    homes.provide_for_libraries()
    assert os.environ["USER"] == f"uid{os.getuid()}"
    assert Path.home().is_dir()
    with pytest.raises(ConfigError, match="set HOME"):
        homes.expanded("~/.murmur")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_path_that_the_terminal_cannot_show_ends_no_command(encoding: str, tmp_path: Path) -> None:
    home = os.fsencode(tmp_path) + "/h\u00f6me ".encode() + b"\xff"
    os.mkdir(home)
    done = subprocess.run(
        [sys.executable, "-m", "murmur", "status", "--home", home],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1  # a node that has done nothing yet
    assert b"no run yet" in done.stdout
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("encoding", "locale", "begins_anew"),
    [("utf-8", "de_DE.UTF-8", False), ("iso8859-9", "tr_TR.ISO-8859-9", True), ("ascii", "C.UTF-8", False)],
)
def test_a_path_is_the_same_bytes_in_every_locale(
    monkeypatch: pytest.MonkeyPatch, encoding: str, locale: str, begins_anew: bool
) -> None:
    began: list[tuple[str, list[str]]] = []
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-u", "neurons/miner.py", "--home", "a b"])
    monkeypatch.setattr(os, "execv", lambda path, words: began.append((path, words)))
    homes.provide_for_libraries()
    words = [sys.executable, "-u", "neurons/miner.py", "--home", "a b"]
    assert began == ([(sys.executable, words)] if begins_anew else [])
    assert os.environ["LC_ALL"] == ("C.UTF-8" if begins_anew else locale)


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">&-", "2>&-", "<&-"])
def test_a_program_whose_standard_streams_are_closed_writes_into_none_of_its_files(
    streams: str, tmp_path: Path
) -> None:
    program = """
import os, sys
from murmur.homes import provide_for_libraries
provide_for_libraries()
with open(sys.argv[1], "w") as file:
    for number in (1, 2):
        os.write(number, b"a warning of a library")
    print("said", flush=True)
    print("said", file=sys.stderr, flush=True)
    file.write("state")
"""
    (tmp_path / "program.py").write_text(program)
    script = f'exec "$1" "$2/program.py" "$2/file" {streams}'
    command = ["sh", "-c", script, "sh", sys.executable, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "state"
