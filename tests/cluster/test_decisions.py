"""Who lives, when a round ends, whose updates it has, how long a member trains: properties over drawn histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.cluster.decide import choose, round_progress
from murmur.cluster.pace import LATE, SPREAD, grace_seconds, least_steps, seconds_left
from murmur.cluster.presence import STUCK_SILENCES, Presence
from murmur.protocol.cluster import Beat, Claim, ClusterTable, Contribution, Record
from murmur.protocol.types import Digest, PeerId

RULES = ClusterTable()
LINK, OTHER = Digest(b"\1" * 32), Digest(b"\2" * 32)


def member(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


def beat(
    count: int, *, process: int = 1, phase: str = "train", leaving: bool = False, round: int = 3, passed: float = 0.0
) -> Beat:
    return Beat.model_validate(
        {
            "name": "lab",
            "process": f"{process:016x}",
            "count": count,
            "round": round,
            "step": 1,
            "phase": phase,
            "passed": passed,
            "leaving": leaving,
        }
    )


def claim(theta: int = 7, previous: Digest = LINK, *, steps: int = 10, seconds: float = 100.0) -> Claim:
    return Claim(
        theta=Digest(bytes([theta]) * 32),
        previous=previous,
        envelope="aa" * 32,
        key="bb" * 32,
        steps=steps,
        seconds=seconds,
        sending=3.0,
    )


def record(*updates: tuple[PeerId, int, float]) -> Record:
    """Of these members' steps and seconds."""
    rows = tuple(
        Contribution(member=peer, **claim(steps=steps, seconds=seconds).model_dump())
        for peer, steps, seconds in sorted(updates)
    )
    return Record(by=rows[0].member, theta=rows[0].theta, previous=LINK, updates=rows)


# --- presence ----------------------------------------------------------------------------------------------------


def test_a_member_whose_beat_stands_still_is_given_up_after_the_silence_and_lives_again_with_the_next_beat() -> None:
    presence = Presence(RULES)
    for now in range(0, 20, 5):
        presence = presence.look({member(1): beat(now), member(2): beat(1)}, float(now))
    assert presence.can_claim() == {member(1), member(2)}
    presence = presence.look({member(1): beat(20), member(2): beat(1)}, 20.0)
    assert presence.can_claim() == {member(1)}
    presence = presence.look({member(1): beat(25), member(2): beat(2)}, 25.0)
    assert presence.can_claim() == {member(1), member(2)}


@given(st.lists(st.floats(11.0, 1e6), min_size=1, max_size=3))
def test_where_we_slept_or_the_store_did_not_answer_nobody_was_silent_for_longer_than_two_beats(
    gaps: list[float],
) -> None:
    presence, now = Presence(RULES), 0.0
    presence = presence.look({member(1): beat(1)}, now)
    silence = 0.0
    for gap in gaps:
        now, silence = now + gap, silence + 2 * RULES.beat_seconds
        presence = presence.look({member(1): beat(1)}, now)
        assert (member(1) in presence.can_claim()) == (silence < RULES.silent_seconds)


def test_who_leaves_or_is_on_its_way_is_not_waited_for_and_a_new_process_is_alive_at_once() -> None:
    presence = Presence(RULES)
    presence = presence.look(
        {member(1): beat(1, leaving=True), member(2): beat(1, phase="join"), member(3): beat(9)}, 0.0
    )
    assert presence.can_claim() == {member(3)}
    for now in range(10, 60, 10):
        presence = presence.look({member(3): beat(9)}, float(now))
    assert presence.can_claim() == set()
    presence = presence.look({member(3): beat(9, process=2)}, 70.0)
    assert presence.can_claim() == {member(3)}


def test_a_beat_that_the_store_does_not_bring_is_hardly_silence() -> None:
    """It counts as standing still does: for five minutes."""
    presence, alive = Presence(RULES), list[float]()
    presence = presence.look({member(1): beat(1), member(2): beat(1)}, 0.0)
    for now in range(10, 400, 10):
        presence = presence.look({member(2): beat(now)}, float(now), {member(1)})
        alive += [now] * (member(1) in presence.can_claim())
    assert alive[-1] == STUCK_SILENCES * RULES.silent_seconds - 10
    presence = presence.look({member(1): beat(2), member(2): beat(999)}, 400.0)
    assert member(1) in presence.can_claim()


def test_a_beat_that_is_no_more_listed_is_silence() -> None:
    presence = Presence(RULES)
    presence = presence.look({member(1): beat(1)}, 0.0)
    for now in range(10, 40, 10):
        presence = presence.look({}, float(now))
    assert presence.can_claim() == set()


# --- closing -----------------------------------------------------------------------------------------------------

PEOPLE = st.sets(st.integers(1, 9).map(member))


@given(PEOPLE, PEOPLE)
def test_a_round_ends_at_once_when_all_that_live_have_claimed_and_after_grace_when_more_than_half_have(
    claimed: set[PeerId], living: set[PeerId]
) -> None:
    stands = round_progress(claimed, living)
    assert stands.ends(0.0, 10.0) == (living <= claimed)
    assert stands.ends(11.0, 10.0) == (living <= claimed or len(claimed) > len(living - claimed))
    assert not stands.enough or len(claimed) > len(living - claimed)


def test_grace_holds_a_step_what_is_sent_and_two_beats_or_a_share_of_long_training() -> None:
    assert grace_seconds(RULES, []) == 10.0
    assert grace_seconds(RULES, [claim(steps=10, seconds=100.0)]) == 10.0 + 20.0 + 3.0
    assert grace_seconds(RULES, [claim(steps=10, seconds=2000.0)]) == pytest.approx(40.0 + 400.0 + 3.0)


# --- choosing ----------------------------------------------------------------------------------------------------


DRAWN = st.dictionaries(
    st.integers(1, 9).map(member), st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), min_size=1
)


@given(DRAWN, st.integers(1, 3))
def test_the_theta_that_most_of_the_living_claim_is_chosen_and_all_its_updates_in_the_order_of_peers(
    drawn: dict[PeerId, tuple[int, bool, bool]], ours: int
) -> None:
    claims = {peer: claim(theta, LINK if here else OTHER) for peer, (theta, here, _) in drawn.items()}
    living = {peer for peer, (_, _, lives) in drawn.items() if lives}
    held = Digest(bytes([ours]) * 32)
    chosen = choose(claims, living, (held, LINK), member(77))
    here = {peer: claim.theta for peer, claim in claims.items() if claim.previous == LINK}
    links = [one.previous for peer, one in claims.items() if peer in living] or [
        one.previous for one in claims.values()
    ]
    if 2 * links.count(LINK) < len(links):  # most go on from another record than we were shown
        assert chosen is None
        return
    assert chosen is not None
    counted = [theta for peer, theta in here.items() if peer in living] or list(here.values())
    most = max(map(counted.count, counted))
    best = {theta for theta in counted if counted.count(theta) == most}
    assert chosen.theta == (held if held in best else min(best))
    assert [update.member for update in chosen.updates] == sorted(
        peer for peer, theta in here.items() if theta == chosen.theta
    )


def test_the_dead_do_not_hold_up_the_living() -> None:
    claims = {member(1): claim(1), member(2): claim(2), member(3): claim(2)}
    mine = Digest(bytes([1]) * 32)
    chosen = choose(claims, {member(1)}, (mine, LINK), member(1))
    assert chosen is not None
    assert [update.member for update in chosen.updates] == [member(1)]


def test_who_is_silent_and_of_an_old_round_is_gone_until_its_beat_is_deleted() -> None:
    presence = Presence(RULES)
    for now in range(0, 40, 10):
        presence = presence.look({member(1): beat(1, round=3), member(2): beat(now, round=3)}, float(now))
        if now < RULES.silent_seconds:
            assert presence.departed(4) == []
    assert presence.departed(3) == []
    assert presence.departed(4) == [member(1)]
    assert presence.look({member(2): beat(50, round=3)}, 50.0).departed(4) == []


# --- pace --------------------------------------------------------------------------------------------------------


ROWS = [(member(number), 20 if number == 3 else 100, 60.0) for number in (1, 2, 3, 4)]
HISTORY = [record(*ROWS) for _ in range(4)]
"""Each has sent for 3 s; the third is a fifth as fast."""
CLAIMING = 3.0 + RULES.beat_seconds / 2


def test_who_is_slower_or_late_has_claimed_when_the_others_end_and_nobody_else_has_a_limit() -> None:
    assert seconds_left(RULES, 100, HISTORY, member(1), 0.0) is None
    assert seconds_left(RULES, 100, HISTORY, member(1), 60.0 * LATE) is None
    assert seconds_left(RULES, 100, [], member(1), 30.0) is None
    assert seconds_left(RULES, 100, HISTORY, member(3), 0.0) == pytest.approx(60.0 - CLAIMING)
    assert seconds_left(RULES, 100, HISTORY, member(3), 20.0) == pytest.approx(40.0 - CLAIMING)
    assert seconds_left(RULES, 100, HISTORY, member(1), 30.0) == pytest.approx(30.0 - CLAIMING)
    assert seconds_left(RULES, 100, HISTORY, member(9), 30.0) == pytest.approx(30.0 - CLAIMING)
    assert seconds_left(RULES, 100, HISTORY, member(9), 600.0) == 0.0


def test_a_member_that_no_record_names_knows_itself_by_its_last_step() -> None:
    assert seconds_left(RULES, 100, HISTORY, member(9), 0.0) is None
    assert seconds_left(RULES, 100, HISTORY, member(9), 0.0, step_seconds=0.6) is None
    assert seconds_left(RULES, 100, HISTORY, member(9), 0.0, step_seconds=3.0) == pytest.approx(60.0 - CLAIMING)


def test_who_is_new_or_alone_has_no_limit_and_usual_spread_is_no_slowness() -> None:
    assert seconds_left(RULES, 30, [], member(1), 0.0) is None
    assert seconds_left(RULES, 30, [record((member(1), 30, 60.0))], member(1), 50.0) is None
    history = [record((member(1), 30, 60.0), (member(2), 30, 60.0 * SPREAD))]
    assert seconds_left(RULES, 30, history, member(2), 0.0) is None


def test_a_limit_comes_from_the_faster_half_of_the_members_and_not_from_their_faster_rounds() -> None:
    slow = [(member(number), 20, 60.0) for number in (3, 4, 5)]
    history = [record((member(1), 100, 60.0), (member(2), 100, 60.0), *slow, (member(6), 20, 60.0))] * 4
    assert seconds_left(RULES, 100, history, member(6), 0.0) == pytest.approx(60.0 - CLAIMING)
    assert seconds_left(RULES, 100, history, member(1), 0.0) is None
    varied = [record((member(1), 100, seconds), (member(2), 100, 100.0)) for seconds in (80.0, 100.0, 100.0, 120.0)]
    assert seconds_left(RULES, 100, varied, member(2), 0.0) is None
    assert seconds_left(RULES, 100, varied, member(1), 50.0) == pytest.approx(50.0 - CLAIMING)


def test_in_a_round_shorter_than_a_beat_a_slower_member_still_does_most_of_what_it_can() -> None:
    history = [record((member(1), 100, 1.0), (member(2), 50, 1.0))]
    assert seconds_left(RULES, 100, history, member(2), 0.0) == pytest.approx(1.0 - LATE)


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.01, 1e5)), min_size=2, max_size=6),
    st.floats(0.0, 1e6),
)
def test_time_is_never_negative_and_never_longer_than_the_others_need(
    steps: int, rows: list[tuple[int, float]], passed: float
) -> None:
    done = [(member(at + 1), min(made, steps), took) for at, (made, took) in enumerate(rows)]
    for at, (peer, _, _) in enumerate(done):
        left = seconds_left(RULES, steps, [record(*done)], peer, passed)
        slowest = max(took * steps / made for other, (_, made, took) in enumerate(done) if other != at)
        assert left is None or 0.0 <= left <= max(0.0, slowest - passed)
    assert 1 <= least_steps(RULES, steps) <= steps


def test_how_long_a_round_lasts_is_told_by_half_of_the_others_and_by_no_single_one() -> None:
    presence = Presence(RULES)
    told = {member(1): beat(1, passed=500.0)}  # ours, of the process before
    early = {**told, member(2): beat(1, passed=700.0)}
    for number in (3, 4, 5):
        early[member(number)] = beat(1, round=2, passed=600.0, phase="apply")
    for number in range(6, 30):  # died long ago
        early[member(number)] = beat(1, round=1, passed=300.0)
    presence = presence.look(early, 0.0)
    assert presence.passed(3, member(1)) == 0.0
    late = {**early, member(3): beat(2, passed=120.0, phase="wait"), member(4): beat(2, passed=110.0, phase="send")}
    presence = presence.look(late, 5.0)
    assert presence.passed(3, member(1)) == 110.0
    assert presence.passed(4, member(1)) == 0.0
    presence = presence.look({**late, member(5): beat(2, passed=100.0, leaving=True)}, 10.0)
    assert presence.passed(3, member(1)) == 120.0
    assert Presence(RULES).passed(3, member(1)) == 0.0
