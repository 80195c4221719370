"""Executions of one inner round on this machine, as validators repeat it, and how far their steps are apart.

Whoever repeats a miner's steps computes with other splits, kernels and threads, and rounds otherwise. How far that
leads on a kind of machine says what the limits of gauntlet/repetition.py leave to honest miners.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gauntlet.repetition import LIMITS, Repetition
from gauntlet.verification import compare
from murmur.plan.training_speed import Tell
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training.inner import OnStep, never
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks
from murmur.training.recorder import TraceOf
from murmur.training.replica import Replica
from murmur.training.trainer import Trainer
from sparseloco.trace import Trace

USUAL_PLACES = 4096
"""Places of each step, for a spec without traces."""
SILENT_SECONDS = 2.0
"""Longest time without a word of progress, unless a single step takes longer."""
NOTHING = Digest(bytes(32))


class UncompiledTrainer(Trainer):
    compiled = False


class UncompiledReplica(Replica):
    trainer = UncompiledTrainer


@dataclass(frozen=True, slots=True)
class Round:
    """An inner round to execute: `text` holds its sequences. The weights are seeded ones, and the learning rate is that
    behind the warm-up."""

    spec: RunSpec
    text: Tensor
    device: torch.device

    @property
    def places(self) -> int:
        return self.spec.trace.places or USUAL_PLACES


def apart(round: Round, tell: Tell) -> Iterator[tuple[str, Repetition]]:
    """Yield how far other executions of the round are from a plain one, by name. Raises ConfigError where memory does
    not suffice."""
    tell("seeded weights")
    theta = genesis_theta(round.spec.model, 0)
    replica = _replica(Replica, round, theta)
    plain = _execute(replica, round, "a plain execution", tell)
    yield "once more", _compared(round, plain, _execute(replica, round, "once more", tell))
    yield "in another split", _compared(round, plain, _execute(replica, round, "in another split", tell, split=True))
    if round.device.type == "cuda":  # nodes compile there only
        del replica  # before the next one takes its memory
        torch.cuda.empty_cache()
        other = _replica(UncompiledReplica, round, theta)
        yield "not compiled", _compared(round, plain, _execute(other, round, "not compiled", tell))


def worst(found: Repetition) -> float:
    """Return the largest distance as a share of its limit."""
    return max(far / limit for far, limit in zip(found.distances, LIMITS, strict=True))


def _replica(kind: type[Replica], round: Round, theta: dict[str, Tensor]) -> Replica:
    return kind(round.spec, theta, ranks=Ranks(device=round.device))


def _execute(replica: Replica, round: Round, what: str, tell: Tell, *, split: bool = False) -> Trace:
    tell(what)
    inner = round.spec.inner
    found = replica.repeat(
        round.text,
        inner=inner,
        rounds=0,
        first_step=inner.warmup_steps,
        trace_of=TraceOf(NOTHING, NOTHING, PeerId(bytes(32)), round.places),
        on_step=progress(what, inner.steps, tell, time.monotonic),
        stopped=never,
        split=split,
    )
    assert found is not None, "nobody has stopped it"
    return found


def _compared(round: Round, plain: Trace, other: Trace) -> Repetition:
    if not plain.gradients.any():
        raise ConfigError("no step of this round had a finite gradient: there is nothing to compare")
    return compare(0, round.spec.inner.steps, other, plain)


def progress(what: str, steps: int, tell: Tell, now: Callable[[], float]) -> OnStep:
    """Return what tells of a step when nothing was told for SILENT_SECONDS."""
    said = now()

    def on_step(step: int, loss: float) -> None:
        nonlocal said
        if now() - said >= SILENT_SECONDS:
            tell(f"{what}: step {step + 1} of {steps}")
            said = now()

    return on_step
