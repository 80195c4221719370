"""What keeps a node from its work: derived once, said when it begins, once a planned round while it lasts, and when it
ends; in constant words that say whose it is, what it costs and what to do."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from loguru import logger

from murmur.node.telemetry.causes import CAUSES, About, Owner
from murmur.node.telemetry.trouble import (
    DETAIL_CHARACTERS,
    Standing,
    Trouble,
    Troubles,
    of_chain,
    of_own_bucket,
    sentence,
)
from murmur.protocol.errors import AccessDenied, BucketMissing, ChainError, StorageCause, StorageError
from storage.realtime import RealTime

ROUND_SECONDS = 60.0


class Time(RealTime):
    at = 0.0

    def now(self) -> float:
        return self.at


class Said:
    """Troubles whose events are kept."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Mapping[str, Any]]] = []
        self.time = Time()
        self.troubles = Troubles(self, ROUND_SECONDS, self.time)

    def emit(self, kind: str, round: int, **fields: Any) -> None:
        self.events.append((kind, round, fields))

    def kinds(self) -> list[tuple[str, int, str]]:
        return [(kind, round, fields["cause"]) for kind, round, fields in self.events]


@pytest.fixture
def lines() -> Iterator[list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []

    def take(message: Any) -> None:
        found.append((message.record["level"].name, message.record["message"]))

    sink = logger.add(take, level="INFO")
    yield found
    logger.remove(sink)


def test_a_trouble_is_said_when_it_begins_and_again_only_after_a_planned_rounds_time() -> None:
    said = Said()
    for second, round in ((0.0, 3), (1.0, 3), (59.9, 9), (60.0, 4), (61.0, 4), (119.9, 4), (120.0, 5)):
        said.time.at = second
        said.troubles.tell(round, Trouble("chain_silent", f"at {second}"))
    assert said.kinds() == [("trouble", round, "chain_silent") for round in (3, 4, 5)]
    assert [fields["detail"] for _, _, fields in said.events] == ["at 0.0", "at 60.0", "at 120.0"]


def test_another_cause_about_the_same_thing_is_said_at_once_and_replaces_it() -> None:
    said = Said()
    said.troubles.tell(0, Trouble("chain_silent"))
    said.troubles.tell(0, Trouble("chain_halted"))
    said.troubles.tell(0, Trouble("disk_low"))
    assert said.kinds() == [("trouble", 0, cause) for cause in ("chain_silent", "chain_halted", "disk_low")]
    assert [trouble.cause for trouble in said.troubles.now()] == ["chain_halted", "disk_low"]


def test_its_end_is_said_once() -> None:
    said = Said()
    said.troubles.mended(0, About.CHAIN)
    assert said.events == []
    said.troubles.tell(1, Trouble("chain_silent"))
    said.troubles.mended(2, About.DISK)
    for _ in range(3):
        said.troubles.mended(2, About.CHAIN)
    assert said.kinds()[1:] == [("mended", 2, "chain_silent")]
    assert said.events[-1][2]["about"] == "chain"
    assert said.troubles.now() == []
    said.troubles.tell(2, Trouble("chain_silent"))
    assert len(said.events) == 3, "said at once when it comes back"


def test_what_comes_and_goes_is_said_to_be_mended_once_it_has_stayed_away_for_a_planned_round() -> None:
    """A chain node at the edge of being behind, or a bucket that fails every second time."""
    said = Said()
    for second in range(600):
        said.time.at = float(second)
        said.troubles.look(second // 60, About.CHAIN, Trouble("chain_behind") if second % 10 < 5 else None)
    kinds = [kind for kind, _, _ in said.events]
    assert kinds[:3] == ["trouble", "mended", "trouble"]
    assert kinds[3:] == ["trouble"] * 9, "once a planned round"
    for second in range(600, 700):
        said.time.at = float(second)
        said.troubles.look(second // 60, About.CHAIN, None)
    assert [kind for kind, _, _ in said.events[12:]] == ["mended"]
    said.time.at = 1000.0
    said.troubles.tell(16, Trouble("chain_behind"))
    said.troubles.mended(16, About.CHAIN)
    assert said.kinds()[13:] == [("trouble", 16, "chain_behind"), ("mended", 16, "chain_behind")], "it begins anew"


def test_causes_that_alternate_are_each_said_once_a_planned_round() -> None:
    said = Said()
    for second in range(240):
        said.time.at = float(second)
        said.troubles.tell(second // 60, Trouble("bucket_throttled" if second % 2 else "bucket_fails"))
    assert len(said.events) == 8


def test_an_end_of_named_causes_leaves_another_one() -> None:
    said = Said()
    said.troubles.tell(0, Trouble("chain_behind"))
    said.troubles.mended(0, About.CHAIN, "chain_silent", "no_money")
    assert [trouble.cause for trouble in said.troubles.now()] == ["chain_behind"]
    said.troubles.mended(0, About.CHAIN, "chain_silent", "chain_behind")
    assert said.kinds()[1:] == [("mended", 0, "chain_behind")]


def test_a_look_says_what_there_is_or_that_there_is_nothing() -> None:
    said = Said()
    said.troubles.look(0, About.DISK, None)
    said.troubles.look(1, About.DISK, Trouble("disk_low"))
    said.troubles.look(2, About.DISK, None)
    assert said.kinds() == [("trouble", 1, "disk_low"), ("mended", 2, "disk_low")]


def test_the_log_has_the_same_words_louder_where_the_operator_has_to_act(lines: list[tuple[str, str]]) -> None:
    said = Said()
    mine, theirs = Trouble("bucket_full", "put: (507)"), Trouble("chain_halted", "block 9")
    said.troubles.tell(4, mine)
    said.troubles.tell(4, theirs)
    said.troubles.mended(5, About.BUCKET)
    assert lines == [
        ("ERROR", f"round 4: {mine}"),
        ("WARNING", f"round 4: {theirs}"),
        ("INFO", f"round 5: mended: {CAUSES['bucket_full'].says}"),
    ]


def test_an_end_that_is_said_meanwhile_comes_after_the_beginning() -> None:
    said = Said()
    ended = threading.Event()

    def end() -> None:
        said.troubles.mended(1, About.CHAIN)
        ended.set()

    class Slow:
        """Another thread finds the end while the beginning is written."""

        def emit(self, kind: str, round: int, **fields: Any) -> None:
            if kind == "trouble":
                threading.Thread(target=end, daemon=True).start()
                ended.wait(0.2)
            said.emit(kind, round, **fields)

    said.troubles._events = Slow()
    said.troubles.tell(1, Trouble("chain_silent"))
    assert ended.wait(30)
    assert [kind for kind, _, _ in said.kinds()] == ["trouble", "mended"]


def test_what_was_seen_is_one_short_line_of_printable_characters(lines: list[tuple[str, str]]) -> None:
    said, hostile = Said(), "refused\n12:00:00 ERROR \x1b[2J\x07\x08\x00\u202e" + "A" * 10**6
    said.troubles.tell(1, Trouble("chain_refuses", hostile))
    ((_, _, fields),) = said.events
    ((_, line),) = lines
    assert fields["detail"].startswith("refused 12:00:00 ERROR ")
    assert len(fields["detail"]) <= DETAIL_CHARACTERS
    assert fields["detail"].isprintable()
    assert fields["detail"] in line
    assert line.isprintable()


def event(kind: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "round": 0, "time": time, **fields}


def trouble(cause: str, time: float) -> dict[str, Any]:
    return event("trouble", time, **Trouble(cause).fields())


@pytest.mark.parametrize(
    ("events", "causes"),
    [
        ([], []),
        ([trouble("disk_low", 2.0), trouble("chain_silent", 1.0)], ["chain_silent", "disk_low"]),
        ([trouble("chain_silent", 1.0), trouble("chain_halted", 2.0)], ["chain_halted"]),
        ([trouble("chain_silent", 1.0), event("mended", 2.0, about="chain", cause="chain_silent")], []),
        ([trouble("chain_silent", 1.0), event("mended", 2.0, about="disk", cause="disk_low")], ["chain_silent"]),
        ([trouble("chain_silent", 1.0), event("started", 2.0)], []),
        ([event("started", 1.0), trouble("chain_silent", 2.0)], ["chain_silent"]),
        ([trouble("chain_silent", 1.0), event("stopped", 2.0, fault="no space")], ["chain_silent", "stopped"]),
        ([trouble("chain_silent", 1.0), event("stopped", 2.0, fault=None)], []),
        ([event("stopped", 1.0, fault=None), trouble("cannot_start", 2.0)], ["cannot_start"]),
        ([trouble("chain_silent", 1.0), trouble("waits", 2.0)], ["waits"]),
        ([trouble("waits", 1.0), trouble("chain_silent", 2.0)], ["waits", "chain_silent"]),
        ([trouble("chain_silent", 1.0), event("applied", 2.0), event("interrupted", 3.0)], ["chain_silent"]),
        ([event("trouble", 1.0, about="chain", cause="chain_silent")], []),
        ([{}, {"event": None}], []),
    ],
)
def test_what_stands_follows_from_the_events(events: list[dict[str, Any]], causes: list[str]) -> None:
    standing = Standing()
    for one in events:
        standing.take(one)
    assert [one["cause"] for one in standing.now()] == causes


def test_what_a_node_says_is_what_stands() -> None:
    said, standing = Said(), Standing()
    said.troubles.tell(0, Trouble("bucket_denied", "put: (403)"))
    said.troubles.tell(0, Trouble("chain_silent"))
    said.troubles.mended(1, About.CHAIN)
    for place, (kind, round, fields) in enumerate(said.events):
        standing.take({"event": kind, "round": round, "time": float(place), **fields})
    (one,) = standing.now()
    assert sentence(one) == str(Trouble("bucket_denied", "put: (403)"))


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_says_what_is_so_what_it_costs_and_what_to_do(cause: str) -> None:
    of = CAUSES[cause]
    for text in (of.says, of.costs, of.do):
        assert text.strip() == text
        assert text
        assert not text.endswith(".")
        assert "\n" not in text
    told = str(Trouble(cause, "7 of 9"))
    assert f"{of.says} (7 of 9); " in told
    assert f" It costs: {of.costs}. " in told
    assert told.endswith(f" Do: {of.do}")
    assert "()" not in str(Trouble(cause))
    assert "s to mend" in told.partition(" It costs: ")[0]


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        (Owner.YOU, "yours to mend"),
        (Owner.EITHER, "yours or your provider's to mend"),
        (Owner.CHAIN, "the chain's to mend, not yours"),
        (Owner.RUN, "the run's owner's to mend, not yours"),
    ],
)
def test_whose_it_is_to_mend_is_said(owner: Owner, whose: str) -> None:
    assert f"; {whose}. " in sentence({**Trouble("stopped").fields(), "owner": owner})
    assert f"; {whose}. " in sentence({**Trouble("stopped").fields(), "owner": str(owner)}), "read from a file"


def test_no_two_causes_say_the_same() -> None:
    assert len({of.says for of in CAUSES.values()}) == len(CAUSES)


@pytest.mark.parametrize("cause", StorageCause)
def test_every_refusal_of_our_own_bucket_has_a_cause(cause: StorageCause) -> None:
    fault = StorageError("put: refused")
    fault.cause = cause
    found = of_own_bucket(fault)
    assert found.detail == "put: refused"
    own = {StorageCause.NO_BUCKET: "bucket_missing"}
    assert found.cause == own.get(cause, f"bucket_{cause}")
    assert found.of.about is About.BUCKET


def test_a_fault_of_our_own_bucket_that_says_no_cause_is_told_as_one() -> None:
    assert of_own_bucket(StorageError("status 500")) == Trouble("bucket_fails", "status 500")
    assert of_own_bucket(AccessDenied("no")).cause == "bucket_fails"
    assert of_own_bucket(BucketMissing("none")).cause == "bucket_missing"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (None, "chain_silent"),
        ("AccountNotAllowedCommit", "not_registered"),
        ("HotKeyNotRegisteredInSubNet", "not_registered"),
        ("SpaceLimitExceeded", "posts_used_up"),
        ("Payment", "no_money"),
        ("SomethingNew", "chain_refuses"),
    ],
)
def test_every_refusal_of_the_chain_has_a_cause(code: str | None, cause: str) -> None:
    assert of_chain(ChainError("why", code)) == Trouble(cause, "why")
