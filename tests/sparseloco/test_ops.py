"""The seam: results in tensors that the caller gives, whichever backend answers."""

import pytest
import torch

from murmur.protocol.layout import Layout
from sparseloco import kernels, ops
from sparseloco.outer import OuterState
from tests.sparseloco.samples import RAGGED, arrays, same_bits, tensors, update_of

BETA = 0.95
LAYOUT = Layout.of(RAGGED, 64)
STEP = {"alpha": 1.0, "aggregate": "mean"}


@pytest.fixture(params=["native", "reference"])
def backend(request):
    if request.param == "native":
        try:
            kernels.library()
        except kernels.Unavailable as fault:
            pytest.skip(str(fault))
    ops.use(request.param)
    yield request.param
    ops.use("auto")


def samples(*seeds):
    return [tensors(arrays("normal", seed)) for seed in seeds]


def filled():
    return {name: torch.full(shape, 7.0) for name, shape in RAGGED.items()}


def written(found, out):
    """Whether the result is `out`, tensor by tensor."""
    return all(found[name].data_ptr() == out[name].data_ptr() for name in RAGGED)


@pytest.mark.usefixtures("backend")
def test_compress_writes_the_new_error_where_the_caller_wants_it():
    given = samples(0, 1, 2)
    update, error = ops.compress(*given, LAYOUT, BETA)
    out = filled()
    found, new = ops.compress(*given, LAYOUT, BETA, out=out)
    assert found == update
    assert same_bits(out, error)
    assert written(new, out)
    assert all(same_bits(left, right) for left, right in zip(given, samples(0, 1, 2), strict=True))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("updates", [[update_of("normal", 0), None, update_of("tied", 1)], [None], []])
def test_the_outer_step_writes_theta_where_the_caller_wants_it(updates):
    (theta,) = samples(3)
    state = OuterState.initial(LAYOUT)
    after, *rest = ops.outer_step(theta, updates, state, **STEP)
    out = filled()
    found, *others = ops.outer_step(theta, updates, state, **STEP, out=out)
    assert same_bits(out, after)
    assert written(found, out)
    assert others == rest
    assert same_bits(theta, samples(3)[0])


def overlapping(values):
    """Two tensors of the sizes of `corner` and `full` in one piece of memory, the second's begin in the first's end."""
    room = torch.zeros(131 * 67 + 64 * 64 - 1)
    corner, full = room[: 131 * 67].view(131, 67), room[131 * 67 - 1 :].view(64, 64)
    return {**values, "corner": corner, "full": full}


@pytest.mark.usefixtures("backend")
def test_a_destination_that_shares_memory_is_refused_and_nothing_is_written():
    given = samples(0, 1, 2)
    update = update_of("normal", 0)
    state = OuterState.initial(LAYOUT)
    for out in (*given, filled() | {"full": given[1]["full"]}, overlapping(filled())):
        with pytest.raises(ValueError, match="shares memory"):
            ops.compress(*given, LAYOUT, BETA, out=out)
    for out in (given[0], filled() | {"cube": given[0]["cube"]}, overlapping(filled())):
        with pytest.raises(ValueError, match="shares memory"):
            ops.outer_step(given[0], [update], state, **STEP, out=out)
    ops.compress(given[0], given[0], given[0], LAYOUT, BETA, out=filled())  # inputs may share
    assert all(same_bits(left, right) for left, right in zip(given, samples(0, 1, 2), strict=True))


def adjoining():
    """Destinations that are views of one piece of memory, each beginning where the one before ends."""
    room, at, found = torch.zeros(sum(value.numel() for value in filled().values())), 0, {}
    for name, value in filled().items():
        found[name] = room[at : at + value.numel()].view(value.shape)
        at += value.numel()
    return found


@pytest.mark.usefixtures("backend")
def test_destinations_that_only_touch_are_accepted():
    given = samples(0, 1, 2)
    _, error = ops.compress(*given, LAYOUT, BETA)
    assert same_bits(ops.compress(*given, LAYOUT, BETA, out=adjoining())[1], error)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("value", "match"),
    [
        (torch.zeros(67, 131).t(), "not contiguous"),
        (torch.zeros(131, 68), "needs"),
        (torch.zeros(131, 67).double(), "needs"),
    ],
)
def test_a_destination_of_another_form_is_refused(value, match):
    given = samples(0, 1, 2)
    with pytest.raises(ValueError, match=match):
        ops.compress(*given, LAYOUT, BETA, out=filled() | {"corner": value})
    with pytest.raises(ValueError, match=match):
        ops.outer_step(given[0], [update_of()], OuterState.initial(LAYOUT), **STEP, out=filled() | {"corner": value})
