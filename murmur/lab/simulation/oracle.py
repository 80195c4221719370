"""The correct agreement, as an observer that misses nothing computes it: from every block's state and a memory of all
votes, by the rules as plain_agreement.py has them (docs/simulation.md)."""

from dataclasses import dataclass, field

from gauntlet.agreement import Log, Post
from murmur.lab.simulation.plain_agreement import (
    MEMORY_ROUNDS,
    SEAT_ROUNDS,
    LastVotes,
    plain_agreed,
    plain_link,
    plain_ref,
    plain_shares,
    plain_start,
)
from murmur.lab.simulation.world import World
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, PeerId, Vote


@dataclass
class Oracle:
    """Observes the chain of a run without amendments, block by block."""

    run: Run
    _seen: int = 0
    """The last block that was read."""
    _votes: dict[int, list[Post]] = field(default_factory=dict)
    """By round, every vote that was ever in a final block."""
    _wrote: dict[PeerId, list[tuple[int, int | None]]] = field(default_factory=dict)
    """By hotkey: the blocks in which it has written, and the round of the vote. A hotkey that overwrites its vote with
    anything else has given up its seat."""
    _link: Digest | None = None
    """The link at which the run stands; None before its first round."""
    _theta: Digest | None = None
    """The theta at which it stands; None while no vote has named it."""

    def look(self, world: World) -> None:
        """Record every block that became final."""
        for block in range(self._seen + 1, world.final + 1):
            for peer in world.state(block).peers:
                if peer.slot is None or peer.slot.block != block:
                    continue
                vote, last = peer.slot.statement, None
                if isinstance(vote, Vote) and block > self._opened(vote.round):
                    self._votes.setdefault(vote.round, []).append(Post(block, peer.id, vote))
                    last = vote.round
                elif isinstance(vote, Vote) and vote.round == 0 and not any(vote.theta) and not vote.bitmap:
                    last = -1
                self._wrote.setdefault(peer.id, []).append((block, last))
        self._seen = world.final

    def selected(self, world: World, round: int) -> frozenset[PeerId] | None:
        """Return the contributors of a round whose vote deadline is final; None where nobody may apply it: it is void,
        or does not go on from where the run stands. To be asked for every round, in order."""
        clock = self.run.first.clock
        opened = self._opened(round)
        closed = opened + clock.words - clock.commit
        log = Log(
            world.state(opened, archive=True).peers,
            world.header(opened, archive=True).hash,
            tuple(self._votes.get(round, ())),
        )
        voted = self._last_votes(round, opened, log)
        voters = plain_shares(voted, round, SEAT_ROUNDS, ever=True)
        remembered = plain_shares(voted, round, MEMORY_ROUNDS, ever=False)
        held = plain_ref(voters, log.posts, closed)
        link = self._link or plain_start(self.run)
        goes_on = held is not None and held.link == link and self._theta in (None, held.theta)
        if held is None or not (goes_on or held == plain_ref(remembered, log.posts, closed)):
            return None
        self._theta, self._link = held
        agreed = plain_agreed(self.run, round, log, voters, closed, closed)
        if agreed is None or agreed.selection is None:
            return None
        self._theta, self._link = None, plain_link(agreed.selection)
        return frozenset(peer for peer, _ in agreed.selection.contributing)

    def _opened(self, round: int) -> int:
        """Return the round's commit deadline."""
        clock = self.run.first.clock
        return clock.start_block + round * clock.round_blocks + clock.commit

    def _last_votes(self, round: int, opened: int, log: Log) -> list[LastVotes]:
        """Return the validators that have voted, from memory: a slot shows only what was written last."""
        found: list[LastVotes] = []
        for peer in log.commit:
            if not peer.validates:
                continue
            of = next((of for block, of in reversed(self._wrote.get(peer.id, [])) if block <= opened), None)
            if of is not None and of < round:
                found.append((peer, of))
        return found
