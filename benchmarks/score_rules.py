"""Other ways to score the updates of one round, on the same sequences, for benchmarks/bench_pay.py --rules.

With theta before the outer step, theta' after it, B a peer's update as bounded and U as sent, t the probe step:

    now          L(theta) - L(theta - t B)          the protocol's
    full_step    L(theta) - L(theta - B)
    unbounded    L(theta) - L(theta - t U)
    equal_norm   L(theta) - L(theta - t b U / |U|)  b the bound of the whole: norms up and down to one length
    after        L(theta' + t B) - L(theta')        what it costs to take it back from where the round has come to
    after_equal  L(theta' + t b U / |U|) - L(theta')
    after_more   L(theta') - L(theta' - t B)        what more of it would bring there
    slope        (L(theta + t B) - L(theta - t B)) / 2      without what the update's own size costs
    half_way     (L(mid + t B) - L(mid - t B)) / 2          there half-way to theta': its part of the round's fall
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from murmur.protocol.spec import RunSpec
from murmur.protocol.types import PeerId
from murmur.training.model import Transformer
from sparseloco import ops
from sparseloco.outer import OuterState, Scales, bound, scales
from sparseloco.update import Update

SEQUENCES = 32
RULES = ("now", "full_step", "unbounded", "equal_norm", "after", "after_equal", "after_more", "slope", "half_way")

Theta = Mapping[str, Tensor]


class RuleScores:
    """Scores of whole rounds, by rule and peer, nats a token."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.model = spec, Transformer(spec.model)
        self.model.eval()

    def __call__(
        self, theta: Theta, after: Theta, updates: Mapping[PeerId, Update], outer: OuterState, sequences: Tensor
    ) -> dict[PeerId, dict[str, float]]:
        """`outer`: the state before the outer step that led from `theta` to `after`."""
        limit, _ = bound([updates[peer].norms for peer in sorted(updates)], outer)
        step, ones = self.spec.gauntlet.probe_step, (1.0,) * len(self.spec.layout.tensors)
        middle = {name: (theta[name] + after[name]) / 2 for name in theta}
        starts = {id(start): self.loss(start, sequences) for start in (theta, after, middle)}
        found: dict[PeerId, dict[str, float]] = {}
        for peer, update in updates.items():
            size = update.norms.whole
            bounded = scales(update.norms, limit)
            equal: Scales = tuple(one * limit.whole / size if size else 0.0 for one in ones)

            def fall(start: Theta, factor: Scales, by: float, update: Update = update) -> float:
                return starts[id(start)] - self.loss(ops.apply_probe(start, update, factor, by), sequences)

            def back(start: Theta, factor: Scales, update: Update = update) -> float:
                return self._back(start, update, factor, step, starts[id(start)], sequences)

            found[peer] = {
                "now": fall(theta, bounded, step),
                "full_step": fall(theta, bounded, 1.0),
                "unbounded": fall(theta, ones, step),
                "equal_norm": fall(theta, equal, step),
                "after": -back(after, bounded),
                "after_equal": -back(after, equal),
                "after_more": fall(after, bounded, step),
                "slope": (fall(theta, bounded, step) - back(theta, bounded)) / 2,
                "half_way": (fall(middle, bounded, step) - back(middle, bounded)) / 2,
            }
        return found

    def _back(
        self, start: Theta, update: Update, factor: Scales, step: float, before: float, sequences: Tensor
    ) -> float:
        """Fall of the loss when a part of the update is taken back: of honest work below 0. A probe's weight cannot be
        negative, so what is taken off is twice the start less the probe."""
        probed = ops.apply_probe(start, update, factor, step)
        return before - self.loss({name: 2 * start[name] - value for name, value in probed.items()}, sequences)

    @torch.no_grad()
    def loss(self, theta: Theta, sequences: Tensor) -> float:
        """Mean of the sequences' losses, in batches of eight."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(theta[name])
        return float(torch.cat([self.model.loss(batch) for batch in sequences.split(8)]).double().mean())
