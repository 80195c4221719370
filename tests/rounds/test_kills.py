"""kill -9 at random moments, in whole networks in modelled time: every restart reaches the network's digest, and no
round is lost to it. A moment is a change of the home (a file opened to be written, renamed or removed: between any two
of them a kill leaves the same disk) or any time in which the node waits."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger

from murmur.lab.simulation.clock import Killed
from murmur.lab.simulation.network import Network, SimulatedNode

KILLS = 50
CHANGES = 12
"""A victim dies at one of the next so many changes of its home: about as many as it makes in a round."""
BLOCK_SECONDS, ROUND_BLOCKS = 12.0, 86


class Executioner:
    """Kills a member at the n-th change of its home from now on, in the middle of whatever it does."""

    def __init__(self) -> None:
        self.victim: SimulatedNode | None = None
        self.left = 0
        self.killed_at: list[str] = []
        sys.addaudithook(self._see)

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        victim = self.victim
        if victim is None or victim.life is None or victim.life.dead:
            return
        if event == "open":
            changes = isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        else:
            changes = event in ("os.rename", "os.remove", "os.link")
        running = victim.life.clock._running
        if (
            changes
            and str(args[0]).startswith(str(victim.home))
            and running is not None
            and running.life is victim.life
        ):
            self.left -= 1
            if self.left <= 0:
                self.victim = None
                self.killed_at.append(f"{event} {Path(str(args[0])).relative_to(victim.home).parts[1:2]}")
                victim.life.kill()
                raise Killed


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    torch.set_num_threads(1)
    logger.disable("")
    made = Network(tmp_path, 1, validators=3, miners=4, tell=lambda *told: None)
    yield made
    made.close()
    logger.enable("")


@pytest.mark.timeout(1800)
def test_killed_at_fifty_random_moments_everybody_reaches_the_networks_digest(network: Network) -> None:
    draw, executioner = random.Random(50), Executioner()
    thetas: dict[int, set[str]] = {}
    voids: list[int] = []

    def told(member: SimulatedNode, event: str, round: int, fields: dict[str, Any]) -> None:
        if event == "applied":
            thetas.setdefault(round, set()).add(fields["theta"])
            voids.extend([round] * fields["void"])

    network.tell = told

    def run(blocks: int) -> None:
        network.clock.run(network.clock.now + blocks * BLOCK_SECONDS)

    def newest() -> int:
        return max(member.round for member in network.members.values())

    network.begin()
    run(2 * ROUND_BLOCKS)
    names = list(network.members)
    restarted = waited = 0
    for _ in range(KILLS):
        victim = network.members[draw.choice(names)]
        if draw.random() < 0.7:
            executioner.left, executioner.victim = draw.randrange(1, CHANGES), victim
        for _ in range(draw.randrange(1, 2 * ROUND_BLOCKS)):
            run(1)
            if not victim.up:
                break
        executioner.victim = None
        waited += victim.up
        network.kill(victim)
        run(draw.randrange(1, 4))
        before = newest()
        network.start(victim)
        for _ in range(3 * ROUND_BLOCKS):
            run(1)
            if victim.round > before:
                break
        assert victim.up
        assert victim.round > before, f"{victim.name} did not come back: {victim.round} of {newest()}"
        restarted += 1
        others = {m.program.node.state.saved.theta for m in network.members.values() if m.round == victim.round}  # type: ignore[union-attr]
        assert others == {victim.program.node.state.saved.theta}  # type: ignore[union-attr]
    assert restarted == KILLS
    assert waited < KILLS
    assert len(executioner.killed_at) + waited == KILLS
    assert len(executioner.killed_at) > KILLS // 4
    assert len(set(executioner.killed_at)) > 3, executioner.killed_at
    assert {round: len(found) for round, found in thetas.items() if len(found) > 1} == {}
    assert len(set(voids)) <= len(thetas) // 10, sorted(set(voids))
