"""Read a run's agreed selections and its tip from final chain states (gauntlet/agreement.py decides)."""

from dataclasses import replace

from gauntlet.agreement import (
    MEMORY_ROUNDS,
    Agreed,
    Log,
    Outcome,
    Post,
    Tip,
    agreed,
    electorate,
    last_wrote,
    moved,
    outcome,
    posts_in,
    remembered,
    start,
)
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.messages import link_of
from murmur.protocol.ports import Chain
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Selection


class Agreement:
    """One reader's log of a run's rounds. Every method raises ChainError, with STATE_PRUNED if no chain node gives a
    state that it needs."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.selections: dict[Digest, Selection] = {}
        """Selections that we have seen agreed, by link: no source needs to give them to us."""
        self._logs: dict[int, tuple[int, Log]] = {}
        """Each round's log, and the block up to which it was read."""

    def log(self, run: Run, round: int, block: int) -> Log:
        """Return the round's votes, read from the states up to a final block. A slot shows its last write only, so this
        walks back from write to write. Each vote is read in the state of the block that wrote it, since a runtime may
        change a slot later and leave its block number. While a counting validator is not registered this goes block by
        block: its earlier votes stay valid."""
        first, last = run.clock.commit_deadline(round), min(block, run.clock.vote_deadline(round))
        read, known = self._logs.get(round, (first, None))
        if known is None:
            known = Log(self.chain.peers(first), self.chain.header(first).hash, ())
        counted = {*electorate(run, round, known.commit), *remembered(run, round, known.commit)}
        found, at = set[Post](known.posts), last
        while at > read:
            written = [p.slot.block for p in self.chain.peers(at) if p.id in counted and p.slot is not None]
            at = max(written, default=read) if len(written) == len(counted) else at
            if at > read:
                posts = posts_in(run, round, (peer for peer in self.chain.peers(at) if peer.id in counted))
                found.update(post for post in posts if post.block == at)
            at -= 1
        log = replace(known, posts=tuple(sorted(found, key=lambda post: (post.block, post.peer))))
        self._logs[round] = max(read, last), log
        while len(self._logs) > MEMORY_ROUNDS:
            del self._logs[min(self._logs)]
        return log

    def agreed(self, run: Run, round: int, block: int) -> Agreed | None:
        """Return the round's newest decision by the states up to a final block; None while it is open."""
        if block < run.clock.commit_deadline(round):
            return None
        return self._see(agreed(run, round, self.log(run, round, block), block, block))

    def outcome(self, run: Run, round: int) -> Outcome:
        """Return the effect of the round, whose vote deadline is final, on the run's tip."""
        log = self.log(run, round, run.clock.vote_deadline(round))
        found = outcome(run, round, log, self.chain.finalized().block)
        self._see(found.agreed)
        return found

    def newest_decided(self, run: Run) -> int:
        """Return the newest round whose vote deadline is final; -1 before the first."""
        return max(-1, run.clock.decided_before(self.chain.finalized().block + 1))

    def tips(self, run: Run, known: Tip | None = None) -> tuple[Tip, Tip]:
        """Return two tips: the one that votes name, and the same moved by the selections agreed since. Reads back from
        the newest decided round to one that settles the tip. That is the newest strong round, or the round of a tip
        that we read before (`known`). Agreed selections depend on the amendments that we know, so the second tip does
        too."""
        newest = self.newest_decided(run)
        if known is not None and (known.round > newest + 1 or _may_be_void(run, known)):
            known = None
        # A slot keeps its last write: no validator wrote after this block.
        wrote = last_wrote(self.chain.peers(self.chain.finalized().block))
        rounds = list[tuple[int, Outcome]]()
        latest = min(newest, run.clock.round_at(wrote) + MEMORY_ROUNDS)
        for round in range(latest, (known.round if known is not None else 0) - 1, -1):
            try:
                rounds.append((round, self.outcome(run, round)))
            except ChainError as fault:
                if fault.code != STATE_PRUNED or wrote > run.clock.commit_deadline(round):
                    raise
                continue
            if rounds[-1][1].strong:
                break
        tip = known or start(run)
        if rounds and rounds[-1][1].strong and (state_ref := rounds[-1][1].agreed.state_ref) is not None:
            tip = Tip(rounds[-1][0], state_ref.link, state_ref.theta)
        named = replace(tip, round=newest + 1)
        for round, found in reversed(rounds):
            tip = moved(tip, round, found)
        return named, replace(tip, round=newest + 1)

    def tip(self, run: Run, known: Tip | None = None) -> Tip:
        """Return the run's tip under the amendments that we know."""
        return self.tips(run, known)[1]

    def _see(self, found: Agreed | None) -> Agreed | None:
        if found is not None and found.selection is not None:
            self.selections[link_of(found.selection)] = found.selection
            while len(self.selections) > MEMORY_ROUNDS:
                del self.selections[next(iter(self.selections))]
        return found


def _may_be_void(run: Run, known: Tip) -> bool:
    """Whether an amendment declares a round void that led to this tip."""
    return any(
        a.void_round is not None and known.round - MEMORY_ROUNDS <= a.void_round < known.round for a in run.amendments
    )
