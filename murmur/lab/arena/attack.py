"""The definition of an attack: a dishonest player, and its expected outcome.

`expected` was written down before the attack was first run. "In proportion" means: at most an honest peer's pay, times
the work that it really did (the game counts its lessons). Attackers know all public data: assignments, revealed
updates, the evaluated peers, the contributors, the norms' slow average, and the validators' books.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Literal

from murmur.lab.arena import forge
from murmur.lab.arena.players import Honest, Player, Sending, View
from murmur.lab.arena.stage import generator
from murmur.protocol.types import PeerId
from sparseloco.update import Update


class Expected(StrEnum):
    """The four classes. `AT_ONCE`: the fast checks reject every submission. `SOON`: no contribution and no pay after
    ten rounds. `NEVER`: no pay ever, no contribution after the opening rounds. `PROPORTION`: see above."""

    AT_ONCE = "rejected at once"
    SOON = "out within 10 rounds"
    NEVER = "never eligible"
    PROPORTION = "earns in proportion to its work"


class Attack(Player):
    """A dishonest player."""

    kind: ClassVar[str]
    expected: ClassVar[Expected]
    validator: ClassVar[Literal["honest", "lying", "withholding"]] = "honest"
    """The behaviour of one validator, for this attacker's benefit (murmur/lab/arena/game.py)."""

    crowd: ClassVar[bool] = False
    """True: one attacker holds all hotkeys of the attacking share; else there are many with `slots` each."""

    share: ClassVar[float | None] = None
    """Its share of all hotkeys, where that differs from the scenario's."""

    def in_sync(
        self, view: View, updates: Sequence[Update], hotkeys: Sequence[PeerId] | None = None
    ) -> dict[PeerId, Sending]:
        """Return sendings of the updates in time, from the right theta, by its hotkeys or the given ones."""
        senders = self.hotkeys if hotkeys is None else hotkeys
        return {peer: Sending(update, view.digest, view.digest) for peer, update in zip(senders, updates, strict=False)}


class Working(Attack, Honest):
    """An attacker that behaves as an honest peer except for what a subclass changes."""


def noise_of(view: View, peer: PeerId) -> Update:
    """Return noise at the usual norm, different for every hotkey and round."""
    return forge.noise(view.norm, view.spec.layout, generator(view.draw("noise", peer)))
