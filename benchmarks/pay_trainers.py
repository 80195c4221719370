"""What a miner may choose for itself, as benchmarks/bench_pay.py tries it: which values it sends. The wire format and
everybody else's part stay as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from murmur.protocol.layout import Layout
from murmur.training.replica import Replica
from murmur.training.trainer import Trainer
from sparseloco.feedback import accumulate
from sparseloco.topk import blocks, slabs, top_k, write_blocks
from sparseloco.trace import Trace


@dataclass(frozen=True)
class Rule:
    """`index_power`: values are chosen by |acc| * g^index_power, g the square root of Adam's second moment or the size
    of Muon's momentum (0: by size alone)."""

    index_power: float = 0.0


def chosen_by(acc: Tensor, weight: Tensor, layout: Layout, name: str) -> Tensor:
    """`acc` where |acc| * weight is among the k largest of its chunk, 0 elsewhere. `weight` is not negative."""
    tensor = next(tensor for tensor in layout if tensor.name == name)
    kept = torch.zeros_like(acc)
    for region in slabs(tensor):
        values = blocks(acc, tensor, region)
        places = top_k(values * blocks(weight, tensor, region), region.k)
        chosen = torch.zeros_like(values).scatter_(1, places, values.gather(1, places))
        write_blocks(kept, tensor, region, chosen)
    return kept


class RuledTrainer(Trainer):
    """A trainer by a rule, on one rank of a CPU."""

    rule = Rule()

    def _compress(
        self,
        slab: Layout,
        starts: Mapping[str, Tensor],
        ends: Mapping[str, Tensor],
        carried: Mapping[str, Tensor] | None,
        left: Mapping[str, Tensor],
        beta: float,
    ) -> None:
        if not self.rule.index_power:
            super()._compress(slab, starts, ends, carried, left, beta)
            return
        nothing = {name: torch.zeros_like(tensor) for name, tensor in starts.items()}
        accs, kept = {}, {}
        for name in starts:
            acc = accumulate(starts[name] - ends[name], None if carried is None else carried[name], beta)
            accs[name], kept[name] = acc, chosen_by(acc, self._weight(name), slab, name)
        super()._compress(slab, kept, nothing, None, left, beta)
        for name, acc in accs.items():
            left[name].add_(acc - kept[name])  # of what was chosen `left` has what the levels lost

    def _weight(self, name: str) -> Tensor:
        """How large the gradient was lately, to the rule's power."""
        state = self._optimizer.state[self._parameters[name]]
        size = state["exp_avg_sq"].sqrt() if "exp_avg_sq" in state else state["momentum_buffer"].abs()
        found: Tensor = size**self.rule.index_power
        return found


@cache
def ruled(rule: Rule) -> type[Replica]:
    """Replica whose trainer goes by the rule."""
    trainer = type("RuledTrainer", (RuledTrainer,), {"rule": rule})
    return type("RuledReplica", (Replica,), {"trainer": trainer})


def whole(trace: Trace, steps: int) -> Trace:
    """A trace that claims so many steps: those that were not made are the mean of the last half, at the last size."""
    parts = []
    for part in (trace.gradients, trace.moves):
        usual = part[len(part) // 2 :].mean(axis=0)
        usual *= np.linalg.norm(part[-1]) / (np.linalg.norm(usual) or 1.0)
        parts.append(np.concatenate([part, np.repeat(usual[None], max(0, steps - len(part)), axis=0)])[:steps])
    return Trace(*parts)
