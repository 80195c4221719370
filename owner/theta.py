"""theta_0: made once, by the run's owner, because seeded initialisation differs between machines."""

from pathlib import Path

from protocol.spec import TrainingSpec
from protocol.types import Digest
from training import checkpoint
from training.genesis import genesis_state
from training.inner import OnStep
from training.parallel import ALONE, Ranks
from training.replica import Replica, genesis_theta
from training.shards import Shards


def make_theta(
    folder: Path, spec: TrainingSpec, seed: int, data: Shards, ranks: Ranks = ALONE, on_step: OnStep | None = None
) -> Digest:
    """Make seeded parameters and one honest inner round for the run's initial norms (training/genesis.py); save both as
    a checkpoint under `folder` and return its digest. theta_0 and the first block of `spec` are not read."""
    replica = Replica(spec, genesis_theta(spec.model, seed), ranks=ranks)
    return checkpoint.save(folder, genesis_state(replica, data, on_step))
