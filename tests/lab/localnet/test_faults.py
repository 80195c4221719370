"""Every kind of fault, in a network of one process: what it really does, and what an honest validator makes of it."""

from collections.abc import Callable

import pytest
import torch

from murmur.lab.localnet import faults
from murmur.lab.localnet.fault_kinds import FAULTS
from murmur.lab.localnet.faults import KINDS, Lazy, Noise
from murmur.protocol.assignment import assigned
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Page, Reason, hotkey
from murmur.rounds.miner import Miner
from sparseloco.update import Update
from tests.network import FakeNetwork

Networks = Callable[..., FakeNetwork]
HONEST = ("miner-1", "miner-2")
FAULTY = "miner-3"

REASONS = {kind: reason for kind, fate in FAULTS.items() if (reason := fate.split(": ")[1]) in Reason.__members__}


def rejected(network: FakeNetwork, round: int) -> dict[str, str]:
    """Name to reason, of the validator's fast checks."""
    names = {hotkey(member.peer): name for name, member in network.members.items()}
    event = next(event for event in network["validator"].events("checked") if event["round"] == round)
    return {names[peer]: reason for peer, reason in event["rejected"].items()}


def start(network: FakeNetwork, role: type[Miner]) -> None:
    network.start("validator", *HONEST)
    network.start(FAULTY, role=role)


def test_every_kind_that_the_command_offers_has_a_class_and_every_class_is_offered() -> None:
    assert list(KINDS) == list(FAULTS)
    assert set(REASONS) == set(FAULTS) - {"noise", "lazy", "thin"}


@pytest.mark.parametrize("kind", sorted(REASONS))
def test_the_fast_checks_reject_it_for_its_reason_and_nobody_else(kind: str, networks: Networks) -> None:
    network = networks(miners=3, copy_overlap=0.95)
    start(network, KINDS[kind])
    network.run_until(2)
    first = 1 if kind == "copycat" else 0  # before there is something to copy it is as good as anybody
    assert [rejected(network, round) for round in range(2)] == [{}] * first + [{FAULTY: REASONS[kind]}] * (2 - first)
    honest = sorted(hotkey(network[name].peer) for name in HONEST)
    assert all(sorted(network["validator"].contributing(round)) == honest for round in range(first, 2))
    thetas = network.assert_agreement("validator", *HONEST)
    assert thetas[0] != thetas[1]


def test_a_desynced_miner_follows_the_run_all_the_same(networks: Networks) -> None:
    network = networks(miners=3)
    start(network, KINDS["desynced"])
    network.run_until(3)
    assert network.assert_agreement()  # its own theta is put back after every round


def test_noise_has_an_honest_norm_and_nothing_else(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[Update, Update]] = []
    compress = Miner.compress

    class Watched(Noise):
        def compress(self) -> Update:
            honest: list[Update] = []
            monkeypatch.setattr(Miner, "compress", lambda miner: honest.append(compress(miner)) or honest[0])
            noise = super().compress()
            monkeypatch.setattr(Miner, "compress", compress)
            pairs.append((honest[0], noise))
            return noise

    network = networks(miners=1)
    network.start("validator")
    network.start("miner-1", role=Watched)
    network.run_until(2)
    assert [rejected(network, round) for round in range(2)] == [{}, {}]
    assert len(pairs) >= 2
    for honest, noise in pairs:
        assert noise.norms.whole == pytest.approx(honest.norms.whole, rel=0.1)
        flat = [torch.cat([u.dense(t.name).flatten() for t in u.layout]) for u in (honest, noise)]
        assert abs(torch.nn.functional.cosine_similarity(*flat, dim=0)) < 0.2


def test_a_lazy_miner_trains_on_the_same_pages_in_every_round_and_never_on_its_own(networks: Networks) -> None:
    trained: dict[int, tuple[Page, ...]] = {}

    class Watched(Lazy):
        def pages(self, round: int) -> tuple[Page, ...]:
            trained[round] = super().pages(round)
            return trained[round]

    network = networks(miners=3)
    start(network, Watched)
    network.run_until(3)
    assert len(set(trained.values())) == 1
    spec, clock = network.spec, network.clock
    for round, pages in trained.items():
        mine = assigned(
            network.run.id,
            network.world.header(clock.page_block(round)).hash,
            network[FAULTY].peer,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
        )
        assert len(pages) == len(mine)
        assert pages != mine


def test_a_word_that_is_no_kind_is_refused() -> None:
    for words in ([], ["grabage", "--config", "x"]):
        with pytest.raises(ConfigError, match="garbage"):
            faults.main(words)
