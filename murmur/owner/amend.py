"""An owner's amendments: those in its slot, whether they are settled, and the next one (docs/protocol.md section 0;
docs/decisions/0044-a-run-of-ones-own.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from murmur.node.config.ports import Ports
from murmur.node.fetch.sources import sources_as_of
from murmur.node.sync.amendments import MAX_AMENDMENTS, Reader, owner_slot
from murmur.owner.records import records, stated
from murmur.protocol.errors import ConfigError, InvalidMessage, StorageError
from murmur.protocol.fields import fault_lines
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Digest, Slot
from storage.realtime import REAL

POST_BLOCKS = 8
"""Blocks from now until an amendment is in a final slot, in addition to finality's lag: it may be sent twice."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A run by its owner's slot at a final block. `run`: with the settled amendments. `pending`: later ones named by
    the slot, which it may still take back, oldest first. `refused`: why nodes do not follow the rest that it names;
    None when there is no rest. `slot`: the owner's."""

    block: int
    run: Run
    pending: tuple[Amendment, ...]
    refused: str | None
    slot: Slot | None

    @property
    def planned(self) -> Run:
        """The run with the pending amendments."""
        return self.run.amended(self.pending)


def standing(run: Run, ports: Ports) -> Standing:
    """Return the owner's current standing. `run`: with all amendments settled by now
    (murmur.node.sync.amendments.settled). Raises ChainError."""
    clock, block = run.clock, ports.chain.finalized().block
    peers = ports.chain.peers(block)
    slot = owner_slot(run.first.owner_id, peers)
    named = slot.amendment if slot is not None else None
    known = {run.id, *(amendment.digest for amendment in run.amendments)}
    if named is None or named in known:
        return Standing(block, run, (), None, slot)
    reader = Reader(run.first.owner_id, sources_as_of(run, block, peers, ports.open_pointer), {}, MAX_AMENDMENTS, REAL)
    try:
        previous, fresh = reader.chain(named, known)
    except (StorageError, InvalidMessage) as fault:
        return Standing(block, run, (), f"it cannot be read: {fault}", slot)
    if previous != run.head:
        return Standing(block, run, (), "it does not build on the last settled amendment", slot)
    last = clock.start(clock.round_at(block)) - 1 if block >= clock.start(0) else -1
    followed = _followed(run, ports, block)
    if followed in {amendment.digest for amendment in fresh}:
        # The chain of selections shows amendments whose slot this chain node has pruned.
        at = next(number for number, amendment in enumerate(fresh, 1) if amendment.digest == followed)
        run, fresh = run.amended(fresh[:at]), fresh[at:]
    pending: list[Amendment] = []
    planned = run
    for amendment in fresh:
        if run.settled_by(amendment) <= last:
            why = f"the one for round {amendment.from_round} came too late, according to this chain node"
            return Standing(block, run, tuple(pending), why, slot)
        try:
            planned = planned.amended([amendment])
        except ConfigError as fault:
            return Standing(block, run, tuple(pending), str(fault), slot)
        pending.append(amendment)
    return Standing(block, run, tuple(pending), None, slot)


def _followed(run: Run, ports: Ports, block: int) -> Digest | None:
    """Return the head of the newest agreed selection; None where there is none, or none can be fetched."""
    if (newest := stated(run, ports, block)) is None:
        return None
    try:
        return next((selection.head for _, selection in records(run, ports, block, newest.link)), None)
    except StorageError:
        return None


def earliest_round(run: Run, block: int) -> int:
    """Return the first round from which an amendment posted now, at the final `block`, can be in force."""
    by = block + run.first.clock.finality_blocks + POST_BLOCKS
    # Settled by the last block before the previous round.
    return max(1, run.clock.round_at(by) + 2) if by >= run.clock.start(0) else 1


def proposed(standing: Standing, fields: Mapping[str, Any]) -> Amendment:
    """Return the amendment of these fields (except `previous`) after all others, valid and in time. Raises
    ConfigError."""
    try:
        amendment = Amendment.model_validate({"previous": standing.planned.head.hex(), **fields})
    except ValidationError as fault:
        raise ConfigError("this is not a valid amendment:\n" + fault_lines(fault)) from None
    standing.planned.amended([amendment])
    require_in_time(standing, amendment)
    if len(standing.planned.amendments) >= MAX_AMENDMENTS:
        raise ConfigError(f"the run has {MAX_AMENDMENTS} amendments, and nodes follow no more")
    return amendment


def require_in_time(standing: Standing, amendment: Amendment) -> None:
    """Raise ConfigError for an amendment that all nodes would refuse if it were posted now."""
    earliest = earliest_round(standing.run, standing.block)
    if amendment.from_round < earliest:
        raise ConfigError(
            f"it is too late for round {amendment.from_round}: it has to be final on chain before the round "
            f"that precedes its first one, or every node refuses it. The earliest is round {earliest} (now: "
            f"{standing.run.clock.round_at(standing.block)})"
        )


def same(standing: Standing, fields: Mapping[str, Any]) -> Amendment | None:
    """Return the last amendment when it equals these fields: an earlier start has posted it."""
    if not standing.planned.amendments:
        return None
    last = standing.planned.amendments[-1]
    try:
        wanted = Amendment.model_validate({"previous": last.previous, **fields})
    except ValidationError:
        return None
    return last if wanted == last else None


def changes(before: Run, after: Run, round: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, value before, value after) for all differences between two runs' specs in `round`."""
    old, new = (run.spec_at(round).model_dump(mode="json") for run in (before, after))
    for name in old:
        if isinstance(old[name], dict):
            yield from (
                (f"{name}.{field}", old[name][field], new[name][field])
                for field in old[name]
                if old[name][field] != new[name][field]
            )
        elif old[name] != new[name]:
            yield name, old[name], new[name]
