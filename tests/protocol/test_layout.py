"""Closed-form offsets against a walk over every chunk."""

from collections.abc import Iterator
from math import ceil, floor, log2, prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.protocol.layout import CHUNK, Layout, Region, TensorLayout, index_bits, kept, low_bits, record_bytes

SIZES = st.one_of(st.integers(0, 9), st.sampled_from([1, 2, 3, 61, 63, 64, 65, 67, 127, 128, 131, 193, 4095, 4097]))
SHAPES = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 13_000)),
    st.tuples(SIZES, SIZES),
    st.tuples(st.integers(0, 130), st.integers(0, 5), st.integers(0, 40)),
    st.tuples(st.integers(0, 70), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9)),
)
KEPT = st.one_of(st.integers(1, 200), st.sampled_from([1, 64, 94, 128, 4095, 4096]))

Chunk = tuple[int, int, int, int]
"""Row, column, height, width within the tensor's matrix."""


def walk(shape: tuple[int, ...]) -> Iterator[Chunk]:
    """Every chunk of a tensor in order, cut the simple way."""
    if prod(shape) == 0:
        return
    if len(shape) < 2:
        rows, columns, height, width = 1, prod(shape), 1, CHUNK
    else:
        rows, columns, height, width = shape[0], prod(shape[1:]), 64, 64
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield row, column, min(height, rows - row), min(width, columns - column)


def naive_record_bytes(n: int, k: int) -> int:
    """Section 3 of the protocol, with floats and ceilings in place of shifts."""
    ones = min(n, max(1, floor(n * k / 4096 + 0.5)))
    low = floor(log2(n // ones))
    bits = ones + ceil(n / 2**low) + ones * low + 2 * ones
    return ceil(bits / 8) + 2


def blocks(region: Region) -> Iterator[tuple[int, int, Chunk]]:
    """(chunk number, first byte, chunk) of each block of a region, from the formulas in its docstring."""
    for i in range(region.down):
        for j in range(region.across):
            yield (
                region.first + i * region.chunk_stride + j,
                region.offset + i * region.stride + j * region.record_bytes,
                (region.row + i * region.height, region.column + j * region.width, region.height, region.width),
            )


@given(SHAPES, KEPT)
@example((), 64)
@example((0,), 64)
@example((0, 7), 64)
@example((7, 0), 64)
@example((4096,), 64)
@example((4097,), 64)
@example((64, 64), 64)
@example((65, 127), 94)
@example((131, 193), 64)
@example((1, 1), 1)
@example((64, 8, 8), 64)
def test_the_regions_name_every_chunk_once_at_the_offset_that_a_walk_finds(shape: tuple[int, ...], k: int) -> None:
    tensor = Layout.of({"t": shape}, k).tensors[0]
    chunks = list(walk(shape))
    found = {number: (at, chunk) for region in tensor.regions for number, at, chunk in blocks(region)}
    offset = 0
    for number, chunk in enumerate(chunks):
        assert found[number] == (offset, chunk)
        offset += naive_record_bytes(chunk[2] * chunk[3], k)
    assert len(found) == len(chunks) == tensor.num_chunks
    assert tensor.num_bytes == offset
    assert sum(height * width for _, _, height, width in chunks) == tensor.numel == prod(shape)
    assert all(region.k == kept(region.n, k) and region.down and region.across for region in tensor.regions)
    assert len(tensor.regions) <= 4


@given(st.dictionaries(st.text(min_size=1, max_size=6), SHAPES, max_size=6), KEPT)
def test_tensors_follow_each_other_in_the_order_of_their_names_as_bytes(
    shapes: dict[str, tuple[int, ...]], k: int
) -> None:
    layout = Layout.of(shapes, k)
    offset = chunk = 0
    for tensor, name in zip(layout, sorted(shapes, key=lambda name: name.encode()), strict=True):
        assert (tensor.name, tensor.shape, tensor.offset, tensor.first_chunk) == (name, shapes[name], offset, chunk)
        offset += sum(naive_record_bytes(height * width, k) for _, _, height, width in walk(shapes[name]))
        chunk += len(list(walk(shapes[name])))
    assert (layout.records_bytes, layout.num_chunks) == (offset, chunk)
    assert layout.num_parameters == sum(prod(shape) for shape in shapes.values())


def test_the_order_of_the_pairs_does_not_change_a_layout() -> None:
    shapes = {"b": (3, 70), "a": (5000,), "a.b": (2, 2), "B": ()}
    assert Layout.of(shapes, 64) == Layout.of(reversed(list(shapes.items())), 64)


def test_a_full_chunk_at_k_64_takes_82_bytes_of_which_64_are_indices() -> None:
    assert kept(4096, 64) == 64
    assert low_bits(4096, 64) == 6
    assert index_bits(4096, 64) == 64 * 8
    assert record_bytes(4096, 64) == 82
    assert Layout.of({"t": (64, 64)}, 64).records_bytes == 82
    assert Layout.of({"t": (4096,)}, 64).records_bytes == 82
    assert round(4096 * 4 / 82, 1) == 199.8


def test_a_full_chunk_at_k_94_takes_112_bytes() -> None:
    assert record_bytes(4096, kept(4096, 94)) == 112


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_a_chunk_keeps_its_share_rounded_half_up_but_at_least_one_value_and_at_most_all(n: int, k: int) -> None:
    assert kept(n, k) == min(n, max(1, floor(n * k / 4096 + 0.5)))
    assert 1 <= kept(n, k) <= n
    assert kept(4096, k) == k


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_the_low_bits_leave_one_to_two_buckets_a_value_so_indices_stay_short(n: int, k: int) -> None:
    ones = kept(n, k)
    low = low_bits(n, ones)
    assert 2**low <= n / ones < 2 ** (low + 1)
    assert record_bytes(n, ones) == naive_record_bytes(n, k)


def test_a_scalar_is_one_chunk_of_one_value() -> None:
    (region,) = Layout.of({"t": ()}, 64).tensors[0].regions
    assert (region.n, region.k, region.down, region.across) == (1, 1, 1, 1)


def test_a_tensor_without_elements_makes_no_chunk_and_no_byte() -> None:
    layout = Layout.of({"empty": (0, 9), "full": (64, 64), "none": (0,)}, 64)
    assert (layout.num_chunks, layout.records_bytes, layout.num_parameters) == (1, 82, 4096)
    assert [tensor.regions for tensor in layout if not tensor.numel] == [(), ()]


def test_other_ranks_are_flattened_by_the_first_dimension() -> None:
    three, two = TensorLayout("t", (70, 3, 50), 64, 0, 0), TensorLayout("t", (70, 150), 64, 0, 0)
    assert three.regions == two.regions
    assert (three.rows, three.columns) == (70, 150)


LLAMA_3_70B = {
    "width": 8192,
    "layers": 80,
    "kv": 1024,
    "ffn": 28_672,
    "vocabulary": 128_256,
}


def test_the_counts_of_a_model_of_70_billion_parameters_are_known_by_hand() -> None:
    m = LLAMA_3_70B
    shapes = {"embedding": (m["vocabulary"], m["width"]), "head": (m["vocabulary"], m["width"]), "norm": (m["width"],)}
    for i in range(m["layers"]):
        shapes |= {f"{i}.q": (m["width"], m["width"]), f"{i}.o": (m["width"], m["width"])}
        shapes |= {f"{i}.k": (m["kv"], m["width"]), f"{i}.v": (m["kv"], m["width"])}
        shapes |= {f"{i}.gate": (m["ffn"], m["width"]), f"{i}.up": (m["ffn"], m["width"])}
        shapes |= {f"{i}.down": (m["width"], m["ffn"]), f"{i}.norm1": (m["width"],), f"{i}.norm2": (m["width"],)}
    layout = Layout.of(shapes, 64)
    assert layout.num_parameters == 70_553_706_496
    assert layout.num_parameters % 4096 == 0
    assert layout.records_bytes == layout.num_parameters // 4096 * 82


@pytest.mark.parametrize("k", [0, -1, 4097])
def test_a_k_outside_1_to_4096_is_refused_with_the_number(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k};"):
        Layout.of({"t": (4,)}, k)


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Layout.of([("t", (4,)), ("t", (5,))], 64)


def test_a_negative_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="negative dimension"):
        Layout.of({"t": (4, -1)}, 64)
