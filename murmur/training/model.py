"""A Llama-3 style decoder: grouped-query attention, rotary positions, SwiGLU, RMSNorm, tied or untied head.

The parameters of `Transformer(spec)` are exactly `spec.shapes()`, by name and shape: they are the run's layout, so
nothing here may register another one. No dropout, no biases, no caches: training and evaluation only. Rotary pairs are
(i, i + head_dim / 2), the half-split form of the published Hugging Face weights, not the interleaved one of Meta's own
code: the two differ by a fixed permutation of query and key rows. Source: Llama 3 (arXiv 2407.21783); RoPE
(2104.09864); SwiGLU (2002.05202); GQA (2305.13245).

The residual stream has the dtype of the embedding's output, which both autocast and FSDP2's mixed precision make bf16.
Norms, rotations and the loss are computed in fp32.

Shapes: B sequences, T positions, D width, H heads, K key/value heads, E head size, V vocabulary, N = B * T.
"""

from collections.abc import Callable
from functools import cache, partial
from math import sqrt
from typing import Any, ParamSpec, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from murmur.protocol.spec import ModelSpec
from murmur.training.sizes import LOGITS_PER_CHUNK, Recompute

P = ParamSpec("P")
R = TypeVar("R")

INIT_STD = 0.02


class Linear(nn.Linear):
    """A linear layer without bias and without torch's initialisation, which would take minutes at 72B and draw from the
    global generator.

    torch.nn.utils.skip_init does the same by way of the meta device, for which torch imports 480 modules: two seconds
    of every start.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """An embedding without torch's initialisation."""

    def reset_parameters(self) -> None:
        pass


class Norm(nn.Module):
    """RMSNorm with a gain, computed in fp32 whatever the activations' dtype."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def forward(self, x_BTD: Tensor) -> Tensor:
        # FSDP2 passes the gain in bf16.
        return F.rms_norm(x_BTD.float(), self.weight.shape, self.weight.float(), self.epsilon).to(x_BTD.dtype)


class Attention(nn.Module):
    """Causal self-attention; each key/value head serves heads / kv_heads consecutive query heads."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        size = spec.width // spec.heads
        self.heads, self.kv_heads, self.size = spec.heads, spec.kv_heads, size
        self.query = Linear(spec.width, spec.heads * size)
        self.key = Linear(spec.width, spec.kv_heads * size)
        self.value = Linear(spec.width, spec.kv_heads * size)
        self.output = Linear(spec.heads * size, spec.width)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        batch, length, _ = x_BTD.shape
        q_BHTE = self.query(x_BTD).view(batch, length, self.heads, self.size).transpose(1, 2)
        k_BKTE = self.key(x_BTD).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v_BKTE = self.value(x_BTD).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        y_BHTE = F.scaled_dot_product_attention(
            rotate(q_BHTE, cos_TE, sin_TE),
            rotate(k_BKTE, cos_TE, sin_TE),
            v_BKTE,
            is_causal=True,
            enable_gqa=self.kv_heads != self.heads,
        )
        return cast(Tensor, self.output(y_BHTE.transpose(1, 2).reshape(batch, length, self.heads * self.size)))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = Linear(spec.width, spec.ffn)
        self.up = Linear(spec.width, spec.ffn)
        self.down = Linear(spec.ffn, spec.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD)))


class Layer(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = Norm(spec.width, spec.norm_epsilon)
        self.attention = Attention(spec)
        self.ffn_norm = Norm(spec.width, spec.norm_epsilon)
        self.ffn = FeedForward(spec)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, recompute: Recompute) -> Tensor:
        """Return the layer's output. `recompute`: what the backward pass recomputes instead of keeping; results are
        bit-identical."""
        if recompute == "none" or not torch.is_grad_enabled():
            return self._block(x_BTD, cos_TE, sin_TE)
        # Inside forward: FSDP2's hooks, which gather the weights, stay outside of the recomputed part.
        again = partial(checkpoint, self._block, x_BTD, cos_TE, sin_TE, use_reentrant=False, preserve_rng_state=False)
        if recompute == "selective":
            again = partial(again, context_fn=partial(create_selective_checkpoint_contexts, _keep_products))
        return cast(Tensor, again())

    def _block(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TE, sin_TE)
        return cast(Tensor, x_BTD + self.ffn(self.ffn_norm(x_BTD)))


_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def _keep_products(context: Any, op: Any, *inputs: Any, **options: Any) -> CheckpointPolicy:
    """Return the selective policy: matrix products and attention are kept; everything cheaper is recomputed."""
    return CheckpointPolicy.MUST_SAVE if op in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


class Transformer(nn.Module):
    """The model of a run. Parameters are fp32 and uninitialised: `initialise` or load them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embedding = Embedding(spec.vocabulary, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = Norm(spec.width, spec.norm_epsilon)
        self.head = None if spec.tie_embeddings else Linear(spec.width, spec.vocabulary)
        self.spec = spec
        self.tabulate()
        self._fused = False

    def tabulate(self) -> None:
        """Compute the rotary tables, which are never loaded, on the weights' device. For a model built on torch's meta
        device and then given memory."""
        spec = self.spec
        tables = rotary_table(spec.context, spec.width // spec.heads, spec.rope_theta)
        for name, table in zip(("cos_TE", "sin_TE"), tables, strict=True):
            self.register_buffer(name, table.to(self.embedding.weight.device), persistent=False)

    def compile(self) -> None:
        """Compile each layer, and the loss after the logits, with torch.compile. For GPUs, after micro-batches were
        tried (each new shape is compiled anew). Results differ from the plain ones by rounding.

        Weights keep their names. Call it after FSDP2's fully_shard, whose hooks stay outside.
        """
        for layer in self.layers:
            # Not the module: its FSDP2 hooks would be compiled too. All layers share one graph.
            layer.forward = torch.compile(layer.forward)
        self._fused = True

    @property
    def head_weight(self) -> Tensor:
        """[V, D]; the embedding itself when tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def hidden(self, tokens_BT: Tensor, recompute: Recompute = "none") -> Tensor:
        """Return the final normed activations [B, T, D] of int64 tokens, T <= context."""
        length = tokens_BT.shape[1]
        cos_TE = cast(Tensor, self.cos_TE)[:length]
        sin_TE = cast(Tensor, self.sin_TE)[:length]
        x_BTD = _autocast(self.embedding(tokens_BT))
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TE, sin_TE, recompute)
        return cast(Tensor, self.norm(x_BTD))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return the logits [B, T, V] of int64 tokens, all at once: for tests and export; training uses `loss`."""
        return F.linear(self.hidden(tokens_BT), self.head_weight)

    def loss(self, sequences: Tensor, recompute: Recompute = "none") -> Tensor:
        """Return the mean cross entropy of each sequence, nats per token, fp32 [B].

        `sequences` is int64 [B, T + 1]: position t predicts token t + 1. At most LOGITS_PER_CHUNK logits exist at once,
        never those of a larger batch. recompute: what each layer's backward pass recomputes (murmur/training/sizes.py).
        Under FSDP2 the caller registers `loss` as a forward method of the root, whose group holds embedding and head:
        their weights are whole from its start, and again for its backward pass.
        """
        inputs_BT, targets_BT = sequences[:, :-1], sequences[:, 1:]
        hidden_ND = self.hidden(inputs_BT, recompute).flatten(0, 1)
        losses_N = cross_entropy(hidden_ND, self.head_weight, targets_BT.flatten(), LOGITS_PER_CHUNK, fused=self._fused)
        return losses_N.view(targets_BT.shape).mean(dim=1)


def _autocast(x: Tensor) -> Tensor:
    """Cast to autocast's dtype where it is enabled."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def rotate(x: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Apply the rotary embedding to x [B, heads, T, E]; sin carries the sign of the half it multiplies."""
    return (x * cos_TE + x.roll(x.shape[-1] // 2, dims=-1) * sin_TE).to(x.dtype)


def rotary_table(context: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and signed sin, fp32 [context, size]; the first half of sin is negated (see `rotate`).

    Angles are in float64: at position 100,000 an fp32 product is off by milliradians.
    """
    frequency = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, max_logits: int, *, fused: bool = False
) -> Tensor:
    """Return the cross entropy [N] in fp32 of hidden @ weight.T, with at most `max_logits` logits (at least one row) at
    once.

    fused: compile the operations after the logits. Each logit of a chunk takes up to 8 bytes, with its gradient and
    intermediate values; fused in bf16, 4. That is 512 or 256 MiB for 2^26 logits.
    """
    rows = max(1, max_logits // weight_VD.shape[0])
    losses_N = _CrossEntropy.apply(_autocast(hidden_ND), weight_VD, targets_N, rows, fused)  # type: ignore[no-untyped-call]
    return cast(Tensor, losses_N)


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy over chunks: of rows forward, of the vocabulary backward. The logits of a single chunk are kept for
    the backward pass; those of several chunks are recomputed there.

    Matrix products run in hidden's dtype. Each value of the weight's gradient is one product over all rows, rounded
    once. Summing over chunks of rows in bf16, as for a sharded weight, had twice the error.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, rows: int, fused: bool) -> Tensor:
        low_VD = weight_VD.to(hidden_ND.dtype)
        losses, normalisers, kept = [], [], []
        for hidden, targets in zip(torch.split(hidden_ND, rows), torch.split(targets_N, rows), strict=True):
            logits = _logits(hidden, low_VD)
            loss, normaliser = _maybe(fused, _losses)(logits, targets)
            losses.append(loss)
            normalisers.append(normaliser)
            if hidden_ND.shape[0] <= rows:
                kept = [logits]
            del logits  # or it would still exist while the next chunk's are made
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, torch.cat(normalisers), *kept)
        ctx.max_logits, ctx.fused = rows * weight_VD.shape[0], fused
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_ND, weight_VD, targets_N, normalisers_N, *kept = ctx.saved_tensors
        low_VD = weight_VD.to(hidden_ND.dtype)
        grad_hidden = torch.zeros_like(hidden_ND, dtype=torch.float32)
        grad_weight = torch.empty_like(weight_VD)
        words = len(weight_VD) if kept else max(1, ctx.max_logits // len(hidden_ND))
        for begin in range(0, len(weight_VD), words):
            part = slice(begin, begin + words)
            logits = kept.pop() if kept else _logits(hidden_ND, low_VD[part])
            low = _maybe(ctx.fused, _grad_logits)(logits, normalisers_N, targets_N - begin, grads[0])
            del logits
            if low.dtype == grad_weight.dtype:
                torch.mm(low.T, hidden_ND, out=grad_weight[part])
            else:
                grad_weight[part] = low.T @ hidden_ND
            grad_hidden += low @ low_VD[part]
            del low
        return grad_hidden.to(hidden_ND.dtype), grad_weight, None, None, None


def _logits(hidden: Tensor, weight_VD: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden, weight_VD)


def _losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy [n] of logits [n, V] and the log-sum-exp [n]; both in fp32."""
    highest = logits.amax(dim=1, keepdim=True).float()
    sums = (logits - highest).exp_().sum(dim=1, keepdim=True)
    normaliser = (sums.log() + highest).squeeze(1)
    return normaliser - logits.gather(1, targets[:, None]).float().squeeze(1), normaliser


def _grad_logits(logits: Tensor, normaliser: Tensor, targets: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient [n, v] with respect to the logits, in their dtype, of `_losses` weighted by grad [n].

    logits: those of v vocabulary entries. targets [n] count from the first of these entries and may lie outside.
    """
    scaled = (logits - normaliser[:, None]).exp_().mul_(grad[:, None])
    index = targets.clamp(0, logits.shape[1] - 1)
    chosen = scaled.gather(1, index[:, None]) - torch.where(index == targets, grad, 0.0)[:, None]
    low = scaled.to(logits.dtype)
    return low.scatter_(1, index[:, None], chosen.to(low.dtype))


def _maybe(fused: bool, function: Callable[P, R]) -> Callable[P, R]:
    return _compiled(function) if fused else function


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    return torch.compile(function)


def initialise(model: Transformer, seed: int) -> None:
    """Initialise from a seed, with the same result on every run of one machine and torch build. Machines differ, so the
    run's owner publishes theta_0.

    Normal(0, 0.02); the two projections that write to the residual stream are divided by sqrt(2 * layers) (GPT-2);
    gains are one. Parameters are drawn in order of name.
    """
    generator = torch.Generator().manual_seed(seed)
    residual_std = INIT_STD / sqrt(2 * len(model.layers))
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            writes_residual = name.endswith(("attention.output.weight", "ffn.down.weight"))
            std = residual_std if writes_residual else INIT_STD
            drawn = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
            parameter.copy_(drawn)


def genesis_theta(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """Return the seeded theta_0, which the run's owner publishes (initialisation differs between machines)."""
    model = Transformer(spec)
    initialise(model, seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
