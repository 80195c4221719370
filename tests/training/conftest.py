"""A toy run on real text: a byte model small enough that a round takes milliseconds."""

from pathlib import Path

import pytest

from murmur.data import build
from murmur.data.shards import Shards
from murmur.protocol.spec import ClockSpec, DataSpec, InnerSpec, ModelSpec, RunSpec
from tests.small_run import recut, text


@pytest.fixture(scope="session")
def model_spec() -> ModelSpec:
    return ModelSpec(vocabulary=264, layers=2, width=32, heads=4, kv_heads=2, ffn=64, context=32)


@pytest.fixture(scope="session")
def inner_spec() -> InnerSpec:
    return InnerSpec(steps=4, sequences=4, peak_lr=3e-3, final_lr=3e-4, warmup_steps=4, decay_steps=100)


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of several shards a split."""
    folder = tmp_path_factory.mktemp("data")
    source = text(folder.with_name(f"{folder.name}.jsonl"))
    build.build(source, folder, held_out=0.2, limit_bytes=60_000)
    recut(folder, 4000)
    return folder


@pytest.fixture
def data(data_folder: Path) -> Shards:
    return Shards.open(data_folder)


@pytest.fixture
def run_spec(model_spec: ModelSpec, inner_spec: InnerSpec, data: Shards) -> RunSpec:
    return RunSpec(
        name="toy",
        chain="00" * 32,
        netuid=1,
        owner="5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
        genesis_checkpoint="00" * 32,
        model=model_spec,
        inner=inner_spec,
        data=DataSpec(
            index=data.digest.hex(), num_tokens=data.train.num_tokens, page_sequences=8, held_out_sequences=10
        ),
        clock=ClockSpec(start_block=10, round_blocks=100, commit=40, reveal=46, words=70),
    )
