"""Where the run stands after rounds in which validators come, go and disagree."""

from dataclasses import replace

from gauntlet.agreement import MEMORY_ROUNDS, SEAT_ROUNDS, Agreed, Outcome, Post, Tip, moved, outcome, start, vote_for
from murmur.protocol.messages import link_of
from murmur.protocol.run import Amendment
from tests.gauntlet.agreement_scenes import FORK, LINK, OURS, POISON, ROUND, A, D, History, X, log_of, say
from tests.gauntlet.world import RUN, digest


def test_a_run_begins_at_the_state_that_its_spec_names_and_moves_on_with_every_selection():
    history = History({"one": 1})
    assert history.tip == start(RUN) == Tip(0, LINK)
    for round in range(3):
        state_ref, found = history.state_ref, history.play({"one": history.state_ref})
        assert (found.agreed.state_ref, found.strong) == (state_ref, True)
        assert history.tip == Tip(round + 1, link_of(found.agreed.selection))


def test_dust_that_is_alone_for_a_few_rounds_achieves_nothing_and_the_majority_goes_on_in_the_next():
    history = History({"big": 10**15, "dust": 1})
    assert all(history.goes_on(dict.fromkeys(("big", "dust"), history.state_ref)) for _ in range(2 * SEAT_ROUNDS))
    for away in range(1, SEAT_ROUNDS):
        before = history.tip
        assert not any(history.goes_on({"dust": (digest("poison"), before.link)}) for _ in range(away))
        assert history.tip == replace(before, round=history.round)
        assert history.goes_on({"big": history.state_ref, "dust": (digest("poison"), before.link)})


def test_the_dust_that_a_majority_left_alone_for_long_goes_on_and_the_majoritys_return_decides():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.state_ref))
    ours = history.state_ref
    alone = [history.goes_on({"dust": (digest("poison"), history.tip.link)}) for _ in range(20)]
    assert alone == [False] * SEAT_ROUNDS + [True] * (20 - SEAT_ROUNDS)
    # It says what it held when it left. In its first round it has no seat yet.
    assert not history.play({"big": ours, "dust": history.state_ref}).strong
    found = history.play({"big": ours, "dust": history.state_ref})
    assert (found.agreed.state_ref, found.strong) == (ours, True)
    assert history.tip.link == link_of(found.agreed.selection)
    for _ in range(SEAT_ROUNDS):
        assert history.goes_on({"big": history.state_ref, "dust": (digest("poison"), history.tip.link)})


def test_a_majority_that_abstains_lends_the_dust_nothing_however_long():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.state_ref))
    assert not any(history.goes_on({"big": None, "dust": history.state_ref}) for _ in range(4 * SEAT_ROUNDS))
    assert history.goes_on({"big": history.state_ref})


def test_a_minority_that_does_not_go_on_from_where_the_run_stands_moves_it_nowhere():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.state_ref))
    history.play({"big": history.state_ref})
    link, history.tip = history.tip.link, replace(history.tip, theta=digest("named"))
    for state_ref in (FORK, (digest("poison"), link), (digest("named"), LINK)):
        for _ in range(2 * SEAT_ROUNDS):
            history.play({"dust": state_ref})
            assert history.tip == Tip(history.round, link, digest("named"))
    assert history.goes_on({"dust": (digest("named"), link)})


def test_what_most_name_in_a_void_round_settles_the_theta_that_the_run_stands_at():
    history = History({"big": 10**15, "dust": 1})
    state_ref = history.state_ref
    log = history.chain.log(0)
    vote = vote_for(0, [], state_ref)
    posts = (Post(RUN.clock.vote_deadline(0), history.ids["big"], vote),)
    found = outcome(RUN, 0, replace(log, posts=posts), RUN.clock.vote_deadline(0))
    assert found == Outcome(Agreed(state_ref, None, RUN.clock.vote_deadline(0)), True)
    assert moved(history.tip, 0, found) == Tip(1, state_ref.link, state_ref.theta)


def test_a_round_that_the_owner_voids_leaves_the_run_at_the_pair_that_was_named_in_it():
    amendment = Amendment(previous=RUN.id.hex(), from_round=ROUND, void_round=ROUND, void_from_block=X + 50)
    run, log = RUN.amended([amendment]), log_of(say(A, D + 1, 0), validators=[A])
    taken, void = (moved(Tip(ROUND, LINK), ROUND, outcome(run, ROUND, log, height)) for height in (X, X + 50))
    assert taken.link != LINK
    assert void == Tip(ROUND + 1, *reversed(OURS))


def test_after_64_rounds_whoever_is_left_settles_where_the_run_stands():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.state_ref))
    strong = [history.play({"dust": history.state_ref}).strong for _ in range(MEMORY_ROUNDS + 3)]
    assert strong == [False] * MEMORY_ROUNDS + [True] * 3


def test_who_comes_back_settles_nothing_before_it_counts_and_takes_nobodys_place():
    """In its first round back a majority has no seat, but all who voted lately are asked whether the others' state is
    more than a minority's."""
    history = History({"big": 10, "one": 1, "two": 1})
    history.play(dict.fromkeys(("big", "one", "two"), history.state_ref))
    for _ in range(2 * SEAT_ROUNDS):
        assert not history.play(dict.fromkeys(("one", "two"), history.state_ref)).strong
    found = history.play(dict.fromkeys(("big", "one", "two"), history.state_ref))
    assert found.agreed.selection is not None
    assert found.strong


def test_the_death_of_one_of_two_equal_validators_costs_as_many_void_rounds_as_its_seat_lasts():
    history = History({"one": 5, "two": 5})
    for _ in range(SEAT_ROUNDS + 1):
        assert history.goes_on(dict.fromkeys(("one", "two"), history.state_ref))
    assert [history.goes_on({"one": history.state_ref}) for _ in range(SEAT_ROUNDS + 2)] == [False] * SEAT_ROUNDS + [
        True
    ] * 2


def test_of_two_equal_validators_a_hostile_one_costs_void_rounds_and_no_more():
    history = History({"one": 5, "two": 5})
    before = history.tip
    for round in range(12):
        assert not history.goes_on({"one": history.state_ref, "two": POISON if round % 2 else FORK})
    assert history.tip == replace(before, round=12)


def test_three_equal_validators_go_on_without_any_one_of_them():
    for missing in range(3):
        history = History({"one": 1, "two": 1, "three": 1})
        there = [name for place, name in enumerate(history.ids) if place != missing]
        assert all(history.goes_on(dict.fromkeys(there, history.state_ref)) for _ in range(8))
