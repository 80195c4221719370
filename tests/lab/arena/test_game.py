"""Whole runs: the same seed gives the same story, honest peers are paid and the model learns, with the real code."""

from dataclasses import replace

import pytest
import torch

from murmur.lab.arena.crowds import NewcomerFlood
from murmur.lab.arena.game import Game, Scenario, play
from murmur.lab.arena.harm import LyingValidator
from murmur.lab.arena.policies import CONTRIBUTORS, FEWEST
from murmur.lab.arena.shirkers import HalfWork, Noise
from murmur.protocol.types import Reason
from sparseloco import ops

SMALL = Scenario(0, 4, 24, attacks=(Noise, HalfWork, NewcomerFlood), validators=2)


def test_the_same_seed_gives_the_same_story_and_another_seed_another() -> None:
    told = play(SMALL)
    assert play(SMALL) == told
    assert play(replace(SMALL, seed=1)).rounds != told.rounds


def test_the_published_formulas_play_the_same_game() -> None:
    told = play(replace(SMALL, policy="published"))
    assert told == play(replace(SMALL, policy="published"))
    assert 0.1 < told.progress < 1.0
    assert len(told.rounds[0].contributing) == CONTRIBUTORS
    assert all(1 <= len(log.contributing) <= CONTRIBUTORS for log in told.rounds)
    alone = play(replace(SMALL, policy="published", validators=1))
    assert all(FEWEST <= len(log.contributing) <= CONTRIBUTORS for log in alone.rounds)


def test_an_honest_run_learns_pays_everybody_about_alike_and_rejects_nobody() -> None:
    told = play(Scenario(0, 8, 24, trouble=0.0, churn=0.0))
    assert told.progress > 0.3
    assert not any(log.rejected or log.is_void for log in told.rounds)
    first, *others = told.rounds
    assert not first.paid  # nobody's steps were repeated yet
    assert all(sum(log.paid.values()) == pytest.approx(1.0) for log in others)
    paid = {peer: sum(log.paid.get(peer, 0.0) for log in told.rounds) for peer in told.rounds[0].players}
    assert min(paid.values()) > 0.0
    assert max(paid.values()) < 4 * 8 / len(paid)


def test_honest_trouble_is_missing_or_late_and_newcomers_take_over_the_uid() -> None:
    told = play(Scenario(0, 6, 24, validators=1, trouble=0.3, churn=0.2))
    refused = {str(reason) for log in told.rounds for reason in log.rejected.values()}
    assert refused == {Reason.MISSING, Reason.LATE}
    names = {name for log in told.rounds for name in log.players.values()}
    assert len(names) > 24
    assert all(len(log.players) == 24 for log in told.rounds)


def test_attackers_hold_the_share_of_hotkeys_that_the_scenario_says() -> None:
    for attacks in ((Noise,), (NewcomerFlood,), (LyingValidator,), SMALL.attacks):
        told = play(Scenario(0, 1, 24, attacks=attacks, validators=1))
        theirs = [name for name in told.rounds[0].players.values() if name in told.attackers]
        assert 6 <= len(theirs) <= 8
        assert set(told.attackers.values()) == {attack.kind for attack in attacks}


def test_theta_is_what_the_contributors_updates_make_of_it() -> None:
    """Replayed with the reference's outer step from what was revealed."""
    game = Game(Scenario(0, 3, 24, attacks=(Noise,), validators=1))
    for number in range(3):
        theta, outer = game.theta, game.outer
        log = game.round(number)
        updates = [game.past[-1].updates[peer] for peer in sorted(log.contributing)]
        expected, _, _ = ops.outer_step(theta, updates, outer, alpha=1.0, aggregate="mean")
        assert all(torch.equal(expected[name], value) for name, value in game.theta.items())


def test_results_do_not_depend_on_torchs_threads() -> None:
    scenario = Scenario(0, 1, 24, validators=1)
    before = torch.get_num_threads()
    told = play(scenario)
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        assert play(scenario) == told
    finally:
        torch.set_num_threads(before)
