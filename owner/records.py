"""The chain of agreed selections, read back from what most of the stake names now: what the run has gone on from, and
under which amendments. Each is authenticated by the link to it, so whoever has one will do."""

from collections.abc import Iterator
from dataclasses import dataclass

from gauntlet.agreement import MEMORY_ROUNDS, last_wrote, pairs_named, votes
from node.chain.agreement import Agreement
from node.config.adapters import Doors
from node.fetch.sources import sources_as_of
from node.sync.selection_chain import SelectionChain, Tell
from protocol.errors import STATE_PRUNED, ChainError, OutOfSync, StorageError
from protocol.run import Run
from protocol.types import Digest, Selection


@dataclass(frozen=True, slots=True)
class Stated:
    """What validators' words name at the start of `round`: theta's digest and the link to the last selection, and the
    share of the counted stake that names this."""

    round: int
    theta: Digest
    link: Digest
    share: float


def stated(run: Run, doors: Doors, block: int) -> Stated | None:
    """The newest pair that at least half of the counted stake names, of the rounds that are decided by the final
    `block`; None before anybody has said anything, or where nobody has for so long that the chain's nodes have pruned
    it. Raises ChainError."""
    agreement = Agreement(doors.chain)
    spoken = run.clock.round_at(last_wrote(doors.chain.peers(block))) + MEMORY_ROUNDS
    newest = min(run.clock.decided_before(block + 1), spoken)
    for round in range(newest, -1, -1):
        try:
            log = agreement.log(run, round, run.clock.words_by(round))
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
            return None
        total = sum(votes(run, round, log.commit).values())
        for (theta, link), stake in pairs_named(run, round, log).items():
            if 2 * stake >= total:
                return Stated(round, theta, link, stake / total if total else 1.0)
    return None


def records(
    run: Run, doors: Doors, block: int, link: Digest, tell: Tell | None = None
) -> Iterator[tuple[Digest, Selection]]:
    """Every agreed selection with its link, from the one at `link` back to the first (node/sync/selection_chain.py).
    Raises StorageError where nobody has the next one."""
    sources = sources_as_of(run, block, doors.chain.peers(block), doors.open_pointer)
    below = run.clock.round_at(block) + 1
    try:
        yield from SelectionChain(run.id, sources, link, below, doors.time, tell).back()
    except OutOfSync as fault:
        raise StorageError(str(fault)) from None


def was_agreed(run: Run, doors: Doors, round: int) -> bool:
    """Whether anybody was selected in the decided `round`. Raises ChainError, with code StatePruned where this chain
    node has forgotten it."""
    return Agreement(doors.chain).outcome(run, round).agreed.selection is not None
