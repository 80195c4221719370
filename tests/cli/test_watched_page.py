"""The page while the network, or what is typed for one, does not answer; and in a browser."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from murmur.cli import dashboard as dashboard
from murmur.cli.main import main
from murmur.node.config.settings import NetworkConfig
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.observe.reader import AsOf, open_run
from murmur.page.live import follower
from murmur.page.live import network as watcher
from murmur.page.live.network import Network
from murmur.page.server import Page, Watched
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, ConfigError, StorageError
from murmur.protocol.run import Run
from murmur.protocol.types import Header, hotkey
from tests.cli.played_network import SECONDS, opened, outside
from tests.fakes.bucket import _Object
from tests.network import FakeNetwork
from tests.page.browser import CHROMIUM, browser
from tests.small_run import OWNER

ROUNDS = (0, 1, 2)


@pytest.fixture
def watched(played: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(follower, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(watcher, "SHORTEST_LOOK_SECONDS", 0.05)
    found = Watched(Network("ws://here", lambda: opened(played)).follow())
    yield found
    found.close()


def until(watched: Watched, happened: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        watched.read()
        told: dict[str, Any] = json.loads(watched.answer(0))
        if happened(told):
            return told
        time.sleep(0.02)
    raise AssertionError(told)


def test_a_chain_that_does_not_answer_is_said_on_the_page_until_it_does(played: FakeNetwork, watched: Watched) -> None:
    until(watched, lambda told: [one["round"] for one in told["rounds"]] == list(ROUNDS))
    played.world.down = True
    try:
        told = until(watched, lambda told: told["state"] == "wrong" and "The page shows older data" in told["sentence"])
        assert [one["round"] for one in told["rounds"]] == list(ROUNDS)
        assert told["run"] == "small"
    finally:
        played.world.down = False
    until(watched, lambda told: "The page shows older data" not in told["sentence"])


def test_a_chain_that_is_dead_from_the_start_is_waited_for(
    played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "RETRY_SECONDS", 0.05)
    dead = [True]

    def find() -> OpenedNetwork:
        if dead[0]:
            raise ChainError("the connection to the chain at ws://here failed")
        return opened(played)

    watched = Watched(Network("ws://here", find).follow())
    try:
        assert "the chain at ws://here failed" in until(watched, lambda told: told["state"] == "wrong")["sentence"]
        dead[0] = False
        assert until(watched, lambda told: len(told["rounds"]) == 3)["run"] == "small"
    finally:
        watched.close()


def test_before_the_first_round_it_says_when_that_begins(played: FakeNetwork) -> None:
    class Early(AsOf):
        def finalized(self) -> Header:
            return Header(played.clock.start_block - 5, played.world.final and super().finalized().hash, 0.0)

    ports = replace(outside(played), chain=Early(outside(played).chain, played.clock.start_block - 5))
    source = Network("here", lambda: opened(played, ports))
    source._look()
    assert (source.stage().waits_for or "").startswith(
        f"The run begins in block {played.clock.start_block}, in 5 blocks"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "murmur dashboard is not configured yet. Missing"),
        (["finney", "--netuid", "3", "--owner", "x", "--network", "test"], "named twice"),
        (["{}", "--netuid", "3"], "leave out the other flags"),
        (["{}/nothing"], "is not the run folder"),
        (["ws://127.0.0.1:9", "--netuid", "x", "--owner", "5"], "netuid"),
        (["--token-file", "{}/none"], "cannot read the token file"),
        (["--token-file", "{}/token"], "murmur cluster invite"),
        (["{}", "--token-file", "{}/token"], "leave out RUN and the other flags"),
        (["--netuid", "3", "--token-file", "{}/token"], "leave out RUN and the other flags"),
        (["{}/token"], "goes behind --token-file"),
    ],
)
def test_what_is_meant_is_a_folder_or_a_network(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "token").write_text("murmur1.half")
    assert main(["dashboard", *(word.format(tmp_path) for word in words), "--port", "0"]) == 2
    assert told in capsys.readouterr().err


def test_a_network_may_be_the_word_or_stand_in_a_nodes_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NetworkConfig] = []

    def open_run(config: NetworkConfig, home: Path) -> Any:
        seen.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr("murmur.node.observe.reader.open_run", open_run)
    monkeypatch.setattr("murmur.node.program.process.log_to_stderr", lambda level: None)
    monkeypatch.setattr(dashboard, "DEFAULT_PORT", 0)
    file = tmp_path / "node.toml"
    file.write_text('network = "ws://127.0.0.1:9"\nnetuid = 4\nowner = "somebody"\n')
    home = ["--home", str(tmp_path / "home")]
    assert main(["dashboard", "ws://127.0.0.1:8", "--netuid", "3", "--owner", "x", *home]) == 2
    assert main(["dashboard", "--config", str(file), *home]) == 2
    assert [(one.network, one.netuid) for one in seen] == [("ws://127.0.0.1:8", 3), ("ws://127.0.0.1:9", 4)]


def test_a_chain_is_let_go_of_when_the_run_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page tries again for days."""
    closed: list[bool] = []

    def missing(*_: Any) -> Run:
        raise StorageError("the owner's bucket does not answer")

    chain = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr("murmur.node.config.adapters.open_chain", lambda *words, **options: chain)
    monkeypatch.setattr("murmur.node.sync.run_discovery.find_run", missing)
    with pytest.raises(StorageError):
        open_run(NetworkConfig(netuid=1, owner=hotkey(OWNER.peer)), tmp_path)
    assert closed == [True]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: the page was not looked at")
@pytest.mark.parametrize("width", [400, 1400])
def test_in_a_browser_it_is_the_same_page(width: int, played: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    lie = _Object(b"<script>alert(1)</script>", 0.0)
    monkeypatch.setitem(played.store.buckets["two"], keys.report(played.run.id, 2), lie)
    page = Page(Network("here", lambda: opened(played)).follow()).begin()
    text = "document.getElementById('{}').textContent"
    try:
        with browser() as tab:
            tab.open(page.url, width)
            tab.until(f"{text.format('n-round')} === '2' && document.querySelectorAll('.plot canvas').length === 6")
            tab.until(
                f"{text.format('n-loss-note')}.includes('not published; in training')"
            )  # miners are read one by one
            assert "no node has said" in tab.until(text.format("phases-note"))
            cells = "[...document.querySelectorAll('#validators tbody tr')].map((row) => row.cells[1].textContent)"
            assert tab.value(cells) == ["75.0 %", "25.0 %"]
            assert tab.value(text.format("key-bytes")).startswith("submissions, by commitments")
            tab.value("document.getElementById('matrix').focus()")
            for key in ("End", "Enter"):
                tab.press(key)
            tab.until(f"{text.format('why-body')}.includes('MALFORMED: what it has published')")
            assert not tab.value("document.documentElement.scrollWidth > innerWidth")
            tab.open("about:blank")
            assert tab.complaints == []
    finally:
        page.close()
