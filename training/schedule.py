"""Learning rate of an inner step: linear warm-up, cosine, then flat. A pure function of the spec."""

from math import cos, pi

from protocol.spec import InnerSpec


def lr_at(inner_step: int, spec: InnerSpec) -> float:
    """Learning rate of inner step `inner_step` = non-void rounds * H + step within the round, counted from 0.

    Rises linearly so that step warmup_steps - 1 is the first at peak_lr (step 0 is never 0: it would train nothing),
    falls along half a cosine from warmup_steps to final_lr at decay_steps, and stays there.
    """
    if inner_step < spec.warmup_steps:
        return spec.peak_lr * (inner_step + 1) / spec.warmup_steps
    if inner_step >= spec.decay_steps:
        return spec.final_lr
    progress = (inner_step - spec.warmup_steps) / (spec.decay_steps - spec.warmup_steps)
    return spec.final_lr + (spec.peak_lr - spec.final_lr) * 0.5 * (1.0 + cos(pi * progress))
