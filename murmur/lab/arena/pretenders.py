"""Attacks by traces of steps that were not made, or not as they are shown: thin, made up, guessed, borrowed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from gauntlet.verification import FAMILIAR
from murmur.lab.arena import forge
from murmur.lab.arena.attack import Expected, Working, borrowed
from murmur.lab.arena.crowds import SplitInTwo
from murmur.lab.arena.players import Lesson, Sending, View, difference, lesson
from murmur.lab.arena.problem import Theta, Trained
from murmur.lab.arena.stage import generator
from murmur.lab.arena.traces import extrapolated, moved, none_of, taken
from murmur.protocol.types import PeerId
from sparseloco.trace import Trace


def thinned(whole: Lesson, kept: Sequence[int]) -> Lesson:
    """Return a lesson whose steps see only the first so many sequences of their batches."""
    batches = torch.split(whole.sequences, list(whole.batches))
    left = [batch[:count] for batch, count in zip(batches, kept, strict=True)]
    return replace(whole, sequences=torch.cat(left), batches=tuple(kept))


class ThinInFour(SplitInTwo):
    """Four hotkeys of one worker: each takes every step, on a quarter of the sequences."""

    kind, expected, slots = "thin-in-four", Expected.UNPAID, 4

    def lessons(self, view: View) -> list[Lesson]:
        wholes = [lesson(view, view.pages(peer)) for peer in self.hotkeys]
        return [thinned(whole, [size // self.slots for size in whole.batches]) for whole in wholes]


class HalfDeclared(Working):
    """The first half of the steps, and says so."""

    kind, expected = "half-declared", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 0.5)]

    def shown(self, view: View, trained: Trained) -> Trace:
        return view.shown(self.me, trained)


class SkippedStep(Working):
    """All steps but the last one, which it shows as one that moves nothing."""

    kind, expected = "skipped-step", Expected.UNPAID

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 0.75)]

    def shown(self, view: View, trained: Trained) -> Trace:
        nothing = {name: values.new_zeros(values.shape) for name, values in view.theta.items()}
        return view.shown(self.me, taken(trained, nothing))


class ExtrapolatedQuarter(Working):
    """The last step is made up from those before, in what it sends as in what it shows."""

    kind, expected = "extrapolated-quarter", Expected.UNPAID
    made: ClassVar[float] = 0.75

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), self.made)]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        return super().send(view, [self.completed(view, each) for each in trained])

    def completed(self, view: View, trained: Trained) -> Trained:
        """Return the lesson with the steps that it did not make."""
        return extrapolated(trained, view.spec.inner.steps)


class ExtrapolatedHalf(ExtrapolatedQuarter):
    """The same with the second half of the steps."""

    kind, made = "extrapolated-half", 0.5


class BorrowedTrace(Working):
    """Half of the steps, and another hotkey's trace of the last round, a little moved."""

    kind, expected = "borrowed-trace", Expected.UNPAID

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 0.5)]

    def shown(self, view: View, trained: Trained) -> Trace:
        return borrowed(view, self.me)


class OwnTraceAgain(Working):
    """In a fifth of the rounds, by chance, nothing: its last update again, moved by a half, with its last trace."""

    kind, expected = "own-trace-again", Expected.PROPORTION
    skips: ClassVar[float] = 0.2

    def lessons(self, view: View) -> list[Lesson]:
        known = view.past and self.me in view.past[-1].updates
        return [] if known and view.draw("skip", self.me).unit() < self.skips else super().lessons(view)

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        if trained:
            return super().send(view, trained)
        last, random = view.past[-1], generator(view.draw("again", self.me))
        update = forge.perturbed(last.updates[self.me], 0.5, random)
        return self.in_sync(view, [update], shown=[moved(last.traces[self.me], 0.02, random)])


class SlackOnceFamiliar(Working):
    """Works until its steps were repeated so often that it is not drawn more often than others, then does a half."""

    kind, expected = "slack-once-familiar", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        record = view.book.peers.get(self.me)
        familiar = record is not None and record.repeated >= FAMILIAR
        return [lesson(view, view.pages(self.me), 0.5 if familiar else 1.0)]


def direction(view: View, trained: Trained) -> Theta:
    """Return the move that a step of the run's own direction would make: the mean of the public updates of the rounds
    that are known, as large as fits the steps that were made, so that it is as near to honest steps as it can be."""
    starts = [past.theta for past in view.past] + [view.theta]
    way = difference(starts[0], starts[-1])
    along = sum(float((values.mean(0) * way[name]).sum()) for name, values in trained.moves.items())
    length = sum(float(values.square().sum()) for values in way.values())
    return {name: values * (along / length if length else 0.0) for name, values in way.items()}


class GuessedStep(ExtrapolatedQuarter):
    """All steps but the last one, for which the run's direction stands: the typical step is as shown."""

    kind = "guessed-step"

    def completed(self, view: View, trained: Trained) -> Trained:
        return taken(trained, direction(view, trained))


class ThinDenoised(ExtrapolatedQuarter):
    """Every step on a quarter of its sequences; the run's direction stands for the others."""

    kind = "thin-denoised"
    left_out: ClassVar[tuple[float, ...]] = (0.75, 0.75, 0.75, 0.75)
    """Share of each step's sequences."""

    def lessons(self, view: View) -> list[Lesson]:
        whole = lesson(view, view.pages(self.me))
        shares = zip(whole.batches, self.left_out, strict=True)
        return [thinned(whole, [round(size * (1.0 - left)) for size, left in shares])]

    def completed(self, view: View, trained: Trained) -> Trained:
        guess, found = direction(view, trained), none_of(view.theta)
        for step, left in enumerate(self.left_out):
            made = {name: values[step] for name, values in trained.moves.items()}
            found = taken(found, {name: (1.0 - left) * made[name] + left * guess[name] for name in made})
        return replace(found, rate=trained.rate)


class ThinLateSteps(ThinDenoised):
    """The same with a sixteenth of the last two steps: about as far off as the largest distance that passes."""

    kind, expected, left_out = "thin-late-steps", Expected.PROPORTION, (0.0, 0.0, 1 / 16, 1 / 16)
