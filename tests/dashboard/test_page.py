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
