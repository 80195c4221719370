"""Retention: a validator keeps the objects that joiners need, as long as they need them (docs/protocol.md section
8)."""

from loguru import logger
from torch import Tensor

from murmur.data.shards import Shards
from murmur.node.node import Node
from murmur.node.sync.checkpoints import kept_from
from murmur.protocol import keys
from murmur.protocol.errors import StorageError
from murmur.protocol.messages import encode_selection, link_of
from murmur.protocol.types import Selection
from murmur.rounds.checkpoints import Checkpoints, ValidatorShelf
from murmur.training.evaluate import held_out_sequences
from storage.mirror import Mirror


class Retention:
    """One validator's public objects, except for its reports."""

    def __init__(self, node: Node, shards: Shards, mirror: Mirror) -> None:
        self.node, self.shards, self.mirror = node, shards, mirror
        self.checkpoints = Checkpoints(ValidatorShelf(node))
        self._held_out: Tensor | None = None

    def publish_link(self, selection: Selection | None) -> None:
        """Publish the agreed selection under its link, for joiners. This comes before our state moves past it:
        otherwise a crash would break the chain that joiners follow. It is called in every round that we follow, however
        late, so checkpoints are looked after here too."""
        node = self.node
        self.checkpoints.look()
        if selection is not None:
            key, data = keys.selection(node.run.id, link_of(selection)), encode_selection(selection)
            node.ports.bucket.put(key, data, timeout_seconds=node.transfer_seconds(1))

    def keep(self, round: int) -> float | None:
        """Keep our objects for joiners: checkpoints and mirrors of recent rounds. Then return the held-out loss (nats a
        token), for people; None if its data cannot be read."""
        node, spec = self.node, self.node.run.spec_at(round)
        self.checkpoints.look()
        before = kept_from(spec.checkpoint_rounds, round, self.checkpoints.published)
        try:
            self.mirror.prune(before, timeout_seconds=node.transfer_seconds(1))
        except StorageError as fault:
            logger.warning("could not delete copies before round {round} yet: {fault}", round=before, fault=str(fault))
        try:
            loss = node.state.replica.loss(self.held_out())
        except StorageError as fault:
            logger.warning("round {round}: could not measure the held-out loss: {fault}", round=round, fault=str(fault))
            return None
        node.state.events.emit("held_out", round, val_loss=loss)
        return loss

    def held_out(self) -> Tensor:
        """Return the held-out sequences: the same in every round, so they are read once."""
        if self._held_out is None:
            spec = self.node.run.first
            self._held_out = held_out_sequences(self.shards, spec.data.held_out_sequences, spec.model.context)
        return self._held_out
