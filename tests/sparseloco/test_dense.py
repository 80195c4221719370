"""Every value in int8: what one chunk comes to by hand, strict decoding, and native = reference for every instruction
set and number of threads."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import DenseLayout
from murmur.protocol.types import Digest, PeerId
from sparseloco import dense, kernels, ops, wire
from sparseloco.dense_native import DenseCodec
from sparseloco.floats import NonFinite
from sparseloco.update import Update
from tests.random_cases import share
from tests.sparseloco.samples import KINDS, RAGGED, arrays, same_bits, tensors, update_of, zeros
from tests.sparseloco.test_wire import FUZZ_CASES

try:
    NATIVE = [DenseCodec(isa, threads) for isa in kernels.supported() for threads in (1, 3)]
except kernels.Unavailable:
    NATIVE = []
SAFE = sorted(set(KINDS) - {"huge range", "overflowing sums"})
"""Samples within 2^71."""
WIDE = {**RAGGED, "band": (64, 900), "vector": (200_000,)}
THETA = Digest(bytes(range(32)))
DENORMAL = struct.unpack("<f", struct.pack("<I", 0x007FFFFF))[0]
needs_native = pytest.mark.skipif(not NATIVE, reason="the native codec is not built")


def layout_of(shapes=RAGGED):
    return DenseLayout.of(shapes, 64)


def encoded(values, shapes=RAGGED):
    return dense.encode(tensors(values), zeros(shapes), layout_of(shapes))


def chunk(values):
    """(scale, codes) of a tensor of one chunk."""
    values = np.asarray(values, dtype=np.float32)
    records = bytes(encoded({"t": values}, {"t": values.shape}).records)
    return struct.unpack("<f", records[:4])[0], list(np.frombuffer(records[4:], dtype=np.int8))


def plaintext(records):
    return bytes(THETA) + bytes(records)


# --- the format ------------------------------------------------------------------------------------------------


def test_a_chunk_is_its_largest_magnitude_over_127_and_codes_rounded_half_to_even():
    # 127 makes the scale 1: what is left is rounding.
    scale, codes = chunk([-127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.4, 0.0])
    assert (scale, codes) == (1.0, [-127, 0, 2, 2, 0, -2, 126, 0])


def test_the_error_of_a_value_is_half_a_step_of_its_chunk_at_most():
    values = arrays("heavy-tailed", 0, WIDE)
    update = encoded(values, WIDE)
    for index, tensor in enumerate(update.layout):
        flat, found = values[tensor.name].reshape(-1), update.dense(index).numpy().reshape(-1)
        for begin in range(0, len(flat), 4096):
            piece = flat[begin : begin + 4096]
            error = np.abs(piece - found[begin : begin + 4096]).max(initial=0.0)
            assert error <= np.abs(piece).max(initial=0.0) / 127 * 0.5001


@pytest.mark.parametrize("values", [[0.0, -0.0, 0.0], [127 * DENORMAL, 0.0], [1e-45] * 5])
def test_a_chunk_whose_scale_is_no_normal_number_is_a_chunk_of_zeros(values):
    assert chunk(values) == (0.0, [0] * len(values))


def test_the_smallest_scale_is_the_smallest_normal_number():
    assert chunk([127 * 2.0**-126, 2.0**-126])[:1] == (2.0**-126,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 127 * 2.0**64 * 1.001, 3.4e38])
def test_what_no_sum_could_carry_is_not_sent(bad):
    for codec in [dense, *NATIVE]:
        values = arrays("normal", 0)
        values["corner"][5, 5] = bad
        with pytest.raises(NonFinite):
            codec.encode(tensors(values), zeros(), layout_of())


def test_every_tensor_begins_a_chunk_and_a_payload_is_a_byte_a_value():
    layout = DenseLayout.of({"a": (4097,), "b": (2, 2), "c": (0, 5)}, 64)
    assert layout.starts == {"a": 0, "b": 4097 + 8, "c": 4097 + 8 + 8}
    assert layout.records_bytes == 4101 + 3 * 4
    assert layout.num_chunks == 3


def test_a_plaintext_carries_the_theta_digest_and_is_read_back():
    update = encoded(arrays("normal", 1))
    data = wire.encode(THETA, update)
    for choice in ("auto", "reference"):
        ops.use(choice)
        found = ops.parse_submission(PeerId(bytes(32)), 7, data, layout_of())
        assert (found.theta, found.round, found.update) == (THETA, 7, update)
    ops.use("auto")


# --- strict decoding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "put", "why"),
    [
        (0, struct.pack("<f", -1.0), "scale"),
        (0, struct.pack("<f", float("nan")), "scale"),
        (0, struct.pack("<f", float("inf")), "scale"),
        (0, struct.pack("<f", DENORMAL), "scale"),
        (0, struct.pack("<f", 2.0**64 * 1.001), "scale"),
        (0, struct.pack("<f", -0.0), "scale"),
        (6, b"\x80", "-128"),
        (4, b"\x7e", "no code"),
        (0, struct.pack("<f", 0.0), "no code"),
    ],
)
def test_bytes_that_no_encoder_makes_are_refused_with_the_reason(at, put, why):
    shapes = {"t": (70, 64)}
    layout, values = layout_of(shapes), {"t": np.zeros((70, 64), dtype=np.float32)}
    values["t"][0, 0] = 127.0
    records = bytearray(encoded(values, shapes).records)
    records[at : at + len(put)] = put
    for codec in [dense, *NATIVE]:
        with pytest.raises(InvalidSubmission, match=why):
            codec.parse(plaintext(records), layout)
    for size in (len(records) - 1, len(records) + 1):
        with pytest.raises(InvalidSubmission, match="bytes"):
            dense.parse(plaintext(bytes(size)), layout)


@st.composite
def hostile(draw, shapes):
    data = bytearray(encoded(arrays(draw(st.sampled_from(SAFE)), 0, shapes), shapes).records)
    for place in draw(st.lists(st.integers(0, len(data) * 8 - 1), max_size=6)):
        data[place // 8] ^= 1 << place % 8
    for place in draw(st.lists(st.sampled_from([0, 1, 2, 3, 4100, 4101, 4102, 4103]), max_size=2)):
        data[place] = draw(st.integers(0, 255))
    return bytes(data)


FUZZ = {"matrix": (70, 67), "scalar": (), "vector": (5,)}


@needs_native
@settings(max_examples=max(share(300), FUZZ_CASES // 4), suppress_health_check=list(HealthCheck))
@given(hostile(FUZZ))
def test_of_any_bytes_native_and_reference_say_the_same_and_nothing_is_not_finite(records):
    layout = layout_of(FUZZ)

    def found(codec):
        try:
            return codec.parse(plaintext(records), layout)
        except InvalidSubmission as fault:
            return str(fault)

    expected = found(dense)
    assert all(found(codec) == expected for codec in NATIVE)
    if isinstance(expected, Update):
        mean = dense.mean([expected] * 256, layout)
        assert all(torch.isfinite(mean.dense(index)).all() for index in range(len(FUZZ)))


# --- native = reference ----------------------------------------------------------------------------------------


def round_of(codec, kinds, shapes, momentum):
    """Everything that a round does, twice: payloads, their mean, and two steps; as bytes and tensors."""
    layout = layout_of(shapes)
    theta, velocity = tensors(arrays("normal", 9, shapes)), zeros(shapes)
    payloads = [codec.encode(tensors(arrays(kind, seed, shapes)), theta, layout) for seed, kind in enumerate(kinds)]
    mean = codec.mean([*payloads, None], layout)
    for _ in range(2):
        out = zeros(shapes)
        moving = velocity if momentum else None
        codec.step(theta, mean, moving, alpha=0.7, momentum=momentum, out=out)
        theta = out
    return payloads, mean, theta, velocity


def assert_same(kinds, shapes, momentum):
    payloads, mean, theta, velocity = round_of(dense, kinds, shapes, momentum)
    for codec in NATIVE:
        found = round_of(codec, kinds, shapes, momentum)
        assert found[:2] == (payloads, mean)
        assert same_bits(found[2], theta)
        assert same_bits(found[3], velocity)


@needs_native
@pytest.mark.parametrize("kind", SAFE)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_native_is_the_reference_bit_for_bit_on(kind, momentum):
    assert_same([kind, "normal", kind], RAGGED, momentum)


@needs_native
def test_native_is_the_reference_on_many_chunks_and_threads():
    assert_same(SAFE, WIDE, 0.9)


@needs_native
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    kinds=st.lists(st.sampled_from(SAFE), min_size=1, max_size=5),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_any_shape_comes_to_the_same_bits(height, width, kinds, momentum):
    assert_same(kinds, {"matrix": (height, width), "vector": (height * width,)}, momentum)


@needs_native
def test_a_malformed_record_stops_a_sum_and_a_step():
    layout = layout_of()
    broken = bytearray(encoded(arrays("normal", 0)).records)
    broken[8] = 0x80
    update = dense.DenseUpdate(layout, bytes(broken))
    for codec in NATIVE:
        with pytest.raises(InvalidSubmission, match="-128"):
            codec.mean([update], layout)
        with pytest.raises(InvalidSubmission, match="-128"):
            codec.step(zeros(), update, None, alpha=1.0, momentum=0.0, out=zeros())


# --- what it means ---------------------------------------------------------------------------------------------


def test_the_mean_counts_one_that_did_not_parse_as_zeros_and_is_close_to_the_mean_of_the_values():
    values = [arrays("normal", seed) for seed in range(4)]
    updates = [encoded(each) for each in values]
    mean = dense.mean([*updates, None], layout_of())
    for index, tensor in enumerate(mean.layout):
        true = sum(each[tensor.name].astype(np.float64) for each in values) / 5
        step = np.abs(true).max(initial=0.0) / 127
        assert np.abs(mean.dense(index).numpy() - true).max(initial=0.0) <= 2 * step + 4 * 0.8e-6 * 4
    nothing = dense.mean([None], layout_of())
    assert not any(bytes(nothing.records))
    for codec in NATIVE:
        assert codec.mean([None], layout_of()) == nothing


def test_the_step_is_torchs_sgd_with_nesterovs_momentum():
    shapes = {"t": (64, 100)}
    parameter = torch.nn.Parameter(tensors(arrays("normal", 1, shapes))["t"] * 1e4)
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    theta, velocity = {"t": parameter.detach().clone()}, zeros(shapes)
    for seed in range(6):
        gradient = encoded(arrays("heavy-tailed", seed, shapes), shapes)
        parameter.grad = gradient.dense(0)
        optimizer.step()
        out = zeros(shapes)
        dense.step(theta, gradient, velocity, alpha=0.7, momentum=0.9, out=out)
        theta = out
    assert torch.allclose(theta["t"], parameter, rtol=1e-5, atol=1e-7)


def test_a_step_may_not_write_over_what_it_reads():
    theta, velocity = zeros(), zeros()
    gradient = encoded(arrays("normal", 0))
    with pytest.raises(ValueError, match="shares memory"):
        ops.dense_step(theta, gradient, velocity, alpha=1.0, momentum=0.9, out=theta)
    with pytest.raises(ValueError, match="sparse"):
        DenseCodec("plain").step(theta, update_of(), None, alpha=1.0, momentum=0.0, out=zeros())


# --- parts of a mean -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 60, 1000])
def test_parts_cover_all_chunks_once_and_in_order(count):
    layout = layout_of(WIDE)
    parts = layout.parts(count)
    assert len(parts) == count
    assert sum(part.records_bytes for part in parts) == layout.records_bytes
    sizes = [part.num_chunks for part in parts]
    assert sum(sizes) == layout.num_chunks
    assert max(sizes) - min(sizes) <= 1
    names = [tensor.name for part in parts for tensor in part]
    assert sorted(names, key=str.encode) == names
    values = {name: sum(t.numel for part in parts for t in part if t.name == name) for name in set(names)}
    assert values == {tensor.name: tensor.numel for tensor in layout if tensor.numel}


@pytest.mark.parametrize("codec", [dense, *NATIVE], ids=str)
@pytest.mark.parametrize("count", [2, 5, 60])
def test_the_mean_of_parts_is_the_parts_of_the_mean(codec, count):
    layout = layout_of(WIDE)
    updates = [dense.encode(tensors(arrays(kind, 5, WIDE)), zeros(WIDE), layout) for kind in SAFE[:3]]
    whole = memoryview(dense.mean([*updates, None], layout).records)
    begin = 0
    for part in layout.parts(count):
        end = begin + part.records_bytes
        # A part is parsed behind as many bytes as a plaintext's digest has, whatever they are.
        cut = [codec.parse((bytes(32) + bytes(one.records))[begin : end + 32], part) for one in updates]
        assert bytes(codec.mean([*cut, None], part).records) == bytes(whole[begin:end])
        begin = end
