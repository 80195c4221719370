"""Attackers that show steps which they did not make: what they show, what repeating it finds, and what they are paid;
and that the arena notices rules that are broken."""

from collections import defaultdict
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from gauntlet.repetition import LARGEST_GRADIENT, TYPICAL_GRADIENT, Repetition
from gauntlet.selection import Ranking
from murmur.lab.arena import policies
from murmur.lab.arena.attack import Attack, Expected, Working
from murmur.lab.arena.attacks import ATTACKS
from murmur.lab.arena.game import Game, Scenario, play
from murmur.lab.arena.measure import AttackResult, row
from murmur.lab.arena.players import Lesson, View, lesson
from murmur.lab.arena.pretenders import thinned
from murmur.lab.arena.problem import CONTEXT, Text, Trained, train, zero_theta
from murmur.lab.arena.stage import make_spec
from murmur.lab.arena.traces import cut, extrapolated, none_of, size
from murmur.protocol.types import Digest, Page, PeerId

BY_KIND = {attack.kind: attack for attack in ATTACKS}
UNPAID = [attack.kind for attack in ATTACKS if attack.expected is Expected.UNPAID]
PRETENDERS = [attack for attack in ATTACKS if attack.__module__.endswith("pretenders")]


def scenario(*attacks: type[Attack], rounds: int = 8, validators: int = 1) -> Scenario:
    return Scenario(0, rounds, 24, attacks=attacks, validators=validators, trouble=0.0, churn=0.0)


def result(attack: type[Attack], rounds: int = 12, validators: int = 1) -> AttackResult:
    return row(attack, "ours", [play(scenario(attack, rounds=rounds, validators=validators))])


@cache
def verdicts(kind: str) -> dict[str, list[Repetition]]:
    """What one validator found in eight rounds, of the attackers and of the honest."""
    game, found = Game(scenario(BY_KIND[kind])), defaultdict(list)
    for number in range(8):
        log = game.round(number)
        for peer, one in game.judges[game.validators[0]].found.items():
            found["attacker" if log.players[peer] in game.attackers else "honest"].append(one)
    return found


@pytest.mark.parametrize("attack", PRETENDERS, ids=lambda attack: attack.kind)
def test_every_pretender_is_within_its_class(attack: type[Attack]) -> None:
    found = result(attack)
    assert found.meets, (found.share, found.allowed)
    assert found.rejected == 0.0


@pytest.mark.parametrize("kind", [attack.kind for attack in PRETENDERS if attack.expected is Expected.UNPAID])
def test_steps_that_were_not_made_are_not_as_shown_and_honest_ones_are(kind: str) -> None:
    found = verdicts(kind)
    assert len(found["honest"]) >= 20
    assert all(one.passed and max(one.gradients) < 0.01 for one in found["honest"])
    shown = [one for one in found["attacker"] if one.declared]
    assert len(shown) >= 5
    assert not any(one.passed for one in shown)
    assert min(max(one.gradients) for one in shown) > 1.5 * LARGEST_GRADIENT


def test_a_guessed_step_hides_from_the_median_and_not_from_the_largest_distance() -> None:
    for one in verdicts("guessed-step")["attacker"]:
        assert median(one.gradients) <= TYPICAL_GRADIENT
        assert max(one.gradients) > LARGEST_GRADIENT


def test_half_that_is_declared_is_as_shown_and_earns_half() -> None:
    assert {(one.declared, one.passed) for one in verdicts("half-declared")["attacker"]} == {(2, True)}
    assert 0.3 < result(BY_KIND["half-declared"], rounds=16).share < 0.55


def test_the_thinnest_late_steps_are_about_as_far_off_as_is_allowed() -> None:
    found = verdicts("thin-late-steps")["attacker"]
    assert all(max(one.gradients[:2]) < 0.01 for one in found)
    assert 0.5 < np.mean([max(one.gradients) for one in found]) / LARGEST_GRADIENT < 1.5


def test_false_verdicts_of_a_minority_bring_no_pay_for_thin_work() -> None:
    found = result(BY_KIND["false-verdicts"], validators=3)
    assert found.meets, (found.share, found.allowed)


@pytest.mark.parametrize("kind", ["slander", "lying-for-workers"])
def test_a_minority_that_favours_workers_is_noticed(kind: str) -> None:
    """A known gap, whether by false verdicts or by weights alone: docs/threat-model.md says why."""
    assert not result(BY_KIND[kind], validators=3).meets


def test_liars_are_the_largest_minority_and_fail_all_but_their_friends() -> None:
    for validators, liars in ((1, 1), (2, 1), (3, 1), (7, 3)):
        game = Game(scenario(BY_KIND["false-verdicts"], validators=validators))
        assert game.liars == game.validators[-liars:]
    for number in range(2):
        log = game.round(number)
    for peer in game.liars:
        found = game.judges[peer].found
        assert found
        assert all(one.passed == (log.players[who] in game.attackers) for who, one in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["false-verdicts", "lying-validator"])
def test_a_league_of_three_of_seven_brings_no_pay_for_work_that_was_not_done(kind: str) -> None:
    assert result(BY_KIND[kind], rounds=24, validators=7).meets


# --- planted bugs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["thin-in-four", "extrapolated-half", "thin-denoised"])
def test_a_comparison_that_always_passes_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = policies.compare

    def blind(round, steps, shown, own):
        return honest(round, steps, own, own)

    monkeypatch.setattr(policies, "compare", blind)
    assert not result(BY_KIND[kind]).meets


class Foresight(Working):
    """A quarter of every batch where it knows that nobody will repeat its steps."""

    kind, expected = "foresight", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        whole = lesson(view, view.pages(self.me))
        return [whole if is_drawn(self.me, view.round) else thinned(whole, [4] * 4)]


def is_drawn(peer: PeerId, round: int) -> bool:
    """A draw that follows from nothing that is unknown when work is committed."""
    return (peer[0] + round) % 4 == 0


def test_a_draw_that_is_known_before_the_commitment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(Foresight, rounds=24).meets

    def known(run: Any, block_hash: Any, round: int, validator: Any, ranking: Ranking, *_: Any) -> list[PeerId]:
        return [peer for peer in sorted([*ranking.contributing, *ranking.reserve]) if is_drawn(peer, round)]

    monkeypatch.setattr(policies, "draw", known)
    assert not result(Foresight, rounds=24).meets


# --- traces ----------------------------------------------------------------------------------------------------------


def some_steps(count: int) -> Trained:
    random = torch.Generator().manual_seed(1)
    moves = {name: torch.randn(count, *value.shape, generator=random) for name, value in zero_theta().items()}
    return Trained({name: -values.sum(0) for name, values in moves.items()}, moves, 0.5)


def test_a_trace_shows_each_steps_gradients_and_moves_at_the_places_of_its_hotkey() -> None:
    spec, trained = make_spec(0), some_steps(5)
    one, other = (cut(spec, Digest(bytes(32)), Digest(bytes(32)), PeerId(bytes([n]) * 32), trained) for n in (1, 2))
    assert one.moves.shape == (spec.inner.steps, spec.trace.places)
    assert np.array_equal(one.gradients, 2.0 * one.moves)
    assert one.moves[0, 0] in trained.moves["bias.weight"][0]
    assert not np.array_equal(one.moves, other.moves)


def test_steps_are_made_up_at_the_last_ones_size_and_theta_goes_with_them() -> None:
    trained = some_steps(2)
    found = extrapolated(trained, 4)
    sizes = [size({name: values[step] for name, values in found.moves.items()}) for step in range(4)]
    assert sizes[1:] == pytest.approx([sizes[1]] * 3)
    for name, values in found.moves.items():
        assert torch.equal(values[:2], trained.moves[name])
        assert torch.allclose(found.end[name], -values.sum(0), atol=1e-5)
    nothing = none_of(zero_theta())
    assert extrapolated(nothing, 4) is nothing


def test_the_larger_the_batch_the_nearer_is_a_thin_one_with_the_expected_gradient_for_the_rest() -> None:
    """A limit of the comparison that the arena's own batches of 16 do not show (docs/threat-model.md)."""
    text, pages, theta = (
        Text(0, 64 * CONTEXT, 1),
        [Page(at * 64 * CONTEXT, CONTEXT) for at in range(16384)],
        zero_theta(),
    )
    sequences = text.sequences(pages)

    def gradient(lesson: torch.Tensor) -> torch.Tensor:
        (found,) = train([theta], lesson[None], [len(lesson)], 1.0)
        return torch.cat([values.flatten() for values in found.moves.values()])

    expected = gradient(sequences[4096:])
    off = []
    for batch in (16, 4096):
        whole, quarter = gradient(sequences[:batch]), gradient(sequences[: batch // 4])
        off.append(float((quarter / 4 + 0.75 * expected - whole).norm() / whole.norm()))
    assert off[0] > LARGEST_GRADIENT > TYPICAL_GRADIENT > off[1]
