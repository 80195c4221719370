"""The page in a real browser: live and replayed, hostile names, dark, narrow, by keyboard, and a silent console."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from murmur.page.evaluations import in_folder
from murmur.page.folder import Folder
from murmur.page.server import Page
from tests.page import synthetic
from tests.page.browser import CHROMIUM, Tab, browser

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
    written = synthetic.Folder(tmp_path, ("miner-1", "miner-2", "garbage-1", "validator-1", "validator-2"))
    for number in range(3):
        written.round(number, detail="the records end early")
    tab.open(serve(tmp_path).url)
    tab.until(DRAWN)
    box = tab.value("(({x, y}) => [x, y])(document.getElementById('matrix').getBoundingClientRect())")
    gutter = tab.until("Math.min(150, Math.round(document.getElementById('matrix').clientWidth * 0.14))")
    tab.click(box[0] + gutter + 5, box[1] + 25)
    tab.until(f"{TEXT.format('why-body')}.includes('the records end early')")
    # What another validator says of the shown round comes later.
    row = {"uid": 3, "weight": 0.0, "rejected": "MISSING", "detail": "it left nothing"}
    written.write("validator-2", "reported", 0, peers={synthetic.key("garbage-1"): row})
    tab.until(f"{TEXT.format('why-body')}.includes('it left nothing')")
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


def test_a_loss_is_shown_smoothed_and_on_a_logarithmic_scale(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(101):
        written.round(number, loss=5.0 - number % 2 if number > 40 else 9.0)
    press = "[...document.querySelectorAll('.views button')].find((one) => one.textContent === '{}').click()"
    page = serve(tmp_path)
    tab.open(page.url)
    tab.until(f"{DRAWN} && {TEXT.format('n-round')} === '100'")
    tab.value(press.format("smooth"))
    tab.value(HOVER % "0.5")
    tab.until(f"{TEXT.format('key-loss')}.includes('held out, after the round4.600')")  # 5, 4, 5, 4, 5
    tab.value(press.format("log"))
    tab.until("location.hash === '#loss=smooth%2Clog'")
    tab.value("document.querySelector('#plot-loss + details').open = true")
    tab.until("document.querySelector('#plot-loss + details td + td')?.textContent === '5'")  # what was measured
    tab.open("about:blank")
    tab.open(f"{page.url}#loss=smooth,log")
    tab.until("document.querySelectorAll('.views [aria-pressed=true]').length === 2")
    tab.until("document.querySelector('#plot-loss canvas') !== null")
    tab.value(press.format("log"))
    tab.value(press.format("smooth"))
    tab.until("location.hash === ''")
    assert not tab.complaints


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


def crowd(folder: Path, peers: int, rounds: int) -> synthetic.Folder:
    """`miner-1` is paid the least, the last one the most; `miner-2` sends garbage."""
    names = [f"miner-{n}" for n in range(1, peers + 1)]
    written = synthetic.Folder(folder, ("validator-1",))
    for name in names:
        written.member(name)
    keys = [synthetic.key(name) for name in names]
    good = [peer for peer in keys if peer != keys[1]]
    for number in range(rounds):
        bad = {keys[1]: "MALFORMED"}
        written.write("validator-1", "checked", number, active=peers, passed=good, rejected=bad, seconds={})
        rows: dict[str, dict[str, object]] = {
            peer: {"weight": (at + 1) / 1000, "contributing": True, "evaluations": 20} for at, peer in enumerate(keys)
        }
        rows[keys[1]] = {"weight": 0.0, "rejected": "MALFORMED", "detail": "torn"}
        written.write("validator-1", "applied", number, void=False, contributing=good, theta="00", seconds={})
        written.write("validator-1", "reported", number, peers=rows)
    return written


NAMES = "[...document.querySelectorAll('#peers tbody th')].map((cell) => cell.textContent)"
TYPE = "(() => { const f = document.getElementById('filter'); f.value = '%s'; f.dispatchEvent(new Event('input')); })()"


def test_many_peers_are_filtered_by_text_and_sorted_by_a_heading_in_table_and_matrix(
    tmp_path: Path, serve: Serve, tab: Tab
) -> None:
    crowd(tmp_path, 64, 2)
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('filtered')} === '64 peers'")
    assert tab.value(NAMES)[:3] == ["miner-1", "miner-2", "miner-3"]
    heading = "[...document.querySelectorAll('#peers thead button')].find((one) => one.textContent === '{}')"
    tab.value(f"{heading.format('Pay in all')}.focus()")
    tab.press("Enter")
    assert tab.value(NAMES)[0] == "miner-64"
    assert tab.value(f"{heading.format('Pay in all')}.parentNode.ariaSort") == "descending"
    assert tab.value("document.querySelector('#peers tbody td:nth-child(5)').textContent") == "0.13"
    tab.press("Enter")
    assert tab.value(NAMES)[:2] == ["miner-2", "miner-1"]  # what sends garbage is paid nothing
    tab.value(TYPE % "malformed")
    assert tab.value(NAMES) == ["miner-2"]
    tab.value(TYPE % "miner-6")
    assert tab.value(TEXT.format("filtered")) == "6 of 64 peers"
    assert tab.value(NAMES) == ["miner-6", "miner-60", "miner-61", "miner-62", "miner-63", "miner-64"]
    tab.value("document.getElementById('matrix').focus()")  # its first row is the table's
    tab.until(f"{TEXT.format('cell')}.startsWith('miner-6, round 1')")
    tab.value(TYPE % "nobody")
    assert (tab.value(NAMES), tab.value(TEXT.format("filtered"))) == ([], "none of 64 peers")


def test_one_tab_comes_to_the_peers_and_the_arrows_move_among_them(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    crowd(tmp_path, 64, 2)
    tab.open(serve(tmp_path).url)
    tab.until(f"{TEXT.format('filtered')} === '64 peers'")
    links = "document.querySelectorAll('#peers tbody a[tabindex=\"0\"]')"
    assert tab.value(f"{links}.length") == 1
    tab.value(f"{links}[0].focus()")
    for key, name in (("ArrowDown", "miner-2"), ("End", "miner-64"), ("Home", "miner-1"), ("ArrowDown", "miner-2")):
        tab.press(key)
        assert tab.value("document.activeElement.textContent") == name
    assert tab.value(f"{links}.length") == 1
    tab.value("document.activeElement.click()")
    tab.until(f"{TEXT.format('h-peer')} === 'miner-2: 2 rounds'")


def test_why_a_round_was_void_is_said_wherever_the_round_is_shown(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    passed = [synthetic.key("miner-1")]
    written.write("validator-1", "checked", 1, active=1, passed=passed, rejected={}, seconds={})
    written.write("validator-1", "word_posted", 1, block=80, named=0, abstains=True)
    written.write("validator-1", "applied", 1, void=True, contributing=[], theta="00", seconds={})
    tab.open(f"{serve(tmp_path).url}#peer=miner-1")
    tab.until(f"{TEXT.format('n-contributing')} === 'void'")
    why = "Every validator that voted abstained, since none holds the run's model."
    assert tab.value(TEXT.format("n-contributing-note")) == why
    assert why in tab.value(TEXT.format("sentence"))
    tab.until(f"{TEXT.format('round-void')} !== ''")
    assert tab.value(TEXT.format("round-void")) == f"Round 1 is void. {why}"
    tab.until(f"{TEXT.format('peer-body')}.includes('void: Every validator')")
    tab.value("document.getElementById('matrix').focus()")
    for key in ("Home", "End", "Enter"):
        tab.press(key)
    assert tab.value(TEXT.format("cell")).endswith(f"Round 1 is void. {why}")
    tab.until(f"{TEXT.format('why-void')} !== ''")


def test_the_validators_of_a_round_stand_side_by_side(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path, ("miner-1", "miner-2", "garbage-1", "validator-1", "validator-2"))
    for number in range(2):
        written.round(number)
        written.write("validator-1", "word_posted", number, block=70 + number, named=2, abstains=False)
    written.write("validator-1", "weights", 1, block=99, weights={})
    written.write("validator-2", "word_posted", 1, block=75, named=0, abstains=True)
    written.write("validator-1", "ranked", 0, contributing=[synthetic.key("miner-1")], standing={})
    written.write("validator-1", "word_posted", 0, block=70, named=1, abstains=False)
    written.write("validator-2", "ranked", 0, contributing=[synthetic.key("miner-2")], standing={})
    written.write("validator-2", "word_posted", 0, block=70, named=1, abstains=False)
    tab.open(serve(tmp_path).url)
    cells = (
        "[...document.querySelectorAll('#validators tbody tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    rows = tab.until(f"(() => {{ const found = {cells}; return found.length === 2 && found }})()")
    theta = tab.until(
        "(async () => window.held = (await (await fetch('api/rounds/1')).json()).validators[0].theta)() && held"
    )
    assert rows == [
        [
            "validator-1",
            "–",
            "in block 71",
            theta[:8],
            "2: miner-1, miner-2",
            "published",
            "set in block 99",
            "round 1",
        ],
        ["validator-2", "–", "abstains", "–", "–", "–", "–", "round 1"],
    ]
    tab.value(
        "(() => { const f = document.getElementById('phases-round'); f.value = 0;"
        " f.dispatchEvent(new Event('change')); })()"
    )
    tab.until("document.querySelectorAll('#validators tbody td')[1].textContent === 'in block 70'")
    assert [row[4] for row in tab.value(cells)] == ["1: miner-1; not miner-2", "1: miner-2; not miner-1"]


def test_the_bytes_of_all_submissions_are_drawn_and_summed(tmp_path: Path, serve: Serve, tab: Tab) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(11):
        written.round(number)
    tab.open(serve(tmp_path).url)
    tab.until("document.querySelectorAll('#plot-bytes canvas').length === 1")
    assert tab.value(TEXT.format("bytes-note")) == "56.3 kB in all"
    tab.value(HOVER % "0.5")
    tab.until(f"{TEXT.format('key-bytes')} === 'submissions5.12 kBround 5'")


def test_a_server_that_was_started_again_numbers_peers_anew_and_the_page_begins_anew(tmp_path: Path, tab: Tab) -> None:
    first = Page(Folder(synthetic.Folder(tmp_path / "one").path)).begin()
    try:
        tab.open(first.url)
        tab.until(f"{TEXT.format('sentence')}.startsWith('Rehearsing') && (window.old = true)")
    finally:
        first.close()
    written = synthetic.Folder(tmp_path / "two")
    for number in range(3):
        written.round(number)
    port = urlsplit(first.url).port
    assert port is not None
    second = Page(Folder(written.path), port).begin()
    try:
        tab.until("window.old === undefined && document.querySelectorAll('#peers tbody tr').length === 3")
        tab.open("about:blank")
        tab.complaints.clear()  # the browser's own, while there was no server
    finally:
        second.close()
