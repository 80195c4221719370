"""Guess a round's selection before it is agreed, so that a miner trains while the validators' votes are still on their
way (docs/decisions/0059-a-round-in-which-no-gpu-waits.md). The guess is never published."""

from collections.abc import Collection

from gauntlet.agreement import Log, named_by_most, order_of
from murmur.protocol.run import Run
from murmur.protocol.spec import ClockSpec
from murmur.protocol.types import Digest, PeerId

GUESS_SECONDS = 3.0


def guess_seconds(clock: ClockSpec) -> float:
    """Return the seconds from when the commit deadline is final until the guess is made, of what lies whole on the disk
    by then: a block, and not less than three seconds where blocks are short. Keys are shown when the commit deadline is
    final, and take a moment to read."""
    return max(GUESS_SECONDS, clock.block_seconds)


def likely(
    run: Run, round: int, log: Log, last: Collection[PeerId], silent: Collection[PeerId]
) -> tuple[tuple[PeerId, Digest], ...]:
    """Return (hotkey, envelope) of the miners that the round will probably select, in order. First choice: those that
    more than half of the stake names in the votes of `log`, which are final. Else those of the `last` selection that
    committed. If none of those has, as in a run's first round: the first G in the order of votes of all that committed.
    `silent`: those whose bytes or key are not here."""
    named = named_by_most(run, round, log)
    if named is not None:
        return tuple(pair for pair in named if pair[0] not in silent)
    order = order_of(run, round, log)
    there = {uid: pair for uid, pair in order.committed.items() if pair[0] not in silent}
    again = [uid for uid, (peer, _) in there.items() if peer in last]
    return tuple(sorted(there[uid] for uid in again or order.first(there)))
