"""Each decision of a member's round as a row: what it knows of itself, what the bucket shows, what it does next."""

from dataclasses import replace
from typing import Any

import pytest

from murmur.cluster.actions import Action, Apply, Create, Do, Leave, Sleep, Train
from murmur.cluster.decide import choose, has_to_stop, next_action
from murmur.cluster.pace import Pace, grace_seconds
from murmur.cluster.presence import STUCK_SILENCES, Presence, Seen
from murmur.cluster.state import Elsewhere, ObjectLost, Round, StoreAway, View, after_look
from murmur.protocol.cluster import GROUP, Claim, Drain, Standing
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, PeerId
from tests.cluster.test_decisions import HISTORY, LINK, OTHER, RULES, beat, claim, member, record

ME, TWO, THREE, FOUR = (member(number) for number in (1, 2, 3, 4))
THETA, WRONG = Digest(bytes([7]) * 32), Digest(bytes([8]) * 32)
UPDATE = Digest(b"\5" * 32)
ROUND = Round(3, LINK, THETA, recalled=True)
CLAIMED = replace(ROUND, claimed=True, sealed=UPDATE, standing=Standing.WAITING)
IDLE = replace(ROUND, skips=True, standing=Standing.IDLE)
SEALED = replace(ROUND, sealed=UPDATE)
SENDING = replace(SEALED, standing=Standing.SENDING)
AWAY, LOST, ASTRAY = (
    StoreAway(StorageError("get: out of time")),
    ObjectLost(2, (GROUP,), "the store has lost the record of round 2"),
    Elsewhere("most members hold another theta"),
)
DRAIN = Drain(request="ab" * 8)
PACE = Pace(100, HISTORY)


def seen(number: int = 1, *, silent: float = 0.0, still: float = 0.0, changed: bool = True, **of: Any) -> Seen:
    return Seen(beat(number, **of), silent, still, changed)


def presence(**members: Seen) -> Presence:
    """Of members by name: `two` and so on; we live."""
    ids = {"me": ME, "two": TWO, "three": THREE, "four": FOUR}
    found = {"me": seen(phase="wait"), **members}
    return Presence(RULES, {ids[name]: one for name, one in found.items()}, 0.0)


def view(*claimed: PeerId, of: Presence | None = None, **more: Any) -> View:
    """These members have claimed; the others of `of` live."""
    claims = {one: claim() for one in claimed} | more.pop("claims", {})
    return View(0.0, 3, of or ALL, claims=claims, **more)


ALL = presence(two=seen(), three=seen(), four=seen())
TRIO = presence(two=seen(), three=seen())
PAIR = presence(two=seen())
ALONE = presence()
GRACE = grace_seconds(RULES, [claim()])
RECORD = record((ME, 10, 100.0), (TWO, 10, 100.0))
TO_CLAIM = (ME, TWO, THREE, FOUR)


def ends(*by: PeerId, without: tuple[PeerId, ...] = ()) -> Create:
    """The round is closed with these members' claims."""
    found = choose({one: claim() for one in by}, set(by), (THETA, LINK), ME)
    assert found is not None
    return Create(found, frozenset(without))


def last(silent: float = 0.0, **of: Any) -> Presence:
    """Of three members, who is the last one to claim."""
    return presence(two=seen(), three=seen(silent=silent, **of))


def went_on(**of: Any) -> Presence:
    """Of two members, who is in the next round."""
    return presence(two=seen(round=4, **of))


def begun(two: float, three: float | None = None) -> Presence:
    """Of three members, two others began so many seconds ago; one that has not still applies the round before."""
    other = seen(phase="apply", round=2) if three is None else seen(passed=three)
    return presence(two=seen(passed=two), three=other)


def idling(**members: Seen) -> Presence:
    return presence(me=seen(phase="idle"), **members)


def elsewhere(*members: PeerId, **of: Any) -> dict[PeerId, Claim]:
    return {one: claim(**of) for one in members}


ROWS: list[tuple[str, Round, View, Action | type]] = [
    # what is missing is mended first, whatever else there is
    ("the store is away", replace(ROUND, missing=AWAY), view(), AWAY),
    ("the store is away while we wait", CLAIMED, view(*TO_CLAIM, missing=AWAY), AWAY),
    ("an object is lost", replace(ROUND, missing=LOST), view(record=RECORD), LOST),
    ("a look finds that the record is lost", CLAIMED, view(missing=LOST), LOST),
    ("our theta is not the run's", replace(CLAIMED, missing=ASTRAY), view(), ASTRAY),
    ("what an action lacked comes before what a look lacked", replace(ROUND, missing=LOST), view(missing=AWAY), LOST),
    (
        "nothing is known of the rounds before, in an outage",
        replace(ROUND, recalled=False),
        view(missing=AWAY),
        Do.RECALL,
    ),
    # beginning and end
    ("nothing is known of the rounds before", replace(ROUND, recalled=False), view(record=RECORD), Do.RECALL),
    ("a closed run", replace(ROUND, closed=True), view(), Do.FINISH),
    ("a closed run whose next record a liar shows", replace(ROUND, closed=True), view(record=RECORD), Do.FINISH),
    ("a closed run before we have recalled it", replace(ROUND, recalled=False, closed=True), view(), Do.RECALL),
    ("asked to leave", replace(ROUND, drained=DRAIN), view(), Leave(DRAIN)),
    ("asked to leave a closed run", replace(ROUND, drained=DRAIN, closed=True), view(), Do.FINISH),
    ("asked to leave while the store is away", replace(ROUND, drained=DRAIN), view(missing=AWAY), Leave(DRAIN)),
    ("an earlier process plays as us", ROUND, view(twin=True), Do.YIELD),
    ("an earlier process plays as us, and a record is there", CLAIMED, view(twin=True, record=RECORD), Do.YIELD),
    # joining
    ("a record is there before we have trained", ROUND, view(record=RECORD), Apply(RECORD)),
    ("a record is there, and an unsent update", SEALED, view(record=RECORD), Apply(RECORD)),
    ("a record of another link", ROUND, view(record=RECORD.model_copy(update={"previous": OTHER})), Elsewhere),
    ("a record of another theta", CLAIMED, view(record=RECORD.model_copy(update={"theta": WRONG})), Elsewhere),
    ("nothing is there", ROUND, view(), Train(None, 0.0)),
    ("an update that was sealed before a crash", SEALED, view(), Do.SEND),
    ("an update that was sealed before a crash, and most have claimed", SEALED, view(TWO, THREE, FOUR), Do.SEND),
    ("a claim of ours whose payload is lost to us", replace(ROUND, spoken=True), view(ME), Do.SKIP),
    ("a claim of ours that we made before we lost our disk", ROUND, view(ME, TWO), Do.SKIP),
    ("a claim of ours and the update that it names", replace(SEALED, spoken=True), view(ME), Do.SEND),
    # training
    ("the others began just now", ROUND, view(of=begun(5.0, 5.0)), Train(None, 5.0)),
    ("the others began long ago", ROUND, view(of=begun(30.0, 30.0)), Train),
    ("one of two began early", ROUND, view(of=begun(30.0)), Train(None, 0.0)),
    ("all have claimed but we", ROUND, view(TWO, THREE, FOUR), Train(None, 0.0)),
    # sending
    ("trained and sealed", SENDING, view(), Do.SEND),
    ("trained and sealed, and the round has ended", SENDING, view(record=RECORD), Do.SEND),
    ("trained and sealed, and the store is away", SENDING, view(missing=AWAY), Do.SEND),
    ("sending has failed", replace(SENDING, unsent=True), view(), Do.SEND),
    ("sending has failed, and the round has ended", replace(SENDING, unsent=True), view(record=RECORD), Apply(RECORD)),
    ("sending has failed, and the store is away", replace(SENDING, unsent=True), view(missing=AWAY), AWAY),
    ("nothing could be sealed", replace(ROUND, standing=Standing.SENDING), view(), Train(None, 0.0)),
    # waiting for the record
    ("we have claimed alone", CLAIMED, view(ME), Sleep(3)),
    ("half have claimed", replace(CLAIMED, enough_for=1e9), view(ME, TWO), Sleep(2)),
    ("most have claimed just now", replace(CLAIMED, enough_for=0.0), view(ME, TWO, THREE), Sleep(1)),
    ("most have claimed, and grace is not over", replace(CLAIMED, enough_for=GRACE), view(ME, TWO, THREE), Sleep(1)),
    (
        "most have claimed, and grace is over",
        replace(CLAIMED, enough_for=GRACE + 0.1),
        view(ME, TWO, THREE),
        ends(ME, TWO, THREE, without=(FOUR,)),
    ),
    ("all have claimed", CLAIMED, view(*TO_CLAIM), ends(*TO_CLAIM)),
    ("the record is there", CLAIMED, view(ME, TWO, record=RECORD), Apply(RECORD)),
    ("alone in the run", CLAIMED, view(ME, of=ALONE), ends(ME)),
    ("the last one is silent", CLAIMED, view(ME, TWO, of=last(20.0)), ends(ME, TWO)),
    ("the last one is not silent yet", CLAIMED, view(ME, TWO, of=last(19.9)), Sleep(1)),
    ("the last one stands still", CLAIMED, view(ME, TWO, of=last(still=STUCK_SILENCES * 20.0)), ends(ME, TWO)),
    ("the last one leaves", CLAIMED, view(ME, TWO, of=last(leaving=True)), ends(ME, TWO)),
    ("the last one idles", CLAIMED, view(ME, TWO, of=last(phase="idle")), ends(ME, TWO)),
    ("the last one joins", CLAIMED, view(ME, TWO, of=last(phase="join")), ends(ME, TWO)),
    ("the last one's run is closed", CLAIMED, view(ME, TWO, of=last(phase="done")), ends(ME, TWO)),
    ("the last one sends", CLAIMED, view(ME, TWO, of=last(phase="send")), Sleep(1)),
    ("the last one still applies the round before", CLAIMED, view(ME, TWO, of=last(phase="apply", round=2)), Sleep(1)),
    ("who has claimed and died counts", CLAIMED, view(ME, TWO, THREE, of=last(99.0)), ends(ME, TWO, THREE)),
    ("the store has lost our claim", CLAIMED, view(TWO), Do.CLAIM_AGAIN),
    ("the store has lost all claims", CLAIMED, view(), Do.CLAIM_AGAIN),
    (
        "the store has lost our claim, and grace is over",
        replace(CLAIMED, enough_for=1e9),
        view(TWO, THREE, FOUR),
        ends(TWO, THREE, FOUR, without=(ME,)),
    ),
    ("somebody has gone on, and the record is not there", CLAIMED, view(*TO_CLAIM, of=went_on()), Do.FIND_RECORD),
    ("who has gone on is silent", CLAIMED, view(ME, of=went_on(silent=20.0)), ends(ME)),
    (
        "most claims build on another record",
        CLAIMED,
        view(ME, claims=elsewhere(TWO, THREE, previous=OTHER), of=TRIO),
        Elsewhere,
    ),
    (
        "as many claims build on another record",
        CLAIMED,
        view(ME, claims=elsewhere(TWO, previous=OTHER), of=presence(two=seen())),
        ends(ME),
    ),
    ("most claims name another theta", CLAIMED, view(ME, claims=elsewhere(TWO, THREE, theta=8), of=TRIO), Elsewhere),
    (
        "as many claims name another theta",
        CLAIMED,
        view(ME, claims=elsewhere(TWO, theta=8), of=presence(two=seen())),
        ends(ME),
    ),
    # idling
    ("we send nothing, and nobody has claimed yet", IDLE, view(of=idling(two=seen())), Sleep(1)),
    ("we send nothing, and our last beat does not say so yet", IDLE, view(TWO, THREE, FOUR), Sleep(1)),
    (
        "we send nothing, and all others have claimed",
        IDLE,
        view(TWO, THREE, of=idling(two=seen(), three=seen())),
        ends(TWO, THREE),
    ),
    ("we send nothing, and the record is there", IDLE, view(record=RECORD), Apply(RECORD)),
    ("we send nothing, and nobody is left to claim", IDLE, view(of=idling()), Do.TRAIN_AFTER_ALL),
    ("we send nothing, and all others idle too", IDLE, view(of=idling(two=seen(phase="idle"))), Do.TRAIN_AFTER_ALL),
    ("we send nothing, and somebody has gone on", IDLE, view(of=went_on()), Do.FIND_RECORD),
]


@pytest.mark.parametrize(("round", "view", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_a_member_does_next(round: Round, view: View, expected: Action | type) -> None:
    action = next_action(round, view, ME, RULES, PACE)
    assert isinstance(action, expected) if isinstance(expected, type) else action == expected


def test_a_late_members_time_to_train_is_what_the_others_still_need() -> None:
    late = view(of=begun(30.0, 30.0))
    action = next_action(ROUND, late, ME, RULES, PACE)
    assert isinstance(action, Train)
    assert action.seconds == pytest.approx(30.0 - 3.0 - RULES.beat_seconds / 2)
    slow = next_action(ROUND, view(), THREE, RULES, PACE)
    assert isinstance(slow, Train)
    assert slow.seconds == pytest.approx(60.0 - 3.0 - RULES.beat_seconds / 2)


@pytest.mark.parametrize(
    ("shown", "stops"),
    [
        (view(), False),
        (view(TWO), False),
        (view(TWO, THREE), False),
        (view(TWO, THREE, FOUR), True),
        (view(TWO, THREE, of=TRIO), True),
        (view(TWO, of=presence(two=seen())), True),
        (view(record=RECORD), True),
        (view(of=went_on()), True),
        (view(of=ALONE), False),
        (view(twin=True), True),
        (replace(view(TWO, THREE, FOUR), number=2), False),
        (replace(view(TWO, THREE, FOUR), missing=AWAY), True),
    ],
)
def test_who_trains_ends_when_most_wait_for_it_or_the_round_is_over(shown: View, stops: bool) -> None:
    assert has_to_stop(replace(ROUND, standing=Standing.TRAINING), shown, ME) == stops


def test_grace_runs_in_looks_that_the_store_answered() -> None:
    round = replace(CLAIMED, looked=100.0)
    round = after_look(round, replace(view(), at=103.0), enough=True, longest=10.0)
    assert (round.enough_for, round.looked) == (3.0, 103.0)
    round = after_look(round, replace(view(missing=AWAY), at=500.0), enough=True, longest=10.0)
    assert (round.enough_for, round.looked) == (3.0, 500.0)
    round = after_look(round, replace(view(), at=900.0), enough=True, longest=10.0)
    assert round.enough_for == 13.0, "a machine that slept has not waited"
    assert after_look(round, replace(view(), at=901.0), enough=False, longest=10.0).enough_for == 0.0


def test_the_table_has_every_action() -> None:
    found = {expected if isinstance(expected, Do) else type(expected) for *_, expected in ROWS}
    assert set(Do) | {Train, Create, Apply, Sleep, Leave, StoreAway, ObjectLost, Elsewhere} <= found
    assert len(ROWS) >= 60
