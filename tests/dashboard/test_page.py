"""The page in a real browser: live and replayed, hostile names, dark, narrow, by keyboard, and a silent console."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboard.evaluations import in_folder
from dashboard.server import Page
from tests.dashboard import synthetic
from tests.dashboard.browser import CHROMIUM, Tab, browser

Serve = Callable[[Path], Page]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: the page was not looked at")

HOSTILE = "<img src=x onerror=document.title='owned'>"
TEXT = "document.getElementById('{}').textContent"
OVERFLOWS = "document.documentElement.scrollWidth > innerWidth"
DRAWN = "document.querySelectorAll('.plot canvas').length >= 4"


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


def test_a_round_that_ends_while_one_looks_appears(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('sentence')}.startsWith('Rehearsing')")
    written.round(0, loss=5.0)
    tab.until(f"{TEXT.format('n-round')} === '0' && {TEXT.format('n-loss')} === '5.000'")
    written.round(1, loss=4.5)
    tab.until(f"{TEXT.format('n-round')} === '1' && {TEXT.format('n-loss')} === '4.500'")
    assert tab.value(TEXT.format("n-contributing")) == "2 of 3"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_sticks_out_and_hostile_text_stays_text(
    width: int, dark: bool, tmp_path: Path, serve: Serve, tab: Tab
) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(30):
        written.round(number, detail=HOSTILE)
    hostile = written.path / "wallets" / HOSTILE.replace("/", "")
    (written.path / "wallets" / "garbage-1").rename(hostile)
    written.end()
    tab.open(serve(tmp_path).url, width, dark=dark)
    tab.until(f"{DRAWN} && {TEXT.format('live')}.includes('ended')")
    assert HOSTILE in tab.value(TEXT.format("sentence"))
    assert not tab.value(OVERFLOWS)
    background = tab.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 26)" if dark else "rgb(247, 247, 244)")
    tab.value("document.getElementById('matrix').focus()")
    for key in ("Home", "End", "Enter"):  # the first row is the hostile one
        tab.press(key)
    tab.until(f"{TEXT.format('why-body')}.includes('rejected, MALFORMED')")
    assert HOSTILE in tab.value(TEXT.format("why-body"))
    assert HOSTILE in tab.value(TEXT.format("h-why"))
    assert tab.value("document.querySelectorAll('img').length") == 0
    assert not tab.value(OVERFLOWS)
    tab.press("Escape")
    assert tab.value("document.getElementById('why').hidden && document.activeElement.id") == "matrix"


def test_a_click_in_the_matrix_shows_why(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(3):
        written.round(number, detail="the records end early")
    tab.open(serve(tmp_path).url)
    tab.until(DRAWN)
    box = tab.value("(({x, y}) => [x, y])(document.getElementById('matrix').getBoundingClientRect())")
    gutter = tab.until("Math.min(150, Math.round(document.getElementById('matrix').clientWidth * 0.14))")
    tab.click(box[0] + gutter + 5, box[1] + 25)
    tab.until(f"{TEXT.format('why-body')}.includes('the records end early')")
    assert tab.value(TEXT.format("h-why")) == "garbage-1 in round 0: rejected"


def test_of_a_long_run_only_what_is_in_sight_is_drawn(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    """However many peers and rounds: the canvas is as large as what one sees of it."""
    written = synthetic.Folder(tmp_path)
    for number in range(600):
        written.round(number, evaluations=20)
    tab.open(serve(tmp_path).url, 800)
    tab.until(f"{TEXT.format('n-round')} === '599'")
    extent, seen = tab.value(
        "[document.getElementById('extent').offsetWidth, document.querySelector('#matrix canvas').width]"
    )
    assert extent > 5000
    assert seen <= 800


def test_the_learning_rate_is_drawn_with_the_place_where_the_run_stands(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(30):
        written.round(number)
    written.spec()
    tab.open(serve(tmp_path).url)
    tab.until("document.querySelectorAll('#plot-rate canvas').length === 1")
    assert "after 30 rounds" in tab.value(TEXT.format("key-rate"))
    assert "; decided 3 blocks after the deadline" in tab.value(TEXT.format("n-round-note"))


def test_evaluated_checkpoints_are_drawn_and_stand_for_a_loss_that_nobody_publishes(
    tmp_path: Path, serve: Serve, tab: Tab
) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(4):
        written.round(number)
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('n-round')} === '3'")
    assert tab.value("document.getElementById('tasks').hidden")
    rows = [
        {
            "round": number,
            "theta": "00",
            "loss": 4.0 - number,
            "tasks": {HOSTILE: {"acc,none": number / 8}},
            "time": 1e9,
        }
        for number in (2, 4)
    ]
    in_folder(tmp_path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    tab.until("!document.getElementById('tasks').hidden")
    assert tab.value(TEXT.format("key-tasks")) == f"{HOSTILE} acc 0.5000"
    assert "of checkpoints evaluated" in tab.value(TEXT.format("key-loss"))
    assert tab.value("document.querySelectorAll('#plot-tasks canvas').length") == 1


HOVER = """(() => {
  const over = document.querySelector('#plot-loss .u-over');
  const box = over.getBoundingClientRect();
  const at = { clientX: box.left + box.width * %s, clientY: box.top + 40, bubbles: true };
  for (const name of ['mouseenter', 'mousemove']) over.dispatchEvent(new MouseEvent(name, at));
})()"""


def test_the_values_under_the_pointer_stand_in_every_charts_key(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(11):
        written.round(number, loss=5.0 - number / 10)
    tab.open(serve(tmp_path).url)
    tab.until(f"{DRAWN} && {TEXT.format('n-round')} === '10'")
    tab.value(HOVER % "0.5")
    tab.until(f"{TEXT.format('key-loss')}.includes('round 5')")
    assert "held out, after the round4.500" in tab.value(TEXT.format("key-loss"))
    assert tab.value(TEXT.format("key-peers")) == "active3contributing2round 5"


def test_a_zoom_is_shared_lasts_and_stands_in_the_address(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(100):
        written.round(number, loss=5.0)
    page = serve(tmp_path)
    tab.open(f"{page.url}#rounds=20-40")
    tab.until(f"{DRAWN} && {TEXT.format('n-round')} === '99'")
    assert tab.value(TEXT.format("zoom-note")) == "rounds 20 to 40; a double click shows all"
    tab.value(HOVER % "0.5")
    tab.until(f"{TEXT.format('key-pay')}.includes('round 30')")
    written.round(100, loss=4.0)  # a new round leaves it
    tab.until(f"{TEXT.format('n-round')} === '100'")
    tab.value(HOVER % "0.5")
    tab.until(f"{TEXT.format('key-seconds')}.includes('round 30')")
    tab.value(
        "document.querySelector('#plot-loss .u-over').dispatchEvent(new MouseEvent('dblclick', { bubbles: true }))"
    )
    tab.until("location.hash === ''")
    tab.value(HOVER % "0.5")
    tab.until(f"{TEXT.format('key-loss')}.includes('round 50')")


def test_a_peer_has_an_address_of_its_own(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(3):
        written.round(number)
    page = serve(tmp_path)
    tab.open(f"{page.url}#peer=garbage-1")
    tab.until(f"{TEXT.format('h-peer')} === 'garbage-1: 3 rounds'")
    assert "MALFORMED" in tab.value(TEXT.format("peer-body"))
    tab.value("location.hash = '#peer=nobody'")
    tab.until(f"{TEXT.format('peer-body')}.includes('no round tells of this')")
    tab.complaints.clear()  # the browser's own, of the status 404
    tab.value("document.getElementById('close-peer').click()")
    tab.until("document.getElementById('peer').hidden")


def test_the_numbers_of_a_chart_are_a_table_too(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(3):
        written.round(number, loss=5.0 - number)
    tab.open(serve(tmp_path).url)
    tab.until(f"{DRAWN} && {TEXT.format('n-round')} === '2'")
    tab.value("document.querySelector('#plot-loss + details').open = true")
    tab.until("document.querySelectorAll('#plot-loss + details td').length > 0")
    cells = "[...document.querySelectorAll('#plot-loss + details tr')].map((row) => row.cells[1].textContent)"
    assert tab.value(cells) == ["held out, after the round", "3", "4", "5"]


def test_the_phases_of_a_round_have_each_a_colour_of_its_own(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    tab.open(serve(tmp_path).url)
    colours = "charts.PHASES.map(charts.colourOfPhase)"
    told = tab.until(f"import('./charts.js').then((charts) => {{ window.told = {colours} }}) && window.told")
    assert len(told) == len(set(told)) == 17
