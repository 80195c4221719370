"""However many rounds were void, those that mine are contributing again in the first one that is not."""

import pytest
import torch

from gauntlet.sketch import Sample, Sketch, find_copies
from murmur.data.shards import Shards
from murmur.protocol.assignment import page_at
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from sparseloco.update import Update

PEERS = [PeerId(bytes([number]) * 32) for number in (1, 2, 3)]
VOIDS = range(2, 32)


@pytest.mark.parametrize(
    ("steps", "batch"),
    [(2, 4), pytest.param(4, 4, marks=pytest.mark.slow), pytest.param(20, 4, marks=pytest.mark.slow)],
)
def test_miners_contribute_again_in_the_first_round_after_thirty_void_ones(
    run_spec: RunSpec, data: Shards, steps: int, batch: int
) -> None:
    inner = run_spec.inner.model_copy(update={"steps": steps, "sequences": batch, "warmup_steps": 0})
    theta = genesis_theta(run_spec.model, 11)
    replicas = {peer: Replica(run_spec, theta) for peer in PEERS}
    draw = torch.Generator().manual_seed(1)
    history: list[tuple[int, PeerId, Update]] = []
    largest = 0.0
    for round in range(VOIDS.stop + 3):
        updates: dict[PeerId, Update] = {}
        # Of one page two peers would learn the same.
        drawn = torch.randperm(run_spec.num_pages, generator=draw)[: steps * len(PEERS)].view(len(PEERS), -1)
        for (peer, replica), pages in zip(replicas.items(), drawn.tolist(), strict=True):
            work = sequences(data.train, [page_at(page, run_spec.page_tokens) for page in pages], 32)
            replica.inner_round(work[: steps * batch], inner=inner)
            updates[peer] = replica.compress()
        average = replicas[PEERS[0]].outer.whole
        passed = set(PEERS) - _copies(run_spec, round, updates, history)
        if average:
            passed = {peer for peer in passed if average / 10 <= updates[peer].norms.whole <= 10 * average}
        history += [(round, peer, update) for peer, update in updates.items()]
        for peer, replica in replicas.items():
            if round in VOIDS:
                replica.restore_to_error_feedback(updates[peer])
            else:
                assert passed == set(PEERS), round
                replica.outer_step([updates[peer] for peer in PEERS], alpha=1.0, aggregate="mean")
        errors = replicas[PEERS[0]].own_state().tensors
        left = sum(float(e.square().sum()) for name, e in errors.items() if name.startswith("error/")) ** 0.5
        largest = max(largest, left / average if average else 0.0)
    assert largest > 10  # what was kept back would have been far beyond the bound


def _copies(
    spec: RunSpec, round: int, updates: dict[PeerId, Update], history: list[tuple[int, PeerId, Update]]
) -> set[PeerId]:
    sample = Sample(spec.layout, Digest(bytes([round]) * 32))
    now = {peer: Sketch(peer, round, update.digest, sample.excerpt(update.records)) for peer, update in updates.items()}
    past = [Sketch(peer, past, update.digest, sample.excerpt(update.records)) for past, peer, update in history]
    copies = find_copies(sample, now, past, spec.gauntlet)
    return {*copies.reposted, *copies.twins}
