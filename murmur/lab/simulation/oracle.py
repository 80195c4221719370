"""The correct agreement, computed by an observer that misses nothing: every block's state, a memory of all votes, and
plain loops. Shares no code with gauntlet/agreement.py, so that a fault there is seen (docs/simulation.md)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from murmur.lab.simulation.world import World
from murmur.protocol.assignment import Draw
from murmur.protocol.messages import first_link, link_of
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Selection, StateRef, Uid, Vote

SEAT_ROUNDS = 4
MEMORY_ROUNDS = 64


@dataclass
class Oracle:
    """Observes the chain of a run without amendments, block by block."""

    run: Run
    _seen: int = 0
    """The last block that was read."""
    _votes: dict[int, list[tuple[int, PeerId, Vote]]] = field(default_factory=dict)
    """By round, every vote that was ever in a final block: its block and its author."""
    _wrote: dict[PeerId, list[tuple[int, int | None]]] = field(default_factory=dict)
    """By hotkey: the blocks in which it has written, and the round of the vote. A hotkey that overwrites its vote with
    anything else has given up its seat."""
    _link: Digest | None = None
    """The link at which the run stands; None before its first round."""
    _theta: Digest | None = None
    """The theta at which it stands; None while no word has named it."""

    def look(self, world: World) -> None:
        """Record every block that became final."""
        for block in range(self._seen + 1, world.final + 1):
            for peer in world.state(block).peers:
                if peer.slot is None or peer.slot.block != block:
                    continue
                vote, last = peer.slot.statement, None
                if isinstance(vote, Vote) and block > self._opened(vote.round):
                    self._votes.setdefault(vote.round, []).append((block, peer.id, vote))
                    last = vote.round
                elif isinstance(vote, Vote) and vote.round == 0 and not any(vote.theta) and not vote.bitmap:
                    last = -1
                self._wrote.setdefault(peer.id, []).append((block, last))
        self._seen = world.final

    def selected(self, world: World, round: int) -> frozenset[PeerId] | None:
        """Return the contributors of a round whose X is final; None where nobody may apply it: it is void, or does not
        go on from where the run stands. To be asked for every round, in order."""
        clock = self.run.first.clock
        opened = self._opened(round)
        closed = opened + clock.words - clock.commit
        voted = self._last_votes(round, opened, world)
        counted = _weighed({p: s for p, (s, of) in voted.items() if of >= round - SEAT_ROUNDS}) or _weighed(
            {p: s for p, (s, _) in voted.items()}
        )
        remembered = _weighed({p: s for p, (s, of) in voted.items() if of >= round - MEMORY_ROUNDS})
        selection, held, named_by_all = self._decide(world, round, opened, closed, counted, remembered)
        link = self._link or first_link(self.run.id)
        goes_on = held is not None and held[1] == link and self._theta in (None, held[0])
        if held is None or not (goes_on or held == named_by_all):
            return None
        self._theta, self._link = held
        if selection is None:
            return None
        self._theta, self._link = None, link_of(selection)
        return frozenset(peer for peer, _ in selection.contributing)

    def _opened(self, round: int) -> int:
        """Return the round's block D."""
        clock = self.run.first.clock
        return clock.start_block + round * clock.round_blocks + clock.commit

    def _decide(
        self,
        world: World,
        round: int,
        opened: int,
        closed: int,
        counted: dict[PeerId, Fraction],
        remembered: dict[PeerId, Fraction],
    ) -> tuple[Selection | None, StateRef | None, StateRef | None]:
        """Return the selection, and the states that most of the counted and of the remembered stake name by X."""
        committed: dict[Uid, tuple[PeerId, Digest]] = {}
        order: list[Peer] = []
        for peer in world.state(opened, archive=True).peers:
            if peer.slot is None or peer.slot.block > opened:
                continue
            promise = peer.slot.statement
            if isinstance(promise, Commitment) and promise.round == round:
                committed[peer.uid] = (peer.id, promise.envelope)
                order.append(peer)
        draw = world.header(opened, archive=True).hash
        order.sort(key=lambda peer: (-peer.incentive, Draw("order", draw, peer.id).words(8), peer.id))
        refs: dict[PeerId, StateRef] = {}
        named: dict[PeerId, set[int]] = {}
        voted: set[PeerId] = set()
        selection, held = None, None
        for block in range(opened + 1, closed + 1):
            for at, author, vote in self._votes.get(round, ()):
                if at != block:
                    continue
                voted.add(author)
                if not any(vote.theta) and not any(vote.previous):
                    continue
                theirs = StateRef(vote.theta, vote.previous)
                if author not in refs:
                    refs[author], named[author] = theirs, set()
                if refs[author] == theirs:
                    named[author] |= {uid for uid in range(256) if vote.bitmap >> uid & 1}
            held = _most(refs, counted)
            if held is None or selection is not None:
                continue
            most = []
            for uid in committed:
                behind = sum(counted[v] for v in counted if refs.get(v) == held and uid in named[v])
                if 2 * behind > sum(counted.values()):
                    most.append(uid)
            first = self._first(order, committed)
            if most and (block == closed or voted >= set(counted) or set(first) <= set(most)):
                contributing = sorted(committed[uid] for uid in self._first(order, most))
                selection = Selection(round, *held, self.run.id, tuple(contributing))
        return selection, held, _most(refs, remembered)

    def _last_votes(self, round: int, opened: int, world: World) -> dict[PeerId, tuple[int, int]]:
        """Return, for each validator that has spoken, its stake and the round for which it did last."""
        found: dict[PeerId, tuple[int, int]] = {}
        for peer in world.state(opened, archive=True).peers:
            if not peer.validates:
                continue
            of = next((of for block, of in reversed(self._wrote.get(peer.id, [])) if block <= opened), None)
            if of is not None and of < round:
                found[peer.id] = (peer.stake, of)
        return found

    def _first(self, order: list[Peer], among: Collection[Uid]) -> list[Uid]:
        """Return the first of these, in the order; an eighth of the places is for peers without incentive."""
        places = self.run.first.gauntlet.contributors
        earning = [peer.uid for peer in order if peer.uid in among and peer.incentive]
        new = [peer.uid for peer in order if peer.uid in among and not peer.incentive]
        chosen: list[Uid] = []
        reserved = min(len(new), places // 8)
        for uid in earning:
            if len(chosen) < places - reserved:
                chosen.append(uid)
        for uid in new:
            if len(chosen) < places:
                chosen.append(uid)
        return chosen


def _weighed(stakes: dict[PeerId, int]) -> dict[PeerId, Fraction]:
    """Return the weights of votes: stake, or 1 each where nobody has stake."""
    if not any(stakes.values()):
        return dict.fromkeys(stakes, Fraction(1))
    return {peer: Fraction(stake) for peer, stake in stakes.items()}


def _most(refs: dict[PeerId, StateRef], stakes: dict[PeerId, Fraction]) -> StateRef | None:
    """Return the state that more than half of the stake names."""
    for state_ref in refs.values():
        if 2 * sum(stakes.get(peer, 0) for peer in refs if refs[peer] == state_ref) > sum(stakes.values()):
            return state_ref
    return None
