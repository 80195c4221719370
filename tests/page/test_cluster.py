"""A cluster's demo folder as rounds and members: what its members' events say, and nothing hostile gets through."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from murmur.page.cluster import ClusterNow, MemberNow, State, facts, troubles
from murmur.page.folder import Folder
from murmur.page.health import health
from murmur.page.rounds import Rounds
from murmur.page.tables import as_csv, members, peer_rounds
from tests.page.synthetic_cluster import SECONDS, STEPS, TRAINED, ClusterFolder, member_id, spec


def read(written: ClusterFolder) -> Folder:
    folder = Folder(written.path)
    folder.read()
    return folder


def told(folder: Folder) -> list[dict[str, Any]]:
    return [json.loads(one) for one in folder.rounds.since(0, 1 << 30)[0]]


def test_a_round_has_what_its_members_said(tmp_path: Path) -> None:
    written = ClusterFolder(tmp_path, rounds=1)
    written.round(0)
    folder = read(written)
    [one] = told(folder)
    assert one["contributing"] == sorted(map(member_id, written.members))
    assert (one["void"], one["active"], one["rejected"]) == (False, 3, {})
    assert (one["train_loss"], one["loss_range"]) == (4.1, [4.0, 4.2])
    assert (one["steps"], one["tokens"], one["closed_by"]) == (3 * STEPS, 300, "lab-a")
    assert (one["theta"], one["length"]) == ("0" * 64, SECONDS)
    assert (one["computed"], one["computed_range"]) == (TRAINED / SECONDS, [TRAINED / SECONDS] * 2)
    assert (one["payload_bytes"], one["sent_bytes"]) == (2560, 3 * 2560)
    assert folder.names == {member_id(name): name for name in written.members}
    assert folder.spec == spec()


def test_who_claims_too_late_counts_with_nothing_and_who_is_away_is_not_named(tmp_path: Path) -> None:
    written = ClusterFolder(tmp_path, rounds=2)
    written.round(0, late=["lab-b"], away=["lab-c"])
    written.round(1)
    folder = read(written)
    first, second = told(folder)
    assert (first["contributing"], first["rejected"]) == ([member_id("lab-a")], {member_id("lab-b"): "LATE"})
    assert (first["steps"], first["tokens"], first["active"], first["train_loss"]) == (STEPS, 100, 2, 4.0)
    assert second["steps"] == 3 * STEPS
    rows = members(folder.rounds, 0)
    assert {row["member"]: row["outcome"] for row in rows} == {
        member_id("lab-a"): "contributing",
        member_id("lab-b"): "LATE",
    }
    assert {row["loss"] for row in rows} == {4.0, 4.1}
    assert {(row["steps"], row["seconds"], row["sending"], row["computed"]) for row in rows} == {(4, 36.0, 0.5, 0.9)}
    assert members(folder.rounds, 7) == []
    own = peer_rounds(folder.rounds, member_id("lab-b"))
    assert [(row["round"], row["outcome"], row["loss"], row["steps"]) for row in own] == [
        (0, "LATE", 4.1, STEPS),
        (1, "contributing", 4.1, STEPS),
    ]
    table = list(csv.DictReader(io.StringIO(as_csv(folder.rounds).decode())))
    assert [(row["contributing"], row["rejected"], row["steps"], row["closed_by"]) for row in table] == [
        ("1", "1", "4", "lab-a"),
        ("3", "0", "12", "lab-a"),
    ]


def test_who_held_another_model_is_not_late(tmp_path: Path) -> None:
    written = ClusterFolder(tmp_path, rounds=1)
    written.round(0, late=["lab-b"])
    written.write("lab-b", "diverged", 0, why="the record of round 0 belongs to another state than ours")
    folder = read(written)
    assert told(folder)[0]["rejected"] == {member_id("lab-b"): "APART"}
    state, sentence = health(folder)
    assert state == "wrong"
    assert "lab-b: held another model than the run" in sentence


@pytest.mark.parametrize(
    ("event", "fields", "phase", "round"),
    [
        ("joined", {}, "train", 5),
        ("trained", {"loss": 1.0, "tokens": 1, "seconds": {}}, "send", 5),
        ("claimed", {"steps": 4}, "wait", 5),
        ("applied", {}, "train", 6),
        ("diverged", {"why": ""}, "join", 5),
        ("interrupted", {"fault": ""}, "idle", 5),
    ],
)
def test_where_a_member_is_follows_from_its_last_event(
    event: str, fields: dict[str, Any], phase: str, round: int, tmp_path: Path
) -> None:
    written = ClusterFolder(tmp_path, ["lab-a"], rounds=6)
    for number in range(5):
        written.round(number)
    written.write("lab-a", event, 5, **fields)
    now = read(written).cluster()
    assert now is not None
    assert now.members == (MemberNow(member_id("lab-a"), "lab-a", "alive", phase, round),)


def test_a_member_that_writes_nothing_is_silent_and_after_the_end_all_have_left(tmp_path: Path) -> None:
    written = ClusterFolder(tmp_path, rounds=6)
    for number in range(6):
        written.round(number, away=["lab-c"] if number > 1 else ())
    folder = read(written)
    now = folder.cluster()
    assert now is not None
    assert [member.state for member in now.members] == ["alive", "alive", "silent"]
    assert health(folder) == ("wrong", "lab-c is silent: the others go on without it.")
    written.write("lab-c", "stopped", 2, fault=None)
    folder.read()
    now = folder.cluster()
    assert now is not None
    assert [member.state for member in now.members] == ["alive", "alive", "left"]
    shown = facts(now, folder.rounds)["members"]
    assert [(row["last"]["round"], row["last"]["loss"]) for row in shown] == [(5, 4.0), (5, 4.1), (1, 4.2)]
    written.end()
    now = folder.cluster()
    assert now is not None
    assert {member.state for member in now.members} == {"left"}
    assert health(folder) == ("good", "Ended after 6 rounds: 2 of 2 contributed in round 5.")


def test_before_the_first_record_the_page_says_that_round_0_is_played(tmp_path: Path) -> None:
    written = ClusterFolder(tmp_path, rounds=1)
    assert health(read(written)) == ("waiting", "Round 0 is being played.")
    (tmp_path / "spec.json").unlink()
    folder = read(written)
    assert folder.cluster() is None
    assert health(folder)[1].startswith("Starting")


def now(**states: State) -> ClusterNow:
    return ClusterNow(
        tuple(MemberNow(name, name.replace("_", "-"), state, "train", 3, 7) for name, state in states.items())
    )


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"a": "alive", "b": "left", "c": "unknown"}, []),
        ({"a": "alive", "b": "silent"}, ["b is silent: the others go on without it."]),
        ({"a": "alive", "b": "silent", "c": "silent"}, ["b and c are silent: the others go on without them."]),
        (
            {"a": "silent", "b": "left"},
            ["No member is alive: a went silent.", "a is silent: the others go on without it."],
        ),
        (
            {"a": "alive", "b": "stuck"},
            [
                "b beats, but has not moved on from step 7 of round 3: its GPU hangs, or its link is blocked. The "
                "others do not wait for it."
            ],
        ),
        (
            {"a": "alive"} | {f"b{n}": "silent" for n in range(9)},
            ["b0, b1, b2 and 6 more are silent: the others go on without them."],
        ),
    ],
)
def test_what_is_wrong_with_members_is_said_in_words(states: dict[str, State], words: list[str]) -> None:
    assert list(troubles(now(**states))) == words


UPDATE = {"steps": 4, "seconds": 36.0, "loss": 4.0}
RECORDED = {
    "by": "a",
    "theta": "00",
    "length": 40.0,
    "payload_bytes": 10,
    "step_tokens": 25,
    "updates": {"a": UPDATE},
}


@pytest.mark.parametrize(
    "fields",
    [
        {"updates": {"a": UPDATE | {"steps": -1}}},
        {"updates": {"a": UPDATE | {"steps": 10**400}}},
        {"updates": {"a": UPDATE | {"seconds": float("nan")}}},
        {"updates": {"a": UPDATE | {"loss": "<b>"}}},
        {"updates": {"a": UPDATE | {"loss": 1e300}}},
        {"updates": {"a": {}}},
        {"updates": ["a"]},
        {"by": None},
        {"theta": 7},
        {"length": "x"},
        {"payload_bytes": -1},
        {"step_tokens": 1.5},
    ],
)
def test_a_record_that_is_not_as_documented_is_passed_over(fields: dict[str, Any]) -> None:
    rounds = Rounds()
    rounds.take("records", {"event": "recorded", "round": 0, "time": 1.0} | RECORDED)
    before = rounds.since(0, 1 << 30)
    rounds.take("records", {"event": "recorded", "round": 0, "time": 2.0} | RECORDED | fields)
    for kind in ("claims", "sent"):
        for bad in ({"a": {}}, {"a": "x"}, 7, None):
            rounds.take("records", {"event": kind, "round": 0, "time": 2.0, "members": bad})
    assert rounds.since(0, 1 << 30) == before
