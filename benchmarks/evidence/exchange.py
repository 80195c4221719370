"""What peers send each other after their inner steps, and what becomes of it: SparseLoCo as built, with parts of it
taken out, and DiLoCo.

As built, everything is the product's: Replica.compress and Replica.outer_step. Where a part is switched off or another
rule is tried, updates are taken in full (dense) and the step is written out here, as simply as it can be said.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.evidence.settings import Setting
from murmur.protocol.layout import CHUNK, Layout
from murmur.training.checkpoint import TensorState
from murmur.training.replica import Replica
from sparseloco.feedback import accumulate
from sparseloco.outer import OuterState, bounds
from sparseloco.topk import blocks, top_k, write_blocks
from sparseloco.update import Norms, Update

Tensors = dict[str, Tensor]
Sent = Update | Tensors

TRIMMED = 0.25
"""Share of the peers that a trimmed mean leaves out on either side of every coordinate."""


class Exchange(Protocol):
    """One run's exchange. Error feedback that is not the product's is kept here by peer, and so is outer momentum."""

    def send(self, peer: int, replica: Replica) -> Sent:
        """What the peer sends, whose replica's weights are theta_r."""
        ...

    def settle(self, judge: Replica, sent: Sequence[Sent]) -> TensorState:
        """The consensus state after the round; `judge` holds theta and takes the new one."""
        ...

    def restore_to_error_feedback(self, peer: int, replica: Replica, sent: Sent) -> None:
        """The round was void: what was sent returns into the peer's error feedback."""
        ...

    def forget(self, peer: int) -> None:
        """A newcomer takes this peer's place."""
        ...


def exchange_of(setting: Setting) -> Exchange:
    if setting.method == "sparseloco":
        return SparseLoCo(setting) if setting.quantise else Unquantised(setting)
    return DiLoCo(setting)


class SparseLoCo:
    """The real codec; the real outer step for the rules that the product has."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def send(self, peer: int, replica: Replica) -> Sent:
        update = replica.compress()
        if not self.setting.feedback:
            for error in errors_of(replica).values():
                error.zero_()
        return update

    def settle(self, judge: Replica, sent: Sequence[Sent]) -> TensorState:
        outer = judge.spec.outer
        if self.setting.rule in ("mean", "filtered_mean"):
            updates = [update for update in sent if isinstance(update, Update)]
            judge.outer_step(updates, alpha=outer.alpha, aggregate=outer.aggregate)
        else:
            step = combined(self.setting, [dense(update) for update in sent])
            take(judge, step, outer.alpha, judge.outer.averages, judge.outer.whole)
        return judge.consensus_state()

    def restore_to_error_feedback(self, peer: int, replica: Replica, sent: Sent) -> None:
        assert isinstance(sent, Update)
        replica.restore_to_error_feedback(sent)
        if not self.setting.feedback:
            for error in errors_of(replica).values():
                error.zero_()

    def forget(self, peer: int) -> None:
        """Error feedback is in the replica."""


class Unquantised:
    """SparseLoCo whose kept values travel whole. Norms are bounded as in the product; nothing is restrained before."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.errors: dict[int, Tensors] = {}

    def send(self, peer: int, replica: Replica) -> Sent:
        error = self.errors.get(peer, {})
        acc = {
            name: accumulate(delta, error.get(name), self.setting.decay)
            for name, delta in pseudo_gradient(replica).items()
        }
        sent, left = largest_values(acc, replica.layout)
        if self.setting.feedback:
            self.errors[peer] = left
        return sent

    def settle(self, judge: Replica, sent: Sequence[Sent]) -> TensorState:
        updates = [dense(update) for update in sent]
        factors, state = bounds([norms(update, judge.layout) for update in updates], judge.outer)
        step = {
            tensor.name: mean(
                [update[tensor.name] * factor[index] for update, factor in zip(updates, factors, strict=True)]
            )
            for index, tensor in enumerate(judge.layout)
        }
        take(judge, step, self.setting.outer_lr, state.averages, state.whole)
        return judge.consensus_state()

    def restore_to_error_feedback(self, peer: int, replica: Replica, sent: Sent) -> None:
        if self.setting.feedback:
            error = self.errors[peer]
            self.errors[peer] = {name: error[name] + part for name, part in dense(sent).items()}

    def forget(self, peer: int) -> None:
        self.errors.pop(peer, None)


def largest_values(acc: Tensors, layout: Layout) -> tuple[Tensors, Tensors]:
    """Return what Top-k keeps of every tensor, in full, and what it leaves: the codec without its levels."""
    kept, left = {}, {}
    for tensor in layout:
        whole = torch.zeros(tensor.shape)
        for region in tensor.regions:
            values = blocks(acc[tensor.name], tensor, region)
            places = top_k(values, region.k)
            write_blocks(whole, tensor, region, torch.zeros_like(values).scatter_(1, places, values.gather(1, places)))
        kept[tensor.name], left[tensor.name] = whole, acc[tensor.name] - whole
    return kept, left


class DiLoCo:
    """Whole pseudo-gradients, their mean, and an outer step with Nesterov's momentum (arXiv 2311.08105), which is
    torch's SGD; fp32, or int8 on the way (arXiv 2412.01152)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._theta: list[torch.nn.Parameter] = []
        self._outer: torch.optim.SGD | None = None

    def send(self, peer: int, replica: Replica) -> Sent:
        delta = pseudo_gradient(replica)
        if self.setting.method == "diloco-int8":
            return {name: through_int8(part) for name, part in delta.items()}
        return delta

    def settle(self, judge: Replica, sent: Sequence[Sent]) -> TensorState:
        names = [tensor.name for tensor in judge.layout]
        if self._outer is None:
            self._theta = [torch.nn.Parameter(judge.theta[name].clone()) for name in names]
            momentum = self.setting.momentum
            self._outer = torch.optim.SGD(
                self._theta, lr=self.setting.outer_lr, momentum=momentum, nesterov=momentum > 0
            )
        for name, parameter in zip(names, self._theta, strict=True):
            parameter.grad = mean([dense(update)[name] for update in sent])
        self._outer.step()
        saved = saved_as(
            {name: parameter.detach() for name, parameter in zip(names, self._theta, strict=True)}, judge.outer
        )
        judge.load_consensus(saved)
        return saved

    def restore_to_error_feedback(self, peer: int, replica: Replica, sent: Sent) -> None:
        raise ValueError("DiLoCo has no error feedback that a void round's update could return to")

    def forget(self, peer: int) -> None:
        """Outer momentum is everybody's, and a peer keeps nothing between rounds but its inner optimizer."""


def through_int8(values: Tensor) -> Tensor:
    """fp32 -> int8 -> fp32: chunks of 4096 in row-major order, each in steps of its largest magnitude over 127."""
    flat = values.flatten()
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % CHUNK)).view(-1, CHUNK)
    scales = padded.abs().amax(dim=1, keepdim=True) / 127
    codes = (padded / scales.clamp(min=torch.finfo(torch.float32).tiny)).round().clamp(-127, 127).to(torch.int8)
    return (codes.float() * scales).flatten()[: flat.numel()].view(values.shape)


def combined(setting: Setting, updates: Sequence[Tensors]) -> Tensors:
    """One step of several updates by a rule that the product does not have."""
    names = list(updates[0])
    if setting.rule == "krum":
        return updates[krum(updates, setting.colluders)]
    join = trimmed_mean if setting.rule == "trimmed_mean" else mean
    return {name: join([update[name] for update in updates]) for name in names}


def mean(parts: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total / len(parts)


def trimmed_mean(parts: Sequence[Tensor]) -> Tensor:
    """Coordinate by coordinate, the mean of what is neither among the largest nor the smallest (Yin et al. 2018)."""
    left_out = int(TRIMMED * len(parts))
    ordered = torch.stack(list(parts)).sort(dim=0).values
    return ordered[left_out : len(parts) - left_out].mean(dim=0)


def krum(updates: Sequence[Tensors], colluders: int) -> int:
    """The update with the least sum of squared distances to its R - f - 2 nearest, f given (Blanchard et al. 2017)."""
    flat = torch.stack([torch.cat([part.flatten() for part in update.values()]) for update in updates]).double()
    distances = torch.cdist(flat, flat).square()
    near = max(1, len(updates) - colluders - 2)
    return int(distances.sort(dim=1).values[:, 1 : near + 1].sum(dim=1).argmin())


def take(judge: Replica, step: Mapping[str, Tensor], rate: float, averages: Sequence[float], whole: float) -> None:
    """The judge's consensus state becomes theta - rate * step, one round on."""
    theta = {name: value - rate * step[name] for name, value in judge.theta.items()}
    judge.load_consensus(saved_as(theta, OuterState(judge.outer.rounds, tuple(averages), whole)))


def saved_as(theta: Tensors, before: OuterState) -> TensorState:
    """The consensus state with this theta after one more round."""
    return TensorState(
        theta,
        {
            "rounds": before.rounds + 1,
            "averages": [average.hex() for average in before.averages],
            "whole": before.whole.hex(),
        },
    )


def pseudo_gradient(replica: Replica) -> Tensors:
    """theta - theta_r, on the CPU."""
    weights = {name: weight.detach().cpu() for name, weight in replica.model.named_parameters()}
    return {name: before - weights[name] for name, before in replica.theta.items()}


def errors_of(replica: Replica) -> Mapping[str, Tensor]:
    """The replica's error feedback itself, not a copy."""
    return replica._errors()


def dense(sent: Sent) -> Tensors:
    if isinstance(sent, Update):
        return {tensor.name: sent.dense(index) for index, tensor in enumerate(sent.layout)}
    return sent


def norms(update: Tensors, layout: Layout) -> Norms:
    parts = tuple(float(update[tensor.name].double().norm()) for tensor in layout)
    return Norms(parts, sum(part**2 for part in parts) ** 0.5)
