"""Ranks: the processes, one for each accelerator of a machine, that train one node's model together.

`murmur torchrun --nproc_per_node N neurons/miner.py` starts N of them; without it there is one. The first rank runs the
program, and it alone talks to chain and store. The others wait for its calls to their trainer
(murmur/training/trainer.py) and execute them at the same time on their share. Only this module and
murmur/training/meeting.py, where they meet, know which rank it is. Parameters are sharded by FSDP2
(torch.distributed.fsdp.fully_shard).

A rank that fails ends with its own message; torchrun then ends the others. A rank whose torchrun is gone ends itself.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore

from murmur.training.meeting import Calls, RankLost, launched, meet

COLLECTIVE_SECONDS = 600.0
"""Time after which a rank that others wait for inside one operation is taken for dead."""
_PARENT_SECONDS = 1.0
_CALL_SECONDS = 0.05
"""Longest pause between polls for a call of the first rank; much shorter right after a call."""
_END_SECONDS = 5.0
"""Longest time that the first rank, which keeps the calls, stays for the others to take its last one."""
_END = "end"
_ENDED = "ended"
_OPEN = "open"


class Ranks:
    """This process among those that train together. `device` is this rank's own."""

    def __init__(
        self, index: int = 0, size: int = 1, device: torch.device | str = "cpu", calls: "Calls | None" = None
    ) -> None:
        self.index, self.size, self.device = index, size, torch.device(device)
        self._calls = calls
        self._count = 0
        self.in_step = True
        """First rank: no call is running and none was aborted. After an aborted call the other ranks do not know which
        is next."""

    def rows(self, total: int, index: int | None = None) -> slice:
        """Return this rank's rows of a tensor of `total` rows, or another rank's, as torch.chunk cuts: the last ranks
        may have fewer or none."""
        each, index = -(-total // self.size), self.index if index is None else index
        return slice(min(total, index * each), min(total, (index + 1) * each))

    def gathered(self, total: int) -> slice:
        """Return the rows of a tensor that one rank handles whole: all on the first rank, none on the others."""
        return slice(0, total if self.index == 0 else 0)

    def share(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's rows of a batch, equally many on every rank, and their weights, fp32: 1, or 0 for padding.
        Every rank must call the model equally often."""
        mine = batch[self.rows(len(batch))]
        missing = -(-len(batch) // self.size) - len(mine)
        weights = torch.cat([torch.ones(len(mine)), torch.zeros(missing)])
        return torch.cat([mine, batch[:1].expand(missing, -1)]), weights

    def shard(self, model: nn.Module, layers: Iterable[nn.Module], methods: Iterable[str]) -> None:
        """Shard the model's parameters among the ranks by rows, where there are several; its `methods` are called like
        forward."""
        if self.size > 1:
            self.shard_anyhow(model, layers, methods)

    def shard_anyhow(self, model: nn.Module, layers: Iterable[nn.Module], methods: Iterable[str]) -> None:
        """Do so for a single rank too, in a process group of one: a trial of FSDP2 on one GPU. Matrix products in bf16
        on a GPU, gradients summed in fp32."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(self.device.type, (self.size,))
        low = torch.bfloat16 if self.device.type == "cuda" else None
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for module in (*layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        for method in methods:
            register_fsdp_forward_method(model, method)

    def release(self, model: nn.Module) -> None:
        """Release the whole weights that the last call gathered, after an evaluation. The next call gathers them
        anew."""
        if self.size > 1:
            cast(Any, model).reshard()

    def exchange(self, given: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[torch.Size]]) -> list[list[Tensor]]:
        """Send the tensors given[r] to rank r and receive those of shapes[r] from it, all in bf16 on this rank's
        device."""
        if self.size == 1:
            return [list(given[0])]
        nothing = torch.empty(0, dtype=torch.bfloat16, device=self.device)
        sent = torch.cat([nothing, *(tensor.reshape(-1) for theirs in given for tensor in theirs)])
        counts = [sum(shape.numel() for shape in theirs) for theirs in shapes]
        got = sent.new_empty(sum(counts))
        dist.all_to_all_single(got, sent, counts, [sum(tensor.numel() for tensor in theirs) for theirs in given])
        pieces = iter(torch.split(got, [shape.numel() for theirs in shapes for shape in theirs]))
        return [[next(pieces).view(shape) for shape in theirs] for theirs in shapes]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of a small tensor on the CPU, on every rank."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def mean(self, value: float) -> float:
        """Return the ranks' mean of a number, the same on every rank."""
        return float(self.sum(torch.tensor(value, dtype=torch.float64))) / self.size

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. Returns when every rank has called it."""
        return bool(self.sum(torch.tensor(int(flag))).item())

    def wait(self) -> None:
        """Wait until every rank has called this."""
        self.any(False)

    def announce(self, name: str, arguments: dict[str, Any]) -> None:
        """First rank: make the others run the same call. No effect on the others. Raises RankLost when out of step."""
        if self.size > 1 and self.index == 0:
            if not self.in_step:
                raise RankLost("an earlier call broke off: the ranks are out of step, and all have to start again")
            self.in_step = False
            cast(Calls, self._calls).set(str(self._count), json.dumps([name, arguments]))

    def end(self) -> None:
        """First rank: make the others end, and see that they do. After an aborted call they may have settled it or not,
        so both counts are sent."""
        calls, others = cast(Calls, self._calls), [f"{_ENDED} {index}" for index in range(1, self.size)]
        last = time.monotonic() + _END_SECONDS
        for count in (self._count, self._count + 1):
            calls.set(str(count), json.dumps([_END, {}]))
        while not calls.check(others) and time.monotonic() < last:
            time.sleep(_CALL_SECONDS)

    def ended(self) -> None:
        """Other ranks: tell the first one that this one takes no more calls."""
        with suppress(dist.DistError):  # it has ended already
            cast(Calls, self._calls).set(f"{_ENDED} {self.index}", "")

    def await_call(self) -> tuple[str, dict[str, Any]]:
        """Other ranks: wait for the first rank's next call. Raises RankLost."""
        calls, key, pause = cast(Calls, self._calls), str(self._count), _CALL_SECONDS / 64
        try:
            while not calls.check([key]):  # its `wait` logs two lines each time that nothing has come
                time.sleep(pause)
                pause = min(2 * pause, _CALL_SECONDS)
            name, arguments = json.loads(calls.get(key))
        except dist.DistError as fault:
            raise RankLost(f"rank {self.index} has lost the first rank, which says why itself: start again") from fault
        return name, arguments

    def settle(self) -> None:
        """End a call: every rank has finished it, so its inputs may be changed."""
        if self.size > 1:
            self.wait()
            if self.index == 0:
                cast(Calls, self._calls).delete_key(str(self._count))
            self._count += 1
            self.in_step = True


ALONE = Ranks()
"""One process on the CPU."""


def local(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a sharded parameter or of its state; another tensor unchanged.

    Only sharded tensors (DTensor) have `to_local`. Importing their class takes a second or more, which a node on one
    device need not spend.
    """
    return cast(Any, tensor).to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor whole, on every rank; another tensor unchanged."""
    return cast(Any, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Worker(Protocol):
    """An object on every rank whose `together` methods run on all ranks at once."""

    ranks: Ranks


W = TypeVar("W", bound="Worker")
P = ParamSpec("P")
R = TypeVar("R")


def together(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    """Make a method of a Worker run on every rank when the first one calls it. Arguments are keywords with JSON values;
    the result is the calling rank's. Raises RankLost."""

    @wraps(method)
    def call(self: W, *nothing: P.args, **arguments: P.kwargs) -> R:
        self.ranks.announce(method.__name__, dict(arguments))
        try:
            result = method(self, *nothing, **arguments)
            self.ranks.settle()
        except RuntimeError as fault:
            if self.ranks.size > 1 and (isinstance(fault, dist.DistError) or "gloo" in str(fault)):
                raise RankLost(
                    f"rank {self.ranks.index} cannot go on without the others: one of them ended or stands still, and "
                    "says why itself"
                ) from fault
            raise
        return result

    return cast(Callable[Concatenate[W, P], R], call)


def open_together(ranks: Ranks, make: Callable[..., W], **arguments: Any) -> W:
    """First rank: open a worker on every rank, `make(ranks, **arguments)`; the others drop their previous one."""
    ranks.announce(_OPEN, arguments)
    worker = make(ranks, **arguments)
    ranks.settle()
    return worker


def run(
    program: Callable[[Ranks], None],
    make: Callable[..., Worker],
    device: torch.device,
    stop_after: Callable[[str | None], None] = lambda what: None,
) -> None:
    """Run `program` on the first rank; the others open its workers and execute its calls until it ends.

    device: the kind of device; every rank takes its own. stop_after: makes a request to stop wait for what it is
    called with, until it is called with None: the first rank alone decides when all stop.
    """
    ranks = _join(device)
    if ranks.size == 1:
        program(ranks)
        return
    try:
        if ranks.index == 0:
            try:
                program(ranks)
            finally:
                ranks.end()
        else:
            stop_after("")  # it has nothing to say
            try:
                _serve(ranks, make)
            finally:
                ranks.ended()
            stop_after(None)
    finally:
        dist.destroy_process_group()


def _serve(ranks: Ranks, make: Callable[..., Worker]) -> None:
    worker: Worker | None = None
    while True:
        name, arguments = ranks.await_call()
        if name == _END:
            return
        if name == _OPEN:
            worker = None
            worker = make(ranks, **arguments)
            ranks.settle()
        else:
            getattr(worker, name)(**arguments)


def _join(device: torch.device) -> Ranks:
    """Return this process's rank, from the environment variables of who started it."""
    place = launched()
    if place is None:
        return Ranks(device=device)
    _end_with(os.getppid())
    if device.type == "cuda":
        device = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(device)
        # torchrun leaves one thread to each process; the first rank does the host's work while the others wait.
        torch.set_num_threads(os.cpu_count() or 1)
    store = meet(place)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )
    return Ranks(place.rank, place.size, device, cast(Calls, PrefixStore("calls", store)))


def _end_with(parent: int) -> None:
    """End this process when torchrun is gone, for whatever reason: no process may remain on the accelerators."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
