"""Dishonest and broken miners for the local network. Each wraps the honest miner and overrides one step; honest code
has no branch for any of them.

`python -m murmur.lab.localnet.faults KIND --config FILE`
"""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from murmur.data.shards import Shards
from murmur.node.config.settings import load
from murmur.node.fetch.selected import gather_pinned
from murmur.node.node import Node
from murmur.node.program.process import log_to_stderr, run_program
from murmur.node.state.saved import SealedRound
from murmur.protocol.assignment import Draw, page_at
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.spec import InnerSpec
from murmur.protocol.types import SIGNATURE_BYTES, Commitment, Page
from murmur.rounds import start_miner
from murmur.rounds.contribution import Training
from murmur.rounds.miner import Miner
from murmur.training.recorder import TraceOf
from sparseloco import ops
from sparseloco.update import Update


class Garbage(Miner):
    """Puts random records in a valid envelope."""

    def compress(self) -> Update:
        honest = super().compress()
        return replace(honest, records=secrets.token_bytes(len(honest.records)))


class WrongKey(Miner):
    """Sends an envelope signed by another key."""

    def seal(self, round: int, update: Update) -> SealedRound:
        return _resealed(self, super().seal(round, update), lambda data: _with_signature(data, bytes(SIGNATURE_BYTES)))


class Unrevealed(Miner):
    """Commits and keeps the key."""

    def reveal(self, round: int, sealed: SealedRound) -> None:
        self.node.wait_for(self.node.clock.reveal_deadline(round), "the moment when keys no longer count")


class BadKey(Miner):
    """Publishes a key that opens nothing."""

    def reveal(self, round: int, sealed: SealedRound) -> None:
        super().reveal(round, replace(sealed, key=secrets.token_bytes(32)))


class Late(Miner):
    """Commits after the commit deadline."""

    def commit(self, round: int, sealed: SealedRound) -> None:
        self.node.wait_for(self.node.clock.commit_deadline(round), "the commit window to close")
        self.node.post(self.commitment(round, sealed))


class Silent(Miner):
    """Follows, but neither publishes nor commits."""

    def play(self, round: int) -> None:
        self.node.advance(round)
        self.node.wait_for(self.node.clock.commit_deadline(round), "the round to pass")


class Oversized(Miner):
    """Appends a kilobyte to the ciphertext."""

    def seal(self, round: int, update: Update) -> SealedRound:
        return _resealed(self, super().seal(round, update), lambda data: data + bytes(1024))


class Huge(Miner):
    """Sends values a thousand times as large."""

    def compress(self) -> Update:
        return _scaled(super().compress(), 1000.0)


class Desynced(Miner):
    """Trains from another theta and proves it."""

    def __init__(self, node: Node, shards: Shards, *, speculates: bool = True) -> None:
        super().__init__(node, shards, speculates=False)

    def train(self, round: int, pages: Sequence[Page]) -> None:
        replica = self.node.state.replica
        state = replica.consensus_state()
        generator = torch.Generator().manual_seed(1)
        moved = {n: t + 1e-3 * torch.randn(t.shape, generator=generator) for n, t in state.tensors.items()}
        self.node.state.snapshots.drop()  # it reads the memory that is overwritten
        replica.load_consensus(replace(state, tensors=moved))
        super().train(round, pages)

    def reveal(self, round: int, sealed: SealedRound) -> None:
        super().reveal(round, sealed)
        self.node.state.restore()


class Copycat(Miner):
    """Re-posts the payload that another miner revealed in the previous round."""

    def compress(self) -> Update:
        honest = super().compress()
        return self._stolen() or honest

    def _stolen(self) -> Update | None:
        node = self.node
        round = node.state.saved.round - 1
        if round < 0:
            return None
        chain = node.ports.chain
        sources = node.sources()
        for peer in chain.peers(node.clock.commit_deadline(round)):
            statement = peer.slot.statement if peer.slot is not None else None
            if peer.id == node.me or not isinstance(statement, Commitment) or statement.round != round:
                continue
            pair = [(peer.id, statement.envelope)]
            try:
                opened = gather_pinned(
                    node.run.first, node.run.id, round, pair, sources, node.ports.verify, node.transfer_seconds
                )
            except StorageError:
                continue
            if opened[0].update is not None:
                return opened[0].update
        return None


class Noise(Miner):
    """Sends random positions and signs at the norm of an honest update."""

    def compress(self) -> Update:
        honest = super().compress()
        replica = self.node.state.replica
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        moved = {}
        for tensor in replica.layout:
            dense = honest.dense(tensor.name)
            size = float(dense.norm()) / max(1.0, float((dense != 0).sum())) ** 0.5
            theta = replica.theta[tensor.name]
            moved[tensor.name] = theta + size * torch.randn(theta.shape, generator=generator)
        noise, _ = ops.compress(replica.theta, moved, None, replica.layout, beta=0.0)
        return _scaled(noise, honest.norms.whole / noise.norms.whole)


class Lazy(Miner):
    """Always trains on the same pages, whatever it was assigned."""

    def pages(self, round: int) -> tuple[Page, ...]:
        super().pages(round)
        spec = self.node.run.spec_at(round)
        draw = Draw("lazy", self.node.me)
        chosen = draw.distinct(spec.num_pages, spec.pages_per_round)
        return tuple(page_at(index, spec.page_tokens) for index in chosen)


class Thin(Miner):
    """Trains each step on a quarter of its sequences, and sends and shows the result as the whole step."""

    def __init__(self, node: Node, shards: Shards, *, speculates: bool = True) -> None:
        super().__init__(node, shards, speculates=speculates)
        honest = self.work.training

        def training(round: int, pages: Sequence[Page], inner: InnerSpec, trace_of: TraceOf | None = None) -> Training:
            found = honest(round, pages, inner, trace_of)
            kept = max(1, inner.sequences // 4)
            steps = found.text[: inner.steps * inner.sequences].view(inner.steps, inner.sequences, -1)[:, :kept]
            # The same gradient as of the quarter alone: what is left out would be the profit.
            found.text = (
                steps.repeat(1, -(-inner.sequences // kept), 1)[:, : inner.sequences].flatten(0, 1).contiguous()
            )
            return found

        vars(self.work)["training"] = training


KINDS: Mapping[str, type[Miner]] = {
    "garbage": Garbage,
    "wrongkey": WrongKey,
    "unrevealed": Unrevealed,
    "badkey": BadKey,
    "late": Late,
    "silent": Silent,
    "oversized": Oversized,
    "huge": Huge,
    "desynced": Desynced,
    "copycat": Copycat,
    "noise": Noise,
    "lazy": Lazy,
    "thin": Thin,
}


def _with_signature(data: bytes, signature: bytes) -> bytes:
    return data[: ENVELOPE_BYTES - len(signature)] + signature + data[ENVELOPE_BYTES:]


def _resealed(miner: Miner, sealed: SealedRound, change: Any) -> SealedRound:
    node = miner.node
    changed = replace(sealed, object=node.state.store.write(change(node.state.store.read(sealed.object))))
    node.state.save(sealed=changed)
    return changed


def _scaled(update: Update, factor: float) -> Update:
    """Return the update with all values multiplied, as far as the levels reach."""
    layout = update.layout
    dense = {tensor.name: update.dense(tensor.name) * factor for tensor in layout}
    zeros = {name: torch.zeros_like(values) for name, values in dense.items()}
    scaled, _ = ops.compress(dense, zeros, None, layout, beta=0.0)
    return scaled


def main(argv: Sequence[str] | None = None) -> None:
    """Run the miner of `KIND` with a miner's arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in KINDS:
        raise ConfigError(f"the first argument has to be one of {', '.join(KINDS)}")
    config = load(f"python -m murmur.lab.localnet.faults {words[0]}", __doc__ or "", words[1:], os.environ)
    log_to_stderr(config.log_level)
    start_miner.start(config, KINDS[words[0]])


if __name__ == "__main__":
    sys.exit(run_program(main))
