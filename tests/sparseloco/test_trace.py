"""The trace of a round's inner steps: its bytes, and the places that it shows."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import Layout, TraceShape
from murmur.protocol.types import Digest, PeerId, Reason
from sparseloco.trace import Trace, encode, parse, places

LAYOUT = Layout.of({"a": (64, 200), "b": (7,), "c": (130, 3), "none": (0, 4)}, 64)
RUN, PAGE = Digest(bytes(32)), Digest(bytes(range(32)))
SHAPE = TraceShape(values=50, steps=7)


def drawn(steps: int, width: int, seed: int = 0) -> Trace:
    values = np.random.default_rng(seed).standard_normal((2, steps, width)).astype(np.float32) * 1e-6
    return Trace(*values)


def peer(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


@given(st.integers(0, 7))
def test_it_is_read_as_it_was_written_within_bf16(steps: int) -> None:
    trace = drawn(steps, SHAPE.places)
    data = encode(trace, SHAPE)
    assert len(data) == SHAPE.num_bytes == 4 + 4 * 50
    found = parse(data, SHAPE)
    assert found.steps == steps
    np.testing.assert_allclose(found.gradients, trace.gradients, rtol=2**-8)
    np.testing.assert_allclose(found.moves, trace.moves, rtol=2**-8)
    assert encode(found, SHAPE) == data, "one form"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "203 bytes, expected 204"),
        (lambda data: data + b"\0", "205 bytes"),
        (lambda data: (8).to_bytes(4, "little") + data[4:], "8 steps in a round of 7"),
        (lambda data: data[:-1] + b"\1", "goes on behind its last step"),
        (lambda data: (2).to_bytes(4, "little") + data[4:], "goes on behind its last step"),
        (lambda data: data[:4] + b"\x80\x7f" + data[6:], "not finite"),
        (lambda data: data[:4] + b"\xc1\xff" + data[6:], "not finite"),
    ],
)
def test_other_bytes_are_refused(change: object, words: str) -> None:
    data = encode(drawn(3, SHAPE.places), SHAPE)
    with pytest.raises(InvalidSubmission, match=words) as caught:
        parse(change(data), SHAPE)  # type: ignore[operator]
    assert caught.value.reason is Reason.MALFORMED


@given(st.binary(min_size=SHAPE.num_bytes, max_size=SHAPE.num_bytes))
def test_any_bytes_are_a_trace_in_its_one_form_or_malformed(data: bytes) -> None:
    with suppress(InvalidSubmission):
        assert encode(parse(data, SHAPE), SHAPE) == data


def test_its_size_does_not_depend_on_the_steps_and_more_steps_show_fewer_places() -> None:
    for steps in (1, 7, 50):
        assert TraceShape(50, steps).num_bytes == 204
        assert TraceShape(50, steps).places == 50 // steps
    assert TraceShape(0, 7).num_bytes == 0


def test_places_are_of_every_tensor_uniform_and_each_hotkeys_and_rounds_own() -> None:
    found = places(RUN, PAGE, peer(1), LAYOUT, 1000)
    assert list(found) == ["a", "b", "c"]
    assert sum(len(at) for at in found.values()) == 1000
    sizes = {"a": 12800, "b": 7, "c": 390}
    for name, at in found.items():
        assert at.dtype == np.int64
        assert (np.diff(at) >= 0).all()
        assert at[0] >= 0
        assert at[-1] < sizes[name]
        usual = 1 + 997 * sizes[name] / sum(sizes.values())
        assert abs(len(at) - usual) < 6 * usual**0.5
    assert abs(found["a"].mean() / 6400 - 1) < 0.1
    others = [places(RUN, PAGE, peer(2), LAYOUT, 1000), places(RUN, Digest(bytes(32)), peer(1), LAYOUT, 1000)]
    assert all(set(other["a"]) != set(found["a"]) for other in others)
    again = places(RUN, PAGE, peer(1), LAYOUT, 1000)
    assert all((again[name] == at).all() for name, at in found.items())


def test_places_do_not_change_from_release_to_release() -> None:
    """Everybody draws them."""
    found = places(RUN, PAGE, peer(1), LAYOUT, 8)
    assert {name: at.tolist() for name, at in found.items()} == {
        "a": [2554, 2945, 6011, 8334, 8699, 12475],
        "b": [6],
        "c": [77],
    }
