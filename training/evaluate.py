"""Held-out loss: how good the model is on text that nobody trains on. For people; nothing is decided by it."""

from torch import Tensor

from protocol.types import Page
from training.loader import sequences
from training.replica import Replica
from training.shards import Shards


def held_out_sequences(shards: Shards, num_sequences: int, context: int) -> Tensor:
    """int64 [num_sequences, context + 1]: always the same ones of a data set, evenly spaced over its held-out split.

    Raises ValueError when it has fewer (Shards.check refuses such a run beforehand).
    """
    available = (shards.held_out.num_tokens - 1) // context
    if num_sequences > available:
        raise ValueError(f"{num_sequences} held-out sequences asked for, the split has {available}")
    starts = (index * available // num_sequences for index in range(num_sequences))
    return sequences(shards.held_out, [Page(start * context, context) for start in starts], context)


def held_out_loss(replica: Replica, shards: Shards, num_sequences: int) -> float:
    """Mean held-out cross entropy of the replica's current weights, nats a token."""
    return replica.loss(held_out_sequences(shards, num_sequences, replica.spec.model.context))
