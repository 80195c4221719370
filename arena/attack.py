"""What an attack is: a dishonest player, and what is expected of it.

`expected` says what has to happen to it and was written down before it was run; "in proportion" means: at most what one
honest peer earns, times the work that it really did (the game counts its lessons). Attackers know all that is public:
assignments, revealed updates, who was evaluated, who contributed, the norms' slow average, and the validators' books.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Literal

from arena import forge
from arena.players import Honest, Player, Sending, View
from arena.stage import generator
from protocol.types import PeerId
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

    share: ClassVar[float | None] = None
    """Of all hotkeys, where it takes another than the scenario's."""

    def in_sync(
        self, view: View, updates: Sequence[Update], hotkeys: Sequence[PeerId] | None = None
    ) -> dict[PeerId, Sending]:
        """Its hotkeys, or these of them, send the updates in time, from the right theta."""
        senders = self.hotkeys if hotkeys is None else hotkeys
        return {peer: Sending(update, view.digest, view.digest) for peer, update in zip(senders, updates, strict=False)}


class Working(Attack, Honest):
    """An attacker that does all as an honest peer does but for what a subclass changes."""


def noise_of(view: View, peer: PeerId) -> Update:
    """Noise at the usual norm, different for every hotkey and round."""
    return forge.noise(view.norm, view.spec.layout, generator(view.draw("noise", peer)))
