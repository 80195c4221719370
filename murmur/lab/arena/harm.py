"""Attacks that push theta in a direction, or make an update look larger or smaller than it is."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from murmur.lab.arena import forge
from murmur.lab.arena.attack import Attack, Expected, Working, noise_of
from murmur.lab.arena.players import Lesson, Sending, View, difference, lesson
from murmur.lab.arena.pretenders import ThinInFour
from murmur.lab.arena.problem import Trained
from murmur.lab.arena.shirkers import Noise
from murmur.lab.arena.stage import generator, named
from murmur.protocol.types import PeerId
from sparseloco.update import Update


class Scaled10(Working):
    """Honest work times ten: at the edge of NORM; within it, the bound undoes the factor."""

    kind, expected = "scale-x10", Expected.PROPORTION
    factor: ClassVar[float] = 10.0

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        return {
            peer: replace(sending, update=forge.scaled(sending.update, self.factor))
            for peer, sending in super().send(view, trained).items()
            if sending.update is not None
        }


class Scaled1000(Scaled10):
    """Honest work times a thousand."""

    kind, expected, factor = "scale-x1000", Expected.AT_ONCE, 1000.0


class Inflated(Scaled10):
    """Honest work, a quarter larger than it is."""

    kind, factor = "inflate-x1.25", 1.25


class Deflated(Scaled10):
    """Honest work, scaled down, so that the bounds have nothing to cut off."""

    kind, factor = "deflate-x0.85", 0.85


class SignFlip(Scaled10):
    """Honest work with the sign flipped."""

    kind, expected, factor = "sign-flip", Expected.SOON, -1.0


class ConstantDirection(Attack):
    """Pushes theta in the same direction in every round, each time over another random half of the parameters."""

    kind, expected = "constant-direction", Expected.SOON

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        fixed, random = torch.Generator().manual_seed(self.seed), generator(view.draw("half", self.me))
        values = {t.name: torch.randn(t.shape, generator=fixed) for t in view.spec.layout}
        half = {name: value * (torch.rand(value.shape, generator=random) < 0.5) for name, value in values.items()}
        return self.in_sync(view, [forge.with_norm(half, view.norm, view.spec.layout)])


class OneTensor(Attack):
    """Noise in a single tensor, at the norm of an honest update."""

    kind, expected = "one-tensor", Expected.SOON

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        noise = forge.dense(noise_of(view, self.me))
        alone = {name: value if name == "lag1.weight" else torch.zeros_like(value) for name, value in noise.items()}
        return self.in_sync(view, [forge.with_norm(alone, view.norm, view.spec.layout)])


class SlowDrift(Working):
    """Honest work, and a push in the same direction by all its players, larger by 2 % of the usual norm in every
    round."""

    kind, expected = "slow-drift", Expected.PROPORTION
    grows: ClassVar[float] = 0.02

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        fixed = torch.Generator().manual_seed(self.seed)
        values = {t.name: torch.randn(t.shape, generator=fixed) for t in view.spec.layout}
        push = forge.dense(forge.with_norm(values, self.grows * view.round * view.norm, view.spec.layout))
        return super().send(view, [replace(each, end=difference(each.end, push)) for each in trained])


def backwards(view: View, peer: PeerId) -> Update | None:
    """Return the reverse of the last round's step of theta, on a random half, so that many of them are no copies of
    each other. None where there was no step."""
    back = difference(view.theta, view.past[-1].theta) if view.past else {}
    if not any(bool(value.any()) for value in back.values()):
        return None
    random = generator(view.draw("half", peer))
    half = {name: value * (torch.rand(value.shape, generator=random) < 0.5) for name, value in back.items()}
    return forge.with_norm(half, view.norm, view.spec.layout)


class ColludingThird(Attack):
    """All its hotkeys push theta back over the last round's step."""

    kind, expected, crowd = "colluding-third", Expected.SOON, True

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        if not view.past:
            return self.in_sync(view, [noise_of(view, peer) for peer in self.hotkeys])
        updates = [backwards(view, peer) for peer in self.hotkeys]
        return self.in_sync(view, [update for update in updates if update is not None])


class Framing(Working):
    """The whole work, and as much again on the pages of one honest peer, to cancel that peer's lead on them."""

    kind, expected = "framing", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        pages = [*view.pages(self.me), *view.pages(self.victim)]
        return [lesson(view, pages, 2.0)]

    @property
    def victim(self) -> PeerId:
        """The victim, the same for all its players."""
        return PeerId(named("hotkey", self.seed, "honest 0", 0))


class OnOff(Working):
    """Honest in four rounds of five; in the fifth it pushes theta back over the last step."""

    kind, expected = "on-off", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [] if self.is_off(view) else super().lessons(view)

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        if trained:
            return super().send(view, trained)
        update = backwards(view, self.me)
        return {} if update is None else self.in_sync(view, [update])

    def is_off(self, view: View) -> bool:
        return view.round % 5 == 4


class LyingValidator(Noise):
    """Miners that send noise; validators name them before all others and pay no other peer."""

    kind, expected, slots, validator = "lying-validator", Expected.SOON, 4, "lying"


class LyingForWorkers(Working):
    """Honest work; validators name the workers before all others and pay no other peer."""

    kind, expected, validator = "lying-for-workers", Expected.PROPORTION, "lying"


class FalseVerdicts(ThinInFour):
    """Thin hotkeys, and validators that say of these that their steps are as shown, and of nobody else's."""

    kind, validator = "false-verdicts", "slandering"


class Slander(Working):
    """Honest work, and validators that say that nobody else's steps are as shown."""

    kind, expected, validator = "slander", Expected.PROPORTION, "slandering"


class WithholdingValidator(Noise):
    """Miners that send noise; validators name no peer."""

    kind, expected, slots, validator = "withholding-validator", Expected.SOON, 4, "withholding"
