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
    """Seeded parameters, an honest inner round for the norms with which the run begins (training/genesis.py), and
    both as a checkpoint under `folder`; its digest. Of `spec` neither theta_0 nor the first block is read."""
    replica = Replica(spec, genesis_theta(spec.model, seed), ranks=ranks)
    return checkpoint.save(folder, genesis_state(replica, data, on_step))
