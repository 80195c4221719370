"""The presets in configs/: each is a run spec but for what only one network can know."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from protocol.spec import RunSpec
from tests.specs import toy_table

CONFIGS = Path(__file__).parents[2] / "configs"
NETWORKS = {"chain", "netuid", "owner", "genesis_checkpoint", "name", "clock"}


def completed(name: str) -> RunSpec:
    """The preset with the toy run's network, clock and data counts."""
    toy = toy_table()
    preset: dict[str, Any] = tomllib.loads((CONFIGS / name).read_text())
    data = {"index": toy["data"]["index"], "num_tokens": 10**9}
    kept = {field: value for field, value in toy.items() if field in NETWORKS and field not in preset}
    return RunSpec.model_validate(kept | preset | {"data": data | preset["data"]})


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.toml")))
def test_a_preset_makes_a_valid_run(name: str) -> None:
    assert completed(name).layout.num_chunks


def test_the_tiny_preset_has_the_size_that_one_counts_by_hand() -> None:
    spec = completed("tiny.toml")
    layer = 64 + 64 * 64 + 2 * 32 * 64 + 64 * 64 + 64 + 3 * 64 * 192
    assert spec.layout.num_parameters == 257 * 64 + 2 * layer + 64 == 115_072
    full_chunks = 257 // 64 + 2 * (1 + 1 + 1 + 3 * 3)
    odd_bytes = spec.layout.records_bytes - 82 * full_chunks
    assert 0 < odd_bytes < 200
    assert spec.object_bytes == 204 + 32 + spec.layout.records_bytes
    assert spec.pages_per_round == 1
