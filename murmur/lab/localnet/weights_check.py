"""A check that the weights set by validators are on chain: each validator's events against the chain's state.

A validator reports a set in its `weights` event. The check reads the chain alone: LastUpdate in the block that the
event names, then the validator's row in the first block that holds it. It runs while the network runs, because the
chain prunes old states. A call that the chain did not accept leaves no trace there; the validator's event reports it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.lab.localnet.plan import CALL_SECONDS, NETUID
from murmur.protocol.errors import ChainError
from murmur.protocol.types import PeerId, Uid, hotkey

Events = Mapping[PeerId, Sequence[Mapping[str, Any]]]
"""A validator's events, in order."""
_Set = tuple[PeerId, int]
"""A validator, and the block in which it reports to have set weights."""

SET, NOT_TAKEN = "weights", "weights_not_taken"
_U16_MAX = 65535
_REVEALED = "TimelockedWeightsRevealed"


class _SetWeights(NamedTuple):
    """The chain's data on a validator in the first block that holds a set of its weights."""

    seen: bool
    """Whether the block that the validator named moved its LastUpdate."""
    stands_from: int
    weights: Mapping[Uid, int]
    revealed: int | None
    """How many of its commits that block revealed; None where weights are set in the open."""


class Standing:
    """The state of all weights that were set so far."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._chain: SubtensorChain | None = None
        self._rows: dict[_Set, _SetWeights] = {}
        self._looked_at = -1

    def look(self, events: Events) -> None:
        """Read what became final since the last call, at most once per block. A chain that does not answer is read
        again next time."""
        waiting = [entry for entry in _sets(events) if entry not in self._rows]
        if not waiting:
            return
        with suppress(ChainError):
            if self._chain is None:
                self._chain = open_chain(self._url, NETUID, None, call_timeout_seconds=CALL_SECONDS)
            final = self._chain.finalized().block
            if final != self._looked_at:
                for peer, block in waiting:
                    row = _read(self._chain, peer, block)
                    if row is not None:
                        self._rows[peer, block] = row
                self._looked_at = final

    def counts(self, events: Events) -> dict[str, int]:
        """Return the numbers of report.json for all sets that validators have reported so far."""
        sets = _sets(events)
        pending = sum(entry not in self._rows for entry in sets)
        standing = sum(entry in self._rows and self._stands(entry, weights) for entry, weights in sets.items())
        refused = sum(event["event"] == NOT_TAKEN for found in events.values() for event in found)
        return {
            "weights_set": len(sets),
            "weights_standing": standing,
            "weights_refused": refused + len(sets) - standing - pending,
            "weights_pending": pending,
        }

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()
            self._chain = None

    def _stands(self, entry: _Set, weights: Mapping[Uid, int]) -> bool:
        """Whether the set is on chain.

        Of several commits revealed by one block only the last is visible; the others are assumed set if as many were
        revealed as were committed. A validator keeps setting weights during the count, so the last commit may be one
        that it has not reported yet.
        """
        row, (peer, block) = self._rows[entry], entry
        together = [
            other for (who, other), found in self._rows.items() if (who, found.stands_from) == (peer, row.stands_from)
        ]
        if not row.seen or (row.revealed is not None and row.revealed < len(together)):
            return False
        is_last = block == max(together) and (row.revealed is None or row.revealed == len(together))
        return not is_last or _positive(row.weights) == _positive(weights)


def _sets(events: Events) -> dict[_Set, Mapping[Uid, int]]:
    """Return every validator's reported sets, as the chain would hold them."""
    return {
        (peer, event["block"]): _scaled({Uid(int(uid)): weight for uid, weight in event["weights"].items()})
        for peer, found in events.items()
        for event in found
        if event["event"] == SET
    }


def _scaled(weights: Mapping[Uid, float]) -> dict[Uid, int]:
    """Return the weights in the chain's u16, the largest 65535."""
    top = max(weights.values())
    return {uid: round(weight / top * _U16_MAX) for uid, weight in weights.items()}


def _positive(weights: Mapping[Uid, int]) -> dict[Uid, int]:
    return {uid: weight for uid, weight in weights.items() if weight}


def _read(chain: SubtensorChain, peer: PeerId, block: int) -> _SetWeights | None:
    """Return the chain's data on a set; None while the weights set in `block` are not open yet, or the block is not
    final."""
    stands = chain.stands_from(block)
    if stands is None:
        return None
    uid = next((other.uid for other in chain.peers(stands) if other.id == peer), None)
    seen = any(other.id == peer and other.last_update == block for other in chain.peers(block))
    revealed = None if stands == block else _revealed(chain, peer, stands)
    return _SetWeights(seen, stands, {} if uid is None else chain.weights(stands, uid), revealed)


def _revealed(chain: SubtensorChain, peer: PeerId, block: int) -> int:
    """Return how many of the validator's commits the block revealed, by its events."""
    at = "0x" + chain.header(block).hash.hex()
    records = chain.call(lambda session: session.substrate.query("System", "Events", [], block_hash=at))
    return sum(record["event_id"] == _REVEALED and hotkey(peer) in record["attributes"] for record in records)
