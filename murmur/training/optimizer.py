"""The inner optimizer: AdamW, or Muon for every matrix with AdamW for the gains; its state as named tensors.

Works on whole parameters and on parameters sharded by FSDP2. State is then sharded like its parameter, and each rank
saves and loads its own part. Sources: AdamW (arXiv 1711.05101); Muon: murmur/training/muon.py.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.training.model import Transformer
from murmur.training.muon import Muon
from murmur.training.parallel import ALONE, Ranks, local

FIRST, SECOND = "adam.first/", "adam.second/"
MOMENTUM = "muon.momentum/"


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimizers over disjoint parameters behind one interface: they share groups and state."""

    def __init__(self, muon: Muon, adamw: torch.optim.AdamW) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._parts = (muon, adamw)
        for part in self._parts:
            part.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step of both. `closure` is torch's and not supported."""
        assert closure is None
        for part in self._parts:
            part.step()


def make_optimizer(model: Transformer, spec: InnerSpec, ranks: Ranks = ALONE) -> torch.optim.Optimizer:
    """Return the optimizer of `spec` over all parameters, gains included (as in the published runs). `ranks`: those
    among which `model` is sharded.

    AdamW is one fused call per step. Muon takes every matrix, embedding and head included. Under AdamW the rows of an
    embedding move at full speed however small their gradients are. The more steps a miner takes, the more of its
    payload then goes to rows that hardly matter (docs/decisions/0049-muon-on-every-matrix.md).
    """
    parameters = [parameter for _, parameter in sorted(model.named_parameters())]
    matrices = [parameter for parameter in parameters if spec.optimizer == "muon" and parameter.dim() == 2]
    adamw = torch.optim.AdamW(
        [parameter for parameter in parameters if parameter.dim() != 2 or not matrices],
        lr=spec.peak_lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    if not matrices:
        return adamw
    return MuonAndAdamW(Muon(matrices, ranks, lr=spec.peak_lr, weight_decay=spec.weight_decay), adamw)


def set_constants(optimizer: torch.optim.Optimizer, spec: InnerSpec, lr: float) -> None:
    """Set `lr` and the constants of `spec`, which an amendment may have changed, for the next steps."""
    for group in optimizer.param_groups:
        group.update(lr=lr, weight_decay=spec.weight_decay)
        if "betas" in group:
            group.update(betas=(spec.beta1, spec.beta2), eps=spec.epsilon)


def store_adam_state(
    parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, into: Mapping[str, Tensor]
) -> int:
    """Copy the optimizer's tensors of `parameters` (all, by name) into those of `into`, one after the other; return
    AdamW's number of steps. Zeros and 0 before the first step, so that the set of tensors never depends on history.

    AdamW's moments are `adam.first/NAME` and `adam.second/NAME`, Muon's momentum `muon.momentum/NAME`. For a sharded
    parameter they are this rank's part.
    """
    num_steps = 0
    for name, parameter, keys in _kept(parameters, optimizer):
        state = optimizer.state.get(parameter)
        for prefix, key in keys.items():
            if state:
                into[prefix + name].copy_(local(state[key]).detach())
            else:
                into[prefix + name].zero_()
        if state and "step" in state:
            num_steps = int(state["step"])
    return num_steps


def load_adam_state(
    parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], num_steps: int
) -> None:
    """Load the tensors of `store_adam_state`: the next step is bit-identical. Raises CheckpointCorrupt for other
    tensors."""
    for name, parameter, keys in _kept(parameters, optimizer):
        state: dict[str, Tensor] = {}
        for prefix, key in keys.items():
            saved, shape = tensors.get(prefix + name), local(parameter).shape
            if saved is None or saved.shape != shape:
                raise CheckpointCorrupt(f"saved optimizer state has no {prefix + name} of shape {tuple(shape)}")
            state[key] = torch.empty_like(parameter, requires_grad=False)
            local(state[key]).copy_(saved)
        if keys is _ADAMW:
            state["step"] = torch.tensor(float(num_steps), device=parameter.device)
        optimizer.state[parameter] = state


def state_shapes(model: ModelSpec, spec: InnerSpec) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes that `store_adam_state` fills when nothing is sharded."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in model.shapes().items():
        muons = spec.optimizer == "muon" and len(shape) == 2
        shapes |= {prefix + name: shape for prefix in (_MUON if muons else _ADAMW)}
    return shapes


def carried_shapes(model: ModelSpec, spec: InnerSpec) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the state that is carried from round to round: none where rounds begin fresh."""
    return state_shapes(model, spec) if spec.state == "kept" else {}


_ADAMW = {FIRST: "exp_avg", SECOND: "exp_avg_sq"}
_MUON = {MOMENTUM: "momentum_buffer"}


def _kept(
    parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor, Mapping[str, str]]]:
    """Yield each parameter by name with its state's keys: prefix of the saved name -> torch's key."""
    muons = {id(parameter) for group in optimizer.param_groups if "betas" not in group for parameter in group["params"]}
    for name, parameter in parameters.items():
        yield name, parameter, _MUON if id(parameter) in muons else _ADAMW
