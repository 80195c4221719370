"""Learning rate of an inner step: linear warm-up, decay, then flat, with one flat window. A pure function of the spec.

The outer learning rate needs no schedule: an amendment changes `outer.alpha` from a round on, and every node reads
`Run.spec_at`. An amendment also begins a second schedule (annealing) by `inner.start_step`.
"""

from math import cos, pi, sqrt

from murmur.protocol.spec import InnerSpec


def lr_at(inner_step: int, spec: InnerSpec) -> float:
    """Return the learning rate of inner step `inner_step` = non-void rounds * H + step within the round, counted from
    0.

    Steps below are the schedule's own, from spec.start_step on. The rate rises linearly; step warmup_steps - 1 is the
    first at peak_lr (step 0 is never 0: it would train nothing). It falls from warmup_steps to final_lr at decay_steps,
    along half a cosine or with the square root of the progress (WSD), and stays there. At step flat_from the schedule
    pauses for flat_steps further inner steps, then continues. Before start_step, which void rounds may delay, the
    schedule waits at its step 0.
    """
    step = max(0, inner_step - spec.start_step)
    if step > spec.flat_from:
        step = max(spec.flat_from, step - spec.flat_steps)
    if step < spec.warmup_steps:
        return spec.peak_lr * (step + 1) / spec.warmup_steps
    if step >= spec.decay_steps:
        return spec.final_lr
    progress = (step - spec.warmup_steps) / (spec.decay_steps - spec.warmup_steps)
    kept = 1.0 - sqrt(progress) if spec.decay == "sqrt" else 0.5 * (1.0 + cos(pi * progress))
    return spec.final_lr + (spec.peak_lr - spec.final_lr) * kept
