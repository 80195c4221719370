"""Miners that show their work as late as it counts take nobody's round on a clock without idle time."""

import json
import random
from typing import Any

import pytest

from murmur.cli.main import main
from murmur.lab.simulation.conditions import WIDE, fitted
from murmur.lab.simulation.hostile import STALL_BLOCKS, WITHHOLDS, Withheld
from murmur.lab.simulation.machine import COMPRESSION
from murmur.lab.simulation.modelled_replica import MODEL
from murmur.lab.simulation.store import Call
from murmur.plan import presets
from murmur.protocol.errors import ObjectMissing, StorageError
from murmur.protocol.layout import Layout
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.run import Run
from sparseloco.wire import plaintext_bytes


def played(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    main(["simulate", "--json", "--rounds", "12", "--miners", "8", "--clock", "fitted", "--seed", "1", *flags])
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("spec", ["covenant-72b", "covenant-72b-110"])
@pytest.mark.parametrize("flags", [("--withhold", "1"), ("--withhold", "3"), ("--outage",)], ids=" ".join)
def test_who_withholds_and_a_bucket_that_fails_keep_no_honest_miner_waiting(
    flags: tuple[str, ...], spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = played(capsys, "--spec-clock", spec, *flags)
    assert found["broken"] == []
    assert found["void_rounds"] == found["honest_late"] == 0
    # Whose bucket is out in the reveal window is not selected, nor at once in the next round.
    assert found["honest_contributed"] >= (0.8 if flags == ("--outage",) else 0.95)


def test_a_fitted_clock_is_that_of_the_plan_and_leaves_no_time_to_idle() -> None:
    spec = presets.read("covenant-72b").first
    found = fitted("covenant-72b")
    windows = ("round_blocks", "commit", "reveal", "words", "finality_blocks", "block_seconds")
    assert [getattr(found.clock, name) for name in windows] == [getattr(spec.clock, name) for name in windows]
    # A payload takes as long as one of the spec's, on the line and by the nodes' time-outs.
    object_bytes = ENVELOPE_BYTES + plaintext_bytes(Layout.of(MODEL.shapes(), COMPRESSION.k))
    seconds = spec.object_bytes * 8e-6 / spec.clock.upload_mbps
    taken = found.line.seconds(random.Random(1), object_bytes, large=True, up=True)
    assert taken == pytest.approx(seconds, abs=0.3)
    assert object_bytes * 8e-6 / found.clock.upload_mbps == pytest.approx(seconds, rel=0.01)
    assert found.steps == spec.inner.steps
    assert found.gauntlet.contributors == spec.gauntlet.contributors
    assert found.costs.inner / (found.clock.round_blocks * found.clock.block_seconds) > 0.87
    assert WIDE.costs.inner / (WIDE.clock.round_blocks * WIDE.clock.block_seconds) < 0.3


class Blocks:
    """Waits for nothing: says for which block, and that it did not come."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.clock = self
        self.now = 0.0

    def wait(self, block: int, *, final: bool, until: float) -> bool:
        self.asked.append(block)
        return False


def test_each_way_to_withhold_does_what_it_is_called() -> None:
    run, blocks = Run(presets.read("tiny").first), Blocks()
    withheld = Withheld(run, blocks, ["a", "b"], ["judge"])  # type: ignore[arg-type]
    rounds = {withheld.drawn("a", round): round for round in range(40)}
    assert set(rounds) == set(WITHHOLDS)

    def answers(reader: str, of: str, kind: str, verb: str = "get", bucket: str = "a") -> str:
        try:
            withheld.answer(Call(bucket, reader, verb, f"run/{of}/{rounds[kind]:08d}", 5.0))
        except ObjectMissing:
            return "missing"
        except StorageError:
            return "stalls"
        return "served"

    assert [answers("miner", of, "unserved") for of in ("payload", "reveal")] == ["missing", "missing"]
    assert [answers("judge", of, "unserved") for of in ("payload", "reveal")] == ["served", "served"]
    assert [answers(reader, "payload", "stall") for reader in ("judge", "miner")] == ["stalls", "stalls"]
    deadline = run.clock.reveal_deadline(rounds["stall"])
    assert blocks.asked[0] == deadline - STALL_BLOCKS < deadline + 10**6 < blocks.asked[1]
    assert answers("miner", "reveal", "stall") == answers("miner", "payload", "late") == "served"
    for kind in WITHHOLDS:  # one another, what is not theirs, and what they write
        assert answers("b", "payload", kind) == "served"
        assert answers("miner", "mirror", kind) == "served"
        assert answers("miner", "payload", kind, verb="put") == "served"
        assert answers("miner", "payload", kind, bucket="c") == "served"
