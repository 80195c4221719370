"""Muon: torch's own, bit for bit, on any number of ranks."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from murmur.training import muon
from murmur.training.muon import Muon, orthogonalised
from murmur.training.parallel import ALONE, Ranks, local

SHAPES = ((64, 64), (200, 48), (30, 90), (2, 40), (7, 7))
"""The last ones have fewer rows than there are ranks, or shards of unequal size."""
STEPS = 3


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def torchs() -> list[Tensor]:
    """Weights after some steps of torch's Muon."""
    matrices = [nn.Parameter(weight) for weight in drawn(0)]
    its = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(STEPS):
        for matrix, grad in zip(matrices, drawn(1 + step), strict=True):
            matrix.grad = grad
        its.step()  # type: ignore[no-untyped-call]
    return [matrix.detach() for matrix in matrices]


@pytest.fixture
def products_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(muon, "product_dtype", lambda device: torch.bfloat16)


@pytest.mark.usefixtures("products_in_bf16")
def test_a_whole_matrix_takes_the_steps_of_torchs_muon() -> None:
    matrices = [nn.Parameter(weight) for weight in drawn(0)]
    its = Muon(matrices, ALONE, lr=0.02, weight_decay=0.1)
    for step in range(STEPS):
        for matrix, grad in zip(matrices, drawn(1 + step), strict=True):
            matrix.grad = grad
        its.step()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(matrices, torchs(), strict=True))


class Threads(Ranks):
    """Ranks that are threads of one process, with a queue from each to each."""

    def __init__(self, index: int, queues: Sequence[Sequence[Queue[list[Tensor]]]]) -> None:
        super().__init__(index, len(queues))
        self._queues = queues

    def exchange(self, given: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[torch.Size]]) -> list[list[Tensor]]:
        for queue, theirs in zip(self._queues[self.index], given, strict=True):
            queue.put([tensor.clone() for tensor in theirs])
        found = [queues[self.index].get(timeout=60) for queues in self._queues]
        assert [[tensor.shape for tensor in theirs] for theirs in found] == [list(theirs) for theirs in shapes]
        return found


@pytest.fixture(params=[2, 3, 5])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """Ranks that do not exist: only so that a tensor knows its whole shape."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield init_device_mesh("cpu", (request.param,))
    dist.destroy_process_group()


@pytest.mark.usefixtures("products_in_bf16")
def test_matrices_sharded_by_rows_take_the_same_steps_bit_for_bit(mesh: DeviceMesh) -> None:
    size = mesh.size()
    queues: list[list[Queue[list[Tensor]]]] = [[Queue() for _ in range(size)] for _ in range(size)]

    def rows(ranks: Ranks, whole: Tensor) -> DTensor:
        part = whole[ranks.rows(len(whole))].clone()
        return DTensor.from_local(part, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())

    def steps(index: int) -> list[Tensor]:
        ranks = Threads(index, queues)
        matrices = [nn.Parameter(rows(ranks, weight)) for weight in drawn(0)]
        its = Muon(matrices, ranks, lr=0.02, weight_decay=0.1)
        for step in range(STEPS):
            for matrix, grad in zip(matrices, drawn(1 + step), strict=True):
                matrix.grad = rows(ranks, grad)
            its.step()
        return [local(matrix).detach() for matrix in matrices]

    with ThreadPoolExecutor(size) as pool:
        parts = list(pool.map(steps, range(size)))
    for pieces, whole in zip(zip(*parts, strict=True), torchs(), strict=True):
        assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
def test_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalised(matrix.bfloat16()).float())
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
def test_a_cpu_multiplies_in_fp32_with_nearly_the_same_result(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    ours = orthogonalised(matrix.clone())
    monkeypatch.setattr(muon, "product_dtype", lambda device: torch.bfloat16)
    theirs = orthogonalised(matrix.clone())
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert 0 < float((ours - theirs).norm() / theirs.norm()) < 0.03


def test_a_matrix_without_a_gradient_stays_where_it_is() -> None:
    still, moved = (nn.Parameter(weight) for weight in drawn(0)[:2])
    its = Muon([still, moved], ALONE, lr=0.02, weight_decay=0.1)
    moved.grad = drawn(1)[1]
    its.step()
    assert torch.equal(still, drawn(0)[0])
    assert not torch.equal(moved, drawn(0)[1])
    assert still not in its.state
