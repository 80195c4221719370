"""The players: their view, training and sendings in a round, and the honest player.

A player is one participant with one or more hotkeys. Each round it returns its lessons, which the game trains for all
players in one batch, and then the sendings of each of its hotkeys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gauntlet.book import ScoreBook
from murmur.lab.arena.problem import Text, Theta, Trained
from murmur.lab.arena.stage import named, pages_of
from murmur.lab.arena.traces import NO_STEPS, cut
from murmur.protocol.assignment import Draw
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Page, PeerId
from sparseloco import feedback, ops
from sparseloco.trace import Trace
from sparseloco.update import Update


@dataclass(frozen=True, slots=True)
class Past:
    """Public knowledge of a round that is over. `updates` and `traces`: all that were revealed and could
    be opened."""

    theta: Theta
    digest: Digest
    updates: Mapping[PeerId, Update]
    traces: Mapping[PeerId, Trace]
    contributing: frozenset[PeerId]
    evaluated: frozenset[PeerId]
    norm: float
    """The usual norm of an update: the bounds' slow average."""


@dataclass(frozen=True)
class View:
    """A player's view of a round. `past`: earlier rounds, the last one at the end. `book`: a validator's, public
    through its reports; empty where it keeps none. `open`: the others' updates of this round, None where they are
    sealed; only players that wait see it."""

    round: int
    spec: RunSpec
    run: Digest
    page_hash: Digest
    text: Text
    theta: Theta
    digest: Digest
    past: Sequence[Past]
    book: ScoreBook
    open: Mapping[PeerId, Update] | None = None

    def pages(self, peer: PeerId) -> tuple[Page, ...]:
        """Return the pages assigned to a hotkey; public."""
        return pages_of(self.spec, self.run, self.page_hash, peer)

    def shown(self, peer: PeerId, trained: Trained) -> Trace:
        """Return a hotkey's trace of these steps."""
        return cut(self.spec, self.run, self.page_hash, peer, trained)

    def draw(self, label: str, peer: PeerId) -> Draw:
        """Return a player's own random numbers."""
        return Draw("arena " + label, self.run, peer, self.round)

    @property
    def norm(self) -> float:
        """The usual norm of an honest update, as far as it is known."""
        return self.past[-1].norm if self.past else 1.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """Training on `sequences` (int64 [sequences, context]) from `start`, in steps on `batches` of these sizes, at
    `rate` times the usual learning rate. `frozen`: the name of a tensor that is not trained."""

    start: Theta
    sequences: Tensor
    batches: tuple[int, ...]
    rate: float = 1.0
    frozen: str = ""

    @property
    def cost(self) -> float:
        """The cost in sequences of usual training. A third of a step computes the weights' gradients, which a frozen
        tensor does not need."""
        saved = self.start[self.frozen].numel() / sum(map(Tensor.numel, self.start.values())) if self.frozen else 0.0
        return len(self.sequences) * (1.0 - saved / 3)


@dataclass(frozen=True, slots=True)
class Sending:
    """A hotkey's submission. `theta`: the digest that it claims; `holds`: of the parameters that it really has.
    `trace`: what it shows of its steps.

    `stolen`: instead of `update`, the sealed bytes of that hotkey under this hotkey's own envelope.
    """

    update: Update | None
    theta: Digest
    holds: Digest
    trace: Trace = NO_STEPS
    late: bool = False
    reveals: bool = True
    stolen: PeerId | None = None


class Player:
    """One participant. `slots`: its number of hotkeys at any time, where the caller gives none."""

    slots: ClassVar[int] = 1
    waits: ClassVar[bool] = False
    """Whether it acts after the others, to use their visible submissions."""

    def __init__(self, name: str, seed: int, slots: int | None = None) -> None:
        self.name, self.seed = name, seed
        self.hotkeys = [PeerId(named("hotkey", seed, name, index)) for index in range(slots or self.slots)]

    @property
    def me(self) -> PeerId:
        """Its first hotkey."""
        return self.hotkeys[0]

    def lessons(self, view: View) -> list[Lesson]:
        """Return its training of this round; none unless a subclass overrides this."""
        return []

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        """Return the sendings of its hotkeys; `trained` are the results of its lessons, in order."""
        raise NotImplementedError

    def void(self) -> None:
        """Handle a void round: no update was applied."""


def lesson(view: View, pages: Sequence[Page], share: float = 1.0) -> Lesson:
    """Return an honest round's work on `pages`, or that share of its sequences and steps."""
    spec, sequences = view.spec, view.text.sequences(pages)
    steps = max(1, round(spec.inner.steps * share))
    count = max(1, round(spec.inner.steps * spec.inner.sequences * share))
    repeated = sequences.repeat(-(-count // len(sequences)), 1)[:count]
    return Lesson(view.theta, repeated, (count // steps,) * steps)


class Honest(Player):
    """Trains on its pages, compresses with error feedback, and sends in time. In a share `trouble` of its rounds it
    fails: half of these it misses, in the others it is late."""

    def __init__(self, name: str, seed: int, slots: int | None = None, trouble: float = 0.0) -> None:
        super().__init__(name, seed, slots)
        self.trouble = trouble
        self.error: dict[str, Tensor] | None = None
        self._sent: Update | None = None

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me))]

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        self._sent, self.error = ops.compress(
            view.theta, trained[0].end, self.error, view.spec.layout, view.spec.compression.decay
        )
        luck = view.draw("trouble", self.me).unit()
        if luck < self.trouble / 2:
            return {}
        shown = self.shown(view, trained[0])
        return {self.me: Sending(self._sent, view.digest, view.digest, shown, late=luck < self.trouble)}

    def shown(self, view: View, trained: Trained) -> Trace:
        """Return its trace: here of the steps as they were."""
        return view.shown(self.me, trained)

    def void(self) -> None:
        if self._sent is not None and self.error is not None:
            self.error = feedback.restore(self.error, self._sent)


def difference(start: Theta, end: Theta) -> dict[str, Tensor]:
    """Return Delta = start - end."""
    return {name: torch.sub(values, end[name]) for name, values in start.items()}
