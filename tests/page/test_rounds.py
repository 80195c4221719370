"""Events become rounds: what is documented counts, each line is read once, and nothing hostile gets through."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from murmur.node.telemetry.event_tail import SILENT_ROUNDS
from murmur.node.telemetry.trouble import Trouble
from murmur.page import folder as folders
from murmur.page import rounds
from murmur.page import tail as tails
from murmur.page.encode import NOT_AGREED, encode
from murmur.page.evaluations import in_folder
from murmur.page.folder import Folder
from murmur.page.health import NODE_SILENT_ROUNDS, health, troubled
from murmur.page.rounds import Rounds
from murmur.page.tail import Tail
from tests.page import synthetic
from tests.page.synthetic import key

LARGE = 1 << 30


def told(folder: Folder, since: int = 0, max_bytes: int = LARGE) -> tuple[list[dict[str, Any]], int, bool]:
    found, version, more = folder.rounds.since(since, max_bytes)
    return [json.loads(one) for one in found], version, more


def test_a_round_has_what_its_nodes_said(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    folder = Folder(tmp_path)
    folder.read()
    [one], _, _ = told(folder)
    both = [key("miner-1"), key("miner-2")]
    assert (one["round"], one["loss"], one["train_loss"], one["active"]) == (0, 4.0, 3.0, 3)
    assert (one["contributing"], one["rejected"]) == (both, {key("garbage-1"): "MALFORMED"})
    assert (one["standing"], one["void"]) == ({}, False)
    assert one["pay"] == dict.fromkeys(sorted(both), 0.5)
    assert one["learning"] == {key("garbage-1"): 0} | dict.fromkeys(both, 3)
    assert one["seconds"] == {"compute": 2.0, "upload": 0.5, "download": 1.0, "apply": 0.125}
    assert one["decided"] == synthetic.DECIDED
    assert folder.names[both[0]] == "miner-1"


def test_who_passed_in_a_void_round_was_active_and_is_not_agreed_on(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.write("validator-1", "checked", 0, active=1, passed=[key("miner-1")], rejected={}, seconds={"check": 1.0})
    written.write("validator-1", "applied", 0, void=True, contributing=[], theta="00", seconds={})
    folder = Folder(tmp_path)
    folder.read()
    [one], _, _ = told(folder)
    assert (one["void"], one["contributing"], one["standing"]) == (True, [], {key("miner-1"): NOT_AGREED})


def test_every_line_is_parsed_once_and_every_round_told_once_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(40):
        written.round(number)
    parsed, told_of = [], []
    event, body = folders._event, encode
    monkeypatch.setattr(folders, "_event", lambda line: parsed.append(line) or event(line))
    monkeypatch.setattr(rounds, "encode", lambda one, peers: told_of.append(one.number) or body(one, peers))
    folder = Folder(tmp_path)
    for _ in range(3):
        folder.read()
        assert len(told(folder)[0]) == 40
    lines = sum(len(path.read_text().splitlines()) for path in tmp_path.glob("nodes/*/events.jsonl"))
    assert (len(parsed), sorted(told_of)) == (lines, list(range(40)))
    _, version, _ = told(folder)
    written.write("validator-1", "held_out", 7, val_loss=1.0)
    folder.read()
    [one], _, _ = told(folder, version)
    assert (one["round"], one["loss"]) == (7, 1.0)
    assert (len(parsed), len(told_of)) == (lines + 1, 41)


def test_small_answers_one_after_the_other_tell_the_same_as_one_large_one(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(9):
        written.round(number)
    folder = Folder(tmp_path)
    folder.read()
    whole, last, more = told(folder)
    assert not more
    parts, since, more = [], 0, True
    while more:
        part, since, more = told(folder, since, 1000)
        assert part
        parts += part
    assert since == last
    assert sorted(parts, key=lambda one: one["round"]) == whole


def test_a_torn_line_is_read_when_it_is_whole_and_a_replaced_file_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == [(0, b"one")]
    path.write_bytes(b"one\ntwo\n")
    assert list(tail.lines()) == [(4, b"two")]
    path.unlink()
    path.write_bytes(b"new\n")
    assert list(tail.lines()) == [(0, b"new")]


def test_a_long_run_is_read_in_portions_and_no_line_twice(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(20):
        written.round(number)
    portions, whole = Folder(tmp_path), Folder(tmp_path)
    whole.read()
    times = 1
    while portions.read(max_bytes=1000):
        times += 1
    assert times > 10
    assert portions.rounds.version == whole.rounds.version
    for one in (portions, whole):
        assert [body["loss"] for body in told(one)[0]] == [4.0] * 20


def test_a_line_without_an_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "READ_BYTES", 10)
    monkeypatch.setattr(tails, "MAX_LINE_BYTES", 100)
    path = tmp_path / "events.jsonl"
    path.write_bytes(bytes(1000))
    tail = Tail(path)
    assert list(tail.lines()) == []
    with path.open("ab") as file:
        file.write(b"\nnext\n")
    found = [line for _, line in tail.lines()]
    assert found[-1] == b"next"
    assert sum(map(len, found)) < 200


def test_guesses_are_counted_and_the_share_of_training_is_a_median(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(3)
    for name, guess, seconds in (("miner-1", "right", 6.0), ("miner-2", "wrong", 8.0)):
        applied = {"void": False, "contributing": [], "theta": "00", "guess": guess, "seconds": {}}
        written.write(name, "applied", 3, **applied)
        spent = [("compute", 0.0, seconds), ("wait", seconds, 10.0 - seconds)]
        phases = [{"phase": phase, "began": began, "seconds": lasted} for phase, began, lasted in spent]
        written.write(name, "phases", 3, phases=phases)
    folder = Folder(tmp_path)
    folder.read()
    found = next(one for one in told(folder)[0] if one["round"] == 3)
    assert (found["guesses"], found["computed"]) == ({"right": 1, "wrong": 1}, 0.7)


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "nonsense",
        '{"event": "held_out"}',
        '{"event": "held_out", "round": -1, "val_loss": 1.0, "time": 1.0}',
        '{"event": "held_out", "round": 1e3, "val_loss": 1.0, "time": 1.0}',
        '{"event": "held_out", "round": true, "val_loss": 1.0, "time": 1.0}',
        '{"event": "held_out", "round": 3, "val_loss": NaN, "time": 1.0}',
        '{"event": "held_out", "round": 3, "val_loss": "<b>", "time": 1.0}',
        '{"event": ["held_out"], "round": 3, "time": 1.0}',
        '{"event": "applied", "round": 3, "void": false, "contributing": 7, "theta": "", "time": 1.0}',
        '{"event": "applied", "round": 3, "void": false, "contributing": [], "theta": "", "decided": "x", "time": 1.0}',
        '{"event": "applied", "round": 3, "void": false, "contributing": [], "theta": "", "guess": 7, "time": 1.0}',
        '{"event": "phases", "round": 3, "phases": [{"phase": "compute"}], "time": 1.0}',
        '{"event": "checked", "round": 3, "active": 1, "passed": [], "rejected": {"x": {}}, "time": 1.0}',
        '{"event": "reported", "round": 3, "peers": {"x": {"weight": Infinity}}, "time": 1.0}',
        '{"event": "trained", "round": 3, "loss": 1.0, "seconds": {"compute": 1e999}, "time": 1.0}',
        '{"event": "held_out", "round": 3, "val_loss": ' + "9" * 400 + ', "time": 1.0}',
        '{"event": "held_out", "round": 3, "val_loss": 1.7e308, "time": 1.0}',
        '{"event": "held_out", "round": 3, "val_loss": 1.0, "time": ' + "9" * 400 + "}",
        "[" * 100_000,
    ],
)
def test_an_event_that_is_none_is_passed_over(line: str, tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(3)
    folder = Folder(tmp_path)
    folder.read()
    before = told(folder)
    written.line("validator-1", line)
    folder.read()
    assert told(folder) == before


def sentence(written: synthetic.Folder) -> tuple[str, str]:
    folder = Folder(written.path)
    folder.read()
    return health(folder)


def test_the_sentence_follows_a_run_from_its_start_to_its_end(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    assert sentence(written)[0] == "waiting"
    assert "0 of 4" in sentence(written)[1]
    written.round(0)
    state, said = sentence(written)
    assert (state, said) == ("good", "Healthy: 2 of 3 contributed in round 0, garbage-1 was rejected (MALFORMED).")
    written.end()
    assert sentence(written)[1].startswith("Ended after 1 round")


def test_the_sentence_says_what_is_wrong(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(12):
        written.round(number, loss=2.0 + 0.1 * number)
    assert "loss rises" in sentence(written)[1]
    written.write("validator-1", "applied", 12, void=True, contributing=[], theta="00", seconds={})
    assert "Round 12 is void" in sentence(written)[1]
    written.write("miner-1", "applied", 11, void=False, contributing=[], theta="other", seconds={})
    state, said = sentence(written)
    assert state == "wrong"
    assert "Replicas differ in round 11" in said


def trouble(cause: str, detail: str = "") -> dict[str, Any]:
    return Trouble(cause, detail).fields()


def test_what_keeps_a_node_from_its_work_is_said_until_it_is_mended(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.write("miner-2", "trouble", 0, **trouble("bucket_denied", "put: (403)"))
    told = Trouble("bucket_denied", "put: (403)")
    assert sentence(written) == ("wrong", f"miner-2: {told}.")
    written.round(1)
    assert sentence(written) == ("wrong", f"miner-2: {told}."), "other nodes' rounds do not mend it"
    written.write("miner-2", "mended", 1, about="bucket", cause="bucket_denied")
    assert sentence(written)[0] == "good"
    written.write("miner-2", "trouble", 1, **trouble("disk_low"))
    written.write("miner-2", "started", 1)
    assert sentence(written)[0] == "good"


def test_a_node_that_is_silent_beside_others_is_named_unless_it_was_stopped(tmp_path: Path) -> None:
    nodes = ("miner-1", "miner-2", "miner-3", "garbage-1", "validator-1")
    written, now = synthetic.Folder(tmp_path, nodes), time.time()
    written.spec()
    written.round(0)
    for node in nodes:
        written.write(node, "started", 0, time=now - 4 * 3600)
    silent = f"{Trouble('silent', 'its last event is of 4 hours ago')}."
    folder = Folder(tmp_path)
    folder.read()
    assert [*folder.stage().heard] == [*sorted(nodes)]
    assert NODE_SILENT_ROUNDS == SILENT_ROUNDS
    assert health(folder)[0] == "good", "all events are old, and their files are new"
    for node in ("garbage-1", "miner-1", "validator-1"):
        written.write(node, "mirrored", 1, copies=0, time=now)
    folder.read()
    assert health(folder) == ("wrong", f"miner-2, miner-3: {silent}")
    written.write("miner-2", "stopped", 0, fault=None, time=now - 4 * 3600)
    folder.read()
    assert health(folder) == ("wrong", f"miner-3: {silent}")
    written.write("miner-3", "stopped", 0, fault="no memory", time=now - 4 * 3600)
    folder.read()
    assert health(folder) == ("wrong", f"miner-3: {Trouble('stopped', 'no memory')}.")
    written.write("miner-3", "started", 1, time=now)
    assert sentence(written)[0] == "good"
    written.end()
    assert sentence(written)[0] == "good"


def test_a_trouble_before_the_first_round_is_said(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path, ("miner-1",))
    written.spec()
    written.write("miner-1", "trouble", 0, **trouble("not_registered"))
    assert sentence(written)[1].startswith("miner-1: this hotkey is not registered")


def test_nodes_with_one_cause_are_named_together_and_what_most_have_comes_first(tmp_path: Path) -> None:
    names = (*(f"miner-{number}" for number in range(1, 6)), "garbage-1", "validator-1")
    written = synthetic.Folder(tmp_path, names)
    written.round(0)
    written.write("garbage-1", "trouble", 0, **trouble("amendment_invalid"))
    for name in names[:5]:
        written.write(name, "trouble", 0, **trouble("chain_silent", f"seen by {name}"))
    folder = Folder(tmp_path)
    folder.read()
    most = f"miner-1, miner-2, miner-3 and 2 more: {Trouble('chain_silent', 'seen by miner-1')}."
    one = f"garbage-1: {Trouble('amendment_invalid')}."
    assert troubled(folder.stage().troubles) == f"{most} {one}"
    assert health(folder) == ("wrong", f"{most} {one}")
    written.end()
    assert sentence(written)[0] == "good", "after the end nothing is to be mended"


@pytest.mark.parametrize(
    "fields",
    [
        {"about": []},
        {"owner": []},
        {"cause": {}},
        {"says": None},
        {"detail": {"x": 1}},
        {"do": 7},
        {"time": "soon"},
        {"about": None},
    ],
)
def test_a_trouble_of_another_shape_harms_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.write("miner-1", "trouble", 0, **trouble("disk_low") | fields)
    written.write("miner-1", "trouble", 0, about="chain", cause="chain_silent")
    written.write("miner-1", "trouble", 0, **trouble("chain_halted", "x" * 10_000))
    for said in troubled_by(written):
        assert len(said) < 1000


def troubled_by(written: synthetic.Folder) -> list[str]:
    folder = Folder(written.path)
    folder.read()
    assert health(folder)[0] == "wrong"
    return list(troubled(folder.stage().troubles))


def test_a_faulty_miners_own_model_is_no_difference(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.write("garbage-1", "applied", 0, void=False, contributing=[], theta="its own", seconds={})
    assert sentence(written)[0] == "good"


def test_rounds_count_up_by_number_in_whatever_order_they_come() -> None:
    rounds = Rounds()
    for number in (4, 0, 2):
        rounds.take("validator-1", {"event": "held_out", "round": number, "val_loss": 1.0, "time": 1.0}, 0)
    assert [one.number for one in rounds] == [0, 2, 4]


def test_an_evaluated_checkpoint_belongs_to_the_round_that_made_it(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(3):
        written.round(number)
    written.write("miner-1", "tested", 1, loss=0.1, tasks={})
    rows = in_folder(tmp_path)
    row = {"round": 2, "theta": "00", "loss": 3.5, "tasks": {"toy": {"acc,none": 0.25}}, "time": 1e9}
    rows.write_text(json.dumps(row) + '\n{"round": 3, "lo')
    folder = Folder(tmp_path)
    folder.read()
    assert [one["tested"] for one in told(folder)[0]] == [None, {"loss": 3.5, "tasks": {"toy acc,none": 0.25}}, None]
    others = ({"round": "3"}, {"tasks": []}, {"tasks": {"toy": {"acc": "x"}}}, {"loss": None}, {"round": 0})
    with rows.open("a") as file:
        file.write('ss": 1}\n' + "".join(json.dumps(row | other) + "\n" for other in others) + "null\n[]\n")
    folder.read()
    assert [one["tested"] is not None for one in told(folder)[0]] == [False, True, False]


def void(folder: Path, cause: str | None = None, /, **nodes: str) -> Any:
    """Why a round was void. `nodes`: validator -> what it did: `abstains`, `names`, or said nothing (`silent`)."""
    written = synthetic.Folder(folder, ("miner-1", *(name.replace("_", "-") for name in nodes)))
    read = Folder(folder)
    for name, did in nodes.items():
        node = name.replace("_", "-")
        checked = {"active": 1, "passed": [key("miner-1")], "rejected": {}, "seconds": {"check": 1.0}}
        written.write(node, "checked", 0, **checked)
        if did != "silent":
            written.write(node, "word_posted", 0, block=31, named=int(did == "names"), abstains=did == "abstains")
        written.write(node, "applied", 0, void=True, contributing=[], theta="00", seconds={})
    read.read()
    if cause is not None:
        told = {"event": "agreed", "round": 0, "time": 1e9, "void": True, "contributing": [], "committed": None}
        read.rounds.take("chain", told | {"cause": cause})
    return told_of(read, 0)["why_void"]


def told_of(folder: Folder, number: int) -> dict[str, Any]:
    return next(one for one in told(folder)[0] if one["round"] == number)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ({"v_1": "silent"}, "No validator is known to have posted a vote."),
        (
            {"v_1": "abstains", "v_2": "abstains"},
            "Every validator that voted abstained, since none holds the run's model.",
        ),
        (
            {"v_1": "names", "v_2": "abstains"},
            "No peer was named by more than half of the validators' stake; 1 of the 2 that voted abstained.",
        ),
        ({"v_1": "names"}, "No peer was named by more than half of the validators' stake."),
    ],
)
def test_why_a_round_was_void_follows_from_what_the_validators_said(
    nodes: dict[str, str], why: str, tmp_path: Path
) -> None:
    assert void(tmp_path, **nodes) == why


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ("declared", "The run's owner has declared it void."),
        ("no_state", "No model was named by more than half of the validators' stake."),
        ("nobody", "No peer was named by more than half of the validators' stake."),
    ],
)
def test_what_the_chain_shows_of_a_void_round_comes_first(cause: str, why: str, tmp_path: Path) -> None:
    assert void(tmp_path, cause, v_1="names") == why


def test_a_round_to_which_nobody_brought_anything_good_is_void_by_that(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    bad = {key("miner-1"): "MALFORMED", key("miner-2"): "MALFORMED", key("garbage-1"): "COPY"}
    written.write("validator-1", "checked", 0, active=3, passed=[], rejected=bad, seconds={})
    written.write("validator-1", "checked", 1, active=0, passed=[], rejected={}, seconds={})
    for number in (0, 1):
        written.write("validator-1", "word_posted", number, block=31, named=0, abstains=False)
        written.write("validator-1", "applied", number, void=True, contributing=[], theta="00", seconds={})
    written.round(2)
    folder = Folder(tmp_path)
    folder.read()
    assert [one["why_void"] for one in told(folder)[0]] == [
        "No submission passed the checks (COPY 1, MALFORMED 2).",
        "No peer had committed by the deadline.",
        None,
    ]


@pytest.mark.parametrize(
    ("active", "told", "why"),
    [
        (0, [], "No peer had committed by the deadline."),
        (0, [("miner-1", "committed", {"block": 25, "in_time": True})], "No validator is known to have posted a vote."),
        (
            0,
            [("validator-1", "unobserved", {"why": "came too late"})],
            "No validator that counts has judged it in time (validator-1 came too late).",
        ),
    ],
)
def test_nobody_had_committed_only_if_a_validator_that_was_there_in_time_says_so_and_no_miner_says_otherwise(
    active: int, told: list[tuple[str, str, dict[str, Any]]], why: str, tmp_path: Path
) -> None:
    written = synthetic.Folder(tmp_path)
    written.write("validator-1", "checked", 0, active=active, passed=[], rejected={}, seconds={})
    for node, kind, fields in told:
        written.write(node, kind, 0, **fields)
    written.write("validator-1", "applied", 0, void=True, contributing=[], theta="00", seconds={})
    folder = Folder(tmp_path)
    folder.read()
    assert told_of(folder, 0)["why_void"] == why


def test_the_bytes_of_a_round_are_all_submissions_that_were_published(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.write("validator-1", "held_out", 1, val_loss=4.0)
    folder = Folder(tmp_path)
    folder.read()
    assert [one["sent_bytes"] for one in told(folder)[0]] == [5120, None]


def test_the_pages_own_form_says_the_same_with_places_for_peers(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(2):
        written.round(number)
    folder = Folder(tmp_path)
    folder.read()
    short = [json.loads(one) for one in folder.rounds.since(0, LARGE, short=True)[0]]
    peers = folder.rounds.peers.since(0)
    assert len(peers) == len(set(peers)) == 3
    assert folder.rounds.peers.since(2) == peers[2:]
    for brief, full in zip(short, told(folder)[0], strict=True):
        assert [peers[at] for at in brief["contributing"]] == full["contributing"]
        for field in ("rejected", "standing"):
            assert {peers[at]: code for code, found in brief[field].items() for at in found} == full[field]
        for field in ("pay", "learning"):
            assert dict(zip((peers[at] for at in brief[field][0]), brief[field][1], strict=True)) == full[field]
        assert {**brief, **{f: full[f] for f in ("contributing", "rejected", "standing", "pay", "learning")}} == full


def test_nodes_that_only_retry_are_not_healthy_however_many_events_they_write(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    for number in range(3):
        written.round(number)
    for number in range(3, 3 + 200):  # 20 s each: far more than three rounds of the toy run
        for node in ("miner-1", "miner-2", "validator-1"):
            written.write(node, "interrupted", number, fault="the chain does not answer")
    assert sentence(written) == (
        "wrong",
        "No round has gone on for 67 minutes. The network was killed, or it is stuck.",
    )
    for number in range(203, 299):
        for node in ("miner-1", "miner-2", "validator-1"):
            written.write(node, "trouble", number, **trouble("chain_silent", "no answer"))
    folder = Folder(tmp_path)
    folder.read()
    assert folder.stage().silent_seconds > 98 * 60, "a trouble that is told again is no progress"
    kind, said = health(folder)
    assert (kind, said.partition(";")[0]) == (
        "wrong",
        "miner-1, miner-2, validator-1: the chain node does not answer (no answer)",
    )
    for node in ("miner-1", "miner-2", "validator-1"):
        written.write(node, "mended", 299, about="chain", cause="chain_silent")
    for number in range(300, 302):
        written.round(number)
    assert sentence(written)[0] == "good"
