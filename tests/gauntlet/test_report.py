"""The report: everything in it survives the way through a document, and a stranger's is read strictly."""

import json
from copy import deepcopy
from functools import cache
from itertools import cycle
from typing import Any

import pytest

from gauntlet import report
from gauntlet.account import account, briefly
from gauntlet.report import parse_report
from gauntlet.selection import peer_score
from gauntlet.shapes import MAX_DETAIL_CHARACTERS
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import DOCUMENT_MAX_BYTES, canonical_json, from_hex
from murmur.protocol.types import Standing, hotkey
from murmur.protocol.types import peer_id as peer_id_of
from tests.gauntlet.rounds import SPEC, VALIDATOR, Played, play_rounds
from tests.gauntlet.world import OWNER, peer_id

ROUND = 2


@cache
def one() -> Played:
    return play_rounds(ROUND + 1)[ROUND]


def test_a_report_is_the_same_after_its_document() -> None:
    report, body = one().claim.report, one().body
    read, read_body = parse_report(canonical_json(body), ROUND)
    assert read_body.keys() == body.keys()
    assert read_body["peers"] == body["peers"]
    assert read.to_body(SPEC.gauntlet) == body
    assert (read.before, read.after, read.history, read.gone) == (
        report.before,
        report.after,
        report.history,
        report.gone,
    )
    assert read.rows == report.rows
    assert len(canonical_json(body)) * 256 / len(report.rows) < DOCUMENT_MAX_BYTES / 2


def test_people_find_every_hotkey_with_its_outcome_and_numbers() -> None:
    report = one().claim.report
    rows = report.named(SPEC.gauntlet)
    assert set(rows) == {hotkey(peer) for peer in [*map(peer_id, range(1, 8)), VALIDATOR, OWNER]}
    assert rows[hotkey(peer_id(5))]["rejected"] == "MISSING"
    assert sum(row.get("contributing", False) for row in rows.values()) == 3
    assert [row["standing"] for row in rows.values() if "standing" in row] == [str(Standing.NOT_SELECTED)]
    for peer in map(peer_id, range(1, 5)):
        row, record = rows[hotkey(peer)], report.after.peers[peer]
        assert (row["proof"], row["peer_score"]) == (record.proof, peer_score(record))
        assert row["loss_score"]["references"] == 2
    assert "rejected" not in rows[hotkey(VALIDATOR)]


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(round=ROUND + 1),
        lambda body: body.update(unknown=1),
        lambda body: body.pop("history"),
        lambda body: body.update(gone=-1),
        lambda body: body.update(gone=True),
        lambda body: body["before"].update(round=ROUND),
        lambda body: body["after"].update(round=ROUND - 1),
        lambda body: body["before"].update(remembered=[[0, "00" * 32, "00" * 32]]),
        lambda body: body["before"]["peers"].update({"00" * 32: first(body["before"]["peers"])}),
        lambda body: first(body["before"]["peers"]).update(evaluations=-1),
        lambda body: first(body["before"]["peers"]).update(mu=1e9),
        lambda body: first(body["before"]["peers"]).update(sigma=0.0),
        lambda body: first(body["before"]["peers"]).update(gaps=[0.1, -0.2]),
        lambda body: first(body["before"]["peers"]).update(gaps=[0.1]),
        lambda body: first(body["before"]["peers"]).update(score_variances=[-1.0, 0.5]),
        lambda body: first(body["after"]["peers"]).update(score_variances=[1e300, 0.5]),
        lambda body: body["after"].update(score_variance=[-1e-9, 0.5]),
        lambda body: body["peers"].update({"not a hotkey": first(body["peers"])}),
        lambda body: first(body["peers"]).update(rejected="COPY", standing="LOW_SCORE", detail=""),
        lambda body: first(body["peers"]).update(contributing=False),
        lambda body: first(body["peers"]).update(weight=-0.1),
        lambda body: first(body["peers"]).update(weight=1),
        lambda body: first(body["peers"]).update(uid="1"),
        lambda body: rejected(body).update(rejected="RUDE"),
        lambda body: rejected(body).update(detail="a\nb"),
        lambda body: rejected(body).update(detail="\x1b[31m"),
        lambda body: rejected(body).update(detail="x" * (MAX_DETAIL_CHARACTERS + 1)),
        lambda body: body["reveals"].update({first_name(body["reveals"]): "00"}),
        lambda body: body["reveals"].update({hotkey(peer_id(99)): "00" * 204}),
        lambda body: body["payloads"].update({first_name(body["payloads"]): "AA" * 32}),
        lambda body: body["history"].append(body["history"][0]),
        lambda body: body["history"].reverse(),
        lambda body: body["history"].append([ROUND, "00" * 32, "00" * 32]),
        lambda body: body["history"].append(5),
        lambda body: body.update(paid={"block": 5}),
    ],
)
def test_what_no_validator_would_write_is_refused(change: Any) -> None:
    body = deepcopy(one().body)
    change(body)
    with pytest.raises(InvalidMessage):
        parse_report(canonical_json(body), ROUND)


@pytest.mark.parametrize("body", [None, [], "x", {}, {"round": ROUND}])
def test_what_is_no_report_at_all_is_refused(body: Any) -> None:
    with pytest.raises(InvalidMessage):
        parse_report(json.dumps(body).encode(), ROUND)


def test_each_hotkey_is_read_once_however_often_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address takes 20 us to read; 256 hotkeys that are all twins are named 65,000 times."""
    body, asked = deepcopy(one().body), list[str]()
    names = sorted(body["peers"], key=peer_id_of)
    for name, row in body["peers"].items():
        row["twins"] = [other for other in names if other != name]
        row["copied"] = False
    monkeypatch.setattr(report, "peer_id", lambda name: asked.append(name) or peer_id_of(name))
    found, _ = parse_report(canonical_json(body), ROUND)
    assert all(len(row.twins) == len(names) - 1 for row in found.rows.values())
    assert sorted(asked) == sorted(names)
    body["peers"][names[0]]["twins"] = [hotkey(peer_id(99))]
    with pytest.raises(InvalidMessage, match="not listed"):
        parse_report(canonical_json(body), ROUND)


def first_name(table: dict[str, Any]) -> str:
    return next(iter(table))


def first(table: dict[str, Any]) -> dict[str, Any]:
    return table[first_name(table)]


def rejected(body: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in body["peers"].values() if "rejected" in row)


@pytest.mark.parametrize("text", [" " * 64, "AB" * 32, "ab" * 31 + "a", "zz" * 32, "\u0661" * 64])
def test_hex_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not in lower-case hex|non-hexadecimal") as refusal:
        from_hex(text)
    assert text not in str(refusal.value)
    assert from_hex("ab" * 32) == b"\xab" * 32


@pytest.mark.parametrize("evaluations", [0, 3, 2**32 - 1])
@pytest.mark.parametrize(
    "name", ["mu", "sigma", "gaps", "units", "scores", "usual_scores", "score_variances", "penalty"]
)
def test_whatever_is_read_of_a_stranger_can_be_told(name: str, evaluations: int) -> None:
    """A miner tells of itself what validators report: a number at the bounds of what is read must not end it."""
    told = 0
    for number in (-1e6, -1.0, -1e-300, 0.0, 5e-324, 1e-300, 1.0, 1000.0, 1e6, 1e300):
        body = deepcopy(one().body)
        for record in (*body["before"]["peers"].values(), *body["after"]["peers"].values()):
            record["evaluations"] = evaluations
            record[name] = [number, 0.5] if isinstance(record[name], list) else number
        for row, standing in zip(body["peers"].values(), cycle(Standing), strict=False):
            for outcome in ("rejected", "detail", "contributing"):
                row.pop(outcome, None)
            row["standing"] = str(standing)
        try:
            report, _ = parse_report(canonical_json(body), ROUND)
        except InvalidMessage:
            continue
        told += 1
        for peer in report.rows:
            assert briefly(peer, report, SPEC.gauntlet)
            assert all(account(peer, report, one().claim.report, SPEC.gauntlet))
    assert told
