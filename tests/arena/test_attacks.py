"""Every attacker does what it says: what it sends, and what it worked for that."""

from collections import Counter
from functools import cache

import pytest
import torch

from arena import forge
from arena.attacks import ATTACKS, Attack, CopycatExact, Expected
from arena.game import Scenario, Story, play
from arena.kinds import KINDS
from arena.players import Player
from arena.stage import generator, make_spec
from protocol.assignment import Draw
from protocol.types import Reason
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
    ],
)
def test_work_is_counted_in_honest_rounds(kind: str, expected: list[float]) -> None:
    assert works(story(kind)) == expected


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


@pytest.mark.parametrize("kind", ["lying-validator", "withholding-validator"])
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
