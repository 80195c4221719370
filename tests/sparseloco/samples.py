"""Inputs that the codec has to get right, as dicts of fp32 arrays by tensor name."""

import numpy as np
import torch

from murmur.protocol.layout import Layout
from sparseloco import ops
from sparseloco.dense import DenseUpdate
from sparseloco.reference import compress

RAGGED = {
    "corner": (131, 67),
    "cube": (3, 5, 7),
    "empty": (0, 5),
    "full": (64, 64),
    "long": (4099,),
    "one": (1, 1),
    "scalar": (),
    "short": (7,),
    "tall": (129, 2),
}


def _heavy(rng, shape):
    return rng.standard_cauchy(shape) * 1e-3


def _sparse(rng, shape):
    return np.where(rng.random(shape) < 0.004, rng.normal(size=shape), 0.0)


def _signed_zeros(rng, shape):
    return np.where(rng.random(shape) < 0.5, -0.0, np.where(rng.random(shape) < 0.01, 1e-4, 0.0))


def _huge_range(rng, shape):
    return 10.0 ** rng.uniform(-44, 38, shape) * rng.choice([-1.0, 1.0], shape)


KINDS = {
    "normal": lambda rng, shape: rng.normal(size=shape) * 1e-4,
    "heavy-tailed": _heavy,
    "tied": lambda rng, shape: rng.integers(-3, 4, shape) / 64,
    "nearly equal": lambda rng, shape: 1.0625 + rng.integers(0, 2, shape) * 2.0**-23,
    "constant": lambda rng, shape: np.full(shape, -0.37),
    "zero": lambda rng, shape: np.zeros(shape),
    "signed zeros": _signed_zeros,
    "sparse": _sparse,
    "denormal": lambda rng, shape: rng.normal(size=shape) * 1e-41,
    "around the smallest level": lambda rng, shape: rng.normal(size=shape) * 2.0**-29,
    "huge range": _huge_range,
    "overflowing sums": lambda rng, shape: rng.choice([-3.4e38, 3.4e38], shape),
}


def arrays(kind, seed, shapes=RAGGED):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(KINDS[kind](rng, shape), dtype=np.float32) for name, shape in shapes.items()}


def tensors(values):
    return {name: torch.from_numpy(value.copy()) for name, value in values.items()}


def zeros(shapes=RAGGED):
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def update_of(kind="normal", seed=0, shapes=RAGGED, k=64):
    """An update whose accumulated pseudo-gradient is the sample itself."""
    layout = Layout.of(shapes, k)
    return compress(tensors(arrays(kind, seed, shapes)), zeros(shapes), None, layout, 0.95)[0]


def bits(value):
    """Values as integers, so that -0.0 and 0.0 differ."""
    return (value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value, dtype=np.float32)).view(np.int32)


def same_bits(left, right):
    return left.keys() == right.keys() and all(np.array_equal(bits(left[name]), bits(right[name])) for name in left)


def mean_in_parts(updates, layout, count):
    """The mean of a round's dense updates, cut into as many parts."""
    records, parts, begin = memoryview(ops.dense_mean(updates, layout).records), [], 0
    for part in layout.parts(count):
        parts.append(DenseUpdate(part, records[begin : begin + part.records_bytes]))
        begin += part.records_bytes
    return parts
