"""Held-out loss: the model's loss on text that no miner trains on. For people; no decision uses it."""

from torch import Tensor

from murmur.data.shards import Shards
from murmur.protocol.types import Page
from murmur.training.loader import sequences
from murmur.training.replica import Replica


def held_out_sequences(shards: Shards, num_sequences: int, context: int) -> Tensor:
    """Return int64 [num_sequences, context + 1]: for a data set always the same ones, evenly spaced over its held-out
    split.

    Raises ValueError when the split has fewer (Shards.check refuses such a run beforehand).
    """
    available = (shards.held_out.num_tokens - 1) // context
    if num_sequences > available:
        raise ValueError(f"{num_sequences} held-out sequences asked for, the split has {available}")
    starts = (index * available // num_sequences for index in range(num_sequences))
    return sequences(shards.held_out, [Page(start * context, context) for start in starts], context)


def held_out_loss(replica: Replica, shards: Shards, num_sequences: int) -> float:
    """Return the mean held-out cross entropy of the replica's current weights, nats per token."""
    return replica.loss(held_out_sequences(shards, num_sequences, replica.spec.model.context))
