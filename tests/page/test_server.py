"""The page over HTTP: its JSON, its headers, and that it gives away nothing but the run."""

import csv
import io
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from murmur.cli.main import main
from murmur.page.folder import Folder
from murmur.page.server import STATIC, Page
from murmur.protocol.errors import ConfigError
from tests.page import synthetic
from tests.page.synthetic import key

Serve = Callable[[Path], Page]
SECONDS = 30.0


def get(page: Page, path: str, host: str | None = None, method: str = "GET") -> tuple[int, Any, bytes]:
    request = urllib.request.Request(page.url + path, method=method, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as fault:
        return fault.code, fault.headers, fault.read()


def test_the_rounds_are_told_as_json_and_then_only_what_is_new(tmp_path: Path, serve: Serve) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.round(1)
    page = serve(tmp_path)
    status, headers, data = get(page, "api/rounds")
    body = json.loads(data)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert [one["round"] for one in body["rounds"]] == [0, 1]
    assert (body["state"], body["ended"], body["more"]) == ("good", False, False)
    assert body["names"][key("garbage-1")] == "garbage-1"
    assert json.loads(get(page, f"api/rounds?since={body['version']}")[2])["rounds"] == []
    written.round(2)
    until = time.monotonic() + SECONDS
    news: dict[str, Any] = {}
    while time.monotonic() < until:  # the reader's next look
        news = json.loads(get(page, f"api/rounds?since={body['version']}")[2])
        if news["rounds"] and news["rounds"][-1]["loss"] is not None and news["rounds"][-1]["pay"]:
            break
        time.sleep(0.05)
    assert [one["round"] for one in news["rounds"]] == [2]


def test_the_pages_own_form_is_short_and_tells_new_peers_only(tmp_path: Path, serve: Serve) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(50):
        written.round(number)
    page = serve(tmp_path)
    full, short = (get(page, path)[2] for path in ("api/rounds", "api/page"))
    assert len(short) < 0.7 * len(full)  # of 4 peers; of 256 a seventh
    body = json.loads(short)
    assert set(body["peers"]) == {key(name) for name in ("miner-1", "miner-2", "garbage-1")}
    assert body["peers"][body["rounds"][0]["contributing"][0]] == key("miner-1")
    again = json.loads(get(page, f"api/page?since={body['version']}&peers=2")[2])
    assert (again["rounds"], again["peers"]) == ([], body["peers"][2:])
    assert get(page, "api/page?peers=-1")[0] == 400


EARLY = """
import sys, threading, urllib.request
from pathlib import Path
from murmur.page.folder import Folder
from murmur.page.server import Page
page = Page(Folder(Path(sys.argv[1])), 0, "127.0.0.1")
assert threading.active_count() == 1
threading.Timer(0.2, page.begin).start()
assert urllib.request.urlopen(page.url).status == 200
assert "websockets" not in sys.modules
"""


def test_who_comes_before_it_begins_waits_and_none_of_its_threads_imports_beside_who_made_it(tmp_path: Path) -> None:
    """`murmur localnet` shows the address at once and imports for seconds then: two threads inside one circle of
    imports lock each other out, and with uvicorn's websockets they did."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", EARLY, str(tmp_path)], cwd=root, check=True, timeout=SECONDS)


def test_one_peers_rounds_and_all_rounds_as_a_table(tmp_path: Path, serve: Serve) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(3):
        written.round(number, loss=4.5)
    page = serve(tmp_path)
    for asked in ("miner-1", key("miner-1")):
        status, _, data = get(page, f"api/peers/{asked}")
        body = json.loads(data)
        assert (status, body["hotkey"], body["name"]) == (200, key("miner-1"), "miner-1")
        assert [(row["round"], row["outcome"], row["pay"]) for row in body["rounds"]] == [
            (number, "contributing", 0.5) for number in range(3)
        ]
    assert {row["outcome"] for row in json.loads(get(page, "api/peers/garbage-1")[2])["rounds"]} == {"MALFORMED"}
    assert get(page, "api/peers/nobody")[0] == 404
    status, headers, data = get(page, "api/rounds.csv")
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert (status, headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert headers["Content-Disposition"] == 'attachment; filename="rounds.csv"'
    assert [(row["round"], row["loss"], row["contributing"], row["rejected"]) for row in rows] == [
        (str(number), "4.5", "2", "1") for number in range(3)
    ]


def test_when_a_round_was_decided_is_told_beside_its_deadline(tmp_path: Path, serve: Serve) -> None:
    written = synthetic.Folder(tmp_path)
    for number in (0, 7):
        written.round(number)
    written.write("validator-1", "applied", 8, void=True, contributing=[], theta="00", seconds={})
    unknown = json.loads(get(serve(tmp_path), "api/rounds")[2])
    assert (unknown["first_deadline"], unknown["round_blocks"]) == (None, None)
    written.spec()
    body = json.loads(get(serve(tmp_path), "api/rounds")[2])
    first, every = body["first_deadline"], body["round_blocks"]
    assert [one["decided"] and one["decided"] - first - every * one["round"] for one in body["rounds"]] == [3, 3, None]


def test_a_round_in_full_says_why_and_when(tmp_path: Path, serve: Serve) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0, detail="one <b>reason</b>")
    page = serve(tmp_path)
    body = json.loads(get(page, "api/rounds/0")[2])
    assert body["peers"][key("garbage-1")]["validator-1"]["detail"] == "one <b>reason</b>"
    assert body["phases"]["miner-1"][1] == {"phase": "apply", "began": 1.5, "seconds": 0.5}
    assert body["deadline"] is None
    assert get(page, "api/rounds/9")[0] == 404


def test_a_number_beyond_all_measure_spoils_its_own_line_only(tmp_path: Path, serve: Serve) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.write("miner-2", "phases", 0, phases=[{"phase": "apply", "began": 10**400, "seconds": 0.5}])
    body = json.loads(get(serve(tmp_path), "api/rounds/0")[2])
    assert set(body["phases"]) == {"miner-1", "miner-2", "validator-1"}
    assert "apply" not in {phase["phase"] for phase in body["phases"]["miner-2"] if phase["began"] > 1e9}


def test_every_answer_allows_nothing_but_our_own_files(tmp_path: Path, serve: Serve) -> None:
    page = serve(synthetic.Folder(tmp_path).path)
    for path in ("", "page.js", "api/rounds", "api/rounds/5", "nothing"):
        policy = get(page, path)[1]["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
    markup = (STATIC / "index.html").read_text()
    assert "style=" not in markup
    assert "<style" not in markup
    assert "onclick" not in markup
    assert "//" not in markup  # no other host


def test_no_script_of_ours_makes_markup_of_text() -> None:
    for path in STATIC.glob("[!u]*.js"):
        text = path.read_text()
        assert not [
            word for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(") if word in text
        ]


@pytest.mark.parametrize("path", ["../server.py", "%2e%2e/server.py", "static/page.js", "api/rounds/../../etc/passwd"])
def test_only_the_pages_own_files_are_served(path: str, tmp_path: Path, serve: Serve) -> None:
    assert get(serve(synthetic.Folder(tmp_path).path), path)[0] == 404


@pytest.mark.parametrize("since", ["-1", "x", "1e3", "9" * 40, "²"])
def test_a_version_that_is_none_is_refused(since: str, tmp_path: Path, serve: Serve) -> None:
    page = serve(synthetic.Folder(tmp_path).path)
    assert get(page, f"api/rounds?since={urllib.request.quote(since)}")[0] == 400


def test_it_only_reads_and_answers_to_its_own_name(tmp_path: Path, serve: Serve) -> None:
    page = serve(synthetic.Folder(tmp_path).path)
    assert get(page, "api/rounds", method="POST")[0] == 405
    assert get(page, "api/rounds", host="attacker.example")[0] == 400


def ask(address: str, port: int, host: str) -> int:
    """The status of the page's JSON at an address, asked for under a name."""
    request = urllib.request.Request(f"http://{address}:{port}/api/rounds", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as fault:
        return fault.code


@pytest.mark.parametrize("host", ["127.0.0.2", "0.0.0.0"])
def test_told_so_it_listens_elsewhere_and_still_answers_to_no_strangers_name(host: str, tmp_path: Path) -> None:
    """127.0.0.2 is this machine's too, and another address than 127.0.0.1."""
    page = Page(Folder(synthetic.Folder(tmp_path).path), 0, host).begin()
    try:
        port = urlsplit(page.url).port
        assert port is not None
        assert ask("127.0.0.2", port, host) == 200
        assert ask("127.0.0.2", port, f"localhost:{port}") == 200  # a container's port, seen from its host
        assert ask("127.0.0.2", port, "attacker.example") == 400
        assert urllib.request.urlopen(page.url, timeout=SECONDS).status == 200
    finally:
        page.close()


def test_nobody_else_is_told_anything_unless_asked_for(tmp_path: Path, serve: Serve) -> None:
    port = urlsplit(serve(synthetic.Folder(tmp_path).path).url).port
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=SECONDS)


def test_an_address_of_another_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(synthetic.Folder(tmp_path).path), "--port", "0", "--host", "192.0.2.1"]) == 2
    assert "--host 192.0.2.1" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("::", "127.0.0.1"), ("localhost", "localhost")])
def test_the_page_is_where_it_says_at_any_form_of_an_address(host: str, shown: str, tmp_path: Path) -> None:
    page = Page(Folder(synthetic.Folder(tmp_path).path), 0, host).begin()
    try:
        assert page.url.startswith(f"http://{shown}:")
        assert get(page, "api/rounds")[0] == 200
        if host == "::":
            assert ask("[::1]", int(page.url.split(":")[2].strip("/")), "[::1]") == 200
    finally:
        page.close()


@pytest.mark.parametrize("host", ["nowhere.invalid", "[::1]", "300.1.1.1"])
def test_a_host_that_is_none_is_told(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Page(Folder(synthetic.Folder(tmp_path).path), 0, host)


def test_a_taken_port_and_a_folder_that_is_none_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path)]) == 2
    assert "not the run folder" in capsys.readouterr().err
    folder = synthetic.Folder(tmp_path).path
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}"):
            Page(Folder(folder), port)
    assert main(["dashboard", str(folder), "--port", "70000"]) == 2


def test_without_its_packages_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "murmur.page.server", raising=False)
    assert main(["dashboard", str(synthetic.Folder(tmp_path).path)]) == 2
    assert "pip install -c constraints.txt -e '.[dashboard]'" in capsys.readouterr().err
