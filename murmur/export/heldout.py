"""Held-out loss of a state in files: one layer at a time, so the device needs memory for a layer and the activations,
not for the model."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from murmur.protocol.spec import ModelSpec
from murmur.training.inner import autocast
from murmur.training.model import Embedding, Layer, Norm, cross_entropy, rotary_table
from murmur.training.sizes import LOGITS_PER_CHUNK


@torch.no_grad()
def held_out_loss(model: ModelSpec, theta: Mapping[str, Tensor], sequences: Tensor, device: torch.device) -> float:
    """Return the mean cross entropy, nats per token, of int64 [num, context + 1] sequences: the same as a validator
    reports after the round that made theta. theta: fp32 by name, may be mapped files; one layer is on the device at
    once."""

    def part(prefix: str) -> dict[str, Tensor]:
        here = {name: value for name, value in theta.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): value.to(device) for name, value in here.items()}

    with torch.device("meta"):  # no memory: the weights are passed in
        embedding, layer = Embedding(model.vocabulary, model.width), Layer(model)
        norm = Norm(model.width, model.norm_epsilon)
    tables = rotary_table(model.context, model.width // model.heads, model.rope_theta)
    cos_TE, sin_TE = (table.to(device) for table in tables)
    with autocast(device):
        weights = part("embedding.")
        hidden = [functional_call(embedding, weights, (each[None, :-1].to(device),)) for each in sequences]
        if torch.is_autocast_enabled(device.type):
            hidden = [x.to(torch.get_autocast_dtype(device.type)) for x in hidden]
        for number in range(model.layers):
            weights = part(f"layers.{number}.")
            hidden = [functional_call(layer, weights, (x, cos_TE, sin_TE, "none")) for x in hidden]
        weights = part("norm.")
        head = next(iter(part("embedding." if model.tie_embeddings else "head.").values()))
        losses = [
            cross_entropy(
                functional_call(norm, weights, (x,)).flatten(0, 1), head, each[1:].to(device), LOGITS_PER_CHUNK
            ).mean()
            for x, each in zip(hidden, sequences, strict=True)
        ]
    return sum(float(loss) for loss in losses) / len(losses)
