"""The honest substitute for training, and the only one: a linear problem in place of a language model.

Everything around it is real: theta, error feedback, compression, digests, outer steps and saved states are the
Replica's own over a tiny layout. The cost of work is modelled on the clock. Every page pulls theta in a common
direction and in one of its own, so honest work lowers the loss everywhere, and most on its own pages. There is no
optimum: near one, honest updates on single pages would raise the loss on all others, and be marked LOW_SCORE.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.data.shards import Shards, Split
from murmur.protocol.layout import Layout
from murmur.protocol.ports import Time
from murmur.protocol.spec import InnerSpec, ModelSpec, TrainingSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.inner import InnerReport, OnStep, Stopped, never
from murmur.training.parallel import Ranks
from murmur.training.recorder import TraceOf
from murmur.training.replica import Replica
from murmur.training.trainer import RECORDS, Trainer
from sparseloco import ops
from sparseloco.digest import sync_proof, sync_values
from sparseloco.outer import Aggregate, Scales
from sparseloco.update import Update

NUM_PAGES = 1 << 20
PAGE_SEQUENCES = 4
OWN_SHARE = 1.0
"""Strength of a page's own direction, as a share of the common one."""
INNER_STEP = 0.01
"""Distance that a peer moves in one round."""
START_LOSS = 1.0
"""Loss of theta_0, which is zero, on any page."""
_REMEMBERED = 16


class Point(ModelSpec):
    """The linear problem's shapes in a run spec's model table, so that all of the real code sees its layout: a matrix
    and a vector, or a short vector for each of several layers."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        if self.layers == 1:
            return {"matrix": (8, 16), "vector": (44,)}
        return {f"vector-{layer}": (8,) for layer in range(self.layers)}


MODEL = Point(vocabulary=8, layers=1, width=4, heads=2, kv_heads=1, ffn=4, context=8)
DEEP = MODEL.model_copy(update={"layers": 7})
"""A mean of it has seven parts where every value is sent; one of MODEL has two."""
PAGE_TOKENS = PAGE_SEQUENCES * MODEL.context


@dataclass(frozen=True)
class Costs:
    """Modelled seconds of this machine's work; each draw is within `spread` of it (a share). `inner`: a round's inner
    steps."""

    inner: float
    compress: float = 4.0
    outer: float = 3.0
    probe: float = 0.5
    sequence: float = 0.02
    spread: float = 0.1


class Positions(Split):
    """A split whose tokens are their own positions: no text is ever read."""

    def __init__(self, first: int, num_tokens: int) -> None:
        self._first, self._count = first, num_tokens

    @property
    def num_tokens(self) -> int:
        return self._count

    def read(self, runs: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.int64]]:
        return [np.arange(self._first + first, self._first + first + count, dtype=np.int64) for first, count in runs]


class NoText(Shards):
    """The data set of the linear problem."""

    def __init__(self) -> None:
        self.train = Positions(0, NUM_PAGES * PAGE_TOKENS + 1)
        self.held_out = Positions(1 << 40, 4096 * PAGE_TOKENS + 1)


class Problem:
    """The direction in which every page pulls: the loss falls by theta's movement in that direction, without bound."""

    def __init__(self, seed: int, num_parameters: int) -> None:
        self.num_parameters = num_parameters
        self._salt = np.uint64(seed * 0xD1342543DE82EF95 % 2**64)
        self._place = np.arange(num_parameters, dtype=np.uint64)
        self._common = self._unit(np.uint64(1 << 50))
        self._sync_values: dict[tuple[Digest, Digest], bytes] = {}

    def pulls(self, sequences: Tensor) -> npt.NDArray[np.float32]:
        """Return the direction of each sequence's page, fp32 [num, parameters]."""
        pages = sequences[:, 0].numpy().astype(np.uint64) // np.uint64(PAGE_TOKENS)
        places, which = np.unique(pages, return_inverse=True)
        own: npt.NDArray[np.float32] = self._common + np.float32(OWN_SHARE) * self._unit(places[:, None])
        return own[which]

    def losses(self, theta: npt.NDArray[np.float32], sequences: Tensor) -> list[float]:
        found: list[float] = (START_LOSS - (theta * self.pulls(sequences)).mean(1)).tolist()
        return found

    def sync_values(self, theta: Digest, block_hash: Digest, read: Callable[[], bytes]) -> bytes:
        """Return the values that in-sync proofs are made of, read once for all nodes: 4,096 draws cost a tenth of a
        round."""
        at = theta, block_hash
        if at not in self._sync_values:
            while len(self._sync_values) >= _REMEMBERED:
                del self._sync_values[next(iter(self._sync_values))]
            self._sync_values[at] = read()
        return self._sync_values[at]

    def _unit(self, page: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.float32]:
        """Return numbers in [-1, 1) that follow from the seed, the page and the position (splitmix64)."""
        mixed = (page * np.uint64(1 << 13) + self._place) * np.uint64(0x9E3779B97F4A7C15) ^ self._salt
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        unit: npt.NDArray[np.float32] = ((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).astype(
            np.float32
        )
        return unit


class Contrary(Problem):
    """The same problem with the opposite sign: learning from it raises the loss."""

    def __init__(self, problem: Problem) -> None:
        vars(self).update(vars(problem))

    def pulls(self, sequences: Tensor) -> npt.NDArray[np.float32]:
        return -super().pulls(sequences)


class ModelledTrainer(Trainer):
    """A trainer without a module: the part that a Replica needs besides host memory."""

    def __init__(self, ranks: Ranks, *, spec: str) -> None:
        self.ranks = ranks
        read = TrainingSpec.model_validate_json(spec)
        model = Point(**read.model.model_dump())
        self.spec = read.model_copy(update={"model": model})
        self.layout = Layout.of(model.shapes(), self.spec.compression.k)
        self.weights = {name: torch.zeros(shape) for name, shape in model.shapes().items()}
        self._areas = {}
        self._held = self._kept = None

    def _weights(self) -> dict[str, torch.Tensor]:
        return self.weights

    def compress(self, *, theta: str, error: str | None, new_error: str, beta: float) -> bool:
        carried = None if error is None else self.tensors(error)
        update, _ = ops.compress(
            self.tensors(theta), self.weights, carried, self.layout, beta=beta, out=self.tensors(new_error)
        )
        records = self.area(RECORDS, self.layout.records_bytes).tensor((self.layout.records_bytes,), torch.uint8)
        records.copy_(torch.frombuffer(bytearray(update.records), dtype=torch.uint8))
        return True

    def store_moments(self) -> int:
        return 0

    def load_moments(self, *, num_steps: int) -> None:
        pass


class ModelledReplica(Replica):
    """A Replica that learns the linear problem and spends modelled time on it."""

    trainer = ModelledTrainer
    _trainer: ModelledTrainer

    def __init__(self, spec: TrainingSpec, problem: Problem, time: Time, costs: Costs, draw: random.Random) -> None:
        super().__init__(spec, {name: torch.zeros(shape) for name, shape in spec.model.shapes().items()})
        self.problem, self._time, self._costs, self._random = problem, time, costs, draw

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
        """Model the inner steps. The update does not depend on the weights, so it is added at the end, for the steps
        done. A simulated run verifies no work."""
        assert trace_of is None
        spec = inner or self.spec.inner
        if not resume:
            self.reset()
        self._begin_from_theta()
        seconds, left = self._drawn(self._costs.inner) / spec.steps, spec.steps - self._done.steps
        self._at_theta = False
        done = 0
        while done < left:
            self._time.sleep(seconds)
            done += 1
            if stopped():
                break
        if not done:
            return self._done
        weights = self._weights()
        loss = sum(self.problem.losses(weights, sequences)) / len(sequences)
        self._set(weights + np.float32(INNER_STEP * done / spec.steps) * self.problem.pulls(sequences).mean(0))
        self._done += InnerReport((loss,) * done, sequences.numel() * done // spec.steps, 0)
        return self._done

    def sync_proof(self, block_hash: Digest, peer: PeerId) -> Digest:
        def read() -> bytes:
            return sync_values(self.theta, self.layout, block_hash)

        return sync_proof(self.problem.sync_values(self.digest(), block_hash, read), peer)

    def compress(self) -> Update:
        self._spend(self._costs.compress)
        return super().compress()

    def outer_step(self, updates: Sequence[Update | None], *, alpha: float, aggregate: Aggregate) -> tuple[Scales, ...]:
        self._spend(self._costs.outer)
        return super().outer_step(updates, alpha=alpha, aggregate=aggregate)

    def losses(self, sequences: Tensor) -> list[float]:
        self._spend(self._costs.probe + self._costs.sequence * len(sequences))
        return self.problem.losses(self._weights(), sequences) if len(sequences) else []

    def _spend(self, seconds: float) -> None:
        self._time.sleep(self._drawn(seconds))

    def _drawn(self, seconds: float) -> float:
        """Return a draw within the spread of `seconds`."""
        spread = self._costs.spread
        return seconds * self._random.uniform(1 - spread, 1 + spread)

    def _weights(self) -> npt.NDArray[np.float32]:
        flat: npt.NDArray[np.float32] = np.concatenate([w.numpy().reshape(-1) for w in self._trainer.weights.values()])
        return flat

    def _set(self, flat: npt.NDArray[np.float32]) -> None:
        weights = list(self._trainer.weights.values())
        parts = torch.split(torch.from_numpy(flat), [weight.numel() for weight in weights])
        for weight, values in zip(weights, parts, strict=True):
            weight.copy_(values.view(weight.shape))
