"""Read a validator's weights as they took effect on chain: at once, or, on a subnet with commit-reveal, from the block
that revealed them."""

from enum import StrEnum

from gauntlet.facts import ChainWeights
from murmur.protocol.ports import Chain
from murmur.protocol.types import Peer, PeerId


class UnseenReason(StrEnum):
    """Why a row that was set cannot be read."""

    WAITING = "not revealed yet, or not final"
    OVERWRITTEN = "they were revealed together with later ones, which overwrote them"
    GONE = "its hotkey was no longer registered when they took effect"


def row_of(chain: Chain, validator: PeerId, set_in: int) -> ChainWeights | UnseenReason:
    """Return the row of weights that the validator set in block `set_in`, as it took effect. Raises ChainError."""
    block = chain.stands_from(set_in)
    if block is None:
        return UnseenReason.WAITING
    # The chain reveals in the order of the commits: of all revealed in one block, only the last is visible.
    last = _last_update(chain, validator, block - 1)
    while last > set_in:
        if chain.stands_from(last) == block:
            return UnseenReason.OVERWRITTEN
        last = _last_update(chain, validator, last - 1)
    me = _peer(chain, validator, block)
    if me is None:
        return UnseenReason.GONE
    return ChainWeights(block, chain.weights(block, me.uid), chain.weights(block - 1, me.uid))


def _last_update(chain: Chain, validator: PeerId, block: int) -> int:
    peer = _peer(chain, validator, block)
    return peer.last_update if peer is not None else 0


def _peer(chain: Chain, peer: PeerId, block: int) -> Peer | None:
    return next((found for found in chain.peers(block) if found.id == peer), None)
