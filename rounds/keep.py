"""Keeping: what joiners need of a validator, and for how long (docs/protocol.md section 8)."""

from gauntlet.agreement import Agreed
from node.checkpoints import publish_checkpoint
from node.node import Node
from protocol import keys
from protocol.messages import encode_link
from storage.mirror import Mirror
from training.evaluate import held_out_loss
from training.shards import Shards

RETAINED_ROUNDS = 8
"""Payloads, keys and mirrors are kept so many rounds longer than the interval of checkpoints."""


class Keeper:
    """One validator's public objects but for its reports."""

    def __init__(self, node: Node, shards: Shards, mirror: Mirror) -> None:
        self.node, self.shards, self.mirror = node, shards, mirror

    def publish_link(self, decision: Agreed) -> None:
        """The agreed record under its link, for joiners; before our state moves past it, or a crash would tear a hole
        into the chain that they follow."""
        node = self.node
        if decision.selection is not None and decision.record is not None:
            head = node.run.head_at(decision.selection.round)
            link = encode_link(decision.record, decision.selection.contributing, head)
            key = keys.statement(node.run.id, decision.link)
            node.doors.bucket.put(key, link, timeout_seconds=node.transfer_seconds(1))

    def keep(self, round: int) -> None:
        """What joiners need from us: checkpoints and mirrors of recent rounds. Then the held-out loss, for people."""
        node, spec = self.node, self.node.run.spec_at(round)
        seconds = node.transfer_seconds(1)
        if node.held.saved.round % spec.checkpoint_rounds == 0:
            publish_checkpoint(node, node.held)
        self.mirror.prune(max(0, round - spec.checkpoint_rounds - RETAINED_ROUNDS), timeout_seconds=seconds)
        loss = held_out_loss(node.held.replica, self.shards, spec.data.held_out_sequences)
        node.held.events.emit("held_out", round, val_loss=loss)
