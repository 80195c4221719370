"""Every attack, one small class each. What is expected of it was written down before it was run.

`expected` says what has to happen to it; "in proportion" means: at most what one honest peer earns, times the work that
it really did (the game counts its lessons). Attackers know all that is public: assignments, revealed updates, who was
evaluated, who contributed, and the norms' slow average.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import ClassVar, Literal

import torch
from torch import Tensor

from arena import forge
from arena.players import Honest, Lesson, Player, Sending, View, difference, lesson
from arena.problem import Theta, sequence_losses
from arena.stage import generator, named
from protocol.assignment import page_at
from protocol.types import PeerId
from sparseloco import ops
from sparseloco.update import Update


class Expected(StrEnum):
    """The four classes. `AT_ONCE`: every submission is rejected by the fast checks. `SOON`: no contribution and no pay
    after ten rounds. `NEVER`: no pay ever, no contribution after the opening rounds. `PROPORTION`: see above."""

    AT_ONCE = "rejected at once"
    SOON = "out within 10 rounds"
    NEVER = "never eligible"
    PROPORTION = "earns in proportion to its work"


class Attack(Player):
    """A dishonest player."""

    kind: ClassVar[str]
    expected: ClassVar[Expected]
    validator: ClassVar[Literal["honest", "lying", "withholding"]] = "honest"
    """What one of the validators is, for the sake of this attacker (arena/game.py)."""

    crowd: ClassVar[bool] = False
    """One attacker holds all hotkeys of the attacking share; else there are many with `slots` each."""

    def in_sync(self, view: View, updates: Sequence[Update]) -> dict[PeerId, Sending]:
        """Its hotkeys send these updates in time, from the right theta."""
        return {
            peer: Sending(update, view.digest, view.digest) for peer, update in zip(self.hotkeys, updates, strict=False)
        }


# --- another's work ------------------------------------------------------------------------------------------


def best_known(view: View, but: Sequence[PeerId]) -> PeerId | None:
    """A contributor of the last round whose payload is known, the same for everybody who asks."""
    if not view.past:
        return None
    last = view.past[-1]
    known = sorted(peer for peer in last.contributing if peer in last.updates and peer not in but)
    return known[0] if known else None


class CopycatExact(Attack):
    """Posts what another posts in this round: its sealed bytes under an envelope of its own; where nothing is sealed,
    the update itself."""

    kind, expected, waits = "copycat-exact", Expected.AT_ONCE, True

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        victim = best_known(view, self.hotkeys)
        if victim is None:
            return {}
        if view.open is not None:
            return self.in_sync(view, [view.open[victim]]) if victim in view.open else {}
        return {self.me: Sending(None, view.digest, view.digest, stolen=victim)}


class CopycatPerturbed(Attack):
    """Posts another's update with a fifth of its values moved: of this round where nothing is sealed, else of the
    last one."""

    kind, expected, waits = "copycat-perturbed", Expected.AT_ONCE, True

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        victim = best_known(view, self.hotkeys)
        if victim is None:
            return {}
        known = view.past[-1].updates if view.open is None else view.open
        if victim not in known:
            return {}
        random = generator(view.draw("perturb", self.me))
        return self.in_sync(view, [forge.perturbed(known[victim], 0.2, random)])


class CopycatLast(Attack):
    """Posts another's update of the last round."""

    kind, expected = "copycat-of-the-last-round", Expected.AT_ONCE

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        victim = best_known(view, self.hotkeys)
        return {} if victim is None else self.in_sync(view, [view.past[-1].updates[victim]])


# --- no work, or other work ----------------------------------------------------------------------------------


class Noise(Attack):
    """Random values at an honest norm."""

    kind, expected = "noise", Expected.SOON

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        return self.in_sync(view, [noise_of(view, peer) for peer in self.hotkeys])


def noise_of(view: View, peer: PeerId) -> Update:
    """Noise at the usual norm, different for every hotkey and round."""
    return forge.noise(view.norm, view.spec.layout, generator(view.draw("noise", peer)))


class Zeros(Attack):
    """An update of zeros."""

    kind, expected = "zeros", Expected.AT_ONCE

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        nothing = {name: torch.zeros_like(values) for name, values in view.theta.items()}
        return self.in_sync(view, [forge.packed(nothing, view.spec.layout)])


class Working(Attack, Honest):
    """An attacker that does all as an honest peer does but for what a subclass changes."""


class HalfWork(Working):
    """Half of the steps, on the first half of its pages."""

    kind, expected = "half-work", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 0.5)]


class DoubleWork(Working):
    """Goes through its pages twice: more work, not less."""

    kind, expected = "double-work", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me), 2.0)]


class WrongData(Working):
    """Trains on pages of its own choice, other ones every round."""

    kind, expected = "wrong-data", Expected.SOON

    def lessons(self, view: View) -> list[Lesson]:
        spec = view.spec
        chosen = view.draw("pages", self.me).distinct(spec.num_pages, spec.pages_per_round)
        return [lesson(view, [page_at(index, spec.page_tokens) for index in chosen])]


class StaleModel(Working):
    """Trains from the theta of two rounds ago, and says so."""

    kind, expected = "stale-model", Expected.AT_ONCE
    honest_claim: ClassVar[bool] = True

    def lessons(self, view: View) -> list[Lesson]:
        if len(view.past) < 2:
            return []
        return [replace(lesson(view, view.pages(self.me)), start=view.past[-2].theta)]

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        if not trained:
            return {}
        old, spec = view.past[-2], view.spec
        update, self.error = ops.compress(old.theta, trained[0], self.error, spec.layout, spec.compression.decay)
        return {self.me: Sending(update, old.digest if self.honest_claim else view.digest, old.digest)}


class DigestLiar(StaleModel):
    """Trains from the theta of two rounds ago and claims this round's digest, which it has read elsewhere."""

    kind, honest_claim = "digest-liar", False


# --- harm ----------------------------------------------------------------------------------------------------


class Scaled10(Working):
    """Honest work times ten: at the edge of NORM, and inside it the bound undoes it."""

    kind, expected = "scale-x10", Expected.PROPORTION
    factor: ClassVar[float] = 10.0

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        return {
            peer: replace(sending, update=forge.scaled(sending.update, self.factor))
            for peer, sending in super().send(view, trained).items()
            if sending.update is not None
        }


class Scaled1000(Scaled10):
    """Honest work times a thousand."""

    kind, expected, factor = "scale-x1000", Expected.AT_ONCE, 1000.0


class SignFlip(Scaled10):
    """Honest work with the sign turned."""

    kind, expected, factor = "sign-flip", Expected.SOON, -1.0


class ConstantDirection(Attack):
    """Pushes theta the same way in every round, each time over another random half of the parameters."""

    kind, expected = "constant-direction", Expected.SOON

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        fixed, random = torch.Generator().manual_seed(self.seed), generator(view.draw("half", self.me))
        values = {t.name: torch.randn(t.shape, generator=fixed) for t in view.spec.layout}
        half = {name: value * (torch.rand(value.shape, generator=random) < 0.5) for name, value in values.items()}
        return self.in_sync(view, [forge.with_norm(half, view.norm, view.spec.layout)])


class OneTensor(Attack):
    """Noise in a single tensor, at the norm of an honest update."""

    kind, expected = "one-tensor", Expected.SOON

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        noise = forge.dense(noise_of(view, self.me))
        alone = {name: value if name == "lag1.weight" else torch.zeros_like(value) for name, value in noise.items()}
        return self.in_sync(view, [forge.with_norm(alone, view.norm, view.spec.layout)])


class ColludingThird(Attack):
    """Everybody in it pushes theta back over the last round's step, each over its own random half."""

    kind, expected, crowd = "colluding-third", Expected.SOON, True

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        if not view.past:
            return self.in_sync(view, [noise_of(view, peer) for peer in self.hotkeys])
        back = difference(view.theta, view.past[-1].theta)
        if not any(bool(value.any()) for value in back.values()):
            return {}
        updates = []
        for peer in self.hotkeys:
            random = generator(view.draw("half", peer))
            half = {name: value * (torch.rand(value.shape, generator=random) < 0.5) for name, value in back.items()}
            updates.append(forge.with_norm(half, view.norm, view.spec.layout))
        return self.in_sync(view, updates)


# --- one peer's work, many hotkeys ---------------------------------------------------------------------------


class SybilSplit(Attack):
    """Seven hotkeys with an eighth of the work each, on their own pages, and one with garbage to move the anchor."""

    kind, expected, slots = "sybil-split", Expected.PROPORTION, 8

    def __init__(self, name: str, seed: int, slots: int | None = None) -> None:
        super().__init__(name, seed, slots)
        self.errors: list[dict[str, Tensor] | None] = [None] * (len(self.hotkeys) - 1)

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(peer), 1 / 8) for peer in self.hotkeys[:-1]]

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        spec, updates = view.spec, []
        for index, end in enumerate(trained):
            update, self.errors[index] = ops.compress(
                view.theta, end, self.errors[index], spec.layout, spec.compression.decay
            )
            updates.append(update)
        return self.in_sync(view, [*updates, noise_of(view, self.hotkeys[-1])])


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

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        return self.in_sync(view, self.parts(view, difference(view.theta, trained[0])))

    def parts(self, view: View, delta: dict[str, Tensor]) -> list[Update]:
        """One update a hotkey of the one that was trained."""
        random = generator(view.draw("halves", self.me))
        return forge.halves(delta, view.spec.layout, len(self.hotkeys), random)


class UnionRanks(UnionHalves):
    """The same work; each hotkey posts every eighth rank by size, so that no two have a value in common."""

    kind = "replication-by-disjoint-ranks"

    def parts(self, view: View, delta: dict[str, Tensor]) -> list[Update]:
        return forge.ranks(delta, view.spec.layout, len(self.hotkeys))


class BestOfEight(Attack):
    """Trains once, seals eight variants under eight hotkeys, and reveals only the one that does best on other text."""

    kind, expected, slots = "best-of-8-withheld", Expected.PROPORTION, 8

    def lessons(self, view: View) -> list[Lesson]:
        return [lesson(view, view.pages(self.me))]

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        spec, random = view.spec, generator(view.draw("variants", self.me))
        delta = difference(view.theta, trained[0])
        variants = forge.halves(delta, spec.layout, len(self.hotkeys), random)
        page = page_at(view.draw("try", self.me).below(spec.num_pages), spec.page_tokens)
        tried = view.text.sequences([page])
        factor = (1.0,) * len(spec.layout.tensors)
        losses = [
            float(sequence_losses(ops.apply_probe(view.theta, update, factor, 1.0), tried).mean())
            for update in variants
        ]
        best = losses.index(min(losses))
        sent = self.in_sync(view, variants)
        return {peer: replace(sent[peer], reveals=index == best) for index, peer in enumerate(self.hotkeys)}


# --- free rides ----------------------------------------------------------------------------------------------


class Momentum(Attack):
    """Sends the direction in which everybody has been moving theta, each time over another random half, with error
    feedback: it repeats neither itself nor others that do the same."""

    kind, expected = "consensus-momentum", Expected.SOON
    keeps: ClassVar[float] = 0.9

    def __init__(self, name: str, seed: int, slots: int | None = None) -> None:
        super().__init__(name, seed, slots)
        self.direction: dict[str, Tensor] | None = None
        self.error: dict[str, Tensor] | None = None

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
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
    """Trains in one round of four and lives on its error feedback in the others."""

    kind, expected = "error-feedback-drip", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return super().lessons(view) if view.round % 4 == 0 else []

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        return super().send(view, trained or [view.theta])


class SlackUnseen(Working):
    """Works while it waits for an evaluation and does a quarter in the two rounds after one, when the next is less
    likely."""

    kind, expected = "slack-while-unseen", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        seen = any(self.me in past.evaluated for past in view.past[-2:])
        return [lesson(view, view.pages(self.me), 0.25 if seen else 1.0)]


class Late(Working):
    """Honest work, committed after block D."""

    kind, expected = "late", Expected.AT_ONCE

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        return {peer: replace(sending, late=True) for peer, sending in super().send(view, trained).items()}


class Flapping(Working):
    """Three rounds of honest work, three of absence."""

    kind, expected = "flapping", Expected.PROPORTION

    def lessons(self, view: View) -> list[Lesson]:
        return super().lessons(view) if view.round // 3 % 2 == 0 else []

    def send(self, view: View, trained: Sequence[Theta]) -> dict[PeerId, Sending]:
        return super().send(view, trained) if trained else {}


class NewcomerFlood(Noise):
    """Noise from hotkeys that live for three rounds; then new ones take their places."""

    kind, expected, crowd = "newcomer-flood", Expected.NEVER, True
    lives: ClassVar[int] = 3

    def lessons(self, view: View) -> list[Lesson]:
        generation = view.round // self.lives
        self.hotkeys = [
            PeerId(named("hotkey", self.seed, self.name, generation, index)) for index in range(len(self.hotkeys))
        ]
        return []


# --- validators ----------------------------------------------------------------------------------------------


class LyingValidator(Noise):
    """Miners that send noise; one of the validators names them before all others and pays nobody else."""

    kind, expected, slots, validator = "lying-validator", Expected.SOON, 4, "lying"


class WithholdingValidator(Noise):
    """The same, and that validator approves no record but its own."""

    kind, expected, slots, validator = "withholding-validator", Expected.SOON, 4, "withholding"


ATTACKS: tuple[type[Attack], ...] = (
    CopycatExact,
    CopycatPerturbed,
    CopycatLast,
    Noise,
    Zeros,
    HalfWork,
    DoubleWork,
    WrongData,
    StaleModel,
    DigestLiar,
    Scaled10,
    Scaled1000,
    SignFlip,
    ConstantDirection,
    OneTensor,
    ColludingThird,
    SybilSplit,
    UnionHalves,
    UnionRanks,
    BestOfEight,
    Momentum,
    Drip,
    SlackUnseen,
    Late,
    Flapping,
    NewcomerFlood,
    LyingValidator,
    WithholdingValidator,
)
"""In the order of the table."""
