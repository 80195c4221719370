"""One rank of eight at 72 billion parameters: the trainer that nodes run, without the seven others.

torch's fake process group: collectives return at once, and what would have come from others is whatever lay there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from murmur.plan import presets
from murmur.protocol.layout import Layout
from murmur.protocol.spec import RunSpec
from murmur.training.host import model_bytes
from murmur.training.memory import trainer_parts
from murmur.training.parallel import Ranks, local
from murmur.training.sizes import Sizes
from murmur.training.trainer import RECORDS, TOKENS, Trainer
from sparseloco import ops

RANKS = 8
SEQUENCES = 8
DOWN = "layers.0.ffn.down.weight"


class Calls(dict[str, str]):
    """What the first rank tells the others: nobody listens."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.pop(key, None) is not None


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield Ranks(0, RANKS, "cpu", Calls())  # type: ignore[arg-type]
    dist.destroy_process_group()


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def test_a_rank_of_the_72b_run_is_made_of_its_own_share_and_touches_none_of_it_before_it_loads(ranks: Ranks) -> None:
    spec = presets.read("covenant-72b").first
    before = resident_bytes()
    trainer = Trainer(ranks, spec=spec.training.model_dump_json())
    for area in ("theta", "error_feedback", *trainer.moment_areas):
        trainer.area(area, model_bytes(spec.layout))
    held = sum(local(parameter).nbytes for parameter in trainer.model.parameters())
    assert held == trainer_parts(Sizes(spec), RANKS, 1)["parameters"].gpu_computing
    assert resident_bytes() - before < 500_000_000


def one_layer() -> RunSpec:
    """A layer of the 72B model's width, with a small table and short sequences."""
    table: dict[str, Any] = presets.read("covenant-72b").first.model_dump()
    table["model"] |= {"layers": 1, "vocabulary": 4096, "context": 16}
    table["inner"] |= {"steps": 1, "sequences": SEQUENCES}
    table["data"] |= {"page_sequences": SEQUENCES}
    return RunSpec.model_validate(table)


@pytest.mark.slow
def test_a_layer_of_the_72b_model_takes_every_step_of_a_round_on_one_rank_of_eight(ranks: Ranks) -> None:
    spec = one_layer()
    trainer = Trainer(ranks, spec=spec.training.model_dump_json())
    for area in ("theta", "left", "ends", *trainer.moment_areas):
        trainer.area(area, model_bytes(spec.layout))
    trainer.area(TOKENS, SEQUENCES * (spec.model.context + 1) * 8)
    records = trainer.area(RECORDS, spec.layout.records_bytes)
    theta = trainer._rows("theta")
    for tensor in theta.values():
        tensor.normal_(0.0, 0.02)
    trainer.load(area="theta")
    weights = trainer._weights()
    assert all(torch.equal(weights[name], theta[name]) for name in theta)

    report = trainer.inner_round(inner=spec.inner.model_dump(), first_step=0, num_sequences=SEQUENCES)
    assert report.num_tokens == SEQUENCES * spec.model.context
    assert trainer.compress(theta="theta", error=None, new_error="left", beta=spec.compression.decay)

    # This rank's rows of a matrix, as one process would have compressed them.
    tensor = next(tensor for tensor in spec.layout if tensor.name == DOWN)
    alone = Layout.of({DOWN: tuple(theta[DOWN].shape)}, spec.layout.k)
    ends = {DOWN: trainer._weights()[DOWN]}
    update, error = ops.compress({DOWN: theta[DOWN]}, ends, None, alone, beta=spec.compression.decay)
    there = records.tensor((spec.layout.records_bytes,), torch.uint8)[tensor.offset :][: len(update.records)]
    assert there.numpy().tobytes() == bytes(update.records)
    assert torch.equal(trainer._rows("left")[DOWN], error[DOWN])

    assert trainer.store_moments() == 1
    trainer.load_moments(num_steps=1)
    before = ends[DOWN].clone()
    trainer.probe(scales=[1.0] * len(list(spec.layout)), step=0.25)
    assert not torch.equal(before, trainer._weights()[DOWN])
    assert trainer.undo_probe()
    assert torch.equal(before, trainer._weights()[DOWN])
