"""A cluster's theta at the start of a round: a checkpoint that a member shows, accepted by the link and theta that the
records name, and after the last one most members (docs/cluster.md)."""

from collections.abc import Callable
from pathlib import Path

import torch

from murmur.cluster.ledger import Ledger
from murmur.cluster.pace import SLOWEST_BYTES
from murmur.cluster.rejoin import link_before, theta_of_most, usable
from murmur.export.states import Named, Rebuilt
from murmur.node.sync.run_discovery import blob_fetcher
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, OutOfSync, StorageError
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from murmur.training.checkpoint import parse_outer
from murmur.training.replica import VELOCITY
from sparseloco.digest import theta_digest


class ClusterStates:
    """The states that the cluster's bucket holds now. `tell` gets progress lines. Raises StorageError."""

    named_by = "the round's record names it, or after the last one most members"

    def __init__(self, spec: ClusterSpec, ledger: Ledger, tell: Callable[[str], None]) -> None:
        self.spec, self.id = spec, ledger.run
        self._ledger, self._tell = ledger, tell
        self._shown = {0: {spec.genesis_digest}}
        for _, found in usable(ledger):
            self._shown.setdefault(found.round, set()).add(found.state)
        self.newest = max(self._shown)
        """The newest round at whose start there is a checkpoint."""

    def at(self, round: int) -> Named:
        """Return the state at the start of `round`. Raises ConfigError where there is no checkpoint, StorageError."""
        link = link_before(self._ledger, round) if round in self._shown else None
        if link is None:
            rounds = ", ".join(map(str, sorted(self._shown)))
            raise ConfigError(f"round {round}: the bucket has checkpoints of the rounds {rounds}")
        record = self._ledger.record(round)
        theta = theta_of_most(self._ledger, round) if record is None else record.theta
        if theta is None and len(self._shown[round]) > 1:
            raise StorageError(
                f"the members hold different thetas at the start of round {round}, so one of their machines computes "
                "wrongly: take an earlier round"
            )
        return Named(round, link, theta)

    def rebuild(self, named: Named, folder: Path) -> Rebuilt:
        """Fetch the state, with its files in `folder`. Raises StorageError for one that is damaged, or is not the state
        that the record names; OSError."""
        fault = StorageError("no checkpoint")
        for state in sorted(self._shown[named.round]):
            try:
                return self._rebuilt(named, state, folder)
            except StorageError as failed:
                fault = failed
        raise fault

    def _rebuilt(self, named: Named, state: Digest, folder: Path) -> Rebuilt:
        spec, shapes = self.spec, self.spec.model.shapes()
        velocity = {VELOCITY + name: shape for name, shape in shapes.items() if spec.momentum}
        self._tell(f"fetching the checkpoint of round {named.round}, {4 * spec.layout.num_parameters / 1e9:.1f} GB")
        bucket = self._ledger.states(named.round) if named.round else self._ledger.bucket
        fetch = blob_fetcher(bucket, SLOWEST_BYTES)
        try:
            saved = checkpoint.load(folder, state, shapes, also=velocity, fetch=fetch)
            outer = parse_outer(saved.facts, spec.layout)
        except (CheckpointCorrupt, OutOfSync) as fault:
            raise StorageError(f"the checkpoint of round {named.round} is of no use: {fault}") from None
        theta = {name: saved.tensors[name] for name in shapes}
        momentum = None
        if velocity:
            empty = {name: torch.zeros(shape) for name, shape in velocity.items() if name not in saved.tensors}
            momentum = {name: {**empty, **saved.tensors}[VELOCITY + name] for name in shapes}
        digest: Digest = theta_digest(theta, spec.layout, outer, momentum)
        if named.theta not in (None, digest):
            raise StorageError(
                f"the checkpoint of round {named.round} has another theta than the record or most members name"
            )
        return Rebuilt(theta, outer, digest, named.link)
