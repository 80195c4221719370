"""Record a round's inner steps at some places of the model, for its trace (sparseloco/trace.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from murmur.protocol.layout import Layout
from murmur.protocol.types import Digest, PeerId
from murmur.training.parallel import Ranks, local
from sparseloco.trace import Places, Trace

GRADIENTS, MOVES = 0, 1


@dataclass(frozen=True, slots=True)
class TraceOf:
    """What a trace's places are drawn from: run, hash of the round's page block, and hotkey. `places`: how many."""

    run: Digest
    page_hash: Digest
    peer: PeerId
    places: int

    def words(self) -> list[str]:
        return [self.run.hex(), self.page_hash.hex(), self.peer.hex(), str(self.places)]


class Recorder:
    """Records the clipped gradients and the weights' moves of each step at `places`. Each rank looks at its rows;
    places are read on the device, and only `trace` waits for it."""

    def __init__(
        self, parameters: Mapping[str, Tensor], places: Places, layout: Layout, steps: int, ranks: Ranks
    ) -> None:
        self._parameters, self._ranks = parameters, ranks
        self._ours: dict[str, tuple[Tensor, Tensor]] = {}
        """Of each tensor the places among this rank's elements, and their columns in the trace."""
        width = 0
        for tensor in layout:
            if tensor.name not in places:
                continue
            found = torch.from_numpy(places[tensor.name])
            wide = prod(tensor.shape[1:])
            rows = ranks.rows(tensor.shape[0])
            columns = torch.nonzero((found >= rows.start * wide) & (found < rows.stop * wide)).view(-1)
            if len(columns):
                at = found[columns] - rows.start * wide
                self._ours[tensor.name] = at.to(ranks.device), (columns + width).to(ranks.device)
            width += len(found)
        self._values = torch.zeros(steps, 2, width, device=ranks.device)
        self._before = torch.zeros(width, device=ranks.device)

    @torch.no_grad()
    def before(self, step: int) -> None:
        """Look at a step's clipped gradients and at the weights that it will move."""
        for name, (at, columns) in self._ours.items():
            parameter = self._parameters[name]
            self._before[columns] = local(parameter).detach().view(-1)[at]
            if parameter.grad is not None:
                self._values[step, GRADIENTS, columns] = local(parameter.grad).reshape(-1)[at]

    @torch.no_grad()
    def after(self, step: int) -> None:
        """Look at the weights that the step has moved."""
        for name, (at, columns) in self._ours.items():
            now = local(self._parameters[name]).detach().view(-1)[at]
            self._values[step, MOVES, columns] = self._before[columns] - now

    def trace(self, steps: int) -> Trace:
        """Return the trace of the first `steps`, on every rank. A step that was skipped is zeros."""
        values = self._ranks.sum(self._values[:steps].cpu()).numpy()
        return Trace(values[:, GRADIENTS], values[:, MOVES])
