"""The cheap problem against a plain reading of it: torch's own gradients, and text that is what its place says."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from murmur.lab.arena.problem import CONTEXT, VOCABULARY, Prober, Text, sequence_losses, train, zero_theta
from murmur.lab.arena.stage import PLACES, VERIFICATIONS, make_spec
from murmur.protocol.types import Page
from sparseloco.reference import compress

SPEC = make_spec(0)
TEXT = Text(0, SPEC.page_tokens, held_out_sequences=64)


def page(index: int) -> Page:
    return Page(index * SPEC.page_tokens, SPEC.page_tokens)


def some_theta() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(value.shape, generator=generator) for name, value in zero_theta().items()}


def plain_losses(theta: dict[str, torch.Tensor], sequences: torch.Tensor) -> torch.Tensor:
    one, two, target = sequences[:, 1:-1], sequences[:, :-2], sequences[:, 2:]
    logits = theta["bias.weight"] + theta["lag1.weight"][one] + theta["lag2.weight"][two]
    return cross_entropy(logits.transpose(1, 2), target, reduction="none").mean(1)


def test_the_spec_has_the_regressions_layout_traces_and_else_the_protocols_default_constants() -> None:
    shapes = {name: tuple(value.shape) for name, value in zero_theta().items()}
    assert {tensor.name: tensor.shape for tensor in SPEC.layout} == shapes
    assert SPEC.trace.places == PLACES
    traced = {"trace_values": SPEC.trace.values, "verifications": VERIFICATIONS}
    assert type(SPEC).model_validate_json(SPEC.model_dump_json()).gauntlet == type(SPEC.gauntlet)(**traced)


def test_losses_are_the_mean_cross_entropy_of_every_sequence() -> None:
    sequences = TEXT.sequences([page(3)])
    assert torch.allclose(sequence_losses(some_theta(), sequences), plain_losses(some_theta(), sequences), atol=1e-5)


def test_training_is_gradient_descent_of_every_peer_on_its_own() -> None:
    lessons = torch.stack([TEXT.sequences([page(index)]) for index in (4, 5, 6)])
    sizes = [16, 16, 8, 24]
    found = train([zero_theta(), some_theta(), zero_theta()], lessons, sizes, 0.5)[1]
    alone = train([some_theta()], lessons[1:2], sizes, 0.5)[0]
    theta = {name: value.requires_grad_() for name, value in some_theta().items()}
    for step, batch in enumerate(lessons[1].split(sizes)):
        gradients = torch.autograd.grad(plain_losses(theta, batch).mean(), list(theta.values()))
        for name, gradient in zip(theta, gradients, strict=True):
            assert torch.allclose(found.moves[name][step], 0.5 * gradient, atol=1e-5)
        theta = {
            name: (value - 0.5 * gradient).detach().requires_grad_()
            for (name, value), gradient in zip(theta.items(), gradients, strict=True)
        }
    for name, value in theta.items():
        assert torch.allclose(found.end[name], value, atol=1e-5)
        assert torch.equal(found.end[name], alone.end[name])
        assert torch.equal(found.moves[name], alone.moves[name])


def test_text_depends_on_its_place_alone_and_kept_pages_are_the_same_text() -> None:
    whole = TEXT.sequences([page(7), page(8)])
    part = TEXT.sequences([replace(page(8), first=page(8).first + 3 * CONTEXT, num_tokens=CONTEXT)])
    again = Text(0, SPEC.page_tokens, held_out_sequences=1)
    again.keep([page(8), page(7)])
    assert torch.equal(part[0], whole[67])
    assert torch.equal(again.sequences([page(7), page(8)]), whole)
    assert not torch.equal(Text(1, SPEC.page_tokens, held_out_sequences=1).sequences([page(7)]), whole[:64])


def test_tokens_follow_the_table_they_are_drawn_from() -> None:
    sequences = TEXT.sequences([page(index) for index in range(200)]).numpy()
    pairs = np.zeros((VOCABULARY, VOCABULARY))
    np.add.at(pairs, (sequences[:, 1:-1].ravel(), sequences[:, 2:].ravel()), 1)
    rows = TEXT._line.reshape(-1, VOCABULARY) - np.arange((2 + 64) * VOCABULARY)[:, None]
    first = np.diff(rows[:VOCABULARY], axis=1, prepend=0.0)
    seen = pairs.sum(1) > 1000
    found = pairs[seen] / pairs[seen].sum(1, keepdims=True)
    assert seen.sum() > 20
    correlations = [np.corrcoef(one, two)[0, 1] for one, two in zip(found, first[seen], strict=True)]
    assert np.median(correlations) > 0.8


def test_the_prober_takes_a_share_of_the_update_and_lets_theta_be() -> None:
    theta = zero_theta()
    end = train([theta], TEXT.sequences([page(9)])[None], [16] * 4, 2.0)[0].end
    update, _ = compress(theta, end, None, SPEC.layout, 0.95)
    factor, losses = (1.0, 0.5, 0.0), Prober(TEXT, theta, 0.25)
    probed = {t.name: theta[t.name] - 0.25 * s * update.dense(t.name) for t, s in zip(SPEC.layout, factor, strict=True)}
    expected = sequence_losses(probed, TEXT.sequences([page(9)])).tolist()
    before = losses(None, (), (page(9),))
    assert np.allclose(losses(update, factor, (page(9),)), expected)
    assert losses(None, (), (page(9),)) == before
    assert not any(bool(value.any()) for value in theta.values())
