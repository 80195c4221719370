"""Configuration: three sources with one order, and errors that say what to do."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.node.config.settings import NodeConfig, home, load, load_cluster, settings
from murmur.protocol.errors import ConfigError

COMPLETE = {
    "MURMUR_WALLET__NAME": "alice",
    "MURMUR_BUCKET__ENDPOINT": "https://store.example",
    "MURMUR_BUCKET__NAME": "mine",
    "MURMUR_BUCKET__ACCESS_KEY": "writer",
    "MURMUR_BUCKET__SECRET_KEY": "hush-writer",
    "MURMUR_BUCKET__READ_ACCESS_KEY": "reader",
    "MURMUR_BUCKET__READ_SECRET_KEY": "hush-reader",
    "MURMUR_NETUID": "7",
    "MURMUR_OWNER": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
}
TOML = """
netuid = 9
network = "test"
[wallet]
name = "bob"
hotkey = "second"
[bucket]
name = "of-the-file"
"""


def config(*argv: str, **environment: str) -> NodeConfig:
    return load("murmur-miner", "a summary", argv, COMPLETE | environment)


def refused(*argv: str, without: tuple[str, ...] = (), **environment: str) -> str:
    values = {name: value for name, value in (COMPLETE | environment).items() if name not in without}
    with pytest.raises(ConfigError) as caught:
        load("murmur-miner", "a summary", argv, values)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(TOML)
    return path


def test_the_environment_alone_is_enough() -> None:
    found = config()
    assert (found.wallet.name, found.wallet.hotkey, found.netuid, found.network) == ("alice", "default", 7, "finney")
    assert found.bucket.secret_key.get_secret_value() == "hush-writer"


def test_flags_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    found = config("--config", str(file), "--netuid", "3", MURMUR_NETWORK="local")
    assert found.netuid == 3
    assert found.network == "local"
    assert found.wallet.name == "alice"
    assert found.wallet.hotkey == "second"
    assert found.bucket.name == "mine"


def test_the_file_may_be_named_in_the_environment(file: Path) -> None:
    assert config(MURMUR_CONFIG=str(file)).wallet.hotkey == "second"


def test_btclis_variables_are_understood_and_ours_win() -> None:
    found = config(BT_WALLET_NAME="carol", BT_WALLET_HOTKEY="third", BT_NETWORK="test", BT_NETUID="1")
    assert (found.wallet.name, found.wallet.hotkey, found.network, found.netuid) == ("alice", "third", "test", 7)


def test_an_empty_variable_is_no_value() -> None:
    assert config(MURMUR_NETWORK="").network == "finney"


def test_everything_missing_is_listed_at_once_with_where_to_give_it() -> None:
    told = refused(without=tuple(COMPLETE))
    for line in (
        "--wallet.name",
        "--bucket.endpoint",
        "--bucket.name",
        "--bucket.access_key",
        "MURMUR_BUCKET__SECRET_KEY",
        "--bucket.read_access_key",
        "MURMUR_BUCKET__READ_SECRET_KEY",
        "--netuid",
        "--owner",
        "murmur localnet",
        "docs/run-a-miner.md",
    ):
        assert line in told
    assert "--bucket.secret_key" not in told
    assert "wallet.hotkey " not in told  # has a default


def test_only_what_is_missing_is_listed() -> None:
    told = refused(without=("MURMUR_NETUID",))
    assert "netuid" in told
    assert "wallet.name" not in told
    assert "owner" not in told.replace("--owner", "")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"MURMUR_NETUID": "seven"}, "netuid"),
        ({"MURMUR_NETUID": "-1"}, "netuid"),
        ({"MURMUR_DEVICE": "tpu"}, "device"),
        ({"MURMUR_LOG_LEVEL": "LOUD"}, "log_level"),
        ({"MURMUR_CALL_TIMEOUT_SECONDS": "0"}, "call_timeout_seconds"),
        ({"MURMUR_SPEC": "run.toml"}, "exactly one of owner"),
        ({"MURMUR_ARCHIVES": "wss://one.example https://two.example"}, "archives"),
        ({"MURMUR_ARCHIVES": "wss://one.example,archive.example"}, "archives"),
    ],
)
def test_a_value_that_is_not_valid_is_named(environment: dict[str, str], words: str) -> None:
    told = refused(**environment)
    assert "Not valid:" in told
    assert words in told


def test_neither_owner_nor_spec_is_told_once_as_missing() -> None:
    told = refused(without=("MURMUR_OWNER",))
    assert "--owner" in told


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("wss://one.example:443", ("wss://one.example:443",)),
        ("wss://one.example, ws://127.0.0.1:9944", ("wss://one.example", "ws://127.0.0.1:9944")),
        ("none", ()),
        ("", None),
    ],
)
def test_archives_are_a_list_with_commas_or_none(said: str, expected: tuple[str, ...] | None) -> None:
    assert config(MURMUR_ARCHIVES=said).archives == expected


def test_archives_in_a_file_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "archives.toml"
    path.write_text('archives = ["wss://one.example", "wss://two.example"]')
    assert config("--config", str(path)).archives == ("wss://one.example", "wss://two.example")
    assert config("--config", str(path), "--archives", "none").archives == ()


def test_a_mistyped_variable_is_refused_with_a_suggestion() -> None:
    told = refused(MURMUR_BUCKET__ENDPOIN="https://x")
    assert "MURMUR_BUCKET__ENDPOIN" in told
    assert "did you mean MURMUR_BUCKET__ENDPOINT?" in told


def test_a_variable_like_nothing_is_refused_without_a_guess() -> None:
    assert "did you mean" not in refused(MURMUR_QQ="1")


@pytest.mark.parametrize(
    "argv",
    [
        ("--bucket.secret_key", "hunter2"),
        ("--bucket.secret_key=hunter2",),
        ("--bucket.read_secret_key", "hunter2"),
        ("--bucket.secret-key=hunter2",),
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(argv: tuple[str, ...]) -> None:
    told = refused(*argv)
    assert "revoke it" in told
    assert "hunter2" not in told


def test_a_secret_is_neither_in_errors_nor_in_the_configurations_text(file: Path) -> None:
    found = config()
    assert "hush" not in repr(found) + str(found)
    assert "hush" not in refused(MURMUR_NETUID="seven")
    file.write_text('[bucket]\nsecret_key = ["hush-list"]\n')
    assert "hush" not in refused("--config", str(file), without=("MURMUR_BUCKET__SECRET_KEY",))


def test_an_unknown_flag_ends_with_status_2() -> None:
    with pytest.raises(SystemExit) as caught:
        config("--walet.name", "x")
    assert caught.value.code == 2


def test_an_unknown_value_in_the_file_is_named(file: Path) -> None:
    file.write_text("[wallet]\nnam = 'x'\n")
    assert "wallet.nam: no such setting; did you mean wallet.name?" in refused("--config", str(file))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[walet]\nname = 'x'\n", "walet: no such setting; did you mean wallet?"),
        ("network_ = 'finney'\n", "network_: no such setting; did you mean network?"),
        ("public_url = 'https://x'\n", "public_url: no such setting; did you mean bucket.public_url?"),
        ("[bucket]\nnetuid = 1\n", "bucket.netuid: no such setting; did you mean netuid?"),
        ("[bucket]\nsecret = 'hidden-value'\n", "bucket.secret: no such setting; did you mean bucket.secret_key?"),
        ("qqqq = 1\n", "qqqq: no such setting"),
    ],
)
def test_the_name_that_was_probably_meant_is_told(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    lines = [line.strip() for line in refused("--config", str(file)).splitlines()]
    assert told in lines
    assert not any("hidden-value" in line for line in lines)


@pytest.mark.parametrize("text", ["netuid = ", "[wallet\n", "\x00"])
def test_a_file_that_is_not_toml_is_told(file: Path, text: str) -> None:
    file.write_text(text)
    assert "not valid TOML" in refused("--config", str(file))


def test_a_file_that_an_editor_of_windows_has_saved_is_read(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + b'log_level = "DEBUG"\r\n')
    assert config("--config", str(file)).log_level == "DEBUG"


def test_a_file_that_is_not_text_is_told(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\xff")
    assert "not valid TOML" in refused("--config", str(file))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "cannot read the configuration file" in refused("--config", str(tmp_path / "none.toml"))


def test_a_table_where_the_file_has_a_value_is_replaced_or_told(file: Path) -> None:
    file.write_text("wallet = 'x'\n")
    assert config("--config", str(file)).wallet.name == "alice"
    assert "wallet" in refused("--config", str(file), without=("MURMUR_WALLET__NAME",))


def test_the_state_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = home(config(MURMUR_HOME=str(tmp_path / "a" / "b")))
    assert folder.stat().st_mode & 0o077 == 0


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another --home"):
        home(config(MURMUR_HOME=str(tmp_path / "file" / "home")))


def test_a_state_folder_of_another_user_says_whose_it_is(tmp_path: Path) -> None:
    """In a container this happens when its user gets another number: the volume stays the first one's."""
    if os.geteuid() or not hasattr(os, "seteuid"):
        pytest.skip("only root becomes another user")
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    try:
        folder.chmod(0o755)
        os.seteuid(4321)
        with pytest.raises(ConfigError, match="belongs to uid 0, and this user is uid 4321") as refusal:
            home(config(MURMUR_HOME=str(folder)))
    finally:
        os.seteuid(0)
        folder.rmdir()
    assert "docker/README.md" in str(refusal.value)


READ_KEY = ("MURMUR_BUCKET__READ_ACCESS_KEY", "MURMUR_BUCKET__READ_SECRET_KEY")
PUBLIC = {"MURMUR_BUCKET__PUBLIC_URL": "https://cdn.example"}


def test_a_public_bucket_needs_no_read_key() -> None:
    values = {name: value for name, value in (COMPLETE | PUBLIC).items() if name not in READ_KEY}
    bucket = load("murmur-miner", "a summary", (), values).bucket
    assert (bucket.public_url, bucket.read_access_key, bucket.read_secret_key) == ("https://cdn.example", None, None)


@pytest.mark.parametrize(
    ("environment", "without"), [(PUBLIC, ()), (PUBLIC, READ_KEY[1:]), ({}, READ_KEY), ({}, READ_KEY[:1])]
)
def test_it_is_a_whole_read_key_or_a_public_bucket(environment: dict[str, str], without: tuple[str, ...]) -> None:
    told = refused(without=without, **environment)
    assert all(name in told for name in (*READ_KEY, *PUBLIC))
    assert "hush" not in told


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"MURMUR_BUCKET__READ_ACCESS_KEY": "writer"}, ("MURMUR_BUCKET__ACCESS_KEY", "MURMUR_BUCKET__READ_ACCESS_KEY")),
        (
            {"MURMUR_BUCKET__READ_SECRET_KEY": "hush-writer"},
            ("MURMUR_BUCKET__SECRET_KEY", "MURMUR_BUCKET__READ_SECRET_KEY"),
        ),
    ],
)
def test_a_published_key_that_equals_our_own_is_refused_with_both_names_and_no_secret(
    environment: dict[str, str], names: tuple[str, str]
) -> None:
    told = refused(**environment)
    assert all(name in told for name in names)
    assert "hush" not in told


# --- murmur config show ------------------------------------------------------------------------------------------


def test_every_setting_is_shown_with_its_origin_and_no_secret(file: Path) -> None:
    file.write_text(TOML + 'secret_kye = "hush-misspelt"\n')
    environment = {**COMPLETE, "BT_WALLET_HOTKEY": "btcli"}
    rows = settings({"config": str(file)}, environment)
    found = {name: (value, origin) for name, value, origin in rows}
    assert found["netuid"] == ("7", "MURMUR_NETUID")
    assert found["network"] == ("test", str(file))
    assert found["wallet.hotkey"] == ("btcli", "BT_WALLET_HOTKEY")
    assert found["device"] == ("auto", "default")
    assert found["spec"] == ("-", "default")
    assert found["bucket.secret_key"] == ("********", "MURMUR_BUCKET__SECRET_KEY")
    assert found["bucket.secret_kye"] == ("********", f"{file}: no such setting")
    assert "hush" not in repr(rows)
    loaded = config("--config", str(file_without_the_mistake(file)), BT_WALLET_HOTKEY="btcli")
    for name, (value, _) in found.items():
        if name == "bucket.secret_kye" or value == "********" or value == "-":
            continue
        used = loaded
        for part in name.split("."):
            used = getattr(used, part)
        assert str(used) == value, name


def file_without_the_mistake(file: Path) -> Path:
    file.write_text(TOML)
    return file


def test_config_show_prints_all_of_it_and_then_what_is_missing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in COMPLETE.items():
        monkeypatch.setenv(variable, value)
    assert main(["config", "show", "--config", str(file)]) == 0
    printed = capsys.readouterr()
    assert "hush" not in printed.out
    assert re.search(r"^netuid +7 +MURMUR_NETUID$", printed.out, re.MULTILINE)
    monkeypatch.delenv("MURMUR_BUCKET__SECRET_KEY")
    assert main(["config", "show", "--config", str(file)]) == 2
    printed = capsys.readouterr()
    assert re.search(r"^bucket.secret_key +- +default$", printed.out, re.MULTILINE)
    assert "bucket.secret_key" in printed.err


def test_a_flag_may_be_written_with_dashes() -> None:
    assert config("--metrics-port", "9100").metrics_port == config("--metrics_port", "9100").metrics_port == 9100


def test_a_member_passes_over_what_the_owner_of_its_run_has_in_the_environment(tmp_path: Path) -> None:
    words = ["--token-file", str(tmp_path / "token"), "--name", "lab-a"]
    found = load_cluster("", "", words, {"MURMUR_BUCKET__SECRET_KEY": "secret", "MURMUR_DEVICE": "cpu"})
    assert (found.name, found.device) == ("lab-a", "cpu")
    with pytest.raises(ConfigError, match="which is not a setting"):
        load_cluster("", "", words, {"MURMUR_DEVIZE": "cpu"})
