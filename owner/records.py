"""The chain of agreed records, read back from what most of the stake states now: what the run has gone on from, and
under which amendments. Each record is authenticated by the link to it, so whoever has one will do."""

from collections.abc import Iterator
from dataclasses import dataclass

from gauntlet.agreement import Views, agreed, claims, votes
from node.adapters import Doors
from node.records import Records, Tell
from node.sources import sources_as_of
from protocol.errors import ChainError, OutOfSync, StorageError
from protocol.messages import Link
from protocol.run import Run
from protocol.types import Attestation, Digest, Record


@dataclass(frozen=True, slots=True)
class Stated:
    """What validators state at the start of `round`: theta's digest and the link to the last agreed record, and the
    share of the counted stake that states this."""

    round: int
    theta: Digest
    link: Digest
    share: float


def stated(run: Run, doors: Doors, block: int) -> Stated | None:
    """The newest pair that is stated by at least half of the counted stake, of the rounds that are decided by the final
    `block`; None before anybody has said anything. Raises ChainError."""
    # In one that is not decided yet, maybe only a minority has spoken.
    newest = run.clock.decided_before(block + 1)
    if newest < 0:
        return None
    try:
        peers = doors.chain.peers(run.clock.attest_by(newest))
    except ChainError:
        peers = doors.chain.peers(block)  # pruned, where rounds are longer than what its node keeps
    rounds = {
        peer.slot.statement.round
        for peer in peers
        if peer.slot is not None and isinstance(peer.slot.statement, Record | Attestation)
    }
    for round in sorted((round for round in rounds if round <= newest), reverse=True):
        commit = run.clock.commit_by(round)
        try:
            voters = doors.chain.peers(min(commit, block))
        except ChainError:
            voters = ()  # pruned; then stake as of now orders
        found = claims(run, round, voters, peers)
        total = sum(votes(run, round, voters).values())
        for (theta, link), stake in found.items():
            if 2 * stake >= total:
                return Stated(round, theta, link, stake / total if total else 1.0)
    return None


def records(
    run: Run, doors: Doors, block: int, link: Digest, tell: Tell | None = None
) -> Iterator[tuple[Digest, Link]]:
    """Every agreed record with its link, from the one at `link` back to the first (node/records.py). Raises
    StorageError where nobody has the next one."""
    sources = sources_as_of(run, block, doors.chain.peers(block), doors.open_pointer)
    below = run.clock.round_at(block) + 1
    try:
        yield from Records(run.id, sources, link, below, doors.time, tell).back()
    except OutOfSync as fault:
        raise StorageError(str(fault)) from None


def was_agreed(run: Run, doors: Doors, round: int) -> bool:
    """Whether the decided `round` has an agreed record for whatever somebody stated at its start. Raises ChainError,
    with code StatePruned where this chain node has forgotten it."""
    chain, clock = doors.chain, run.clock
    commit, attest = chain.peers(clock.commit_by(round)), chain.peers(clock.attest_by(round))
    slots = [chain.peers(clock.slot(round, index)[1]) for index in range(clock.leader_slots)]
    views, commit_hash = Views(commit, slots, attest), chain.header(clock.commit_by(round)).hash
    height = clock.attest_by(round)
    return any(
        agreed(run, round, *claim, commit_hash, views, height).selection is not None
        for claim in claims(run, round, commit, attest)
    )
