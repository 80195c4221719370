"""One rank's part of a node's model: its rows of the module's weights, of Adam's moments, of a payload.

Every rank has a trainer; murmur/training/replica.py drives the first one, and `together` methods run on all of them at
once. Large values pass through host memory shared by all ranks (murmur/training/host.py), by the name of an area;
theta, error feedback and all other state that a node must not lose are there. Knows nothing of rounds or peers.
"""

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from murmur.protocol.layout import BLOCK, Layout, TensorLayout
from murmur.protocol.spec import InnerSpec, TrainingSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.batch_trial import Fit, fit
from murmur.training.host import Area, copy, model_bytes, model_tensors
from murmur.training.inner import InnerReport, OnStep, Stopped, autocast, inner_round, never
from murmur.training.loader import ahead, batches
from murmur.training.memory import SLAB_BYTES
from murmur.training.model import Transformer
from murmur.training.optimizer import carried_shapes, load_adam_state, make_optimizer, store_adam_state
from murmur.training.parallel import Ranks, local, together
from murmur.training.recorder import Recorder
from sparseloco import ops
from sparseloco.floats import NonFinite
from sparseloco.kernels import tensor_over
from sparseloco.trace import Trace, places
from sparseloco.update import Update

EVALUATION_TOKENS = 1024
"""Positions evaluated at once. Evaluation always runs batches of this one size, so that a sequence's loss does not
depend on the other sequences: a matrix library may sum in another order for another number of rows."""

ENDS, RECORDS, TOKENS = "ends", "records", "tokens"


class Trainer:
    """The module and its optimizer. `spec`: the run's first spec as JSON. compiled: whether layers are, on a GPU."""

    compiled = True

    def __init__(self, ranks: Ranks, *, spec: str) -> None:
        self.ranks = ranks
        self.spec = TrainingSpec.model_validate_json(spec)
        self.layout: Layout = self.spec.layout
        # Allocate only after each rank knows its rows, and send nothing to a GPU: the weights are loaded later.
        with torch.device("meta"):
            self.model = Transformer(self.spec.model)
        ranks.shard(self.model, self.model.layers, methods=["loss"])
        self.model.to_empty(device=ranks.device)
        self.model.tabulate()
        self.on_step: OnStep | None = None
        """Called on this rank after each inner step with its number within the round and its loss."""
        self.stopped: Stopped = never
        """Called on this rank after each inner step; True ends the round on all ranks."""
        # By name and once: while a module's weights are gathered, it lists other tensors than the shards.
        self._parameters = dict(self.model.named_parameters())
        self._optimizer = make_optimizer(self.model, self.spec.inner, ranks)
        self._fit: Fit | None = None
        self._recorder: Recorder | None = None
        self._areas: dict[str, Area] = {}
        self._tensors = {tensor.name: tensor for tensor in self.layout}
        self._mine = {tensor.name: _share(tensor, ranks) for tensor in self.layout}
        self._held = None if ranks.size == 1 else {tensor.name: ranks.rows(tensor.shape[0]) for tensor in self.layout}
        """The rows of every tensor that this rank's weights are."""
        self._kept: Tensor | None = None
        """The weights' values before a probe, where it moved them."""
        self._slabs = _slabs(self.layout, self._mine, SLAB_BYTES if ranks.device.type == "cuda" else inf)

    # --- host memory -----------------------------------------------------------------------------------------

    def area(self, name: str, num_bytes: int) -> Area:
        """First rank: return the area of this name, made on first use or when it was smaller."""
        found = self._areas.get(name)
        if found is None or found.num_bytes < num_bytes:
            found = self._areas[name] = Area(num_bytes, shared=self.ranks.size > 1)
            self.attach(name=name, num_bytes=num_bytes, path=found.path)
            found.close_file()
        return found

    def tensors(self, name: str) -> dict[str, Tensor]:
        """First rank: return an area as one fp32 tensor for each parameter; zeros when it is new."""
        return model_tensors(self.area(name, model_bytes(self.layout)), self.layout)

    @together
    def attach(self, *, name: str, num_bytes: int, path: str | None) -> None:
        """Map an area that the first rank has made."""
        # Do not compare paths: a descriptor's number is reused once it is closed.
        if name not in self._areas or self._areas[name].num_bytes != num_bytes:
            self._areas[name] = Area(num_bytes, path)

    # --- weights ---------------------------------------------------------------------------------------------

    @together
    @torch.no_grad()
    def load(self, *, area: str) -> None:
        """Set the module's weights to the area's tensors."""
        copy(self._weights(), self._rows(area))

    @together
    @torch.no_grad()
    def store(self, *, area: str) -> None:
        """Copy the module's weights to the area: the inverse of `load`."""
        copy(self._rows(area), self._weights())

    @together
    @torch.no_grad()
    def shift(self, *, area: str, sign: float) -> None:
        """Add the area's tensors, times `sign`, to the module's weights: one tensor at a time, to save GPU memory."""
        rows = self._rows(area)
        for name, weight in self._weights().items():
            weight.add_(rows[name].to(weight.device), alpha=sign)

    @together
    @torch.no_grad()
    def probe(self, *, scales: list[float], step: float) -> None:
        """Move the module's weights by one peer's bounded update, whose records are in the area RECORDS."""
        self._kept = ops.probe(self._weights(), self._sent(), tuple(scales), step, self._held)

    @together
    @torch.no_grad()
    def undo_probe(self) -> bool:
        """Restore the weights, bit for bit; False when they were not moved, or not completely."""
        kept, self._kept = self._kept, None
        if kept is not None:
            ops.undo_probe(self._weights(), self._sent(), kept, self._held)
        return kept is not None

    def _weights(self) -> dict[str, Tensor]:
        """Return this rank's rows of the module's weights, on their device."""
        return {name: local(parameter).detach() for name, parameter in self._parameters.items()}

    def _sent(self) -> Update:
        """Return the update whose records are in the area RECORDS, as a view. It is valid: the first rank put it
        there."""
        records = self._areas[RECORDS].tensor((self.layout.records_bytes,), torch.uint8)
        return Update(self.layout, records.numpy().data.toreadonly())

    @together
    def inner_round(
        self,
        *,
        inner: dict[str, Any],
        first_step: int,
        num_sequences: int,
        done: int = 0,
        trace_of: Sequence[str] | None = None,
        split: bool = False,
    ) -> InnerReport:
        """Take H inner steps on the first H * batch sequences in the area TOKENS, the first `done` of which were
        already made; the weights become theta_r.

        trace_of: run, page block's hash and hotkey, in hex, and how many places of the round's trace they draw; None:
        it has none. split: half as many sequences at once, which rounds otherwise.

        The micro-batch is found before the first step. Raises ConfigError when the device has too little memory.
        """
        spec, fitting = InnerSpec.model_validate(inner), self._fitting()
        if spec.state == "fresh" and not done:
            self._optimizer.state.clear()
        if not done:
            self._recorder = None if trace_of is None else self._recording(spec.steps, *trace_of)
        return inner_round(
            self.model,
            self._optimizer,
            batches(self._tokens(num_sequences), spec.steps, spec.sequences),
            spec,
            first_step=first_step,
            done=done,
            ranks=self.ranks,
            micro_sequences=max(1, fitting.micro_sequences // 2) if split else fitting.micro_sequences,
            recompute=fitting.recompute,
            recorder=self._recorder,
            on_step=self.on_step,
            stopped=self.stopped,
        )

    def _recording(self, steps: int, run: str, page_hash: str, peer: str, count: str) -> Recorder:
        of = Digest(bytes.fromhex(run)), Digest(bytes.fromhex(page_hash)), PeerId(bytes.fromhex(peer))
        return Recorder(self._parameters, places(*of, self.layout, int(count)), self.layout, steps, self.ranks)

    @together
    def forget_steps(self) -> None:
        """Free the optimizer's state, and what was recorded."""
        self._optimizer.state.clear()
        self._recorder = None

    @together
    def trace(self, *, steps: int) -> Trace:
        """Return the trace of the first `steps` of the last inner round."""
        assert self._recorder is not None, "that inner round was not traced"
        return self._recorder.trace(steps)

    def _fitting(self) -> Fit:
        """Return the micro-batch and the recomputation: found once, when training begins; a validator never needs
        them."""
        if self._fit is None:
            self._fit = fit(self.model, self._optimizer, self.spec, self.ranks)
            if self.compiled and self.ranks.device.type == "cuda":
                self.model.compile()
        return self._fit

    @together
    @torch.no_grad()
    def losses(self, *, num_sequences: int) -> list[float]:
        """Return the mean cross entropy of each sequence in the area TOKENS, nats per token."""
        sequences = self._tokens(num_sequences)
        found = torch.zeros(num_sequences, dtype=torch.float64)
        size = max(1, EVALUATION_TOKENS // max(1, sequences.shape[1] - 1))
        number_of_batches = -(-num_sequences // size)
        self.model.eval()
        for turn in range(-(-number_of_batches // self.ranks.size)):
            # Every rank calls the model equally often; results past the end are dropped.
            first = (turn * self.ranks.size + self.ranks.index) * size
            batch = sequences[first : first + size]
            padding = sequences[-1:].expand(size - len(batch), -1)
            with autocast(self.ranks.device):
                losses = self.model.loss(torch.cat([batch, padding]).to(self.ranks.device))
            found[first : first + size] = losses[: len(batch)].double().cpu()
        self.ranks.release(self.model)
        return [float(loss) for loss in self.ranks.sum(found)]

    # --- compression -----------------------------------------------------------------------------------------

    @together
    @torch.no_grad()
    def compress(self, *, theta: str, error: str | None, new_error: str, beta: float) -> bool:
        """Compress theta - theta_r + beta * error into the area RECORDS; the rest goes to `new_error`.

        False, with `new_error` undefined, when a value is not finite.
        """
        ends = self._ends()
        carried = None if error is None else self._compressed(error)
        starts, left = self._compressed(theta), self._compressed(new_error)
        # Error feedback and theta are on the host; the next slab is copied to a GPU while one is compressed there.
        inputs = (tuple(group[t.name] for group in (starts, carried) if group for t in slab) for slab in self._slabs)
        finite = True
        for slab, there in zip(self._slabs, ahead(inputs, self.ranks.device), strict=True):
            names = [tensor.name for tensor in slab]
            try:
                self._compress(
                    slab,
                    dict(zip(names, there, strict=False)),
                    {name: ends[name] for name in names},
                    None if carried is None else dict(zip(names, there[len(names) :], strict=True)),
                    {name: left[name] for name in names},
                    beta,
                )
            except NonFinite:
                finite = False
                break
        return not self.ranks.any(not finite)

    def _compress(
        self,
        slab: Layout,
        starts: Mapping[str, Tensor],
        ends: Mapping[str, Tensor],
        carried: Mapping[str, Tensor] | None,
        left: Mapping[str, Tensor],
        beta: float,
    ) -> None:
        """Compress some tensors on the device; new error and records go to the host."""
        on_host = self.ranks.device.type == "cpu"
        update, new_error = ops.compress(starts, ends, carried, slab, beta=beta, out=left if on_host else None)
        if not on_host:
            copy(left, new_error)
        records = self._areas[RECORDS].tensor((self.layout.records_bytes,), torch.uint8)
        found = tensor_over(update.records)
        for tensor in slab:
            first = self._first_byte(tensor.name)
            records[first : first + tensor.num_bytes] = found[tensor.offset : tensor.offset + tensor.num_bytes]

    def _ends(self) -> dict[str, Tensor]:
        """Return theta_r of the tensors that this rank compresses. Tensors whose blocks the ranks' rows would cut are
        assembled first."""
        ends = self._weights()
        whole = [tensor.name for tensor in self.layout if not _divides(tensor, self.ranks.size)]
        if whole:
            rows = self._rows(ENDS)
            for name in whole:
                rows[name].copy_(ends[name])
            self.ranks.wait()
            ends |= {name: tensor for name, tensor in self._compressed(ENDS).items() if name in whole}
        return ends

    def _first_byte(self, name: str) -> int:
        """Return where the records of this rank's part of a tensor begin."""
        tensor = self._tensors[name]
        return tensor.offset + tensor.num_bytes * int(self._mine[name].start) // max(1, tensor.shape[0])

    # --- optimizer state -------------------------------------------------------------------------------------

    @together
    @torch.no_grad()
    def store_moments(self) -> int:
        """Copy the optimizer's tensors, as far as they are carried from round to round, to the areas of
        `moment_areas`. Return the steps taken."""
        if not self.moment_areas:
            return 0
        return store_adam_state(self._parameters, self._optimizer, self._moments())

    @together
    @torch.no_grad()
    def load_moments(self, *, num_steps: int) -> None:
        """Load the tensors of `store_moments`: the next step is bit-identical."""
        if self.moment_areas:
            load_adam_state(self._parameters, self._optimizer, self._moments(), num_steps)

    def _moments(self) -> dict[str, Tensor]:
        """Return this rank's rows of the optimizer's tensors on the host, by their saved names."""
        areas = {area: self._rows(area) for area in self.moment_areas}
        named = {name: split_name(name) for name in carried_shapes(self.spec.model, self.spec.inner)}
        return {name: areas[area][tensor] for name, (area, tensor) in named.items()}

    @property
    def moment_areas(self) -> list[str]:
        """Areas for the optimizer's tensors: the part of their names before the parameter's."""
        return sorted({split_name(name)[0] for name in carried_shapes(self.spec.model, self.spec.inner)})

    # --- rows ------------------------------------------------------------------------------------------------

    def _rows(self, area: str) -> dict[str, Tensor]:
        """Return this rank's rows of every tensor of an area: those of its shards."""
        tensors = model_tensors(self._areas[area], self.layout)
        return tensors if self._held is None else {name: tensor[self._held[name]] for name, tensor in tensors.items()}

    def _compressed(self, area: str) -> dict[str, Tensor]:
        """Return the rows of every tensor of an area that this rank compresses."""
        tensors = model_tensors(self._areas[area], self.layout)
        return {name: tensors[name][rows] for name, rows in self._mine.items()}

    def _tokens(self, num_sequences: int) -> Tensor:
        return self._areas[TOKENS].tensor((num_sequences, self.spec.model.context + 1), torch.int64)


def split_name(name: str) -> tuple[str, str]:
    """Split "adam.first/norm.weight" into ("adam.first", "norm.weight")."""
    area, _, tensor = name.partition("/")
    return area, tensor


def _divides(tensor: TensorLayout, size: int) -> bool:
    """Whether equal shares of a tensor's rows are whole rows of blocks."""
    return size == 1 or (len(tensor.shape) >= 2 and tensor.shape[0] % (BLOCK * size) == 0)


def _share(tensor: TensorLayout, ranks: Ranks) -> slice:
    """Return the rows of a tensor that a rank compresses: its own, or, where that would cut blocks, all on the first
    rank."""
    if _divides(tensor, ranks.size):
        return ranks.rows(tensor.shape[0])
    return ranks.gathered(tensor.shape[0])


def _slabs(layout: Layout, share: Mapping[str, slice], slab_bytes: float) -> list[Layout]:
    """Return layouts of the rows in `share`, with tensors grouped up to `slab_bytes` of fp32."""
    slabs: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0.0
    for tensor in layout:
        rows = share[tensor.name]
        shape = (rows.stop - rows.start, *tensor.shape[1:])
        if not prod(shape):
            continue
        if slabs[-1] and size + 4 * prod(shape) > slab_bytes:
            slabs.append({})
            size = 0.0
        slabs[-1][tensor.name] = shape
        size += 4 * prod(shape)
    return [Layout.of(shapes, layout.k) for shapes in slabs if shapes]
