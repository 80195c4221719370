"""Faults of a store, a chain or a clock while nodes run: within two rounds every surface names the cause, and once it
is mended the node is back by itself, with at most the round of the fault lost."""

import time
from collections.abc import Iterator

import pytest

from murmur.lab.localnet.gates.kinds import EVERYBODY
from tests.stuck.play import assert_told_everywhere, marks_of, record, until_back, until_told
from tests.stuck.rows import FAST, WAVES
from tests.stuck.stage import Stage

BACK_ROUNDS = 3.0
"""The rest of the round of the mend, the next one whole, and the time until its outcome is told in the one after."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("running"), validators=2, miners=4)
    try:
        stage.publish()
        for node in stage.nodes:
            stage.start(node, extra=stage.wrong_clock(node))
        miners = [node for node in stage.nodes if node.startswith("miner")]
        until_back(stage, miners, 0.0, 6.0)
        yield stage
    finally:
        stage.close()


@pytest.mark.timeout(1800)  # its set-up publishes a run
@pytest.mark.parametrize(
    "wave", [pytest.param(wave, marks=pytest.mark.check if wave == FAST else pytest.mark.slow) for wave in WAVES]
)
def test_a_fault_is_told_by_every_surface_within_two_rounds_and_its_end_needs_nobody(stage: Stage, wave: str) -> None:
    rows = WAVES[wave]
    marks = marks_of(stage)
    stage.fault(*(pair for row in rows for pair in row.begins))
    try:
        seconds = until_told(stage, {node: row.cause for row in rows for node in row.told_by}, marks)
        told = {
            (row.name, node): assert_told_everywhere(stage, node, row.cause) for row in rows for node in row.told_by
        }
    finally:
        stage.mend()
    since = time.time()
    back = until_back(stage, [node for node in stage.nodes if node.startswith("miner")], since, BACK_ROUNDS)
    for row in rows:
        for node in row.told_by:
            record(row.name, row.cause, seconds[node], told[row.name, node], back.get(node))
    if any(node == EVERYBODY for row in rows for node, _ in row.begins):
        return
    for node in set(stage.nodes) - {node for row in rows for node in row.told_by}:
        assert "It costs: " not in stage.log(node)[marks[node] :], f"{node} has trouble of another's fault"
