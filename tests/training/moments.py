"""The optimizer's state as new tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from murmur.training.optimizer import FIRST, MOMENTUM, SECOND, store_adam_state
from murmur.training.parallel import local


class _Copies(dict[str, Tensor]):
    """Whatever is stored gets a tensor of its own."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._parameters = parameters

    def __missing__(self, name: str) -> Tensor:
        of = next(name.removeprefix(kind) for kind in (FIRST, SECOND, MOMENTUM) if name.startswith(kind))
        self[name] = torch.full_like(local(self._parameters[of]), torch.nan, requires_grad=False)
        return self[name]


def adam_state(parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], int]:
    copies = _Copies(parameters)
    num_steps = store_adam_state(parameters, optimizer, copies)
    return dict(copies), num_steps
