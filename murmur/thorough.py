"""The checks that cost time, of `murmur doctor` alone: what the store does with large objects, how strangers see this
node's bucket, and whether this machine and its links keep up with the run's clock."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from murmur.measure import Measured, measure
from murmur.pace import trial
from murmur.plan import refusals
from murmur.timetable import duration
from node.doctor.bucket import ENDPOINT, POINTER_FIX
from node.doctor.case import Case
from node.doctor.finding import Advice, Check, Fault
from protocol.errors import ConfigError
from protocol.messages import encode_slot, parse_slot
from storage.behaviour import speed, takes_parts_in_any_order, tells_versions_apart
from storage.s3 import open_published
from training.phases import MARGIN
from training.plan import Plan
from training.rates import Rate, Rates
from training.trial import fit_planned, too_big

STORE_SECONDS = 60.0
SPEED_BYTES = 16 << 20
"""Sent and read once: half a minute on the slowest links with which anybody could take part."""
BUSY = "What else runs here may have slowed this down: try once more"
ONE_THREAD = "start the node with OMP_NUM_THREADS=1, as local networks do: other work on this machine takes its cores"


class Thorough(Case):
    """A case of which the links are measured."""

    links: Rates
    tell: Callable[[str], None]


def parts(case: Thorough) -> str | Advice:
    """Parts of a large object may travel in any order."""
    case.tell("parts out of order")
    if takes_parts_in_any_order(case.doors.bucket, timeout_seconds=STORE_SECONDS):
        return "parts of a large object are taken in any order"
    return Advice(
        "the store takes parts in order only, so a payload begins to travel when all of it is sealed",
        "nothing has to be done; another store saves that time in every round",
    )


def versions(case: Thorough) -> str:
    """A download that is resumed is of one version."""
    reader = open_published(case.doors.pointer, local=case.local)
    if not tells_versions_apart(case.doors.bucket, reader, timeout_seconds=STORE_SECONDS):
        raise Fault(
            "the store gives bytes of a new version where the old one was asked for (If-Match): who resumes a download "
            "from this node gets a mixture, and books that as this node's fault",
            f"take another store: {ENDPOINT}",
        )
    return "a replaced object is told from the one before (If-Match)"


def strangers(case: Thorough) -> str:
    """Whoever reads the pointer on chain gets to the bucket."""
    pointer = case.doors.pointer
    slot = parse_slot(0, encode_slot(pointer))
    if slot.pointer != pointer:
        raise Fault("the pointer does not come back from its form on chain as it was", POINTER_FIX)
    try:
        case.doors.open_pointer(pointer).list("", max_keys=1, timeout_seconds=STORE_SECONDS)
    except ConfigError as fault:
        raise Fault(f"peers would refuse this bucket: {fault}", POINTER_FIX) from None
    return "the pointer in its form on chain leads peers to this bucket"


def links(case: Thorough) -> str | Advice:
    """The links to the store and back."""
    case.tell("the links to the bucket")
    reader = open_published(case.doors.pointer, local=case.local)
    seen = speed(case.doors.bucket, reader, SPEED_BYTES, timeout_seconds=STORE_SECONDS)
    case.links = Rates(up=Rate(seen.up, seen.up), down=Rate(seen.down, seen.down))
    up, down = 8e-6 * seen.up, 8e-6 * seen.down
    clock = case.run.first.clock
    told = f"{up:,.0f} Mb/s to the bucket, {down:,.0f} Mb/s from it"
    if up < clock.upload_mbps or down < clock.download_mbps:
        return Advice(
            f"{told}; the run's clock was planned for {clock.upload_mbps:,.0f} and {clock.download_mbps:,.0f}",
            "the check 'pace' says whether that suffices; a nearer store or another link is faster",
        )
    return told


def memory(case: Thorough) -> str:
    """The model trains in the GPUs' memory."""
    if not _on_gpu(case):
        return "trains on the CPU, with as many sequences at once as 4 GiB hold"
    spec = case.run.spec_at(case.round)
    gpus, gpu_bytes = _gpus()
    found = fit_planned(spec, gpus, gpu_bytes, -(-spec.inner.sequences // gpus))
    if found is None:
        raise Fault(too_big(spec, gpus, gpu_bytes), "as said; `murmur plan` has the arithmetic")
    return f"{found.micro_sequences} sequences at once on each of {gpus} GPUs, {found.recompute} layers computed again"


def pace(case: Thorough) -> str | Advice:
    """This machine and its links keep up with the clock.

    A fault is what even the quickest pass of the trial leaves late: the slower ones may be another program's doing.
    """
    spec = case.run.spec_at(case.round)
    gpus, gpu_bytes = _gpus() if _on_gpu(case) else (1, 0)
    plan = Plan(spec, gpus, gpu_bytes, case.links, on_gpu=_on_gpu(case))
    options = Namespace(gpus=None, gpu_memory=None, gpu_tflops=None)
    measured = measure(plan, options, case.tell, home=case.home)
    plan, tried = measured.plan, _tried(measured)
    found = refusals(plan, [case.role])
    if found and (single := _by_one_thread(measured, case)) is not None:
        return Advice(f"{'; '.join(found)}; {tried}. In time with one thread: {_tried(single)}", ONE_THREAD)
    if found and refusals(_quickest(measured), [case.role]):
        raise Fault("; ".join([*found, tried]), f"take a faster machine, store or link. {BUSY}")
    if found:
        return Advice(
            f"a {case.role} here is in time when the machine is free, and was not while this was tried; {tried}", BUSY
        )
    deadline, ends, by = plan.tightest(case.role)
    margin = f"{duration(by - ends)} before {deadline.when}"
    return f"a {case.role} here {deadline.does} {margin}: it takes {duration(ends)} of {duration(by)}; {tried}"


def _by_one_thread(measured: Measured[Plan], case: Thorough) -> Measured[Plan] | None:
    """The same with one thread where that is in time: several threads that share cores with other work mostly wait for
    each other."""
    before = torch.get_num_threads()
    if measured.plan.on_gpu or before == 1:
        return None
    torch.set_num_threads(1)
    try:
        found = trial(measured.plan.spec, torch.device("cpu"), case.tell)
    finally:
        torch.set_num_threads(before)
    if found is None:
        return None
    rates = replace(measured.plan.rates, compute=Rate(found.flops))
    single = Measured(replace(measured.plan, rates=rates, margin=max(MARGIN, found.spread)), found)
    return None if refusals(_quickest(single), [case.role]) else single


def _quickest(measured: Measured[Plan]) -> Plan:
    """The plan as the quickest pass of the trial has it, without more spread than any plan has."""
    plan, trial = measured.plan, measured.trial
    if trial is None:
        return plan
    return replace(plan, rates=replace(plan.rates, compute=Rate(trial.quickest_flops)), margin=MARGIN)


def _tried(measured: Measured[Plan]) -> str:
    """The inner steps of a round by the trial, with their spread."""
    plan, trial = measured.plan, measured.trial
    seconds = duration(plan.compute_seconds)
    if trial is None:
        return f"inner steps take {seconds} at the stated rate"
    where = f"{plan.gpus} GPUs" if plan.on_gpu else f"{trial.threads} thread{'s' * (trial.threads != 1)}"
    return (
        f"inner steps take {seconds} on {where}, at best {duration(_quickest(measured).compute_seconds)}, and a slow "
        f"quarter takes {trial.spread:.0%} longer"
    )


def _on_gpu(case: Case) -> bool:
    return case.config.device != "cpu" and torch.cuda.is_available()


def _gpus() -> tuple[int, int]:
    """Their number, and bytes of the smallest."""
    count = torch.cuda.device_count()
    return count, min(torch.cuda.get_device_properties(index).total_memory for index in range(count))


CHECKS: Sequence[Check] = (
    Check("parts", parts, POINTER_FIX, ("bucket",)),
    Check("versions", versions, POINTER_FIX, ("bucket",)),
    Check("strangers", strangers, POINTER_FIX, ("bucket", "spec")),
    Check("links", links, POINTER_FIX, ("bucket", "run")),
    Check("memory", memory, "take GPUs with more memory", ("device", "run")),
    Check("pace", pace, "take a faster machine", ("home", "device", "run", "links")),
)
