"""The model equals a naive one written from the papers, and its parameters are the spec's."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from murmur.protocol.spec import ModelSpec
from murmur.training import model as model_module
from murmur.training.model import Transformer, cross_entropy, initialise
from murmur.training.sizes import LOGITS_PER_CHUNK, Recompute
from tests.training.allocations import Watched

SPECS = [
    ModelSpec(vocabulary=50, layers=2, width=24, heads=6, kv_heads=2, ffn=20, context=17, tie_embeddings=True),
    ModelSpec(vocabulary=31, layers=1, width=16, heads=2, kv_heads=2, ffn=24, context=9, tie_embeddings=False),
    ModelSpec(vocabulary=31, layers=3, width=16, heads=4, kv_heads=1, ffn=8, context=9, rope_theta=10.0),
]


def made(spec: ModelSpec, seed: int = 0) -> Transformer:
    model = Transformer(spec)
    initialise(model, seed)
    with torch.no_grad():
        # Larger weights and gains other than 1, so that a wrong scale, norm or rotation shows.
        for parameter in model.parameters():
            parameter.mul_(6.0 if parameter.dim() == 2 else 0.7)
    return model


def naive_logits(spec: ModelSpec, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """One sequence [T] at a time, heads in a loop, rotation by complex numbers, softmax with an explicit mask."""
    length, size = len(tokens), spec.width // spec.heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + spec.norm_epsilon) * weights[name]

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(x[:, : size // 2], x[:, size // 2 :])
        angle = torch.tensor(
            [[t * spec.rope_theta ** (-2 * i / size) for i in range(size // 2)] for t in range(length)]
        )
        pairs = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pairs.real, pairs.imag], dim=1)

    x = weights["embedding.weight"][tokens]
    for layer in range(spec.layers):
        at = f"layers.{layer}."
        y = norm(x, at + "attention_norm.weight")
        q, k, v = (y @ weights[f"{at}attention.{name}.weight"].T for name in ("query", "key", "value"))
        heads = []
        for head in range(spec.heads):
            group = head // (spec.heads // spec.kv_heads)
            query, key = turned(q[:, head * size :][:, :size]), turned(k[:, group * size :][:, :size])
            scores = query @ key.T / size**0.5
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
            heads.append(torch.softmax(scores, dim=1) @ v[:, group * size :][:, :size])
        x = x + torch.cat(heads, dim=1) @ weights[at + "attention.output.weight"].T
        y = norm(x, at + "ffn_norm.weight")
        gate, up = y @ weights[at + "ffn.gate.weight"].T, y @ weights[at + "ffn.up.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ weights[at + "ffn.down.weight"].T
    rows = weights["embedding.weight" if spec.tie_embeddings else "head.weight"]
    return norm(x, "norm.weight") @ rows.T


@pytest.mark.parametrize("spec", SPECS)
def test_the_named_parameters_are_exactly_the_specs_shapes(spec: ModelSpec) -> None:
    assert {name: tuple(p.shape) for name, p in Transformer(spec).named_parameters()} == spec.shapes()


@pytest.mark.parametrize("spec", SPECS)
def test_the_state_dict_holds_nothing_but_parameters(spec: ModelSpec) -> None:
    assert Transformer(spec).state_dict().keys() == spec.shapes().keys()


@pytest.mark.parametrize("spec", SPECS)
def test_logits_equal_a_naive_implementation(spec: ModelSpec) -> None:
    model = made(spec)
    tokens = torch.randint(0, spec.vocabulary, (3, spec.context), generator=torch.Generator().manual_seed(1))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    logits = model(tokens).detach()
    naive = torch.stack([naive_logits(spec, weights, row) for row in tokens])
    assert logits.std() > 0.3
    torch.testing.assert_close(logits, naive, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_the_loss_is_the_cross_entropy_of_the_next_token(spec: ModelSpec) -> None:
    model = made(spec)
    sequences = torch.randint(0, spec.vocabulary, (3, spec.context + 1), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([F.cross_entropy(model(row[None, :-1])[0], row[1:]) for row in sequences])
    torch.testing.assert_close(model.loss(sequences), expected)


def test_a_position_does_not_see_later_tokens() -> None:
    model = made(SPECS[0])
    tokens = torch.randint(0, 50, (1, 17), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.allclose(before[0, 9:], after[0, 9:])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(2, 30), st.integers(1, 300), st.integers(0, 2**32))
def test_chunked_cross_entropy_and_its_gradients_equal_torchs(
    rows: int, vocabulary: int, limit: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = (5 * torch.randn(rows, 6, generator=generator, dtype=torch.float64)).float().requires_grad_()
    weight = torch.randn(vocabulary, 6, generator=generator).requires_grad_()
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    mix = torch.rand(rows, generator=generator)
    found = cross_entropy(hidden, weight, targets, limit)
    expected = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for mine, torchs in zip(
        torch.autograd.grad((found * mix).sum(), (hidden, weight)),
        torch.autograd.grad((expected * mix).sum(), (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, torchs, atol=1e-4, rtol=1e-4)


def test_under_autocast_the_heads_gradient_stays_in_fp32_and_near_the_exact_one() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 16, generator=generator)
    weight = torch.randn(40, 16, generator=generator).requires_grad_()
    targets = torch.randint(0, 40, (64,), generator=generator)
    (exact,) = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, targets, reduction="sum"), weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = cross_entropy(hidden, weight, targets, 40 * 8)
    assert losses.dtype == torch.float32
    (grad,) = torch.autograd.grad(losses.sum(), weight)
    assert grad.dtype == torch.float32
    assert (grad - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_the_heads_gradient_is_rounded_once_however_many_chunks_there_are(kept: torch.dtype) -> None:
    """Also where the weights themselves are bf16, as FSDP gathers them."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(512, 16, generator=generator).bfloat16()
    weight = torch.randn(40, 16, generator=generator).bfloat16()
    targets = torch.randint(0, 40, (512,), generator=generator)
    exact = weight.double().requires_grad_()
    F.cross_entropy(hidden.double() @ exact.T, targets, reduction="sum").backward()  # type: ignore[no-untyped-call]
    errors = []
    for chunks in (1, 32):
        mine = weight.to(kept, copy=True).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cross_entropy(hidden, mine, targets, 512 * 40 // chunks).sum().backward()  # type: ignore[no-untyped-call]
        assert mine.grad is not None
        assert mine.grad.dtype == kept
        assert exact.grad is not None
        errors.append(float((mine.grad - exact.grad).norm() / exact.grad.norm()))
    assert errors[1] == pytest.approx(errors[0], rel=0.2)
    assert errors[1] < 0.005


def test_a_step_with_a_vocabulary_of_262144_never_has_the_logits_of_its_batch() -> None:
    spec = ModelSpec(vocabulary=262_144, layers=1, width=16, heads=2, kv_heads=1, ffn=16, context=256)
    model = Transformer(spec)
    initialise(model, 0)
    sequences = torch.randint(0, spec.vocabulary, (2, 257), generator=torch.Generator().manual_seed(0))
    with Watched() as watched:
        loss = model.loss(sequences).mean()
        torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(math.log(262_144), rel=0.01)
    assert watched.largest == LOGITS_PER_CHUNK == 256 * 262_144
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("chunks", [1, 4])
def test_no_more_logits_are_alive_than_promised(chunks: int, low: bool) -> None:
    """Bytes a logit of one chunk, everything that exists at once counted; a chunk dwarfs weights and activations."""
    rows, vocabulary, width = 64, 50_000, 4
    hidden = torch.zeros(chunks * rows, width).requires_grad_()
    weight = torch.zeros(vocabulary, width).requires_grad_()
    with Watched() as watched, torch.autocast("cpu", torch.bfloat16, enabled=low):
        losses = cross_entropy(hidden, weight, torch.zeros(chunks * rows, dtype=torch.int64), rows * vocabulary)
        torch.autograd.backward(losses.sum())
    assert watched.peak == pytest.approx(8 * rows * vocabulary, rel=0.15)


@pytest.mark.parametrize(("low", "recompute"), [(False, "none"), (True, "selective")])
def test_compiled_the_model_has_the_same_loss_and_gradients(
    low: bool, recompute: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the compiler's front end, whose graphs run without being turned into kernels: that takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(model_module, "LOGITS_PER_CHUNK", 50 * 20)
    model_module._compiled.cache_clear()
    sequences = torch.randint(0, 50, (3, 18), generator=torch.Generator().manual_seed(1))
    results = []
    for compiled in (False, True):
        model = made(SPECS[0])
        if compiled:
            model.compile()
        assert [name for name, _ in model.named_parameters()] == list(SPECS[0].shapes())
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = model.loss(sequences, recompute)
        torch.autograd.backward(loss.sum())
        results.append(torch.cat([loss.detach(), *(p.grad.flatten() for p in model.parameters())]))
    model_module._compiled.cache_clear()
    assert (results[1] - results[0]).norm() < (0.03 if low else 1e-5) * results[0].norm()


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("spec", SPECS)
def test_layers_that_are_computed_again_give_the_same_gradients(spec: ModelSpec, recompute: Recompute) -> None:
    sequences = torch.randint(0, spec.vocabulary, (3, spec.context + 1), generator=torch.Generator().manual_seed(1))
    grads = []
    for mode in ("none", recompute):
        model = made(spec)
        torch.autograd.backward(model.loss(sequences, mode).sum())
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, grad in grads[0].items():
        assert torch.equal(grad, grads[1][name]), name


def test_selectively_no_matrix_product_and_no_attention_is_computed_again() -> None:
    sequences = torch.randint(0, 50, (3, 18), generator=torch.Generator().manual_seed(1))
    counts = {}
    for mode in ("none", "selective", "full"):
        model = made(SPECS[0])
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(model.loss(sequences, mode).sum())
        counts[mode] = counter.get_total_flops()
    assert counts["none"] == counts["selective"] < counts["full"]


def test_building_a_model_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    initialise(Transformer(SPECS[1]), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_initialisation_depends_on_the_seed_alone() -> None:
    first, again, other = (Transformer(SPECS[0]) for _ in range(3))
    initialise(first, 7)
    torch.manual_seed(1234)
    initialise(again, 7)
    initialise(other, 8)
    weights = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_model_is_built_without_what_torch_imports_for_symbols() -> None:
    """480 modules, two seconds of every start."""
    script = (
        "import sys; from murmur.protocol.spec import ModelSpec; from murmur.training.model import Transformer\n"
        f"Transformer(ModelSpec.model_validate({SPECS[0].model_dump()!r}))\n"
        "assert not {'sympy', 'torch._dynamo'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
