"""A plan as text for people, at most 100 columns wide, less on a narrow terminal."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from shutil import get_terminal_size
from textwrap import wrap

from gauntlet.agreement import COPIES
from murmur.plan.machine import GB
from murmur.plan.phases import Opening, Phase
from murmur.plan.presets import NO_DATA
from murmur.plan.rate_milestones import milestones
from murmur.plan.requirements import COVENANT, ROLES, Plan, TrainerPlan, transfer_seconds, utilization
from murmur.plan.timeline import Timed
from murmur.plan.verification import verification
from murmur.protocol.run import Run
from murmur.protocol.spec import WINDOW_MARGIN_BLOCKS
from murmur.training.memory import RESERVE, STEP_PARTS, Role, disk_parts, gpu_total
from murmur.training.sizes import size_words

MARKS: dict[Opening, str] = {
    "commit": "the commit deadline's block is final: commitments are counted",
    "reveal": "the reveal deadline's block is final: keys are read",
    "decided": "validators' votes are final: the selection is known",
}
LIMIT = "next commit deadline"
COLUMNS = 100
"""Of a pipe or a file, too."""
GOES_ON = " " * 20
"""So begin lines that go on with the one above. No other line is indented so far."""
SMALL_BYTES = 100 * 10**6
"""A model that trains in less memory trains on any CPU in seconds: GPU figures would only confuse."""
DOES = {
    "compute": "done",
    "up": "sent",
    "down": "received",
    "device": "to GPUs",
    "copy": "copied",
    "fresh": "copied anew",
    "hash": "hashed",
    "cipher": "ciphered",
    "write": "written",
    "read": "read",
    "compress": "compressed",
    "apply": "added",
    "probe": "tried",
}


def lines(plan: Plan, run: Run, refused: Sequence[str], *, measured: bool) -> Iterator[str]:
    """Yield the whole plan, line by line."""
    yield from size(plan)
    yield ""
    yield from verdict(refused, "IT FITS: every deadline is met.")
    if plan.loses_own_state:
        yield from wrapped(
            "MIND: a miner's own state is not on disk in time for the next round's compression, so it is not "
            "saved: a crash loses error feedback and optimizer state. Use a faster disk.",
            "  ",
        )
    for role in ROLES:
        yield ""
        yield from _timeline(plan, role)
    yield ""
    yield from _shares(plan)
    yield ""
    yield from gpu_memory(plan)
    yield ""
    yield from _host_and_disk(plan)
    yield ""
    yield from _schedule(run)
    yield ""
    yield from _assumptions(plan, measured)
    if plan.parameters_untied == COVENANT.num_parameters:
        yield ""
        yield from _published()


def size(plan: TrainerPlan) -> Iterator[str]:
    """Yield the sizes of the model, a round, and a payload."""
    spec, model = plan.spec, plan.spec.model
    dense = 4 * plan.parameters / plan.payload_bytes
    yield (
        f"{spec.name}: {model.layers} layers, width {model.width:,}, {model.heads} heads ({model.kv_heads} KV), "
        f"FFN {model.ffn:,}, vocabulary {model.vocabulary:,}"
    )
    yield ""
    untied = f"   ({plan.parameters_untied:,} with embedding and head counted separately)" * model.tie_embeddings
    yield f"parameters     {plan.parameters:,}{untied}"
    yield (
        f"one round      {duration(plan.round_seconds)}: {spec.inner.steps} inner steps x {spec.inner.sequences} "
        f"sequences x {model.context:,} tokens"
    )
    muons = f", and {plan.optimizer_flops / plan.flops:.1%} more for Muon" if plan.optimizer_flops else ""
    yield f"               = {plan.tokens:,} tokens and {plan.flops:.3g} FLOPs a peer{muons}"
    repeats, known = plan.tokens_per_day / spec.data.num_tokens, spec.data.index != NO_DATA
    share = f", {repeats:,.2g} times the data set's {spec.data.num_tokens:,}" if known else ""
    yield f"one day        {plan.tokens_per_day:,.0f} tokens of all peers{share}"
    traced = f"; trace: {spec.trace.num_bytes:,} bytes" * bool(spec.trace.places)
    yield f"payload        {plan.payload_bytes:,} bytes, {dense:.1f} times smaller than dense fp32{traced}"


def verdict(refused: Sequence[str], fits: str) -> Iterator[str]:
    """Yield `fits`, or the reasons of the refusal."""
    if not refused:
        yield fits
        return
    yield "REFUSED:"
    for reason in refused:
        yield from wrapped(f"- {reason}", "  ")


def wrapped(text: str, indent: str, width: int = COLUMNS) -> Iterator[str]:
    """Yield the words in lines, all but the first indented by `indent`."""
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = indent
        line += (" " if line.strip() else "") + word
    yield line


def fitted(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines as the terminal's width wants them. One that is too long gives up its columns, and the lines that
    go on with it are part of it."""
    columns = get_terminal_size((COLUMNS, 0)).columns
    if columns >= COLUMNS or not sys.stdout.isatty():
        yield from lines
        return
    whole = list[str]()
    for line in "\n".join(lines).split("\n"):
        if whole and line.startswith(GOES_ON):
            whole[-1] += " " + line.lstrip()
        else:
            whole.append(line)
    for line in whole:
        text = re.sub(r" {3,}", "  ", line.strip())
        # Links and commands stay whole.
        narrow = wrap(text, columns, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
        yield from [line] if len(line) <= columns else narrow


# --- time --------------------------------------------------------------------------------------------------------


def _timeline(plan: Plan, role: Role) -> Iterator[str]:
    """Yield the phases by their beginnings, with the blocks that they wait for in between."""
    yield f"{'begins':>9}{'takes':>10}   a {role}, from the commit deadline on; * holds up a deadline"
    rows = [(timed.begins, 1, timed_row(timed)) for timed in plan.timeline(role) if timed.seconds]
    marks = {plan.openings[block]: mark for block, mark in MARKS.items()} | {plan.round_seconds: LIMIT}
    rows += [(begins, 0, f"{_clock(begins):>9}{'':>10} - {mark}") for begins, mark in marks.items()]
    for _, _, row in sorted(rows, key=lambda row: row[:2]):
        yield row


def timed_row(timed: Timed) -> str:
    """Return a phase's beginning, duration and name."""
    star = "*" if timed.critical else " "
    left = f"{_clock(timed.begins):>9}{duration(timed.seconds):>10} {star} {timed.phase.name}"
    told = _work(timed.phase)
    first, *rest = wrap(told, 59) or [""]
    return f"\n{'':<41}".join([f"{left:<41}{first}".rstrip(), *rest])


def _work(phase: Phase) -> str:
    """Return the amounts by rate: "565 GB copied anew; 282 GB hashed, written"."""
    amounts: dict[str, float] = {}
    for work in phase.work:
        amounts[work.rate] = amounts.get(work.rate, 0.0) + work.amount
    told = [(_amount(rate, amount), DOES[rate]) for rate, amount in amounts.items() if rate in DOES]
    return "; ".join(
        f"{amount} {', '.join(does for _, does in group)}" for amount, group in groupby(told, lambda pair: pair[0])
    )


def _amount(rate: str, amount: float) -> str:
    """Return an amount to three digits."""
    if rate == "compute":
        return f"{amount:.3g} FLOPs"
    for unit, symbol in ((10**12, "TB"), (GB, "GB"), (10**6, "MB")):
        if amount >= unit:
            return f"{amount / unit:.3g} {symbol}"
    return f"{amount / 1e3:.3g} kB"


def _clock(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 60_000 else f"{seconds / 3600:.1f} h"


def _correction(plan: Plan) -> Iterator[str]:
    """What a wrong guess of the selection costs, and what follows from it."""
    phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in plan.correction)
    left = plan.round_seconds - plan.published_after_correction
    then = (
        f"the miner has still published {duration(left)} before the commit deadline"
        if left >= 0
        else f"the miner has published {duration(-left)} too late, and its round is lost"
    )
    yield from wrapped(
        f"{'wrong guess':<15}{duration(plan.correction_seconds):>8}   more ({phases}), counted above: {then}",
        " " * 26,
    )


def _repeated(plan: Plan) -> Iterator[str]:
    """What a validator repeats of the miners' steps, in a run with traces."""
    found = verification(plan)
    if found is None:
        return
    often = plan.spec.gauntlet.contributors / found.repeats if found.repeats else inf
    second = "" if found.looks_twice else "; there is no time for the second execution that a failure takes"
    told = (
        f"{'repeated':<15}{found.repeats:>4.1f} of {found.drawn}   miners' rounds that a validator draws in one: each "
        f"takes {duration(found.one_seconds)}, and {duration(found.free_seconds)} of a round are free for it; each "
        f"contributor about every {often:.0f} rounds{second}"
    )
    yield from wrapped(told, " " * 26)


def _shares(plan: Plan) -> Iterator[str]:
    yield (
        f"utilization    {plan.utilization:>7.1%}   inner steps over the whole round, "
        f"{duration(plan.compute_seconds)} of {duration(plan.compute_seconds / plan.utilization)}"
    )
    yield (
        f"               {plan.published_utilization:>7.1%}   as published runs count: over inner steps, one upload "
        "and one download"
    )
    yield from _correction(plan)
    yield from _repeated(plan)
    yield f"uplink         {plan.uplink_share:>7.1%}   busy at a validator: copies, and a checkpoint now and then"
    for role in ROLES:
        steps = plan.restart(role)
        told = ", ".join(f"{name} {duration(seconds)}" for name, seconds in steps[1:])
        total = sum(seconds for _, seconds in steps[1:])
        yield from wrapped(f"{'restart':<15}{duration(total):>8}   a {role}: {told}", " " * 26)


# --- memory and disk ---------------------------------------------------------------------------------------------


def gpu_memory(plan: TrainerPlan) -> Iterator[str]:
    """Yield each GPU's memory by part, and whether that fits."""
    if not plan.on_gpu:
        yield "The node trains on this machine's CPU: it needs no GPU."
        return
    whole, _ = gpu_total(plan.spec, 1, plan.spec.inner.sequences)
    if whole < SMALL_BYTES:
        yield f"So small a model needs no GPU: it trains in {size_words(whole)}; --measure plans it on this machine."
        return
    if plan.spec.trace.places:
        yield "A validator's GPUs hold what a miner's do, while it repeats steps."
    unit, symbol = unit_of(plan.memory_total.gpu_computing)
    each = "the GPU" if plan.gpus == 1 else f"each of {plan.gpus} GPUs"
    yield f"{f'memory of {each}, {symbol}':<34}{'computing':>11}{'communicating':>16}"
    parts = {name: part for name, part in plan.memory().items() if part.gpu_computing or part.gpu_communicating}
    for name, part in [*parts.items(), ("total", plan.memory_total)]:
        cells = [f"{value / unit:,.1f}" if value else "-" for value in (part.gpu_computing, part.gpu_communicating)]
        label = name.replace("_", " ") + (" *" if name in STEP_PARTS else "")
        yield f"  {label:<32}{cells[0]:>11}{cells[1]:>16}"
    yield "* for a moment of each inner step, at different ones: the total has the fullest."
    usable, fitting = (1 - RESERVE) * plan.gpu_bytes, plan.micro_sequences
    told = f"It fits, with up to {fitting} sequence{'s' * (fitting != 1)} at once." if fitting else "DOES NOT FIT."
    yield f"A GPU has {plan.gpu_bytes / GB:,g} GB, of which {usable / GB:,.1f} GB can be planned with. {told}"


def _host_and_disk(plan: Plan) -> Iterator[str]:
    unit, symbol = unit_of(plan.host_bytes_peak("miner"))
    yield f"{f'memory of the host, {symbol}':<34}{'miner':>11}{'validator':>16}"
    held = {role: plan.host(role) for role in ROLES}
    for moment in dict.fromkeys(moment for role in ROLES for moment in held[role]):
        yield pair(f"  {moment}", [held[role].get(moment, 0) / unit for role in ROLES])
    yield pair("  peak", [plan.host_bytes_peak(role) / unit for role in ROLES])
    disk = {role: disk_parts(plan.spec, role) for role in ROLES}
    unit, symbol = unit_of(plan.disk_bytes("miner"))
    yield f"{f'disk, {symbol}':<34}{'miner':>11}{'validator':>16}"
    for name in dict.fromkeys(name for role in ROLES for name in disk[role]):
        yield pair(f"  {name.replace('_', ' ')}", [disk[role].get(name, 0) / unit for role in ROLES])
    yield pair("  at most", [plan.disk_bytes(role) / unit for role in ROLES])
    data = {role: plan.data_bytes_per_day(role) for role in ROLES}
    yield pair("  written a day, without data", [(plan.disk_bytes_per_day(role) - data[role]) / unit for role in ROLES])
    yield pair("  data a day, until all is there", [data[role] / unit for role in ROLES])


def pair(label: str, values: Sequence[float]) -> str:
    """Return one or two values in their columns."""
    cells = [f"{value:,.1f}" if value else "-" for value in values]
    return f"{label:<34}{cells[0]:>11}" + "".join(f"{cell:>16}" for cell in cells[1:])


# --- the rest ----------------------------------------------------------------------------------------------------


def _schedule(run: Run) -> Iterator[str]:
    yield f"{'from round':>10}{'inner step':>13}{'inner LR':>12}{'outer LR':>11}"
    for at in milestones(run):
        yield f"{at.round:>10,}{at.inner_step:>13,}{at.lr:>12.3g}{at.alpha:>11g}   {at.begins}"


def machine_words(plan: TrainerPlan, *, measured: bool) -> str:
    """Return the plan's machine and links as text."""
    rates = plan.rates
    machine = "Measured on this machine" if measured else "Stated, of a server"
    trains = f"{plan.gpus} x {rates.compute.one / 1e12:,.3g} TFLOP/s" + (" sustained in training" * (not measured))

    def of(name: str) -> str:
        rate = getattr(rates, name)
        return f"{rate.one / GB:,.2f} ({min(rate.most, rates.threads * rate.one) / GB:,.3g})"

    return (
        f"{machine}: {trains}; in GB/s by one thread (by all {rates.threads}): "
        + ", ".join(f"{name} {of(name)}" for name in ("hash", "copy", "fresh", "write", "read", "compress"))
        + f"; link {8e-6 * rates.up.one:,g} Mb/s up, {8e-6 * rates.down.one:,g} Mb/s down."
    )


def _assumptions(plan: Plan, measured: bool) -> Iterator[str]:
    sizes = plan.sizes
    yield from wrapped(machine_words(plan, measured=measured), "")
    data = (
        "the data set is on the disk"
        if plan.has_data
        else f"a miner's data comes by whole files of {size_words(sizes.shard)}, a validator reads "
        f"{size_words(sizes.sampled)} of it"
    )
    yield from wrapped(
        f"Assumed: {sizes.gathered} peers mine, {sizes.contributors} contribute, the same as in the round before; a "
        f"post takes {WINDOW_MARGIN_BLOCKS * plan.spec.clock.block_seconds:g} s; {data}; transfers have the link to "
        f"themselves. {plan.validators} validators of equal stake share {COPIES} copies of each payload. A validator "
        f"evaluates {sizes.evaluated} peers with {sizes.probes} probes. Phases are those of "
        "this release (murmur/plan/phases.py).",
        "",
    )


def _published() -> Iterator[str]:
    claim = COVENANT
    up = transfer_seconds(claim.payload_bytes, claim.up_mbps)
    down = transfer_seconds(claim.peers * claim.payload_bytes, claim.down_mbps)
    yield from wrapped(
        f"Published: {duration(claim.compute_seconds)} of compute and {claim.communication_seconds:.0f} s of "
        f"communication, {utilization(claim.compute_seconds, claim.communication_seconds):.1%}, at "
        f"{claim.up_mbps:g} Mb/s up and {claim.down_mbps:g} Mb/s down. Its {claim.value_bits} bits a value are "
        f"{size_words(claim.payload_bytes)}: at those speeds {up:.0f} s up and {down:.0f} s down from {claim.peers} "
        f"peers, {utilization(claim.compute_seconds, up + down):.1%}; were they megabytes a second, {up / 8:.0f} s and "
        f"{down / 8:.0f} s.",
        "",
    )


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits."""
    if seconds < 0.1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 1e-3 else "< 1 ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def unit_of(num_bytes: float) -> tuple[int, str]:
    """Return the unit of a table whose largest value this is, and its name."""
    return (GB, "GB") if num_bytes >= GB else (10**6, "MB")
