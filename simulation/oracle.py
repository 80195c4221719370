"""The correct agreement, computed by an observer that misses nothing: every block's state, a memory of all words, and
plain loops. Shares no code with gauntlet/agreement.py, so that a fault there is seen (docs/simulation.md)."""

from dataclasses import dataclass, field
from fractions import Fraction

from protocol.assignment import Draw
from protocol.types import Commitment, Peer, PeerId, Uid, Word
from simulation.world import World

SEAT_ROUNDS = 4


@dataclass
class Oracle:
    """Observes a chain, block by block. `start`, `length`: of the rounds; `commit`, `words`: offsets of D and X in
    blocks; `places`: how many may contribute."""

    start: int
    length: int
    commit: int
    words: int
    places: int
    _seen: int = 0
    """The last block that was read."""
    _words: dict[int, list[tuple[int, PeerId, Word]]] = field(default_factory=dict)
    """By round, every word that was ever in a final block: its block and its author."""
    _wrote: dict[PeerId, list[tuple[int, int | None]]] = field(default_factory=dict)
    """By hotkey: the blocks in which it has written, and the round of the word. A hotkey that overwrites its word with
    anything else has given up its seat."""

    def look(self, world: World) -> None:
        """Record every block that became final."""
        for block in range(self._seen + 1, world.final + 1):
            for peer in world.state(block).peers:
                if peer.slot is None or peer.slot.block != block:
                    continue
                word, last = peer.slot.statement, None
                if isinstance(word, Word) and block > self.start + word.round * self.length + self.commit:
                    self._words.setdefault(word.round, []).append((block, peer.id, word))
                    last = word.round
                elif isinstance(word, Word) and word.round == 0 and not any(word.theta) and not word.bitmap:
                    last = -1
                self._wrote.setdefault(peer.id, []).append((block, last))
        self._seen = world.final

    def selected(self, world: World, round: int) -> frozenset[PeerId] | None:
        """Return the contributors of a round whose X is final; None where it is void."""
        opened = self.start + round * self.length + self.commit
        closed = self.start + round * self.length + self.words
        registered = world.state(opened, archive=True).peers
        stakes = self._stakes(round, opened, world)
        total = sum(stakes.values(), Fraction(0))
        committed = {
            peer.uid: peer
            for peer in registered
            if peer.slot is not None
            and isinstance(peer.slot.statement, Commitment)
            and peer.slot.statement.round == round
            and peer.slot.block <= opened
        }
        draw = world.header(opened, archive=True).hash
        order = sorted(committed.values(), key=lambda p: (-p.incentive, Draw("order", draw, p.id).words(8), p.id))
        pairs: dict[PeerId, tuple[bytes, bytes]] = {}
        named: dict[PeerId, set[int]] = {}
        spoke: set[PeerId] = set()
        for block in range(opened + 1, closed + 1):
            for at, peer, word in self._words.get(round, ()):
                if at != block or peer not in stakes:
                    continue
                spoke.add(peer)
                if not any(word.theta) and not any(word.previous):
                    continue
                if peer not in pairs:
                    pairs[peer], named[peer] = (word.theta, word.previous), set()
                if pairs[peer] == (word.theta, word.previous):
                    named[peer] |= {uid for uid in range(256) if word.bitmap >> uid & 1}
            held = self._most(pairs, stakes, total)
            if held is None:
                continue
            most = [
                peer.uid
                for peer in order
                if 2 * sum(stakes[v] for v in pairs if pairs[v] == held and peer.uid in named[v]) > total
            ]
            first = self._first([peer.uid for peer in order], committed)
            if most and (block == closed or spoke == set(stakes) or set(first) <= set(most)):
                return frozenset(committed[uid].id for uid in self._first(most, committed))
        return None

    def _stakes(self, round: int, opened: int, world: World) -> dict[PeerId, Fraction]:
        """Return the counted stake of each validator."""
        permitted = {peer.id: peer.stake for peer in world.state(opened, archive=True).peers if peer.validates}
        last = {
            peer: next((of for block, of in reversed(writes) if block <= opened), None)
            for peer, writes in self._wrote.items()
            if peer in permitted
        }
        lately = [p for p, of in last.items() if of is not None and round - SEAT_ROUNDS <= of < round]
        counted = lately or [p for p, of in last.items() if of is not None and of < round]
        if not any(permitted[peer] for peer in counted):
            return dict.fromkeys(counted, Fraction(1))
        return {peer: Fraction(permitted[peer]) for peer in counted}

    def _most(
        self, pairs: dict[PeerId, tuple[bytes, bytes]], stakes: dict[PeerId, Fraction], total: Fraction
    ) -> tuple[bytes, bytes] | None:
        for pair in pairs.values():
            if 2 * sum(stakes[peer] for peer in pairs if pairs[peer] == pair) > total:
                return pair
        return None

    def _first(self, uids: list[Uid], committed: dict[Uid, Peer]) -> list[Uid]:
        """Return the first of these, in their order; an eighth of the places is for peers without incentive."""
        earning = [uid for uid in uids if committed[uid].incentive]
        new = [uid for uid in uids if uid not in earning]
        chosen: list[Uid] = []
        reserved = min(len(new), self.places // 8)
        for uid in earning:
            if len(chosen) < self.places - reserved:
                chosen.append(uid)
        for uid in new:
            if len(chosen) < self.places:
                chosen.append(uid)
        return chosen
