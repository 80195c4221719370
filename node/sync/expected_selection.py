"""What will probably be agreed in a round, before anybody knows: so that a miner trains while the others' words are
still on their way (docs/decisions/0059-a-round-in-which-no-gpu-waits.md). Nothing of it is ever said to anybody.
"""

from collections.abc import Collection

from gauntlet.agreement import Log, named_by_most, order_of
from protocol.run import Run
from protocol.types import Digest, PeerId


def likely(
    run: Run, round: int, log: Log, last: Collection[PeerId], silent: Collection[PeerId]
) -> tuple[tuple[PeerId, Digest], ...]:
    """(hotkey, envelope) of whom the round will probably select, in order: whom more than half names in the words of
    `log`, which are final; else those of the `last` selection that committed; where none of those has, as in a run's
    first round, all that committed, the first G of them in the order of words. `silent`: those whose bytes or keys
    cannot be had."""
    named = named_by_most(run, round, log)
    if named is not None:
        return tuple(pair for pair in named if pair[0] not in silent)
    order = order_of(run, round, log)
    there = {uid: pair for uid, pair in order.committed.items() if pair[0] not in silent}
    again = [uid for uid, (peer, _) in there.items() if peer in last]
    return tuple(sorted(there[uid] for uid in again or order.first(there)))
