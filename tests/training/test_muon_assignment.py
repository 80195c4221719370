"""Which rank orthogonalises what: every matrix once, evenly, and the FLOPs that torch counts."""

from math import prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from murmur.plan import presets
from murmur.protocol.spec import ModelSpec
from murmur.training.muon import orthogonalised
from murmur.training.muon_assignment import Shape, deal, muon_flops, orthogonalising_flops


def matrices(model: ModelSpec) -> list[Shape]:
    return [shape for _, shape in sorted(model.shapes().items()) if len(shape) == 2]


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("preset", ["tiny", "1b", "covenant-72b"])
def test_every_matrix_is_dealt_once_and_no_turn_gives_a_rank_more_than_the_largest(preset: str, ranks: int) -> None:
    shapes = matrices(presets.read(preset).first.model)
    turns = deal(shapes, ranks)
    assert sorted(place for turn in turns for theirs in turn for place in theirs) == list(range(len(shapes)))
    loads = [[sum(prod(shapes[place]) for place in theirs) for theirs in turn] for turn in turns]
    assert max(max(turn) for turn in loads) == max(prod(shape) for shape in shapes)
    assert all(len(turn) == ranks for turn in turns)


def test_nothing_is_dealt_where_nothing_is() -> None:
    assert deal([], 4) == []


@pytest.mark.parametrize("shape", [(48, 48), (96, 32), (32, 80)])
def test_flops_are_those_that_torch_counts(shape: Shape) -> None:
    with FlopCounterMode(display=False) as counted:
        orthogonalised(torch.ones(shape, dtype=torch.bfloat16))
    assert counted.get_total_flops() == orthogonalising_flops(shape)


def test_at_72b_eight_ranks_share_the_work_evenly() -> None:
    spec = presets.read("covenant-72b").first
    muon = spec.inner.model_copy(update={"optimizer": "muon"})
    whole = sum(orthogonalising_flops(shape) for shape in matrices(spec.model))
    assert muon_flops(spec.model, muon, 1) == whole
    assert whole / 8 <= muon_flops(spec.model, muon, 8) <= 1.05 * whole / 8
    assert muon_flops(spec.model, spec.inner, 8) == 0
