"""A node's copy of the model: theta, the module on the device, and one miner's own state.

theta (fp32, on the CPU) is the run's and changes only in `outer_step`. The module's weights are a working copy: the
inner loop moves them to theta_r, and a probe moves them temporarily. Error feedback and Adam's moments are the miner's
own. No network, no files. Source: SparseLoCo (arXiv 2508.15706), Algorithm 1; docs/protocol.md sections 2, 6, 7, 9.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.layout import DenseLayout, Layout
from murmur.protocol.spec import InnerSpec, TrainingSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.checkpoint import Shapes, TensorState, parse_outer, require_shapes
from murmur.training.host import copy
from murmur.training.inner import NOTHING_DONE, InnerReport, OnStep, Stopped, never
from murmur.training.meter import Meter, Reading
from murmur.training.model import Transformer
from murmur.training.optimizer import carried_shapes
from murmur.training.parallel import ALONE, Ranks, open_together
from murmur.training.recorder import TraceOf
from murmur.training.trainer import ENDS, RECORDS, TOKENS, Trainer, split_name
from sparseloco import ops
from sparseloco.digest import sync_proof, sync_values, theta_digest
from sparseloco.floats import NonFinite
from sparseloco.kernels import tensor_over
from sparseloco.outer import Aggregate, OuterState, Scales, most
from sparseloco.restraint import restrained
from sparseloco.trace import Trace
from sparseloco.update import Update

ERROR = "error/"
VELOCITY = "velocity/"
_VELOCITY = "velocity"
"""The area of the outer step's momentum."""
PAUSED, KEPT = "paused", "kept"
"""Areas of the weights at which another miner's steps were stopped, and of a theta from which to repeat others."""


class Replica:
    """One node's model. Between rounds the module's weights equal theta. After `inner_round` they are theta_r until the
    next outer step, give-back or inner round. `trainer`: the class that trains it, on every rank."""

    trainer: type[Trainer] = Trainer

    def __init__(
        self,
        spec: TrainingSpec,
        theta: Mapping[str, Tensor],
        outer: OuterState | None = None,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        """theta: fp32 tensors of exactly spec.model.shapes(), copied. outer: the state that belongs to it (None: the
        run's start). ranks: those that train it; this process is the first."""
        self.spec = spec
        self.layout: Layout = spec.layout
        self.outer = outer if outer is not None else OuterState.initial(self.layout)
        self._trainer = open_together(ranks, self.trainer, spec=spec.training.model_dump_json())
        # Three areas rotate: new values are written to the spare one, so no area is ever half-written.
        self._theta, self._error, self._spare = "weights 0", "weights 1", "weights 2"
        self._has_error = False
        self._before: tuple[OuterState, Digest | None] | None = None
        """Outer state and digest before the last outer step, while the spare area still holds that theta."""
        self._done = NOTHING_DONE
        """The inner steps that have moved the module's weights."""
        self.repeated = 0
        """Steps of another miner that were made, and stopped: `repeat` can go on with them."""
        self._kept: int | None = None  # after how many rounds the theta is that the area KEPT holds
        self._displaced = False
        """Whether the theta that those steps began from was subtracted from the weights (`displace`)."""
        self._digest: Digest | None = None
        self._sync_values: tuple[Digest, bytes] | None = None
        copy(self.theta, theta)
        self._moved()

    @property
    def theta(self) -> Mapping[str, Tensor]:
        """The run's parameters, fp32 on the CPU. Read only; the same memory holds something else after the next outer
        step."""
        return self._trainer.tensors(self._theta)

    @property
    def model(self) -> Transformer:
        """The module with its current weights, for tests: with several ranks this one's shards. Read only."""
        return self._trainer.model

    def digest(self) -> Digest:
        """Return the theta digest of the consensus state."""
        if self._digest is None:
            self._digest = theta_digest(self.theta, self.layout, self.outer, self._velocity())
        return self._digest

    def sync_proof(self, block_hash: Digest, peer: PeerId) -> Digest:
        """Return the proof that `peer` holds theta (docs/protocol.md section 5). Its inputs are read once per block: a
        validator computes it for every peer."""
        if self._sync_values is None or self._sync_values[0] != block_hash:
            self._sync_values = block_hash, sync_values(self.theta, self.layout, block_hash)
        return sync_proof(self._sync_values[1], peer)

    def inner_round(
        self,
        sequences: Tensor,
        *,
        inner: InnerSpec | None = None,
        on_step: OnStep | None = None,
        stopped: Stopped = never,
        resume: bool = False,
        trace_of: TraceOf | None = None,
    ) -> InnerReport:
        """Take H inner steps from theta over the first H * batch `sequences`, in order; theta itself is unchanged.
        Return the report of the steps made.

        - inner: the constants in force this round (None: the first spec's). The schedule continues from the number of
          non-void rounds.
        - stopped: called after each step; True ends the round on all ranks.
        - trace_of: whose and which round's trace is recorded; `trace` returns it.
        - resume: continue the stopped round of these sequences from its step and weights. If theta was taken back
          meanwhile, the weights are moved by the difference; a traced round starts over, since nobody could repeat it.
          If theta was loaded anew, every round starts over.

        Other threads of this process keep running (docs/decisions/0052-beside-the-inner-round.md).
        """
        spec = inner or self.spec.inner
        if not resume or (self._displaced and trace_of is not None):
            self.reset()
        self._begin_from_theta()
        self._tokens(sequences)
        self._at_theta = False
        self._trainer.on_step, self._trainer.stopped = on_step, stopped
        self._done += self._trainer.inner_round(
            inner=spec.model_dump(),
            first_step=self.outer.rounds * spec.steps,
            num_sequences=len(sequences),
            done=self._done.steps,
            trace_of=None if trace_of is None else trace_of.words(),
        )
        return self._done

    def trace(self) -> Trace:
        """Return the trace of the inner steps that were made and not yet compressed."""
        return self._trainer.trace(steps=self._done.steps)

    def repeat(
        self,
        sequences: Tensor,
        *,
        inner: InnerSpec,
        rounds: int,
        first_step: int,
        trace_of: TraceOf,
        on_step: OnStep,
        stopped: Stopped,
        done: int = 0,
        split: bool = False,
    ) -> Trace | None:
        """Take another miner's inner steps from the theta at which a round began; return their trace, None when they
        were stopped, after `repeated` steps. The module's weights are theta again after it.

        - inner: the constants of that round. first_step: on the run's schedule.
        - rounds: the non-void rounds before that round: all so far, one less, or those of `keep_theta`.
        - done: go on from where that many were stopped, whatever was computed since.
        - split: whether half as many sequences are computed at once, which rounds otherwise.

        Raises ValueError if that theta, or what was done, is gone.
        """
        if done and done != self.repeated:
            raise ValueError(f"repeated step {done} is not here any more")
        began = PAUSED if done else self._theta_after(rounds)
        self.reset()
        self._tokens(sequences)
        self._at_theta, self.repeated = False, 0
        try:
            self._trainer.load(area=began)
            self._trainer.on_step, self._trainer.stopped = on_step, stopped
            report = self._trainer.inner_round(
                inner=inner.model_dump(),
                first_step=first_step,
                num_sequences=len(sequences),
                done=done,
                trace_of=trace_of.words(),
                split=split,
            )
            made = done + report.steps
            if made == inner.steps:
                return self._trainer.trace(steps=made)
            self._trainer.tensors(PAUSED)
            self._trainer.store(area=PAUSED)
            self.repeated = made
            return None
        finally:
            if self._trainer.ranks.in_step:
                if not self.repeated:
                    self._trainer.forget_steps()
                self.reset()

    def keep_theta(self, rounds: int) -> None:
        """Keep that theta for `repeat`, whatever outer steps follow. Raises ValueError if it is gone."""
        if rounds != self._kept:
            copy(self._trainer.tensors(KEPT), self._trainer.tensors(self._theta_after(rounds)))
            self._kept = rounds

    def _theta_after(self, rounds: int) -> str:
        """Return the area of that theta."""
        if rounds == self.outer.rounds:
            return self._theta
        if self._before is not None and rounds == self._before[0].rounds:
            return self._spare
        if rounds == self._kept:
            return KEPT
        raise ValueError(f"theta after {rounds} rounds is not here any more")

    def forget_repeated(self) -> None:
        """Give up the steps of another miner that were stopped."""
        self.repeated = 0
        self._trainer.forget_steps()

    @property
    def steps(self) -> int:
        """How many inner steps have led from theta to the module's weights."""
        return 0 if self._displaced else self._done.steps

    def _begin_from_theta(self) -> None:
        """Rebase the finished inner steps onto the current theta."""
        if self._displaced:
            self._trainer.shift(area=self._theta, sign=1.0)
            self._displaced = False

    def meter(self, inner: InnerSpec, report: Callable[[Reading], None]) -> Meter:
        """Return an OnStep for one inner round that begins now: `report` gets a reading every few seconds and at the
        end."""
        ranks = self._trainer.ranks
        return Meter(self.spec.model, inner, report, device=ranks.device, gpus=ranks.size)

    def compress(self) -> Update:
        """Return Delta_hat of theta - theta_r plus the error feedback, and update the error feedback. Values above the
        norms that the outer step applies stay in it.

        The int8 exchange sends all of theta - theta_r and has no error feedback. Raises sparseloco.floats.NonFinite,
        with the error feedback unchanged, when training has diverged.
        """
        assert not self._displaced, "theta was taken back, and no inner round has gone on from another one"
        self._before = None  # the spare area is overwritten
        if isinstance(self.layout, DenseLayout):
            self._trainer.tensors(self._spare)
            self._trainer.store(area=self._spare)
            self._done = NOTHING_DONE
            return ops.dense_encode(self.theta, self._trainer.tensors(self._spare), self.layout)
        records = self._trainer.area(RECORDS, self.layout.records_bytes)
        self._trainer.tensors(ENDS)
        self._trainer.tensors(self._spare)
        finite = self._trainer.compress(
            theta=self._theta,
            error=self._error if self._has_error else None,
            new_error=self._spare,
            beta=self.spec.compression.decay,
        )
        self._done = NOTHING_DONE  # the steps are now in the update and the error feedback
        if not finite:
            raise NonFinite("the values to compress hold a NaN or an infinity")
        self._error, self._spare, self._has_error = self._spare, self._error, True
        packed = records.tensor((self.layout.records_bytes,), torch.uint8).numpy().tobytes()
        update = ops.counted(Update(self.layout, packed))
        sent = restrained(update, most(self.outer))
        if sent is not update:
            ops.restore_to_error_feedback(self._errors(), update, sent)
        return sent

    def restore_to_error_feedback(self, update: Update) -> None:
        """Return a void round's Delta_hat to the error feedback. The int8 exchange has none: its update is lost."""
        if self.spec.exchange == "sparse":
            ops.restore_to_error_feedback(self._errors(), update)
            self._has_error = True
        if not self._done.steps:
            self.reset()

    def remove_from_error_feedback(self, update: Update) -> None:
        """Remove an update already sent from an error feedback that dates from before its `compress`. The int8 exchange
        has none."""
        if self.spec.exchange == "sparse":
            ops.remove_from_error_feedback(self._errors(), update)

    def outer_step(self, updates: Sequence[Update | None], *, alpha: float, aggregate: Aggregate) -> tuple[Scales, ...]:
        """Apply a non-void round: the contributors' updates in PeerId order, None for one that did not parse. The
        module takes the new theta. Return each contributor's scales.

        In the int8 exchange the updates are the parts of their mean, in order. Every other outer step can be taken back
        until `compress`; that one changes its momentum in place.
        """
        spare = self._trainer.tensors(self._spare)
        scales: tuple[Scales, ...]
        if isinstance(self.layout, DenseLayout):
            self._before = None
            ops.dense_steps(
                self.theta, self.layout, updates, self._velocity(), alpha=alpha, momentum=self.spec.momentum, out=spare
            )
            self.outer = replace(self.outer, rounds=self.outer.rounds + 1)
            scales = tuple((float(update is not None),) * len(self.layout.tensors) for update in updates)
        else:
            self._before = self.outer, self._digest
            _, self.outer, scales = ops.outer_step(
                self.theta, updates, self.outer, alpha=alpha, aggregate=aggregate, out=spare
            )
        self._theta, self._spare = self._spare, self._theta
        self._moved()
        return scales

    def displace(self) -> None:
        """Keep the inner steps made from theta, before it changes; `inner_round` with `resume` continues them from the
        new theta."""
        if self._done.steps and not self._displaced:
            self._trainer.shift(area=self._theta, sign=-1.0)
            self._displaced = True

    def undo_outer_step(self) -> None:
        """Undo the last outer step: theta is restored bit for bit. The inner steps made since are kept: `inner_round`
        with `resume` continues them from the theta of that moment.

        Raises RuntimeError when the previous theta is gone.
        """
        if self._before is None:
            raise RuntimeError("there is no outer step to take back: what theta was before it is overwritten")
        self.displace()
        self._theta, self._spare = self._spare, self._theta
        (self.outer, digest), self._before, self._kept = self._before, None, None
        self._moved()
        self._digest = digest

    def reset(self) -> None:
        """Set the module's weights back to theta."""
        self._done, self._displaced = NOTHING_DONE, False
        if not self._at_theta:
            self._trainer.load(area=self._theta)
            self._at_theta = True

    def loss(self, sequences: Tensor) -> float:
        """Return the mean cross entropy of the module's current weights on int64 [num, context + 1] sequences, nats per
        token; NaN without sequences. A sequence's loss does not depend on the others; the mean is in float64."""
        losses = self.losses(sequences)
        return sum(losses) / len(losses) if losses else float("nan")

    def losses(self, sequences: Tensor) -> list[float]:
        """Return each sequence's mean cross entropy, nats per token."""
        if not len(sequences):
            return []
        self._tokens(sequences)
        return self._trainer.losses(num_sequences=len(sequences))

    @contextmanager
    def probe(self, update: Update, scales: Scales, step: float) -> Iterator[None]:
        """Set the module's weights to theta - step * s * Delta_hat inside the block: one peer's bounded update. After
        it they are theta again, bit for bit, from kept values: adding back would round."""
        self.reset()
        records = self._trainer.area(RECORDS, self.layout.records_bytes)
        records.tensor((self.layout.records_bytes,), torch.uint8).copy_(tensor_over(update.records))
        self._at_theta = False
        try:
            self._trainer.probe(scales=list(scales), step=step)
            yield
        finally:
            if self._trainer.ranks.in_step:  # else a call was aborted: no call works any more, and this process ends
                self._at_theta = self._trainer.undo_probe()
                self.reset()

    def consensus_state(self) -> TensorState:
        """Return theta, the outer step's momentum and the outer state: the content of a checkpoint, the same in every
        replica. Before the first round the momentum is zero and left out. Tensors are not copied."""
        velocity = self._velocity() if self.outer.rounds else None
        return TensorState(
            {**self.theta, **{VELOCITY + name: tensor for name, tensor in (velocity or {}).items()}},
            {
                "rounds": self.outer.rounds,
                "averages": [average.hex() for average in self.outer.averages],
                "whole": self.outer.whole.hex(),
            },
        )

    def load_consensus(self, saved: TensorState) -> None:
        """Load another consensus state. Raises CheckpointCorrupt when it does not fit this layout. The caller checks by
        `digest` whether it is the run's."""
        outer, shapes = parse_outer(saved.facts, self.layout), self.spec.model.shapes()
        require_shapes(saved.tensors, {**shapes, **self.velocity_shapes()} if outer.rounds else shapes)
        self.outer = outer
        copy(self.theta, saved.tensors)
        for name, tensor in (self._velocity() or {}).items():
            if outer.rounds:
                tensor.copy_(saved.tensors[VELOCITY + name])
            else:
                tensor.zero_()
        self._before, self._kept, self._displaced = None, None, False
        self._moved()

    def velocity_shapes(self) -> Shapes:
        """Return names and shapes of the outer step's momentum in `consensus_state`; empty for a run without it."""
        return {VELOCITY + name: shape for name, shape in self.spec.model.shapes().items() if self.spec.momentum}

    def _velocity(self) -> dict[str, Tensor] | None:
        return self._trainer.tensors(_VELOCITY) if self.spec.momentum else None

    def own_state(self) -> TensorState:
        """Return the error feedback, where the exchange has it, and the optimizer's state: all that a miner needs to
        resume exactly. Tensors are not copied."""
        own = self._own()
        return TensorState(own, {"adam_steps": self._trainer.store_moments()})

    def load_own(self, saved: TensorState) -> None:
        """Load the state of `own_state`. Raises CheckpointCorrupt."""
        require_shapes(saved.tensors, self.own_shapes())
        num_steps = saved.facts.get("adam_steps")
        if type(num_steps) is not int or num_steps < 0:
            raise CheckpointCorrupt("saved optimizer state lacks its number of steps")
        copy(self._own(), saved.tensors)
        self._has_error = True
        self._trainer.load_moments(num_steps=num_steps)

    def own_shapes(self) -> Shapes:
        """Return names and shapes of `own_state`'s tensors."""
        kept = () if self.spec.exchange == "int8" else self.layout
        errors = {ERROR + tensor.name: tensor.shape for tensor in kept}
        return errors | carried_shapes(self.spec.model, self.spec.inner)

    def _own(self) -> dict[str, Tensor]:
        """Return the tensors of `own_state`, in place."""
        areas = {area: self._trainer.tensors(area) for area in self._trainer.moment_areas}
        moments = {name: split_name(name) for name in carried_shapes(self.spec.model, self.spec.inner)}
        errors = {} if self.spec.exchange == "int8" else self._errors()
        own = {ERROR + name: error for name, error in errors.items()}
        return own | {name: areas[area][tensor] for name, (area, tensor) in moments.items()}

    def _errors(self) -> dict[str, Tensor]:
        # A validator never compresses: its zeros take no memory until they are written to.
        return self._trainer.tensors(self._error)

    def _tokens(self, sequences: Tensor) -> None:
        area = self._trainer.area(TOKENS, sequences.nbytes)
        area.tensor(tuple(sequences.shape), torch.int64).copy_(sequences)

    def _moved(self) -> None:
        """Invalidate everything that depends on theta, after a change of theta."""
        self._digest = None
        self._sync_values = None
        self._at_theta = False
        if not self._displaced:
            self.reset()
