"""Every attacker does what it says: what it sends, and what it worked for that."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from gauntlet.average import Average
from gauntlet.book import PeerRecord, ScoreBook
from murmur.lab.arena import forge
from murmur.lab.arena.attack import Attack, Expected
from murmur.lab.arena.attacks import ATTACKS
from murmur.lab.arena.copies import CopycatExact
from murmur.lab.arena.game import Game, Scenario, Story, play
from murmur.lab.arena.kinds import KINDS
from murmur.lab.arena.players import Player, View, difference, lesson
from murmur.lab.arena.problem import CONTEXT, Text, train, zero_theta
from murmur.lab.arena.stage import generator, make_spec
from murmur.lab.arena.traces import none_of
from murmur.protocol.assignment import Draw
from murmur.protocol.types import Digest, PeerId, Reason, Standing
from sparseloco.update import overlap

LAYOUT = make_spec(0).layout
BY_KIND = {attack.kind: attack for attack in ATTACKS}


@cache
def story(kind: str, policy: str = "ours", validators: int = 1, rounds: int = 4) -> Story:
    """One attack, a third of 24 hotkeys its own."""
    return play(Scenario(0, rounds, 24, policy, (BY_KIND[kind],), validators=validators, trouble=0.0, churn=0.0))


def reasons(told: Story) -> Counter[str]:
    """Why the attackers' submissions were refused; `passed` for those that were not."""
    return Counter(
        str(log.rejected.get(peer, "passed"))
        for log in told.rounds
        for peer in log.sent
        if log.players[peer] in told.attackers
    )


def works(told: Story) -> list[float]:
    """Work of the first attacker, round by round."""
    return [log.work[next(iter(told.attackers))] for log in told.rounds]


@cache
def first_view() -> View:
    """What everybody sees in the first round."""
    spec, digest = make_spec(0), Digest(bytes(32))
    text = Text(0, spec.page_tokens, held_out_sequences=1)
    return View(0, spec, digest, digest, text, zero_theta(), digest, [], ScoreBook())


def some_update(seed: int = 0):
    return forge.noise(1.0, LAYOUT, torch.Generator().manual_seed(seed))


def test_the_command_line_knows_every_attack() -> None:
    assert tuple(attack.kind for attack in ATTACKS) == KINDS
    assert all(issubclass(attack, Player) and isinstance(attack.expected, Expected) for attack in ATTACKS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("copycat-exact", Reason.OUT_OF_SYNC),
        ("copycat-perturbed", Reason.COPY),
        ("copycat-of-the-last-round", Reason.COPY),
        ("zeros", Reason.NORM),
        ("stale-model", Reason.OUT_OF_SYNC),
        ("digest-liar", Reason.OUT_OF_SYNC),
        ("scale-x1000", Reason.NORM),
        ("late", Reason.LATE),
    ],
)
def test_what_the_checks_refuse_is_refused_for_the_right_reason(kind: str, reason: Reason) -> None:
    found = reasons(story(kind))
    assert set(found) == {reason}
    assert found[reason] >= 16
    assert BY_KIND[kind].expected is Expected.AT_ONCE


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("half-work", [0.5] * 4),
        ("double-work", [2.0] * 4),
        ("wrong-data", [1.0] * 4),
        ("sybil-split", [0.875] * 4),
        ("replication-by-union-halves", [1.0] * 4),
        ("replication-by-disjoint-ranks", [1.0] * 4),
        ("best-of-8-withheld", [1.0] * 4),
        ("consensus-momentum", [0.0] * 4),
        ("error-feedback-drip", [1.0, 0.0, 0.0, 0.0]),
        ("flapping", [1.0, 1.0, 1.0, 0.0]),
        ("noise", [0.0] * 4),
        ("own-trace-again", [1.0, 1.0, 1.0, 0.0]),
        ("slack-once-familiar", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_work_is_counted_in_honest_rounds(kind: str, expected: list[float]) -> None:
    assert works(story(kind)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("half-batch", 0.5),
        ("half-rate", 1.0),
        ("frozen-layers", pytest.approx(5 / 6, abs=0.01)),
        ("double-batch", 2.0),
        ("slow-drift", 1.0),
        ("framing", 2.0),
        ("inflate-x1.25", 1.0),
        ("deflate-x0.85", 1.0),
        ("split-in-two", 1.0),
        ("swarm-80", 6 / 64),
        ("half-declared", 0.5),
        ("thin-in-four", 1.0),
        ("skipped-step", 0.75),
        ("extrapolated-quarter", 0.75),
        ("extrapolated-half", 0.5),
        ("borrowed-trace", 0.5),
        ("guessed-step", 0.75),
        ("thin-denoised", 0.25),
        ("thin-late-steps", 62 / 64),
        ("false-verdicts", 1.0),
        ("slander", 1.0),
    ],
)
def test_a_round_of_each_costs_what_is_counted_as_its_work(kind: str, expected: float) -> None:
    view = first_view()
    assert sum(each.cost for each in BY_KIND[kind](f"{kind} 0", 0).lessons(view)) / 64 == expected


def test_slack_follows_an_evaluation_that_everybody_saw() -> None:
    told = story("slack-while-unseen")
    name = next(iter(told.attackers))
    mine = next(peer for peer, player in told.rounds[0].players.items() if player == name)
    for number, log in enumerate(told.rounds):
        seen = any(mine in before.evaluated for before in told.rounds[max(0, number - 2) : number])
        assert log.work[name] == (0.25 if seen else 1.0)


def test_what_no_rule_forbids_passes_the_checks() -> None:
    for kind in ("noise", "half-work", "sign-flip", "constant-direction", "one-tensor", "colluding-third"):
        assert set(reasons(story(kind))) == {"passed"}


def test_thin_margins_are_worked_for_and_safe_ones_are_not() -> None:
    player = BY_KIND["thin-margin"]("thin-margin 0", 0)

    def work(gap: float) -> float:
        averages = {"units": Average(0.2, 1.0), "scores": Average(0.1, 1.0), "usual_scores": Average(0.1, 1.0)}
        record = PeerRecord(0, gaps=Average(gap, 1.0), evaluations=50, **averages)
        view = replace(first_view(), book=ScoreBook(peers={player.me: record}))
        return sum(each.cost for each in player.lessons(view)) / 64

    assert [work(gap) for gap in (0.0, 0.13, 0.14, 0.3)] == [1.0, 1.0, 1.0, 0.25]
    assert sum(each.cost for each in player.lessons(first_view())) == 64


def test_on_off_works_in_four_rounds_of_five_and_pushes_theta_back_in_the_fifth() -> None:
    game = Game(Scenario(0, 5, 24, attacks=(BY_KIND["on-off"],), validators=1, trouble=0.0, churn=0.0))
    logs = [game.round(number) for number in range(5)]
    name = next(iter(game.attackers))
    assert [log.work[name] for log in logs] == [1.0] * 4 + [0.0]
    mine = next(peer for peer, player in logs[0].players.items() if player == name)
    back, step = forge.dense(game.past[-1].updates[mine]), difference(game.past[-1].theta, game.past[-2].theta)
    along = sum(float((back[tensor] * step[tensor]).sum()) for tensor in step)
    size = sum(float((back[tensor] * (step[tensor] != 0)).square().sum()) for tensor in step) ** 0.5
    assert along > 0
    assert size == pytest.approx(game.past[-1].updates[mine].norms.whole, rel=1e-3)
    assert not any(peer in logs[-1].rejected for peer, player in logs[-1].players.items() if player in game.attackers)


def test_a_peer_on_whose_pages_a_third_of_all_train_too_goes_on_contributing() -> None:
    told = story("framing", rounds=8)
    (victim,) = (peer for peer, name in told.rounds[0].players.items() if name == "honest 0")
    assert PeerId(BY_KIND["framing"]("framing 0", 0).victim) == victim
    known = told.rounds[4:]
    assert not any(log.standing.get(victim) is Standing.LOW_SCORE for log in known)
    assert sum(log.paid.get(victim, 0.0) > 0 for log in known) >= 3


def test_the_swarm_is_four_fifths_of_the_hotkeys_and_each_does_a_tenth() -> None:
    game = Game(Scenario(0, 1, 24, attacks=(BY_KIND["swarm-80"],), validators=1))
    assert len(game.attackers) == 19
    assert sum(len(player.hotkeys) for player in game.seats.values()) == 24


def test_a_copier_of_39_percent_is_no_copy_by_the_checks_most_of_the_time() -> None:
    found = reasons(story("copier-39"))
    assert set(found) <= {"passed", Reason.COPY}
    assert found["passed"] > 2 * found[Reason.COPY]


def test_a_half_batch_takes_every_step_on_every_second_sequence_and_a_double_one_adds_others_between() -> None:
    view = first_view()
    whole = lesson(view, view.pages(BY_KIND["half-batch"]("x 0", 0).me))
    for kind, count in (("half-batch", 32), ("double-batch", 128)):
        (mine,) = BY_KIND[kind]("x 0", 0).lessons(view)
        assert (mine.batches, tuple(mine.sequences.shape)) == ((count // 4,) * 4, (count, CONTEXT))
        own, taken = (whole.sequences[::2], mine.sequences) if count == 32 else (whole.sequences, mine.sequences[::2])
        assert torch.equal(own, taken)


def test_a_frozen_tensor_stays_and_half_the_rate_is_half_the_first_step() -> None:
    start, sequences = zero_theta(), torch.randint(0, 64, (1, 16, CONTEXT), generator=torch.Generator().manual_seed(1))
    (whole,), (frozen,) = train([start], sequences, [16], 2.0), train([start], sequences, [16], 2.0, "lag2.weight")
    assert torch.equal(frozen.end["lag2.weight"], start["lag2.weight"])
    assert torch.equal(frozen.end["lag1.weight"], whole.end["lag1.weight"])
    assert bool(whole.end["lag2.weight"].any())
    (lesson_of_half,) = BY_KIND["half-rate"]("x 0", 0).lessons(first_view())
    assert (lesson_of_half.rate, len(lesson_of_half.sequences)) == (0.5, 64)


def test_the_drift_is_one_direction_for_all_and_grows_by_the_round() -> None:
    pushed = []
    for number in (1, 10):
        view = replace(first_view(), round=number)
        for name in ("slow-drift 0", "slow-drift 1"):
            sent = BY_KIND["slow-drift"](name, 0).send(view, [none_of(view.theta)])
            pushed.extend(sending.update for sending in sent.values())
    assert pushed[0].digest == pushed[1].digest
    norms = [update.norms.whole for update in pushed]
    assert norms[2] / norms[0] == pytest.approx(10.0, rel=0.1)
    assert norms[0] == pytest.approx(0.02, rel=0.1)


def test_the_withholder_reveals_one_key_of_eight() -> None:
    told = story("best-of-8-withheld")
    assert reasons(told)["UNREVEALED"] == 7 * len(told.rounds)


def test_flooding_newcomers_are_new_hotkeys_every_three_rounds() -> None:
    told = story("newcomer-flood")
    hotkeys = [{p for p, name in log.players.items() if name in told.attackers} for log in told.rounds]
    assert hotkeys[0] == hotkeys[2]
    assert not hotkeys[2] & hotkeys[3]
    assert all(len(theirs) == 8 for theirs in hotkeys)


def test_without_sealing_a_copier_sends_what_another_sends_in_the_same_round() -> None:
    assert set(reasons(story(CopycatExact.kind, "published"))) == {"passed"}


@pytest.mark.parametrize("kind", [pytest.param("lying-validator", marks=pytest.mark.slow), "withholding-validator"])
def test_one_hostile_validator_of_three_brings_its_friends_in_only_before_the_others_know_them(kind) -> None:
    told = story(kind, validators=3, rounds=8)
    named = [sum(log.players[peer] in told.attackers for peer in log.contributing) for log in told.rounds]
    assert named[0] > 0
    assert named[4:] == [0] * 4
    assert not any(log.is_void for log in told.rounds)


def test_with_two_validators_a_hostile_one_stops_the_rounds_instead_of_filling_them() -> None:
    told = story("withholding-validator", validators=2, rounds=8)
    assert all(log.is_void for log in told.rounds[4:])


# --- forged updates ------------------------------------------------------------------------------------------


def test_forged_updates_have_the_norm_they_are_asked_for() -> None:
    assert some_update().norms.whole == pytest.approx(1.0, rel=0.05)
    assert forge.scaled(some_update(), -3.0).norms.whole == pytest.approx(3.0, rel=0.05)
    zeros = {tensor.name: torch.zeros(tensor.shape) for tensor in LAYOUT}
    assert forge.with_norm(zeros, 1.0, LAYOUT).norms.whole == 0.0


def test_a_scaled_update_keeps_its_places_and_a_negative_factor_turns_its_signs() -> None:
    update = some_update()
    assert overlap(update, forge.scaled(update, 10.0), signed=True) == 1.0
    turned = forge.scaled(update, -1.0)
    assert overlap(update, turned) == 1.0
    assert overlap(update, turned, signed=True) == 0.0


def test_perturbing_moves_about_the_share_that_it_says() -> None:
    update = some_update()
    random = generator(Draw("test"))
    assert 0.7 < overlap(update, forge.perturbed(update, 0.2, random)) < 0.9


def test_halves_overlap_by_half_and_ranks_not_at_all() -> None:
    values = {tensor.name: torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5)) for tensor in LAYOUT}
    one, two = forge.halves(values, LAYOUT, 2, torch.Generator().manual_seed(6))
    assert 0.3 < overlap(one, two) < 0.7
    parts = [forge.dense(update) for update in forge.ranks(values, LAYOUT, 8)]
    for name in ("lag1.weight", "lag2.weight"):
        holders = sum((part[name] != 0).int() for part in parts)
        assert int(holders.max()) == 1
        assert int(holders.sum()) == 8 * 64


def test_every_attack_is_a_small_class_that_says_what_it_is() -> None:
    for attack in ATTACKS:
        assert attack.__doc__
        assert attack is not Attack
