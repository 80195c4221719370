"""Attacks by less work than a round's, more, or other work, and by taking part in some rounds only."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gauntlet.book import eligible, in_doubt
from murmur.lab.arena import forge
from murmur.lab.arena.attack import Attack, Expected, Working, noise_of
from murmur.lab.arena.players import Lesson, Sending, View, difference, lesson
from murmur.lab.arena.problem import Trained
from murmur.lab.arena.stage import generator
from murmur.lab.arena.traces import none_of
from murmur.protocol.assignment import page_at
from murmur.protocol.types import Page, PeerId
from sparseloco import ops


class Noise(Attack):
    """Random values at an honest norm."""

    kind, expected = "noise", Expected.SOON

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        return self.in_sync(view, [noise_of(view, peer) for peer in self.hotkeys])


class Zeros(Attack):
    """An update of zeros."""

    kind, expected = "zeros", Expected.AT_ONCE

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        nothing = {name: torch.zeros_like(values) for name, values in view.theta.items()}
        return self.in_sync(view, [forge.packed(nothing, view.spec.layout)])


class HalfWork(Working):
    """Half of the steps, on the first half of its pages."""

    kind, expected = "half-work", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 0.5)]


class HalfBatch(Working):
    """All steps, each on half of its sequences: every second one of its pages."""

    kind, expected = "half-batch", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        whole = lesson(view, view.pages(self.me))
        return [replace(whole, sequences=whole.sequences[::2], batches=tuple(size // 2 for size in whole.batches))]


class HalfRate(Working):
    """All the work, at half the learning rate."""

    kind, expected = "half-rate", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [replace(each, rate=0.5) for each in super().lessons(view)]


class FrozenLayers(Working):
    """Never trains one of the two large tensors."""

    kind, expected = "frozen-layers", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [replace(each, frozen="lag2.weight") for each in super().lessons(view)]


class DoubleWork(Working):
    """Goes through its pages twice: more work, not less."""

    kind, expected = "double-work", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 2.0)]


class DoubleBatch(Working):
    """For every sequence of its pages one from pages of its own choice, in the same number of steps."""

    kind, expected = "double-batch", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        whole = lesson(view, view.pages(self.me))
        beside = view.text.sequences(chosen_pages(view, self.me))[: len(whole.sequences)]
        both = torch.stack([whole.sequences, beside], dim=1).flatten(0, 1)
        return [replace(whole, sequences=both, batches=tuple(2 * size for size in whole.batches))]


def chosen_pages(view: View, peer: PeerId) -> list[Page]:
    """Return as many pages as are assigned, different ones every round."""
    spec = view.spec
    chosen = view.draw("pages", peer).distinct(spec.num_pages, spec.pages_per_round)
    return [page_at(index, spec.page_tokens) for index in chosen]


class WrongData(Working):
    """Trains on pages of its own choice, different ones every round."""

    kind, expected = "wrong-data", Expected.SOON

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, chosen_pages(view, self.me))]


class StaleModel(Working):
    """Trains from the theta of two rounds ago, and says so."""

    kind, expected = "stale-model", Expected.AT_ONCE
    honest_claim: ClassVar[bool] = True

    def lessons(self, view: View) -> list[Lesson]:
        if len(view.past) < 2:
            return []
        return [replace(lesson(view, view.pages(self.me)), start=view.past[-2].theta)]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        if not trained:
            return {}
        old, spec = view.past[-2], view.spec
        update, self.error = ops.compress(old.theta, trained[0].end, self.error, spec.layout, spec.compression.decay)
        claimed = old.digest if self.honest_claim else view.digest
        return {self.me: Sending(update, claimed, old.digest, view.shown(self.me, trained[0]))}


class DigestLiar(StaleModel):
    """Trains from the theta of two rounds ago and claims this round's digest, which it has read elsewhere."""

    kind, honest_claim = "digest-liar", False


class Momentum(Attack):
    """Sends the direction in which all peers have been moving theta, each time over another random half, with error
    feedback. So it repeats neither itself nor others that do the same."""

    kind, expected = "consensus-momentum", Expected.SOON
    keeps: ClassVar[float] = 0.9

    def __init__(self, name: str, seed: int, slots: int | None = None) -> None:
        super().__init__(name, seed, slots)
        self.direction: dict[str, Tensor] | None = None
        self.error: dict[str, Tensor] | None = None

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        if not view.past:
            return {}
        step, before = difference(view.past[-1].theta, view.theta), self.direction or {}
        self.direction = {n: self.keeps * before[n] + t if before else t for n, t in step.items()}
        carried = self.error or {}
        wanted = {n: t + 0.95 * carried[n] if carried else t for n, t in self.direction.items()}
        random = generator(view.draw("half", self.me))
        half = {n: t * (torch.rand(t.shape, generator=random) < 0.5) for n, t in wanted.items()}
        update = forge.packed(half, view.spec.layout)
        if not update.norms.whole:
            return {}
        self.error = difference(wanted, forge.dense(update))
        return self.in_sync(view, [forge.scaled(update, view.norm / update.norms.whole)])


class Drip(Working):
    """Trains in one round of four and sends its error feedback in the others, in which it declares no step."""

    kind, expected = "error-feedback-drip", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return super().lessons(view) if view.round % 4 == 0 else []

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        return super().send(view, trained or [none_of(view.theta)])


class SlackUnseen(Working):
    """Works until it is evaluated and does a quarter in the two rounds after that, when the next evaluation is less
    likely."""

    kind, expected = "slack-while-unseen", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        seen = any(self.me in past.evaluated for past in view.past[-2:])
        return [lesson(view, view.pages(self.me), 0.25 if seen else 1.0)]


class ThinMargin(Working):
    """A quarter of the work, except while the public book has it near a floor or below it."""

    kind, expected = "thin-margin", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        record, gauntlet = view.book.peers.get(self.me), view.spec.gauntlet
        safe = record is not None and eligible(record, gauntlet) and not in_doubt(record, gauntlet)
        return [lesson(view, view.pages(self.me), 0.25 if safe else 1.0)]


class Late(Working):
    """Honest work, committed after the commit deadline."""

    kind, expected = "late", Expected.AT_ONCE

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        return {peer: replace(sending, late=True) for peer, sending in super().send(view, trained).items()}


class Flapping(Working):
    """Three rounds of honest work, three of absence."""

    kind, expected = "flapping", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return super().lessons(view) if view.round // 3 % 2 == 0 else []

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        return super().send(view, trained) if trained else {}
