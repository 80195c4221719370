"""FSDP2 on one device, in a process group of one, beside the unsharded model: for gpu_parts.py."""

import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from murmur.cli.doctor.executions import Round, _compared, _execute, worst
from murmur.configs.presets import WINDOWS
from murmur.plan.presets import STAND_INS
from murmur.protocol.spec import RunSpec
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks
from murmur.training.replica import Replica


class AloneInAGroup(Ranks):
    """One process that shards all the same."""

    def shard(self, model: nn.Module, layers: Iterable[nn.Module], methods: Iterable[str]) -> None:
        self.shard_anyhow(model, layers, methods)


def spec_of(table: dict[str, Any]) -> RunSpec:
    """Return a preset's table as a spec, with placeholders for what belongs to a network."""
    given = {"clock": WINDOWS, "name": "draft"} | table
    for name, stand_in in STAND_INS.items():
        given[name] = stand_in | given.get(name, {}) if isinstance(stand_in, dict) else stand_in
    return RunSpec.model_validate(given)


def compared(spec: RunSpec, device: torch.device) -> dict[str, Any]:
    """Execute a round's steps both ways; return rates, and how far the steps are apart as a share of their limits."""
    inner, context = spec.inner, spec.model.context
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, spec.model.vocabulary, (inner.steps * inner.sequences, context + 1), generator=generator)
    round, theta = Round(spec, text, device), genesis_theta(spec.model, 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    found: dict[str, dict[str, Any]] = {}
    traces, payloads = [], []
    try:
        for name, kind in (("unsharded", Ranks), ("FSDP2", AloneInAGroup)):
            replica = Replica(spec, theta, ranks=kind(device=device))
            traces.append(_execute(replica, round, name, lambda what: None))  # compiles too
            began = time.perf_counter()
            report = replica.inner_round(text)
            seconds = time.perf_counter() - began
            payloads.append(replica.compress().digest)
            losses = {"first_loss": report.losses[0], "last_loss": report.losses[-1]}
            found[name] = {"tokens_a_second": inner.steps * inner.sequences * context / seconds, **losses}
            del replica  # before the next one takes its memory
    finally:
        dist.destroy_process_group()
    apart = _compared(round, traces[0], traces[1])
    return found | {
        "distances": list(apart.distances),
        "share_of_limits": worst(apart),
        "same_payload": payloads[0] == payloads[1],
    }
