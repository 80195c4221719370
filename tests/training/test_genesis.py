"""A run begins with norms that its owner has measured: no majority of hotkeys decides what an honest one is."""

from pathlib import Path

import pytest
import torch

from murmur.data.shards import Shards
from murmur.protocol.assignment import page_at
from murmur.protocol.spec import RunSpec
from murmur.training.checkpoint import load, save
from murmur.training.genesis import genesis_state
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from sparseloco.outer import bound
from sparseloco.update import Norms

HONEST, DUST = 4, 5


def test_an_honest_first_payload_has_about_the_measured_norms(run_spec: RunSpec, data: Shards, tmp_path: Path) -> None:
    theta = genesis_theta(run_spec.model, 11)
    saved = genesis_state(Replica(run_spec, theta), data)
    assert all(torch.equal(saved.tensors[name], theta[name]) for name in theta)
    again = genesis_state(Replica(run_spec, theta), data)
    digests = {save(tmp_path / name, state) for name, state in (("one", saved), ("two", again))}
    assert len(digests) == 1

    replica = Replica(run_spec, genesis_theta(run_spec.model, 5))
    replica.load_consensus(load(tmp_path / "one", digests.pop(), run_spec.model.shapes()))
    measured = replica.outer
    assert measured.rounds == 0
    draw = torch.Generator().manual_seed(3)
    for _ in range(HONEST):
        miner = Replica(run_spec, theta, measured)
        pages = torch.randperm(run_spec.num_pages, generator=draw)[: run_spec.pages_per_round].tolist()
        work = sequences(data.train, [page_at(page, run_spec.page_tokens) for page in pages], run_spec.model.context)
        miner.inner_round(work)
        norms = miner.compress().norms
        assert 0.8 < norms.whole / measured.whole < 1.25
        assert all(0.3 < n / average < 3.0 for n, average in zip(norms.tensors, measured.averages, strict=True))


def test_a_majority_of_dust_neither_shuts_honest_miners_out_nor_lowers_the_average(
    run_spec: RunSpec, data: Shards
) -> None:
    replica = Replica(run_spec, genesis_theta(run_spec.model, 11))
    genesis_state(replica, data)
    state, factor = replica.outer, run_spec.gauntlet.norm_factor
    honest = Norms(state.averages, state.whole)
    dust = Norms(tuple(1e-6 * n for n in honest.tensors), 1e-6 * honest.whole)
    for _ in range(50):
        sent = [honest] * HONEST + [dust] * DUST
        passed = [norms for norms in sent if state.whole / factor <= norms.whole <= state.whole * factor]
        assert passed == [honest] * HONEST
        _, state = bound(passed, state)
    assert state.whole == pytest.approx(honest.whole, rel=1e-12)  # averaged fifty times
