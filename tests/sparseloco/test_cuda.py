"""The CUDA codec gives the reference's bits: on a GPU where there is one, and everywhere compiled for the CPU
(emulate_cuda.h), where its threads run as fibers in several orders."""

import ast
import re
import shutil
import subprocess
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.protocol.errors import ConfigError, InvalidSubmission
from murmur.protocol.layout import Layout
from sparseloco import cuda, kernels, ops, outer, reference, wire
from sparseloco.floats import NonFinite
from sparseloco.outer import OuterState
from sparseloco.update import Update
from tests.sparseloco.emulated import SOURCE, emulated
from tests.sparseloco.samples import KINDS, RAGGED, arrays, same_bits, tensors, update_of, zeros
from tests.sparseloco.test_native import WIDE, verdict
from tests.sparseloco.test_reference import BETA, inputs
from tests.sparseloco.test_wire import FUZZ_CASES, FUZZ_LAYOUT, SMALL, hostile

KS = (1, 63, 64, 94, 4096)
RULES = get_args(outer.Aggregate)
BUILT_LIBRARY = cuda.library  # before the emulated one takes its place


@pytest.fixture(scope="module", params=["emulated", "gpu"] if torch.cuda.is_available() else ["emulated"])
def codec(request, tmp_path_factory):
    if request.param == "gpu":
        yield cuda.codec(torch.device("cuda", 0))
        return
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    with emulated(tmp_path_factory.mktemp("emulated")) as codec:
        yield codec


def run_threads_in_order(seed):
    """Of an emulated block: 0 ascending, else shuffled. On a GPU the hardware decides."""
    if hasattr(cuda.library(), "emulate_order"):
        cuda.library().emulate_order(seed)


def on(codec, values):
    """The tensors where the codec works."""
    return None if values is None else {name: value.to(codec.device) for name, value in values.items()}


def same(found, expected):
    return same_bits({name: value.cpu() for name, value in found.items()}, expected)


def assert_same_compression(codec, given, layout):
    update, error = codec.compress(*(on(codec, values) for values in given), layout, BETA)
    expected, expected_error = reference.compress(*given, layout, BETA)
    assert update == expected
    assert same(error, expected_error)
    assert codec.counted(update).norms == expected.norms


@pytest.mark.parametrize(("order", "k"), list(enumerate(KS)))
@pytest.mark.parametrize("kind", KINDS)
def test_compress_equals_the_reference_bit_for_bit_on(kind, order, k, codec):
    run_threads_in_order(order)
    assert_same_compression(codec, [tensors(values) for values in inputs(kind)], Layout.of(RAGGED, k))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_any_order_of_threads_compresses_and_steps_to_the_same_bits(order, codec):
    run_threads_in_order(order)
    for k in (64, 700):
        layout = Layout.of(WIDE, k)
        assert_same_compression(codec, [tensors(arrays("heavy-tailed", seed, WIDE)) for seed in range(3)], layout)
    updates = [update_of(kind, 0, WIDE) for kind in ("normal", "tied", "zero")]
    theta = tensors(arrays("normal", 3, WIDE))
    state = OuterState.initial(updates[0].layout)
    for rule in RULES:
        found = codec.outer_step(on(codec, theta), updates, state, alpha=0.65, aggregate=rule)
        expected = outer.outer_step(theta, updates, state, alpha=0.65, aggregate=rule)
        assert same(found[0], expected[0])
        assert found[1:] == expected[1:]


@given(
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    k=st.integers(1, 4096),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(sorted(KINDS)),
)
@settings(max_examples=40)
def test_any_shape_and_k_compress_to_the_same_bits(codec, height, width, k, seed, kind):
    run_threads_in_order(seed)
    shapes = {"matrix": (height, width), "vector": (height * width,)}
    assert_same_compression(codec, (tensors(arrays(kind, seed, shapes)), zeros(shapes), None), Layout.of(shapes, k))


@pytest.mark.parametrize("k", [1, 64, 4096])
def test_blocks_of_very_different_scale_compress_to_the_same_bits(k, codec):
    # The threshold that one block leaves to the next as a guess is always wrong here.
    scales = 10.0 ** np.random.default_rng(0).uniform(-30, 30, (5, 1, 7, 1))
    values = np.random.default_rng(1).normal(size=(5, 64, 7, 64)) * scales
    theta = {"t": torch.from_numpy(values.reshape(320, 448).astype(np.float32))}
    assert_same_compression(codec, (theta, zeros({"t": (320, 448)}), None), Layout.of({"t": (320, 448)}, k))


def test_bf16_parameters_and_no_error_compress_as_in_the_reference(codec):
    theta, theta_r, error = (tensors(values) for values in inputs("normal"))
    half = {name: value.bfloat16() for name, value in theta_r.items()}
    mixed = {name: half[name] if place % 2 else theta_r[name] for place, name in enumerate(RAGGED)}
    for ends in (half, mixed):
        for carried in (error, None):
            assert_same_compression(codec, (theta, ends, carried), Layout.of(RAGGED, 64))


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_tensor_that_begins_anywhere_in_memory_compresses_and_steps_to_the_same_bits(place, codec):
    def shifted(values):
        room = torch.empty(64 * 128 + 1, device=codec.device)
        return {"t": room[1:].view(64, 128).copy_(values["t"])}

    shapes = {"t": (64, 128)}
    layout = Layout.of(shapes, 64)
    given = [tensors(arrays("normal", seed, shapes)) for seed in range(3)]
    expected, expected_error = reference.compress(*given, layout, BETA)
    moved = [on(codec, values) for values in given]
    out = on(codec, zeros(shapes))
    for values in (moved[place] if place < 3 else out,):
        values |= shifted(values)
    update, error = codec.compress(*moved, layout, BETA, out=out)
    assert update == expected
    assert same(error, expected_error)
    step = {"alpha": 1.0, "aggregate": "mean"}
    after, _, _ = outer.outer_step(given[0], [expected], OuterState.initial(layout), **step)
    assert same(codec.outer_step(moved[0], [update], OuterState.initial(layout), **step, out=out)[0], after)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("name", "at"), [("corner", (130, 66)), ("full", (0, 0)), ("long", (4098,)), ("scalar", ())])
def test_an_input_that_is_not_finite_is_refused_wherever_it_stands(place, bad, name, at, codec):
    given = [tensors(values) for values in inputs("normal")]
    given[place][name][at] = bad
    with pytest.raises(NonFinite):
        codec.compress(*(on(codec, values) for values in given), Layout.of(RAGGED, 64), BETA)


def test_results_go_where_the_caller_wants_them_and_may_replace_the_inputs(codec):
    layout = Layout.of(WIDE, 64)
    theta, theta_r, error = (tensors(arrays("normal", seed, WIDE)) for seed in range(3))
    expected, expected_error = reference.compress(theta, theta_r, error, layout, BETA)
    step = {"alpha": 1.0, "aggregate": "mean"}
    after, _, _ = outer.outer_step(theta, [expected], OuterState.initial(layout), **step)
    theta, theta_r, error = (on(codec, values) for values in (theta, theta_r, error))
    assert codec.compress(theta, theta_r, error, layout, BETA, out=error)[0] == expected
    assert same(error, expected_error)
    codec.outer_step(theta, [expected], OuterState.initial(layout), **step, out=theta)
    assert same(theta, after)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("order", "k"), [(0, 64), (1, 700), (2, 4096)])
def test_the_outer_step_equals_the_reference_bit_for_bit(rule, order, k, codec):
    run_threads_in_order(order)
    kinds = ("normal", "heavy-tailed", "tied", "sparse", "zero", "signed zeros", "constant")
    updates = [update_of(kind, place, RAGGED, k) for place, kind in enumerate(kinds)]
    updates.insert(2, None)
    theta = tensors(arrays("normal", 9))
    theta["corner"][0, :5] = -0.0
    for state in (OuterState.initial(Layout.of(RAGGED, k)), OuterState(4, (1e-3,) * len(RAGGED), 3e-3)):
        found = codec.outer_step(on(codec, theta), updates, state, alpha=0.65, aggregate=rule)
        expected = outer.outer_step(theta, updates, state, alpha=0.65, aggregate=rule)
        assert same(found[0], expected[0])
        assert found[1:] == expected[1:]


@pytest.mark.parametrize("kind", ["normal", "signed zeros", "constant"])
@pytest.mark.parametrize("step", [0.4, 0.0, 1e-30])
def test_a_probe_equals_the_reference_bit_for_bit(kind, step, codec):
    # With a weight of zero, -0.0 - (-0.0) shows whether a sum began at +0.
    theta = {name: torch.where(value > 0, value, -0.0) for name, value in tensors(arrays("normal", 3)).items()}
    update = update_of(kind, 4)
    factor = tuple(1 / (place + 1) for place in range(len(RAGGED)))
    found = codec.apply_probe(on(codec, theta), update, factor, step)
    assert same(found, outer.apply_probe(theta, update, factor, step))


def test_a_layout_without_chunks_needs_no_kernel(codec):
    layout = Layout.of({"t": (0, 4)}, 64)
    update, error = codec.compress(*(on(codec, zeros({"t": (0, 4)})) for _ in range(3)), layout, BETA)
    assert update.records == b""
    assert error["t"].shape == (0, 4)


# --- strangers' bytes --------------------------------------------------------------------------------------------


@settings(max_examples=FUZZ_CASES // 4)
@given(hostile)
def test_the_decoder_accepts_what_the_reference_accepts_and_nothing_else(codec, plaintext):
    expected = verdict(wire.parse, plaintext, FUZZ_LAYOUT)
    found = verdict(codec.parse, plaintext, FUZZ_LAYOUT)
    # A plaintext with several faults may be refused for another of them.
    assert found[0] == expected[0]
    if isinstance(found[0], Update):
        assert found == expected


@settings(max_examples=FUZZ_CASES // 4)
@given(st.binary(min_size=7, max_size=7))
def test_the_decoder_refuses_a_small_record_for_the_references_reason(codec, record):
    plaintext = bytes(32) + record
    assert verdict(codec.parse, plaintext, SMALL) == verdict(wire.parse, plaintext, SMALL)


def test_the_first_malformed_chunk_is_found_whichever_is_decoded_first(codec):
    update = update_of("normal", 0, {"t": (64 * 40, 64 * 5)})
    records = bytearray(update.records)
    records[82 * 70] ^= 1  # a one too many or too few
    records[82 * 130 + 81] = 0  # hi below lo
    with pytest.raises(InvalidSubmission, match="exactly k' indices"):
        codec.counted(Update(update.layout, bytes(records)))


def test_bytes_that_were_never_validated_do_not_reach_theta_unnoticed(codec):
    theta, layout = on(codec, tensors(arrays("normal", 0))), Layout.of(RAGGED, 64)
    with pytest.raises(InvalidSubmission):
        codec.apply_probe(theta, Update(layout, bytes(layout.records_bytes)), (1.0,) * len(RAGGED), 1.0)
    with pytest.raises(ValueError, match="its layout makes"):
        codec.apply_probe(theta, Update(layout, b"short"), (1.0,) * len(RAGGED), 1.0)


def test_a_tensor_of_another_device_is_refused_before_a_kernel_sees_its_address(codec):
    given = [on(codec, zeros()), on(codec, zeros()), {name: value.to("meta") for name, value in zeros().items()}]
    with pytest.raises(ValueError, match="is on meta"):
        codec.compress(*given, Layout.of(RAGGED, 64), BETA)


# --- the choice of a backend -------------------------------------------------------------------------------------


@pytest.fixture
def automatic():
    yield
    ops.use("auto")


ON_A_GPU = {"t": SimpleNamespace(device=torch.device("cuda", 0))}
ELSEWHERE = {"t": SimpleNamespace(device=torch.device("meta"))}


@pytest.mark.usefixtures("automatic")
def test_tensors_on_a_gpu_go_to_its_codec_unless_the_reference_is_forced(monkeypatch):
    monkeypatch.setattr(cuda, "codec", lambda device: f"codec of {device}")
    assert ops._codec_for(ON_A_GPU, None) == "codec of cuda:0"
    assert ops._codec_for(ON_A_GPU, ELSEWHERE) is None
    assert ops._codec_for(ELSEWHERE) is None
    ops.use("reference")
    assert ops._codec_for(ON_A_GPU) is None


@pytest.mark.usefixtures("automatic")
def test_without_the_library_the_reference_answers_with_a_warning_and_native_refuses(monkeypatch):
    def missing(device=None):
        raise kernels.Unavailable("murmur_cuda.so is not built; run: make native")

    monkeypatch.setattr(cuda, "codec", missing)
    monkeypatch.setattr(cuda, "library", missing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "slow reference: murmur_cuda.so" in ops.reason()
    with pytest.warns(UserWarning, match="slow reference for tensors on cuda:0: .*make native"):
        assert ops._codec_for(ON_A_GPU) is None
    monkeypatch.setattr(ops._chosen, "choice", "native")
    with pytest.raises(ConfigError, match="make native"):
        ops._codec_for(ON_A_GPU)


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_library_that_is_missing_or_broken_is_unavailable(content, tmp_path, monkeypatch):
    path = tmp_path / "murmur_cuda.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(cuda, "LIBRARY", path)
    with pytest.raises(kernels.Unavailable, match="make native"):
        BUILT_LIBRARY.__wrapped__()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_ops_uses_the_kernels():
    codec, layout = cuda.codec(torch.device("cuda", 0)), Layout.of(RAGGED, 64)
    given = [on(codec, tensors(values)) for values in inputs("normal")]
    assert ops._codec_for(codec.device) is codec
    assert ops.compress(*given, layout, BETA)[0] == codec.compress(*given, layout, BETA)[0]


# --- the compiler ------------------------------------------------------------------------------------------------


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


def constant_of_setup(name):
    """A constant of setup.py, which can't be imported without running it."""
    tree = ast.parse((SOURCE.parents[2] / "setup.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return ast.literal_eval(assigned[name])


@needs_nvcc
@pytest.mark.parametrize("place", [0, *(pytest.param(place, marks=pytest.mark.slow) for place in (1, 2))])
def test_every_kernel_compiles_for_every_architecture_without_spilling_registers(place, tmp_path):
    """The oldest one has the fewest instructions; the library that setup.py builds has them all."""
    library = tmp_path / "codec.so"
    every = constant_of_setup("ARCHITECTURES")
    assert len(every) == 3
    architectures = every[place : place + 1]
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in architectures]
    command = [*constant_of_setup("NVCC"), *codes, "-Xptxas", "-v", str(SOURCE), "-o", str(library)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", result.stderr)
    assert len(spills) == 5 * len(architectures)
    assert set(spills) == {("0", "0", "0")}
    assert cuda.load(library).murmur_cuda_abi() == 1


@needs_nvcc
def test_nothing_is_contracted_approximated_or_flushed_to_zero(tmp_path):
    command = [*(flag for flag in constant_of_setup("NVCC") if flag != "-shared"), "-ptx", "-arch=sm_90", str(SOURCE)]
    subprocess.run([*command, "-o", str(tmp_path / "codec.ptx")], check=True, timeout=170)
    operations = re.findall(r"^\s+(?:@\S+ )?([a-z]\S*\.f32)\s", (tmp_path / "codec.ptx").read_text(), re.MULTILINE)
    arithmetic = {
        operation for operation in operations if operation.split(".")[0] in {"add", "sub", "mul", "div", "fma"}
    }
    assert arithmetic == {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "div.rn.f32"}
    assert not [operation for operation in operations if re.search("ftz|approx|full|fma", operation)]
