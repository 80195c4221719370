"""A node's copy of the model: theta, the module on the device, and what one miner keeps for itself.

theta (fp32, on the CPU) is the run's and changes only in `outer_step`; the module's weights are a working copy of it
that the inner loop moves to theta_r and a probe moves for a moment. Error feedback and Adam's moments are the miner's
own. No network, no files. Source: SparseLoCo (arXiv 2508.15706), Algorithm 1; docs/protocol.md sections 2, 6, 7, 9.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from protocol.errors import CheckpointCorrupt
from protocol.layout import Layout
from protocol.spec import InnerSpec, ModelSpec, RunSpec
from protocol.types import Digest, PeerId
from sparseloco import ops
from sparseloco.digest import sync_proof, theta_digest
from sparseloco.feedback import restore
from sparseloco.outer import Aggregate, OuterState, Scales
from sparseloco.update import Update
from training.checkpoint import Saved, Shapes
from training.inner import (
    FIRST,
    SECOND,
    InnerReport,
    OnStep,
    adam_state,
    autocast,
    inner_round,
    load_adam_state,
    make_optimizer,
)
from training.loader import batches
from training.model import Transformer, initialise

EVALUATION_TOKENS = 1024
"""Positions evaluated at once. Evaluation always runs batches of this one size, so that a sequence's loss does not
depend on what it is evaluated with: a matrix library may sum in another order for another number of rows."""

ERROR = "error/"


def genesis_theta(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """Seeded theta_0, which the run's owner publishes (initialisation differs between machines)."""
    model = Transformer(spec)
    initialise(model, seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Replica:
    """One node's model. Between rounds the module's weights equal theta; after `inner_round` they are theta_r until
    the next outer step, give-back or inner round."""

    def __init__(
        self,
        spec: RunSpec,
        theta: Mapping[str, Tensor],
        outer: OuterState | None = None,
        *,
        device: torch.device | str = "cpu",
        micro_sequences: int | None = None,
    ) -> None:
        """theta: fp32 tensors of exactly spec.model.shapes(), copied. outer: the state that belongs to it (None: the
        run's start). micro_sequences: most sequences on the device at once while training (None: a whole batch)."""
        self.spec = spec
        self.layout: Layout = spec.layout
        self.outer = outer if outer is not None else OuterState.initial(self.layout)
        self._device = torch.device(device)
        self._micro_sequences = micro_sequences
        self._theta = {tensor.name: theta[tensor.name].detach().to("cpu", copy=True) for tensor in self.layout}
        self._error: dict[str, Tensor] | None = None
        self._model = Transformer(spec.model).to(self._device)
        self._optimizer = make_optimizer(self._model, spec.inner)
        self._digest: Digest | None = None
        self._load_weights(self._theta)

    @property
    def theta(self) -> Mapping[str, Tensor]:
        """The run's parameters, fp32 on the CPU. Read only."""
        return self._theta

    @property
    def model(self) -> Transformer:
        """The module with its current weights, for evaluation and export. Read only."""
        return self._model

    def digest(self) -> Digest:
        """theta digest of the consensus state."""
        if self._digest is None:
            self._digest = theta_digest(self._theta, self.layout, self.outer)
        return self._digest

    def sync_proof(self, block_hash: Digest, peer: PeerId) -> Digest:
        """Proof that this node holds theta (docs/protocol.md section 5)."""
        return sync_proof(self._theta, self.layout, block_hash, peer)

    def inner_round(
        self, sequences: Tensor, *, inner: InnerSpec | None = None, on_step: OnStep | None = None
    ) -> InnerReport:
        """H inner steps from theta over the first H * batch `sequences`, in order; theta itself stays.

        inner: the constants in force this round (None: the first spec's). The schedule continues from the number of
        non-void rounds.
        """
        spec = inner or self.spec.inner
        self.reset()
        self._at_theta = False
        return inner_round(
            self._model,
            self._optimizer,
            batches(sequences, spec.steps, spec.sequences),
            spec,
            first_step=self.outer.rounds * spec.steps,
            micro_sequences=self._micro_sequences,
            on_step=on_step,
        )

    def compress(self) -> Update:
        """Delta_hat of theta - theta_r plus what was not sent before; error feedback moves on.

        Raises sparseloco.floats.NonFinite, with the error feedback unchanged, when training has diverged.
        """
        theta_r = {name: parameter.detach().to("cpu") for name, parameter in self._model.named_parameters()}
        update, self._error = ops.compress(
            self._theta, theta_r, self._error, self.layout, beta=self.spec.compression.decay
        )
        return update

    def give_back(self, update: Update) -> None:
        """After a void round: the error feedback takes back the Delta_hat that `compress` had sent."""
        self._error = restore(self._errors(), update)
        self.reset()

    def outer_step(self, updates: Sequence[Update | None], *, alpha: float, aggregate: Aggregate) -> tuple[Scales, ...]:
        """Apply a non-void round: the contributors' updates in PeerId order, None for one that did not parse. The
        module takes the new theta. Returns each contributor's scales."""
        self._theta, self.outer, scales = ops.outer_step(
            self._theta, updates, self.outer, alpha=alpha, aggregate=aggregate
        )
        self._digest = None
        self._load_weights(self._theta)
        return scales

    def reset(self) -> None:
        """Set the module's weights back to theta."""
        if not self._at_theta:
            self._load_weights(self._theta)

    def loss(self, sequences: Tensor) -> float:
        """Mean cross entropy of the module's current weights on int64 [num, context + 1] sequences, nats a token.

        No gradients. Each sequence's loss is the same in whatever company it is evaluated; the mean is in float64, in
        order. NaN without sequences.
        """
        losses = self.losses(sequences)
        return sum(losses) / len(losses) if losses else float("nan")

    @torch.no_grad()
    def losses(self, sequences: Tensor) -> list[float]:
        """Each sequence's mean cross entropy, nats a token."""
        self._model.eval()
        size = max(1, EVALUATION_TOKENS // max(1, sequences.shape[1] - 1))
        losses: list[float] = []
        for batch in torch.split(sequences, size) if len(sequences) else ():
            padding = batch[-1:].expand(size - len(batch), -1)
            with autocast(self._device):
                found = self._model.loss(torch.cat([batch, padding]).to(self._device))
            losses += found[: len(batch)].tolist()
        return losses

    @contextmanager
    def probe(self, update: Update, scales: Scales, step: float) -> Iterator[None]:
        """Inside the block the module's weights are theta - step * s * Delta_hat: one peer's bounded update; after it
        theta again, bit for bit, by copy (adding back what was subtracted would round)."""
        try:
            self._load_weights(ops.apply_probe(self._theta, update, scales, step), at_theta=False)
            yield
        finally:
            self._load_weights(self._theta)

    def consensus_state(self) -> Saved:
        """theta and the outer state: what every replica shares and a checkpoint holds. Tensors are not copied."""
        return Saved(
            self._theta,
            {
                "rounds": self.outer.rounds,
                "averages": [average.hex() for average in self.outer.averages],
                "whole": self.outer.whole.hex(),
            },
        )

    def load_consensus(self, saved: Saved) -> None:
        """Take another consensus state. Raises CheckpointCorrupt when it is not one of this layout; whether it is the
        run's is for the caller to decide by `digest`."""
        self.outer = parse_outer(saved.facts, self.layout)
        self._theta = _of_shapes(saved.tensors, self.spec.model.shapes())
        self._digest = None
        self._load_weights(self._theta)

    def own_state(self) -> Saved:
        """Error feedback and Adam's state, as copies: what one miner needs to go on exactly where it was."""
        moments, num_steps = adam_state(self._model, self._optimizer)
        errors = {ERROR + name: error.clone() for name, error in self._errors().items()}
        return Saved({**errors, **moments}, {"adam_steps": num_steps})

    def load_own(self, saved: Saved) -> None:
        """Inverse of `own_state`. Raises CheckpointCorrupt."""
        tensors = _of_shapes(saved.tensors, self.own_shapes())
        num_steps = saved.facts.get("adam_steps")
        if type(num_steps) is not int or num_steps < 0:
            raise CheckpointCorrupt("saved optimizer state lacks its number of steps")
        load_adam_state(self._model, self._optimizer, tensors, num_steps)
        self._error = {tensor.name: tensors[ERROR + tensor.name] for tensor in self.layout}

    def own_shapes(self) -> Shapes:
        """Names and shapes of `own_state`'s tensors."""
        return {prefix + tensor.name: tensor.shape for prefix in (ERROR, FIRST, SECOND) for tensor in self.layout}

    def _errors(self) -> dict[str, Tensor]:
        # A validator never compresses: zeros as large as theta are made for those who need them.
        if self._error is None:
            return {name: torch.zeros_like(tensor) for name, tensor in self._theta.items()}
        return self._error

    @torch.no_grad()
    def _load_weights(self, weights: Mapping[str, Tensor], *, at_theta: bool = True) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.copy_(weights[name])
        self._at_theta = at_theta


def parse_outer(facts: Mapping[str, Any], layout: Layout) -> OuterState:
    """The outer state from a checkpoint's facts. Raises CheckpointCorrupt."""
    try:
        rounds, averages = facts["rounds"], facts["averages"]
        values = [float.fromhex(text) for text in [*averages, facts["whole"]]]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CheckpointCorrupt("a checkpoint's outer state is malformed") from None
    in_range = all(0.0 <= value < float("inf") for value in values)
    if type(rounds) is not int or not 0 <= rounds < 1 << 32 or len(values) != len(layout.tensors) + 1 or not in_range:
        raise CheckpointCorrupt("a checkpoint's outer state does not belong to this layout")
    return OuterState(rounds, tuple(values[:-1]), values[-1])


def _of_shapes(tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """fp32 CPU copies in layout order. Raises CheckpointCorrupt for other names, shapes or dtypes."""
    if tensors.keys() != shapes.keys():
        raise CheckpointCorrupt("saved state has other tensors than this model")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or tensors[name].dtype != torch.float32:
            raise CheckpointCorrupt(f"saved tensor {name!r} is not fp32 of shape {shape}")
    return {name: tensors[name].detach().to("cpu", copy=True) for name in sorted(shapes)}
