"""What a piece of code allocates, watched operation by operation; real tensors or fake ones."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from murmur.training.parallel import local


class Watched(TorchDispatchMode):
    """Follows all tensors that operations make while it is on: `peak` is the most bytes that exist at once, `largest`
    the most values that one of them has."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.largest = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, op: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = {tensor.untyped_storage()._cdata for tensor in tree_leaves(args) if isinstance(tensor, Tensor)}
        made = op(*args, **(kwargs or {}))
        for tensor in map(_held, tree_leaves(made)):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in known:
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = weakref.ref(storage)
                self.largest = max(self.largest, tensor.numel())
        self.peak = max(self.peak, self.now())
        return made

    def now(self) -> int:
        """Bytes of those that are alive, asked anew each time: FSDP frees by resizing a storage to nothing."""
        found = {key: storage() for key, storage in self._alive.items()}
        self._alive = {key: self._alive[key] for key, storage in found.items() if storage is not None}
        return sum(storage.nbytes() for storage in found.values() if storage is not None)


def _held(made: Any) -> Any:
    """Of a sharded tensor this rank's part: the whole one takes no memory."""
    return local(made) if isinstance(made, Tensor) else made
