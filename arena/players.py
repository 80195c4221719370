"""Who takes part: what a player sees, trains and sends in a round, and the honest one.

A player is one participant with one or more hotkeys. Each round it names its lessons, which the game trains for all
players in one batch, and then says what each of its hotkeys sends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from arena.problem import Text, Theta
from arena.stage import named
from gauntlet.book import ScoreBook
from protocol.assignment import Draw, assigned
from protocol.spec import RunSpec
from protocol.types import Digest, Page, PeerId
from sparseloco import feedback, ops
from sparseloco.update import Update


@dataclass(frozen=True, slots=True)
class Past:
    """What everybody can know of a round that is over. `updates`: all that were revealed and could be opened."""

    theta: Theta
    digest: Digest
    updates: Mapping[PeerId, Update]
    contributing: frozenset[PeerId]
    evaluated: frozenset[PeerId]
    norm: float
    """The usual norm of an update: the bounds' slow average."""


@dataclass(frozen=True)
class View:
    """What a player sees in a round. `past`: earlier rounds, the last one at the end. `book`: a validator's, which its
    reports make public; empty where it keeps none. `open`: what the others send in this round, None where it is sealed;
    only players that wait see it."""

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
        """The pages assigned to a hotkey; public."""
        spec = self.spec
        return assigned(
            self.run,
            self.page_hash,
            peer,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
        )

    def draw(self, label: str, peer: PeerId) -> Draw:
        """Random numbers of a player's own."""
        return Draw("arena " + label, self.run, peer, self.round)

    @property
    def norm(self) -> float:
        """The usual norm of an honest update, as far as it is known."""
        return self.past[-1].norm if self.past else 1.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """Training on `sequences` (int64 [sequences, context]) from `start`, in `steps` equal batches, at so many times the
    usual learning rate. `frozen`: the name of a tensor that is not trained."""

    start: Theta
    sequences: Tensor
    steps: int
    rate: float = 1.0
    frozen: str = ""

    @property
    def cost(self) -> float:
        """In sequences trained as usual. A third of a step is for the weights' gradients, of which a frozen tensor
        needs none."""
        saved = self.start[self.frozen].numel() / sum(map(Tensor.numel, self.start.values())) if self.frozen else 0.0
        return len(self.sequences) * (1.0 - saved / 3)


@dataclass(frozen=True, slots=True)
class Sending:
    """What a hotkey sends. `theta`: the digest that it claims; `holds`: of the parameters that it really has.

    `stolen`: instead of `update`, the sealed bytes of that hotkey under an envelope of its own.
    """

    update: Update | None
    theta: Digest
    holds: Digest
    late: bool = False
    reveals: bool = True
    stolen: PeerId | None = None


class Player:
    """One participant. `slots`: how many hotkeys it has at any time, where the caller does not say."""

    slots: ClassVar[int] = 1
    waits: ClassVar[bool] = False
    """Whether it acts after the others, to use what it can see of them."""

    def __init__(self, name: str, seed: int, slots: int | None = None) -> None:
        self.name, self.seed = name, seed
        self.hotkeys = [PeerId(named("hotkey", seed, name, index)) for index in range(slots or self.slots)]

    @property
    def me(self) -> PeerId:
        """Its first hotkey."""
        return self.hotkeys[0]

    def lessons(self, view: View) -> list[Lesson]:
        """What it trains this round; nothing unless a subclass says so."""
        return []

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        """What its hotkeys send; `trained` are the ends of its lessons, in order."""
        raise NotImplementedError

    def void(self) -> None:
        """The round did not count: nobody's update was applied."""


def lesson(view: View, pages: Sequence[Page], share: float = 1.0) -> Lesson:
    """An honest round's work on `pages`, or that share of its sequences and steps."""
    spec, sequences = view.spec, view.text.sequences(pages)
    steps = max(1, round(spec.inner.steps * share))
    count = max(1, round(spec.inner.steps * spec.inner.sequences * share))
    repeated = sequences.repeat(-(-count // len(sequences)), 1)[:count]
    return Lesson(view.theta, repeated, steps)


class Honest(Player):
    """Trains on its pages, compresses with error feedback, sends in time; has trouble in `trouble` of its rounds:
    half of these it misses, in the others it is late."""

    def __init__(self, name: str, seed: int, slots: int | None = None, trouble: float = 0.0) -> None:
        super().__init__(name, seed, slots)
        self.trouble = trouble
        self.error: dict[str, Tensor] | None = None
        self._sent: Update | None = None

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me))]

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        self._sent, self.error = ops.compress(
            view.theta, trained[0], self.error, view.spec.layout, view.spec.compression.decay
        )
        luck = view.draw("trouble", self.me).unit()
        if luck < self.trouble / 2:
            return {}
        return {self.me: Sending(self._sent, view.digest, view.digest, late=luck < self.trouble)}

    def void(self) -> None:
        if self._sent is not None and self.error is not None:
            self.error = feedback.restore(self.error, self._sent)


def difference(start: Theta, end: Theta) -> dict[str, Tensor]:
    """Delta = start - end."""
    return {name: torch.sub(values, end[name]) for name, values in start.items()}
