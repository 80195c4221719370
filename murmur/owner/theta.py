"""theta_0: made once, by the run's owner, because seeded initialisation differs between machines."""

from pathlib import Path

from murmur.data.shards import Shards
from murmur.protocol.spec import TrainingSpec
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from murmur.training.genesis import genesis_state
from murmur.training.inner import OnStep
from murmur.training.model import genesis_theta
from murmur.training.parallel import ALONE, Ranks
from murmur.training.replica import Replica


def make_theta(
    folder: Path, spec: TrainingSpec, seed: int, data: Shards, ranks: Ranks = ALONE, on_step: OnStep | None = None
) -> Digest:
    """Make seeded parameters and one honest inner round for the run's initial norms (murmur/training/genesis.py); save
    both as a checkpoint under `folder` and return its digest. theta_0 and the first block of `spec` are not read."""
    replica = Replica(spec, genesis_theta(spec.model, seed), ranks=ranks)
    return checkpoint.save(folder, genesis_state(replica, data, on_step))
