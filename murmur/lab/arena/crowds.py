"""Attacks by many hotkeys of one owner."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from murmur.lab.arena import forge
from murmur.lab.arena.attack import Attack, Expected, Working, noise_of
from murmur.lab.arena.players import Lesson, Sending, View, difference, lesson
from murmur.lab.arena.problem import Trained, sequence_losses
from murmur.lab.arena.shirkers import Noise
from murmur.lab.arena.stage import generator, named
from murmur.lab.arena.traces import extrapolated
from murmur.protocol.assignment import page_at
from murmur.protocol.types import PeerId
from sparseloco import ops
from sparseloco.update import Update


class SplitInTwo(Attack):
    """Two hotkeys, each with half of the steps on the first half of its own pages."""

    kind, expected, slots = "split-in-two", Expected.PROPORTION, 2
    share_of_work: ClassVar[float] = 0.5

    def __init__(self, name: str, seed: int, slots: int | None = None) -> None:
        super().__init__(name, seed, slots)
        self.errors: list[dict[str, Tensor] | None] = [None] * len(self.hotkeys)

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(peer), self.share_of_work) for peer in self.hotkeys]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        spec, updates, shown = view.spec, [], []
        for index, (peer, each) in enumerate(zip(self.hotkeys, trained, strict=False)):
            update, self.errors[index] = ops.compress(
                view.theta, each.end, self.errors[index], spec.layout, spec.compression.decay
            )
            updates.append(update)
            shown.append(view.shown(peer, extrapolated(each, spec.inner.steps)))
        return self.in_sync(view, updates, shown=shown)


class SybilSplit(SplitInTwo):
    """Seven hotkeys with an eighth of the work each, on their own pages, and one with garbage to move the anchor."""

    kind, slots, share_of_work = "sybil-split", 8, 1 / 8

    def lessons(self, view: View) -> list[Lesson]:
        return super().lessons(view)[:-1]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        garbage = self.hotkeys[-1]
        return {**super().send(view, trained), **self.in_sync(view, [noise_of(view, garbage)], [garbage])}


class Swarm(Working):
    """A tenth of the work each, by so many hotkeys that they are the usual case."""

    kind, expected, share = "swarm-80", Expected.PROPORTION, 0.8

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 0.1)]


class UnionHalves(Attack):
    """Trains once on the union of eight assignments and posts eight random halves of its largest values."""

    kind, expected, slots = "replication-by-union-halves", Expected.PROPORTION, 8

    def lessons(self, view: View) -> list[Lesson]:
        parts = [view.text.sequences(view.pages(peer)) for peer in self.hotkeys]
        whole = lesson(view, view.pages(self.me))
        each = len(whole.sequences) // len(parts)
        # Interleaved, so that every step sees a part of each assignment.
        mixed = torch.stack([part[:each] for part in parts], dim=1).flatten(0, 1)
        return [replace(whole, sequences=mixed)]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        shown = [view.shown(peer, trained[0]) for peer in self.hotkeys]
        return self.in_sync(view, self.parts(view, difference(view.theta, trained[0].end)), shown=shown)

    def parts(self, view: View, delta: dict[str, Tensor]) -> list[Update]:
        """Return one update per hotkey from the trained one."""
        random = generator(view.draw("halves", self.me))
        return forge.halves(delta, view.spec.layout, len(self.hotkeys), random)


class UnionRanks(UnionHalves):
    """The same work; each hotkey posts every eighth rank by size, so that no two share a value."""

    kind = "replication-by-disjoint-ranks"

    def parts(self, view: View, delta: dict[str, Tensor]) -> list[Update]:
        return forge.ranks(delta, view.spec.layout, len(self.hotkeys))


class BestOfEight(Attack):
    """Trains once, seals eight variants under eight hotkeys, and reveals only the one that does best on other text."""

    kind, expected, slots = "best-of-8-withheld", Expected.PROPORTION, 8

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me))]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        spec, random = view.spec, generator(view.draw("variants", self.me))
        delta = difference(view.theta, trained[0].end)
        variants = forge.halves(delta, spec.layout, len(self.hotkeys), random)
        page = page_at(view.draw("try", self.me).below(spec.num_pages), spec.page_tokens)
        tried = view.text.sequences([page])
        factor = (1.0,) * len(spec.layout.tensors)
        losses = [
            float(sequence_losses(ops.apply_probe(view.theta, update, factor, 1.0), tried).mean())
            for update in variants
        ]
        best = losses.index(min(losses))
        sent = self.in_sync(view, variants, shown=[view.shown(peer, trained[0]) for peer in self.hotkeys])
        return {peer: replace(sent[peer], reveals=index == best) for index, peer in enumerate(self.hotkeys)}


class NewcomerFlood(Noise):
    """Noise from hotkeys that live for three rounds; then new ones replace them."""

    kind, expected, crowd = "newcomer-flood", Expected.NEVER, True
    lives: ClassVar[int] = 3

    def lessons(self, view: View) -> list[Lesson]:
        generation = view.round // self.lives
        self.hotkeys = [
            PeerId(named("hotkey", self.seed, self.name, generation, index)) for index in range(len(self.hotkeys))
        ]
        return []
