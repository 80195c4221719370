"""The chain of agreed selections, read back from the state that most of the stake names now: the run's history, and its
amendments in force. Each selection is authenticated by the link to it, so it may come from any source."""

from collections.abc import Iterator
from dataclasses import dataclass

from gauntlet.agreement import MEMORY_ROUNDS, last_wrote, refs_named, vote_weights
from murmur.node.chain.agreement import Agreement
from murmur.node.config.ports import Ports
from murmur.node.fetch.sources import sources_as_of
from murmur.node.sync.selection_chain import SelectionChain, Tell
from murmur.protocol.errors import STATE_PRUNED, ChainError, OutOfSync, StorageError
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Selection


@dataclass(frozen=True, slots=True)
class Stated:
    """The state that validators' votes name at the start of `round`: theta's digest and the link to the last selection,
    with the share of the counted stake that names it."""

    round: int
    theta: Digest
    link: Digest
    share: float


def stated(run: Run, ports: Ports, block: int) -> Stated | None:
    """Return the newest state that at least half of the counted stake names, of the rounds decided by the final
    `block`.

    None before any validator has voted, or when the last votes are so old that the chain's nodes have pruned them.
    Raises ChainError.
    """
    agreement = Agreement(ports.chain)
    voted = run.clock.round_at(last_wrote(ports.chain.peers(block))) + MEMORY_ROUNDS
    newest = min(run.clock.decided_before(block + 1), voted)
    for round in range(newest, -1, -1):
        try:
            log = agreement.log(run, round, run.clock.vote_deadline(round))
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
            return None
        total = sum(vote_weights(run, round, log.commit).values())
        for (theta, link), stake in refs_named(run, round, log).items():
            if 2 * stake >= total:
                return Stated(round, theta, link, stake / total if total else 1.0)
    return None


def records(
    run: Run, ports: Ports, block: int, link: Digest, tell: Tell | None = None
) -> Iterator[tuple[Digest, Selection]]:
    """Yield every agreed selection with its link, from the one at `link` back to the first
    (murmur/node/sync/selection_chain.py). Raises StorageError where no source has the next one."""
    sources = sources_as_of(run, block, ports.chain.peers(block), ports.open_pointer)
    below = run.clock.round_at(block) + 1
    try:
        yield from SelectionChain(run.id, sources, link, below, ports.time, tell).back()
    except OutOfSync as fault:
        raise StorageError(str(fault)) from None


def was_agreed(run: Run, ports: Ports, round: int) -> bool:
    """Whether any peer was selected in the decided `round`. Raises ChainError, with code StatePruned where this chain
    node has pruned it."""
    return Agreement(ports.chain).outcome(run, round).agreed.selection is not None
