"""The page of a cluster in a real browser: live, with 3 and 30 members, dark, narrow, hostile names, no complaint."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from murmur.page.server import Page
from tests.page.browser import CHROMIUM, Tab, browser
from tests.page.synthetic_cluster import SECONDS, ClusterFolder, member_id

Serve = Callable[[Path], Page]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: the page was not looked at")

HOSTILE = "<img src=x onerror=document.title='owned'>"
TEXT = "document.getElementById('{}').textContent"
OVERFLOWS = "document.documentElement.scrollWidth > innerWidth"
ROWS = "[...document.querySelectorAll('#{} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
SHOWN = "[...document.querySelectorAll('main h2')].filter((one) => one.offsetHeight).map((one) => one.innerText)"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as found:
        yield found


@pytest.fixture(autouse=True)
def silent(tab: Tab, serve: Serve) -> Iterator[None]:
    tab.complaints.clear()
    yield
    tab.open("about:blank")  # before its server is gone
    assert tab.complaints == []


def test_a_cluster_has_its_own_cards_and_none_of_a_networks(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = ClusterFolder(tmp_path, rounds=6)
    for number in range(6):
        written.round(number, late=["lab-c"] if number == 5 else (), loss=5.0 - number / 4)
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('n-round')} === '5'")
    heads = [head.split("\n")[0] for head in tab.value(SHOWN)]
    for name in ("Loss", "Claimed and contributing", "Members", "Who contributed", "One round", "Time spent training"):
        assert any(head.startswith(name) for head in heads), heads
    assert not [head for head in heads if head.startswith(("Pay", "Peers", "Active", "Tasks", "Amendments"))]
    assert not tab.value("document.getElementById('h-validators').offsetHeight")
    assert tab.value(TEXT.format("n-loss")) == "3.800"
    assert tab.value(TEXT.format("n-contributing")) == "2 of 3"
    assert tab.value(TEXT.format("n-contributing-note")) == "3 alive"
    assert tab.value(TEXT.format("n-tokens")) == "1.70 k"
    assert tab.value(TEXT.format("n-round-note")) == "40 s each; members trained 90 % of the time"
    rows = tab.until(f"(() => {{ const rows = {ROWS.format('peers')}; return rows.length === 3 && rows }})()")
    assert rows[0] == ["lab-a", "training", "6", "–", "6 of 6", "3.750", "4", "36 s", "90.0 %"]
    assert rows[2][4] == "5 of 6"
    work = tab.until(f"(() => {{ const rows = {ROWS.format('work')}; return rows.length === 3 && rows }})()")
    assert work[2] == ["lab-c", "too late for the record", "3.950", "4", "36 s", "0.50 s", "3.5 s"]
    note = tab.value(TEXT.format("work-note"))
    assert note.startswith("8 inner steps; 200 tokens; 40 s after the record before; 7.68 kB sent; closed by lab-a")
    assert "median of the members" in tab.value(TEXT.format("key-loss"))
    assert tab.value("document.querySelectorAll('#plot-busy canvas').length") == 1
    assert "too late for the record" in tab.value(TEXT.format("key-matrix"))


def test_a_member_has_an_address_and_a_line_of_its_own(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = ClusterFolder(tmp_path, rounds=3)
    for number in range(3):
        written.round(number)
    tab.open(f"{serve(tmp_path).url}#peer=lab-b")
    tab.until(f"{TEXT.format('h-peer')} === 'lab-b: 3 rounds'")
    tab.until(f"{TEXT.format('peer-body')}.includes('contributed to 3 rounds')")
    assert "4.100" in tab.value(TEXT.format("peer-body"))
    tab.until(f"{TEXT.format('key-loss')}.includes('lab-b')")
    tab.value("document.getElementById('close-peer').click()")
    tab.until(f"!{TEXT.format('key-loss')}.includes('lab-b')")


def test_a_cell_says_what_the_member_did(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = ClusterFolder(tmp_path, rounds=4)
    for number in range(4):
        written.round(number, away=["lab-c"] if number == 2 else ())
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('n-round')} === '3'")
    tab.value("document.getElementById('matrix').focus()")
    for key in ("End", "Enter"):
        tab.press(key)
    tab.until(f"{TEXT.format('why-body')}.includes('4.000')")
    assert tab.value(TEXT.format("h-why")) == "lab-a in round 3: in the record"
    tab.press("Escape")
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        tab.press(key)
    assert tab.value(TEXT.format("cell")).startswith("lab-c, round 2: not in the record")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("members", [3, 30])
def test_nothing_sticks_out_and_hostile_text_stays_text(
    members: int, width: int, dark: bool, tmp_path: Path, serve: Serve, tab: Tab
) -> None:
    names = [HOSTILE.replace("/", ""), *(f"lab-{number}" for number in range(1, members))]
    written = ClusterFolder(tmp_path, names, rounds=30)
    for number in range(30):
        written.round(number, away=[names[0]] if number == 29 else ())
    tab.open(serve(tmp_path).url, width, dark=dark)
    tab.until(f"{TEXT.format('n-round')} === '29'")
    tab.until(f"document.querySelectorAll('#work tbody tr').length === {members - 1}")
    assert tab.value(TEXT.format("filtered")) == f"{members} members"
    assert not tab.value(OVERFLOWS)
    tab.value(f"location.hash = '#peer={member_id(names[0])}'")
    tab.until(f"{TEXT.format('h-peer')}.includes('29 rounds')")
    assert HOSTILE in tab.value(TEXT.format("h-peer"))
    assert tab.value("document.querySelectorAll('img').length") == 0
    assert not tab.value(OVERFLOWS)


def test_a_round_that_ends_while_one_looks_appears(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = ClusterFolder(tmp_path, rounds=2)
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('sentence')} === 'Round 0 is being played.'")
    written.write("lab-a", "joined", 0)
    tab.until("document.querySelectorAll('#peers tbody tr').length === 1")
    written.round(0, loss=5.0)
    tab.until(f"{TEXT.format('n-round')} === '0' && {TEXT.format('n-loss')} === '5.100'")
    written.round(1, loss=4.5)
    tab.until(f"{TEXT.format('n-round')} === '1' && {TEXT.format('n-loss')} === '4.600'")
    assert SECONDS
