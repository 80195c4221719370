"""The slow checks, made only by `murmur doctor`: the store's behaviour with large objects, this node's bucket from a
stranger's side, and whether this machine and its links keep up with the run's clock."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from murmur.node.doctor.bucket import ENDPOINT, POINTER_FIX
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Advice, Check, FailedCheck
from murmur.plan.measure import Measured, Planned, measure
from murmur.plan.network import refusals
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import Plan
from murmur.plan.timetable import duration
from murmur.plan.training_speed import trial
from murmur.protocol.errors import ConfigError
from murmur.protocol.messages import encode_slot, parse_slot
from murmur.protocol.spec import TrainingSpec
from murmur.training.batch_trial import fit_planned, too_big
from storage.behaviour import speed, takes_parts_in_any_order, tells_versions_apart
from storage.s3 import RangedBucket, open_published

STORE_SECONDS = 60.0
SPEED_BYTES = 16 << 20
"""Sent and read once: half a minute on the slowest links with which a node could take part."""
BUSY = "Other programs on this machine may have slowed this down: try once more"
ONE_THREAD = "start the node with OMP_NUM_THREADS=1, as local networks do: other programs use this machine's cores"


class Thorough(ExaminedNode):
    """A node whose links are measured."""

    links: Rates
    tell: Callable[[str], None]

    @property
    def own(self) -> RangedBucket:
        return self.ports.bucket

    @property
    def reader(self) -> RangedBucket:
        """The bucket as other nodes read it."""
        return open_published(self.ports.pointer, local=self.local)


class Links(Protocol):
    """The interface of the tests of links and store, for both kinds of runs. own: where this machine writes; reader:
    the same as other nodes read it."""

    links: Rates
    tell: Callable[[str], None]

    @property
    def own(self) -> RangedBucket: ...

    @property
    def reader(self) -> RangedBucket: ...


def parts(node: Links) -> str | Advice:
    """Check that parts of a large object may be sent in any order."""
    node.tell("parts out of order")
    if takes_parts_in_any_order(node.own, timeout_seconds=STORE_SECONDS):
        return "the store accepts the parts of a large object in any order"
    return Advice(
        "the store accepts parts in order only, so the upload of a payload begins when all of it is sealed",
        "no action is needed; another store saves that time in every round",
    )


def versions(node: Links) -> str:
    """Check that a resumed download is of one version."""
    if not tells_versions_apart(node.own, node.reader, timeout_seconds=STORE_SECONDS):
        raise FailedCheck(
            "the store sends a new version's bytes when the old one is asked for (it ignores If-Match). A "
            "peer that resumes a download gets a mixture, and counts it as this node's fault",
            f"use another store: {ENDPOINT}",
        )
    return "the store tells a replaced object from the one before (If-Match)"


def strangers(node: Thorough) -> str:
    """Check that a reader of the pointer on chain reaches the bucket."""
    pointer = node.ports.pointer
    slot = parse_slot(0, encode_slot(pointer))
    if slot.pointer != pointer:
        raise FailedCheck("the bucket's address changes when it is encoded for the chain", POINTER_FIX)
    try:
        node.ports.open_pointer(pointer).list("", max_keys=1, timeout_seconds=STORE_SECONDS)
    except ConfigError as fault:
        raise FailedCheck(f"peers would refuse this bucket: {fault}", POINTER_FIX) from None
    return "peers can open this bucket by its address on chain"


def links(node: Thorough) -> str | Advice:
    """Measure the links to the store and back."""
    up, down, told = measure_links(node)
    clock = node.run.first.clock
    if up < clock.upload_mbps or down < clock.download_mbps:
        return Advice(
            f"{told}; the run's clock was planned for {clock.upload_mbps:,.0f} and {clock.download_mbps:,.0f}",
            "the check 'pace' says whether that is enough; a nearer store or another link is faster",
        )
    return told


def measure_links(node: Links) -> tuple[float, float, str]:
    """Return Mb/s up and down, and both as text; stores them in `node.links`."""
    node.tell("the links to the bucket")
    seen = speed(node.own, node.reader, SPEED_BYTES, timeout_seconds=STORE_SECONDS)
    node.links = Rates(up=Rate(seen.up, seen.up), down=Rate(seen.down, seen.down))
    up, down = 8e-6 * seen.up, 8e-6 * seen.down
    return up, down, f"{up:,.0f} Mb/s to the bucket, {down:,.0f} Mb/s from it"


def memory(node: Thorough) -> str:
    """Check that the model trains in the GPUs' memory."""
    return in_memory(node.run.spec_at(node.round), on_gpu(node.config.device))


def in_memory(spec: TrainingSpec, with_gpus: bool) -> str:
    """Return how it trains on this machine. Raises Fault where it does not fit."""
    if not with_gpus:
        return "trains on the CPU, with as many sequences at once as 4 GiB hold"
    gpus, gpu_bytes = gpus_here()
    found = fit_planned(spec, gpus, gpu_bytes, -(-spec.inner.sequences // gpus))
    if found is None:
        raise FailedCheck(
            too_big(spec, gpus, gpu_bytes), "no action is needed here; `murmur plan` shows the calculation"
        )
    return f"{found.micro_sequences} sequences at once on each of {gpus} GPUs, {found.recompute} layers computed again"


def pace(node: Thorough) -> str | Advice:
    """Check that this machine and its links keep up with the clock.

    It is a fault only if even the quickest pass of the trial is late: another program may have slowed the others.
    """
    spec = node.run.spec_at(node.round)
    with_gpus = on_gpu(node.config.device)
    gpus, gpu_bytes = gpus_here() if with_gpus else (1, 0)
    plan = Plan(spec, gpus, gpu_bytes, node.links, on_gpu=with_gpus)
    measured = measure(plan, NOTHING_GIVEN, node.tell, home=node.home)
    plan, tried = measured.plan, tried_words(measured)
    found = refusals(plan, [node.role])
    if found and (single := _by_one_thread(measured, node)) is not None:
        return Advice(f"{'; '.join(found)}; {tried}. In time with one thread: {tried_words(single)}", ONE_THREAD)
    if found and refusals(_quickest(measured), [node.role]):
        raise FailedCheck("; ".join([*found, tried]), f"use a faster machine, store or link. {BUSY}")
    if found:
        return Advice(f"a {node.role} here is in time on an idle machine, but was late during this test; {tried}", BUSY)
    deadline, ends, by = plan.tightest(node.role)
    margin = f"{duration(by - ends)} before {deadline.when}"
    return f"a {node.role} here {deadline.does} {margin}: it takes {duration(ends)} of {duration(by)}; {tried}"


def _by_one_thread(measured: Measured[Plan], node: Thorough) -> Measured[Plan] | None:
    """Return the measurement with one thread if that is in time, else None. Threads that share cores with other work
    mostly wait for each other."""
    before = torch.get_num_threads()
    if measured.plan.on_gpu or before == 1:
        return None
    torch.set_num_threads(1)
    try:
        found = trial(measured.plan.spec, torch.device("cpu"), node.tell)
    finally:
        torch.set_num_threads(before)
    if found is None:
        return None
    rates = replace(measured.plan.rates, compute=Rate(found.flops))
    single = Measured(replace(measured.plan, rates=rates).with_spread(found.spread), found)
    return None if refusals(_quickest(single), [node.role]) else single


def _quickest(measured: Measured[Planned]) -> Planned:
    """Return the plan by the quickest pass of the trial, with the minimum spread."""
    plan, trial = measured.plan, measured.trial
    if trial is None:
        return plan
    return replace(plan, rates=replace(plan.rates, compute=Rate(trial.quickest_flops))).with_spread(0.0)


def tried_words(measured: Measured[Planned]) -> str:
    """Return the trial's inner steps of a round, with their spread, as text."""
    plan, trial = measured.plan, measured.trial
    seconds = duration(plan.compute_seconds)
    if trial is None:
        return f"inner steps take {seconds} at the stated rate"
    where = f"{plan.gpus} GPUs" if plan.on_gpu else f"{trial.threads} thread{'s' * (trial.threads != 1)}"
    return (
        f"inner steps take {seconds} on {where}, at best {duration(_quickest(measured).compute_seconds)}, and a slow "
        f"quarter takes {trial.spread:.0%} longer"
    )


def on_gpu(device: str) -> bool:
    """Whether GPUs train; `device` as in a node's settings."""
    return device != "cpu" and torch.cuda.is_available()


def gpus_here() -> tuple[int, int]:
    """Return the number of GPUs, and the bytes of the smallest."""
    count = torch.cuda.device_count()
    return count, min(torch.cuda.get_device_properties(index).total_memory for index in range(count))


NOTHING_GIVEN = Namespace(gpus=None, gpu_memory=None, gpu_tflops=None)
"""No options of `murmur plan --measure`: everything is measured."""

CHECKS: Sequence[Check] = (
    Check("parts", parts, POINTER_FIX, ("bucket",)),
    Check("versions", versions, POINTER_FIX, ("bucket",)),
    Check("strangers", strangers, POINTER_FIX, ("bucket", "spec")),
    Check("links", links, POINTER_FIX, ("bucket", "run")),
    Check("memory", memory, "use GPUs with more memory", ("device", "run")),
    Check("pace", pace, "use a faster machine", ("home", "device", "run", "links")),
)
