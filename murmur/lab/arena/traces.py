"""Traces of inner steps: cut from steps that were made, or made up."""

from dataclasses import replace
from math import hypot

import numpy as np
import torch

from murmur.lab.arena.problem import Theta, Trained
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from sparseloco.trace import Trace, places

NO_STEPS = Trace(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32))


def cut(spec: RunSpec, run: Digest, page_hash: Digest, peer: PeerId, trained: Trained) -> Trace:
    """Return what a hotkey's trace shows of these steps: no more of them than a round has."""
    drawn = places(run, page_hash, peer, spec.layout, spec.trace.places)
    found = [trained.moves[name].flatten(1)[:, torch.from_numpy(at)] for name, at in drawn.items()]
    moves = torch.cat(found, dim=1)[: spec.inner.steps]
    return Trace((moves / trained.rate).numpy(), moves.numpy())


def none_of(theta: Theta) -> Trained:
    """Return a lesson without a step."""
    return Trained(theta, {name: values.new_zeros(0, *values.shape) for name, values in theta.items()}, 1.0)


def size(moves: Theta) -> float:
    """Return the norm of all tensors together."""
    return hypot(*(float(values.norm()) for values in moves.values()))


def taken(trained: Trained, moves: Theta) -> Trained:
    """Return the lesson with one more step, which moves theta by these."""
    return replace(
        trained,
        end={name: values - moves[name] for name, values in trained.end.items()},
        moves={name: torch.cat([values, moves[name][None]]) for name, values in trained.moves.items()},
    )


def extrapolated(trained: Trained, steps: int) -> Trained:
    """Return a lesson of so many steps: those that were not made are the mean of the made ones' second half, at the
    last one's size."""
    made = len(next(iter(trained.moves.values())))
    if not made:
        return trained
    usual = {name: values[made // 2 :].mean(0) for name, values in trained.moves.items()}
    factor = size({name: values[-1] for name, values in trained.moves.items()}) / (size(usual) or 1.0)
    for _ in range(made, steps):
        trained = taken(trained, {name: values * factor for name, values in usual.items()})
    return trained


def moved(trace: Trace, by: float, random: torch.Generator) -> Trace:
    """Return the trace with each value changed by a share of itself, `by` in the root mean square."""
    factors = (1.0 + by * torch.randn(trace.moves.shape, generator=random)).numpy()
    return Trace(trace.gradients * factors, trace.moves * factors)
