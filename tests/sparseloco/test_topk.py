import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from murmur.protocol.layout import Layout
from sparseloco import topk
from sparseloco.floats import NonFinite

FEW_VALUES = [0.0, -0.0, 1.0, -1.0, 1.5, 2.0**-149, -(2.0**-149), 2.0**-126, 3.0e38, -3.0e38]


def naive(row, k):
    return sorted(sorted(range(len(row)), key=lambda i: (-abs(float(row[i])), i))[:k])


@given(st.data(), st.integers(1, 300), st.integers(1, 4))
def test_the_k_largest_are_chosen_and_the_lowest_index_wins_ties(data, n, num_chunks):
    rows = data.draw(hnp.arrays(np.float32, (num_chunks, n), elements=st.sampled_from(FEW_VALUES)))
    k = data.draw(st.integers(1, n))
    found = topk.top_k(torch.from_numpy(rows), k)
    assert found.tolist() == [naive(row, k) for row in rows]


def test_a_full_chunk_of_equal_values_keeps_its_first_indices():
    assert topk.top_k(torch.full((3, 4096), -0.5), 64).tolist() == [list(range(64))] * 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("k", [1, 10])
def test_a_value_that_is_not_finite_is_refused(bad, k):
    rows = torch.zeros(2, 10)
    rows[1, 7] = bad
    with pytest.raises(NonFinite, match="NaN or an infinity"):
        topk.top_k(rows, k)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 512])
@pytest.mark.parametrize("shape", [(200, 333), (64, 64), (9000,), (5, 7, 100), (), (0, 3), (1, 700)])
def test_slabs_tile_the_chunks_of_every_region_within_the_limit(monkeypatch, limit, shape):
    monkeypatch.setattr(topk, "SLAB_CHUNKS", limit)
    tensor = Layout.of({"t": shape}, 64).tensors[0]
    values = torch.arange(tensor.numel, dtype=torch.float32).reshape(shape)
    seen, chunks, offsets = torch.zeros(shape), [], []
    for slab in topk.slabs(tensor):
        assert slab.down * slab.across <= limit
        topk.write_blocks(seen, tensor, slab, topk.blocks(values, tensor, slab))
        places = [(i, j) for i in range(slab.down) for j in range(slab.across)]
        chunks += [slab.first + i * slab.chunk_stride + j for i, j in places]
        offsets += [(slab.offset + i * slab.stride + j * slab.record_bytes, slab.record_bytes) for i, j in places]
    assert torch.equal(seen, values)
    assert sorted(chunks) == list(range(tensor.num_chunks))
    ends = [0] + [offset + size for offset, size in sorted(offsets)]
    assert [offset for offset, _ in sorted(offsets)] == ends[:-1]
    assert ends[-1] == tensor.num_bytes


def test_blocks_are_copies():
    tensor = Layout.of({"t": (64, 64)}, 64).tensors[0]
    values = torch.ones(64, 64)
    topk.blocks(values, tensor, tensor.regions[0]).zero_()
    assert values.sum() == 4096
