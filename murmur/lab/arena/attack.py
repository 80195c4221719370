"""The definition of an attack: a dishonest player, and its expected outcome.

`expected` was written down before the attack was first run. "In proportion" means: at most an honest peer's pay, times
the work that it really did (the game counts its lessons). Attackers know all public data: assignments, revealed
updates and traces, the evaluated peers, the contributors, the norms' slow average, and the validators' books.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Literal

from murmur.lab.arena import forge, traces
from murmur.lab.arena.players import Honest, Player, Sending, View
from murmur.lab.arena.problem import Trained
from murmur.lab.arena.stage import generator
from murmur.protocol.types import PeerId
from sparseloco.trace import Trace
from sparseloco.update import Update


class Expected(StrEnum):
    """The five classes. `AT_ONCE`: the fast checks reject every submission. `SOON`: no contribution and no pay after
    ten rounds. `NEVER`: no pay ever, no contribution after the opening rounds. `UNPAID`: no pay, whether or not it
    contributes. `PROPORTION`: see above."""

    AT_ONCE = "rejected at once"
    SOON = "out within 10 rounds"
    NEVER = "never eligible"
    UNPAID = "earns nothing"
    PROPORTION = "earns in proportion to its work"


class Attack(Player):
    """A dishonest player."""

    kind: ClassVar[str]
    expected: ClassVar[Expected]
    validator: ClassVar[Literal["honest", "lying", "withholding", "slandering"]] = "honest"
    """The behaviour of the largest minority of the validators, for this attacker's benefit
    (murmur/lab/arena/game.py)."""

    crowd: ClassVar[bool] = False
    """True: one attacker holds all hotkeys of the attacking share; else there are many with `slots` each."""

    share: ClassVar[float | None] = None
    """Its share of all hotkeys, where that differs from the scenario's."""

    def in_sync(
        self,
        view: View,
        updates: Sequence[Update],
        hotkeys: Sequence[PeerId] | None = None,
        shown: Sequence[Trace] | None = None,
    ) -> dict[PeerId, Sending]:
        """Return sendings of the updates in time, from the right theta, by its hotkeys or the given ones; with these
        traces or borrowed ones."""
        senders = (self.hotkeys if hotkeys is None else hotkeys)[: len(updates)]
        found = [borrowed(view, peer) for peer in senders] if shown is None else shown
        return {
            peer: Sending(update, view.digest, view.digest, trace)
            for peer, update, trace in zip(senders, updates, found, strict=False)
        }


class Working(Attack, Honest):
    """An attacker that behaves as an honest peer except for what a subclass changes. It shows as many steps as a round
    has: those that it did not make are made up from the others."""

    def shown(self, view: View, trained: Trained) -> Trace:
        return view.shown(self.me, traces.extrapolated(trained, view.spec.inner.steps))


def best_known(view: View, but: Sequence[PeerId]) -> PeerId | None:
    """Return a contributor of the last round whose payload is known, the same for all callers."""
    if not view.past:
        return None
    last = view.past[-1]
    known = sorted(peer for peer in last.contributing if peer in last.updates and peer not in but)
    return known[0] if known else None


def borrowed(view: View, peer: PeerId) -> Trace:
    """Return another's trace of the last round, a little moved; one of no steps where none is known."""
    victim = best_known(view, [peer])
    if victim is None:
        return traces.NO_STEPS
    return traces.moved(view.past[-1].traces[victim], 0.02, generator(view.draw("trace", peer)))


def noise_of(view: View, peer: PeerId) -> Update:
    """Return noise at the usual norm, different for every hotkey and round."""
    return forge.noise(view.norm, view.spec.layout, generator(view.draw("noise", peer)))
