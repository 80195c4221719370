"""The stand-in for training behaves as training does where the rounds can tell."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from murmur.lab.simulation.chain import BLOCK_SECONDS
from murmur.lab.simulation.clock import Clock
from murmur.lab.simulation.conditions import WIDE
from murmur.lab.simulation.modelled_replica import (
    MODEL,
    NUM_PAGES,
    PAGE_TOKENS,
    Contrary,
    Costs,
    ModelledReplica,
    NoText,
    Problem,
)
from murmur.lab.simulation.network import draft_spec
from murmur.lab.simulation.world import World
from murmur.protocol.types import Digest, Page, PeerId
from murmur.training import checkpoint
from murmur.training.loader import sequences
from murmur.training.probe import Prober
from murmur.training.replica import Replica
from sparseloco.outer import bounds
from sparseloco.update import Update


def of(page: int) -> Page:
    return Page(page * PAGE_TOKENS, PAGE_TOKENS)


class Bench:
    """Learners of one run, whose modelled work is done in one life."""

    def __init__(self) -> None:
        self.clock = Clock(1)
        self.life = self.clock.life("one")
        self.spec = draft_spec(World(), Digest(bytes(32)), WIDE, WIDE.gauntlet.contributors)
        self.problem = Problem(1, sum(shape.numel() for shape in map(torch.Size, MODEL.shapes().values())))
        self.text = NoText()

    def modelled(self, inner_seconds: float = 100.0) -> ModelledReplica:
        return ModelledReplica(self.spec, self.problem, self.life, Costs(inner_seconds), random.Random(1))

    def falls(self, modelled: ModelledReplica, update: Update, pages: Iterable[int]) -> dict[int, float]:
        """By how much the update lowers the loss on each page."""
        modelled.reset()
        scales, _ = bounds([update.norms], modelled.outer)
        found: dict[int, float] = {}

        def run() -> None:
            with Prober(modelled, self.text.train, 1.0) as prober:
                for page in pages:
                    before = prober.losses(None, (), (of(page),))
                    after = prober.losses(update, scales[0], (of(page),))
                    found[page] = sum(before) - sum(after)

        self.life.start(run, "probe")
        self.clock.run(self.clock.now + 1000.0)
        return found

    def work(self, modelled: ModelledReplica, page: int) -> Update:
        """A round's update on one page."""
        found: list[Update] = []

        def run() -> None:
            modelled.inner_round(sequences(self.text.train, [of(page)], MODEL.context))
            found.append(modelled.compress())

        self.life.start(run, "work")
        self.clock.run(self.clock.now + 1000.0)
        return found[0]


def test_work_takes_the_time_that_it_is_said_to_take() -> None:
    bench = Bench()
    modelled = bench.modelled(inner_seconds=BLOCK_SECONDS)
    seen: list[float] = []

    def run() -> None:
        modelled.inner_round(sequences(bench.text.train, [of(3)], MODEL.context))
        seen.append(bench.life.now())

    bench.life.start(run, "work")
    bench.clock.run(100.0)
    assert seen == [pytest.approx(BLOCK_SECONDS, rel=0.11)]


def test_an_honest_update_lowers_the_loss_everywhere_and_that_of_its_own_pages_most() -> None:
    bench = Bench()
    modelled = bench.modelled()
    falls = bench.falls(modelled, bench.work(modelled, 7), (7, *range(100, 120)))
    assert min(falls.values()) > 0
    assert max(falls, key=falls.__getitem__) == 7


def test_an_update_of_the_contrary_problem_raises_it_everywhere() -> None:
    bench = Bench()
    modelled = bench.modelled()
    modelled.problem = Contrary(bench.problem)
    update = bench.work(modelled, 7)
    modelled.problem = bench.problem
    assert max(bench.falls(modelled, update, (7, *range(100, 120))).values()) < 0


def test_two_peers_never_send_the_same_and_one_peer_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    bench = Bench()
    modelled, other = bench.modelled(), bench.modelled()
    assert modelled.digest() == other.digest()
    assert bench.work(modelled, 1).digest != bench.work(other, 2).digest
    own = checkpoint.save(tmp_path, modelled.own_state())
    resumed = bench.modelled()
    resumed.load_own(checkpoint.load(tmp_path, own, resumed.own_shapes()))
    assert bench.work(modelled, 5).digest == bench.work(resumed, 5).digest


def test_pages_lie_apart_and_held_out_ones_beyond_them() -> None:
    text = NoText()
    last = text.train.tokens((NUM_PAGES - 1) * PAGE_TOKENS, PAGE_TOKENS)
    assert last[0] == (NUM_PAGES - 1) * PAGE_TOKENS
    assert text.held_out.tokens(0, 1)[0] > last[-1]


def test_proofs_of_being_in_sync_are_the_replicas_own() -> None:
    bench = Bench()
    modelled, block, peer = bench.modelled(), Digest(b"b" * 32), PeerId(b"p" * 32)
    for other in (block, Digest(b"c" * 32)):
        assert modelled.sync_proof(other, peer) == Replica.sync_proof(modelled, other, peer)
    assert modelled.sync_proof(block, peer) != modelled.sync_proof(block, PeerId(b"q" * 32))
