"""Attacks that send another peer's work."""

from collections.abc import Sequence

from gauntlet.selection import peer_score
from murmur.lab.arena import forge
from murmur.lab.arena.attack import Attack, Expected, best_known
from murmur.lab.arena.players import Sending, View
from murmur.lab.arena.problem import Trained
from murmur.lab.arena.stage import generator
from murmur.protocol.types import PeerId


class CopycatExact(Attack):
    """Posts another peer's payload of this round: its sealed bytes under the attacker's own envelope; where nothing is
    sealed, the update itself."""

    kind, expected, waits = "copycat-exact", Expected.AT_ONCE, True

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        victim = best_known(view, self.hotkeys)
        if victim is None:
            return {}
        if view.open is not None:
            return self.in_sync(view, [view.open[victim]]) if victim in view.open else {}
        return {self.me: Sending(None, view.digest, view.digest, stolen=victim)}


class CopycatPerturbed(Attack):
    """Posts another peer's update with a fifth of its values moved: of this round where nothing is sealed, else of the
    last one."""

    kind, expected, waits = "copycat-perturbed", Expected.AT_ONCE, True

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        victim = best_known(view, self.hotkeys)
        if victim is None:
            return {}
        known = view.past[-1].updates if view.open is None else view.open
        if victim not in known:
            return {}
        random = generator(view.draw("perturb", self.me))
        return self.in_sync(view, [forge.perturbed(known[victim], 0.2, random)])


class CopycatLast(Attack):
    """Posts another peer's update of the last round."""

    kind, expected = "copycat-of-the-last-round", Expected.AT_ONCE

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        victim = best_known(view, self.hotkeys)
        return {} if victim is None else self.in_sync(view, [view.past[-1].updates[victim]])


class CopierBelow(Attack):
    """Posts the last round's update of the book's best peer, with about 39 % of its values moved: mostly too many for a
    copy."""

    kind, expected = "copier-39", Expected.SOON

    def send(self, view: View, trained: Sequence[Trained]) -> dict[PeerId, Sending]:
        known = sorted(view.past[-1].updates.keys() - set(self.hotkeys)) if view.past else []
        if not known:
            return {}
        best = max(known, key=lambda peer: peer_score(view.book.peers.get(peer)))
        random = generator(view.draw("perturb", self.me))
        return self.in_sync(view, [forge.perturbed(view.past[-1].updates[best], 0.39, random)])
