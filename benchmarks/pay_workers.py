"""The workers of benchmarks/bench_pay.py: who trains how much, and what its hotkeys send.

Every hotkey has a replica, and with it an optimizer and error feedback of its own. A learning rate follows the rounds
and not the steps, so that half the steps do not mean half the warm-up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pay_trainers import Rule, ruled, whole
from tiny_spec import word
from torch import Tensor

from gauntlet.book import ScoreBook, eligible, in_doubt
from gauntlet.selection import peer_score
from murmur.data.shards import Split
from murmur.lab.arena import forge
from murmur.protocol.assignment import Draw, assigned, page_at
from murmur.protocol.spec import InnerSpec, RunSpec
from murmur.protocol.types import Digest, Page, PeerId
from murmur.training.loader import sequences
from murmur.training.recorder import TraceOf
from murmur.training.replica import ERROR
from sparseloco.outer import OuterState
from sparseloco.trace import Trace
from sparseloco.update import Update


@dataclass(frozen=True)
class View:
    """What everybody knows in a round: theta, what the last outer step subtracted from it (None at first), what was
    revealed of the last round, the outer state, and a validator's book, which its reports make public."""

    round: int
    spec: RunSpec
    run: Digest
    page_hash: Digest
    train: Split
    last_step: Mapping[str, Tensor] | None
    last_updates: Mapping[PeerId, Update]
    outer: OuterState
    book: ScoreBook

    def pages(self, peer: PeerId) -> tuple[Page, ...]:
        """Those assigned to a hotkey."""
        spec = self.spec
        return assigned(
            self.run,
            self.page_hash,
            peer,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
        )

    def sequences(self, pages: tuple[Page, ...]) -> Tensor:
        """int64 [sequences, context + 1]"""
        return sequences(self.train, pages, self.spec.model.context)

    def trace_of(self, peer: PeerId) -> TraceOf | None:
        """What a hotkey's trace is drawn from; None where work is not verified."""
        places = self.spec.trace.places
        return TraceOf(self.run, self.page_hash, peer, places) if places else None

    def random(self, label: str, peer: PeerId) -> torch.Generator:
        """A worker's own random numbers of this round."""
        return torch.Generator().manual_seed(Draw(label, self.run, peer, self.round).words(7))


def inner_of(spec: InnerSpec, steps: float, batch: float, rate: float) -> InnerSpec:
    """The inner constants with so many times the steps, sequences a step and learning rate; the schedule reaches the
    same share of its peak in the same round."""
    taken = max(1, round(spec.steps * steps))
    stretched = ("warmup_steps", "decay_steps", "flat_from", "flat_steps")
    changes: dict[str, float] = {name: round(getattr(spec, name) * taken / spec.steps) for name in stretched}
    changes |= {"steps": taken, "sequences": max(1, round(spec.sequences * batch))}
    return spec.model_copy(update=changes | {"peak_lr": spec.peak_lr * rate, "final_lr": spec.final_lr * rate})


class Worker:
    """One participant that does the work of its kind on the pages of each of its hotkeys."""

    kind: ClassVar[str]
    slots: ClassVar[int] = 1
    steps: ClassVar[float] = 1.0
    batch: ClassVar[float] = 1.0
    rate: ClassVar[float] = 1.0
    cost: ClassVar[float] = 1.0
    """Of a step, in full ones of the same batch."""

    def __init__(self, name: str, seed: int, spec: RunSpec, theta: Mapping[str, Tensor], rule: Rule) -> None:
        self.name, self.spec = name, spec
        self.hotkeys = [PeerId(word("peer", seed, name, index)) for index in range(self.slots)]
        self.replicas = {peer: ruled(rule)(spec, theta) for peer in self.hotkeys}
        self.learned: dict[PeerId, Update] = {}
        """What the replicas have taken off their error feedback this round."""
        self.traces: dict[PeerId, Trace] = {}
        """What its hotkeys show of this round's steps, in a run that verifies work."""
        self.work = 0.0
        """Done so far, in rounds of a full worker."""

    def send(self, view: View) -> dict[PeerId, Update]:
        return {peer: self.trained(view, peer) for peer in self.hotkeys}

    def trained(self, view: View, peer: PeerId, share: float = 1.0) -> Update:
        """What a hotkey learned in this share of its kind's steps, with its error feedback."""
        steps = self.steps * share
        inner, replica = inner_of(self.spec.inner, steps, self.batch, self.rate), self.replicas[peer]
        needed = inner.steps * inner.sequences
        lesson = self.lesson(view, peer)
        of = view.trace_of(peer)
        replica.inner_round(lesson.repeat(-(-needed // len(lesson)), 1)[:needed], inner=inner, trace_of=of)
        if of is not None:
            self.traces[peer] = self.shown(replica.trace())
        self.work += inner.steps / self.spec.inner.steps * self.batch * self.cost
        self.learned[peer] = replica.compress()
        return self.learned[peer]

    def shown(self, trace: Trace) -> Trace:
        """What it shows of the steps that it made: no more than a round has."""
        steps = self.spec.inner.steps
        return Trace(trace.gradients[:steps], trace.moves[:steps])

    def decided(self, chosen: Sequence[Update]) -> None:
        """The round is over, and these were agreed on; nobody: it is void."""
        for peer, replica in self.replicas.items():
            if chosen:
                outer = self.spec.outer
                replica.outer_step(chosen, alpha=outer.alpha, aggregate=outer.aggregate)
            elif peer in self.learned:
                replica.restore_to_error_feedback(self.learned[peer])
        self.learned = {}

    def lesson(self, view: View, peer: PeerId) -> Tensor:
        return view.sequences(view.pages(peer))


class Full(Worker):
    """What the protocol asks for."""

    kind = "full"


class SplitInTwo(Worker):
    """The steps of one, shared by two hotkeys: each half of them, on the first half of its pages, as if they were
    all."""

    kind, slots, steps = "split_in_two", 2, 0.5

    def shown(self, trace: Trace) -> Trace:
        return whole(trace, self.spec.inner.steps)


class HalfWork(Worker):
    kind, steps = "half_work", 0.5


class HalfBatch(Worker):
    """All steps, each on half of its sequences."""

    kind, batch = "half_batch", 0.5

    def lesson(self, view: View, peer: PeerId) -> Tensor:
        return super().lesson(view, peer)[::2]


class SplitBatch(HalfBatch):
    """The sequences of one, shared by two hotkeys: each takes every step, on half of the sequences of its own pages."""

    kind, slots = "split_batch", 2


class DoubleSteps(Worker):
    """Goes through its pages twice."""

    kind, steps = "double_steps", 2.0


class DoubleBatch(Worker):
    """Beside every sequence of its pages another one, of pages of its own choice."""

    kind, batch = "double_batch", 2.0

    def lesson(self, view: View, peer: PeerId) -> Tensor:
        own, spec = view.pages(peer), view.spec
        chosen = Draw("beside", view.run, peer, view.round).distinct(spec.num_pages, len(own))
        other = tuple(page_at(index, spec.page_tokens) for index in chosen)
        return torch.stack([view.sequences(own), view.sequences(other)], dim=1).flatten(0, 1)


class HalfRate(Worker):
    kind, rate = "half_rate", 0.5


class Adam(Worker):
    """Trains by AdamW where the others train by Muon, at the rate at which that is best: half of theirs."""

    kind, rate = "adamw", 0.5

    def __init__(self, name: str, seed: int, spec: RunSpec, theta: Mapping[str, Tensor], rule: Rule) -> None:
        inner = spec.inner.model_copy(update={"optimizer": "adamw", "state": "kept"})
        super().__init__(name, seed, spec.model_copy(update={"inner": inner}), theta, rule)


class HalfAdam(Adam):
    kind, steps = "adamw_half_work", 0.5


class DoubleRate(Worker):
    kind, rate = "double_rate", 2.0


class ByGradient(Worker):
    """Honest work, of which it sends the values that its gradients say matter, whatever rule the others go by."""

    kind = "index_by_gradient"

    def __init__(self, name: str, seed: int, spec: RunSpec, theta: Mapping[str, Tensor], rule: Rule) -> None:
        super().__init__(name, seed, spec, theta, replace(rule, index_power=0.5))


class Inflate(Worker):
    """Honest work, its values multiplied."""

    kind = "inflate_1_25"
    factor: ClassVar[float] = 1.25

    def send(self, view: View) -> dict[PeerId, Update]:
        return {peer: forge.scaled(update, self.factor) for peer, update in super().send(view).items()}


class Deflate(Inflate):
    kind, factor = "deflate_0_85", 0.85


def usual(view: View) -> float:
    """The median norm of what was revealed of the last round, 0 before."""
    norms = sorted(update.norms.whole for update in view.last_updates.values())
    return norms[(len(norms) - 1) // 2] if norms else 0.0


class SplitInflated(SplitInTwo):
    """The steps of one, shared by two hotkeys, each of which multiplies what it learned to the usual norm."""

    kind = "split_inflated"

    def send(self, view: View) -> dict[PeerId, Update]:
        norm = usual(view)
        return {
            peer: forge.scaled(update, max(1.0, norm / (update.norms.whole or 1.0)))
            for peer, update in super().send(view).items()
        }


class PrivateDirection(SplitInTwo):
    """The steps of one, shared by two hotkeys, each of which adds one direction of their owner's, which is nothing, to
    what it learned: three fifths of it, at the usual norm."""

    kind = "private_direction"

    def send(self, view: View) -> dict[PeerId, Update]:
        learned, norm = super().send(view), usual(view)
        if not norm:
            return learned
        random = torch.Generator().manual_seed(Draw("direction", view.run, self.hotkeys[0], 0).words(7))
        own = forge.dense(forge.noise(norm, view.spec.layout, random))
        return {
            peer: forge.with_norm(
                {name: tensor + 0.6 * own[name] for name, tensor in forge.dense(update).items()}, norm, view.spec.layout
            )
            for peer, update in learned.items()
        }


class SplitValues(Worker):
    """All steps once, half of them on the pages of each of two hotkeys, and the values dealt out between these: each
    sends every second one, by size, at the usual norm."""

    kind, slots = "split_values", 2

    def send(self, view: View) -> dict[PeerId, Update]:
        first, second = self.hotkeys
        update = forge.dense(self.trained(view, first))
        left = self.replicas[first].own_state().tensors
        learned = {name: tensor + left[ERROR + name] for name, tensor in update.items()}
        norm, dealt = usual(view), forge.ranks(learned, view.spec.layout, 2)
        parts = [forge.dense(part) for part in dealt]
        for name, tensor in update.items():
            left[ERROR + name].sub_(sum(part[name] for part in parts) - tensor)
        return {
            peer: forge.scaled(part, norm / part.norms.whole) if norm and part.norms.whole else part
            for peer, part in zip((first, second), dealt, strict=True)
        }

    def lesson(self, view: View, peer: PeerId) -> Tensor:
        both = [view.sequences(view.pages(one)) for one in self.hotkeys]
        return torch.stack(both, dim=1).flatten(0, 1)


class Momentum(Worker):
    """No work: the last step of the run, at the usual norm."""

    kind = "momentum"
    works: ClassVar[bool] = False

    def send(self, view: View) -> dict[PeerId, Update]:
        if view.last_step is None:
            return super().send(view) if self.works else {}
        (me,) = self.hotkeys
        pushed = forge.dense(forge.with_norm(view.last_step, usual(view), view.spec.layout))
        if self.works:
            own = forge.dense(super().send(view)[me])
            pushed = {name: own[name] + 0.3 * tensor for name, tensor in pushed.items()}
        return {me: forge.with_norm(pushed, usual(view), view.spec.layout)}


class HalfMomentum(Momentum):
    """Half of the steps, and three tenths of the last step added, at the usual norm."""

    kind, steps, works = "half_momentum", 0.5, True


class Copier(Worker):
    """No work: the last round's update of the peer with the best PeerScore, with 39 % of its values moved, so that the
    comparison of payloads does not see a copy."""

    kind = "copier_39"

    def send(self, view: View) -> dict[PeerId, Update]:
        others = sorted(view.last_updates.keys() - set(self.hotkeys))
        if not others:
            return {}
        best = max(others, key=lambda peer: peer_score(view.book.peers.get(peer)))
        (me,) = self.hotkeys
        return {me: forge.perturbed(view.last_updates[best], 0.39, view.random("copier", me))}


class OnOff(Worker):
    """Honest in four rounds of five; in the fifth it pushes theta back over the last step, at the usual norm."""

    kind = "on_off"

    def send(self, view: View) -> dict[PeerId, Update]:
        if view.round % 5 != 4 or view.last_step is None:
            return super().send(view)
        back = {name: -step for name, step in view.last_step.items()}
        return {peer: forge.with_norm(back, view.outer.whole, view.spec.layout) for peer in self.hotkeys}


class ThinMargin(Worker):
    """A quarter of the steps, except while the public book has it near or below a floor."""

    kind = "thin_margin"

    def send(self, view: View) -> dict[PeerId, Update]:
        (me,) = self.hotkeys
        record, gauntlet = view.book.peers.get(me), view.spec.gauntlet
        safe = record is not None and eligible(record, gauntlet) and not in_doubt(record, gauntlet)
        return {me: self.trained(view, me, 0.25 if safe else 1.0)}


class FrozenLayers(Worker):
    """Never trains the lower half of its layers, which saves their weights' gradients: a sixth of a step."""

    kind, cost = "frozen_layers", 5 / 6

    def __init__(self, name: str, seed: int, spec: RunSpec, theta: Mapping[str, Tensor], rule: Rule) -> None:
        super().__init__(name, seed, spec, theta, rule)
        for replica in self.replicas.values():
            for layer in replica.model.layers[: spec.model.layers // 2]:
                layer.requires_grad_(False)


class Swarm(Worker):
    """Sixteen hotkeys with a tenth of the steps each."""

    kind, slots, steps = "swarm_80", 16, 0.1


WORKERS: dict[str, type[Worker]] = {
    worker.kind: worker
    for worker in (
        Full,
        SplitInTwo,
        HalfWork,
        HalfBatch,
        SplitBatch,
        DoubleSteps,
        DoubleBatch,
        HalfRate,
        Adam,
        HalfAdam,
        DoubleRate,
        ByGradient,
        Inflate,
        Deflate,
        SplitInflated,
        PrivateDirection,
        SplitValues,
        Momentum,
        HalfMomentum,
        Copier,
        OnOff,
        ThinMargin,
        FrozenLayers,
        Swarm,
    )
}
