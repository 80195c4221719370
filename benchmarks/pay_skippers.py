"""Workers of benchmarks/bench_pay.py that do less than a round's work, and say so or not."""

from itertools import count

import torch
from pay_trainers import whole
from pay_workers import View, Worker
from torch import Tensor

from murmur.lab.arena import forge
from murmur.protocol.types import PeerId
from sparseloco.trace import Trace
from sparseloco.update import Update


class ThinInFour(Worker):
    """The sequences of one, shared by four hotkeys: each takes every step, on a quarter of the sequences."""

    kind, slots, batch = "thin_in_four", 4, 1 / 4

    def lesson(self, view: View, peer: PeerId) -> Tensor:
        return super().lesson(view, peer)[:: self.slots]


class ThinInEight(ThinInFour):
    kind, slots, batch = "thin_in_eight", 8, 1 / 8


class HalfDeclared(Worker):
    """The first half of the steps, and says so."""

    kind = "half_declared"

    def trained(self, view: View, peer: PeerId, share: float = 1.0) -> Update:
        replica, half, done = self.replicas[peer], self.spec.inner.steps // 2, count(1)
        of = view.trace_of(peer)
        replica.inner_round(self.lesson(view, peer), stopped=lambda: next(done) >= half, trace_of=of)
        if of is not None:
            self.traces[peer] = self.shown(replica.trace())
        self.work += half / self.spec.inner.steps
        self.learned[peer] = replica.compress()
        return self.learned[peer]


class HalfUndeclared(HalfDeclared):
    """The first half of the steps, as if they were all."""

    kind = "half_undeclared"

    def shown(self, trace: Trace) -> Trace:
        return whole(trace, self.spec.inner.steps)


class TenthSkipped(Worker):
    """In one round of ten, by chance, nothing: its last update again, a little moved, with its last trace."""

    kind = "tenth_skipped"

    def send(self, view: View) -> dict[PeerId, Update]:
        (me,) = self.hotkeys
        chance = torch.rand((), generator=view.random("skip", me))
        if float(chance) >= 0.1 or me not in view.last_updates:
            return super().send(view)
        return {me: forge.perturbed(view.last_updates[me], 0.5, view.random("moved", me))}


SKIPPERS: dict[str, type[Worker]] = {
    worker.kind: worker for worker in (ThinInFour, ThinInEight, HalfDeclared, HalfUndeclared, TenthSkipped)
}
