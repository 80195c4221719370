"""`murmur plan --members`: a cluster run's requirements on one member, and on the bucket."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from murmur.cluster.pace import SLOWEST_BYTES
from murmur.cluster.presence import STUCK_SILENCES
from murmur.plan import presets
from murmur.plan.machine import figures_table, machine, measured_or_given, phase_table, too_small
from murmur.plan.member import ClusterPlan
from murmur.plan.requirements import link
from murmur.plan.timetable import (
    duration,
    fitted,
    gpu_memory,
    machine_words,
    pair,
    size,
    timed_row,
    unit_of,
    verdict,
    wrapped,
)
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import MAX_UIDS
from murmur.training.sizes import size_words

LINK_MBPS = 500.0
"""Speed in each direction, unless given."""


def run(options: argparse.Namespace) -> int:
    """Print the plan; the exit status is 1 when it is refused."""
    if options.fit or options.sft is not None:
        raise ConfigError(
            "leave out --fit and --sft with --members: a cluster has no clock, and fine-tuning has no members"
        )
    plan = planned(presets.read_cluster(options.spec), options)
    refused = refusals(plan)
    if options.json:
        sys.stdout.write(json.dumps(as_json(plan, refused), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in fitted(lines(plan, refused, measured=options.measure)))
    return 1 if refused else 0


def planned(spec: ClusterSpec, options: argparse.Namespace) -> ClusterPlan:
    """Return the plan of the spec on the machine given by the options. Raises ConfigError for an impossible one."""
    if options.members is None:
        raise ConfigError(f"{options.spec} is a cluster's spec: give its number of members (--members)")
    if not 1 <= options.members <= MAX_UIDS:
        raise ConfigError(f"--members is {options.members}: a cluster has 1 to {MAX_UIDS}")
    gpus, gpu_bytes = machine(spec, options)
    plan = ClusterPlan(spec, gpus, gpu_bytes, has_data=options.with_data, members=options.members)
    links = replace(plan.rates, up=link(LINK_MBPS), down=link(LINK_MBPS))
    return measured_or_given(options, replace(plan, rates=links))


def refusals(plan: ClusterPlan) -> list[str]:
    """Return why a member as planned cannot take part, one sentence each; empty when it can."""
    found = too_small(plan)
    what, seconds = plan.longest_still
    longest = STUCK_SILENCES * plan.spec.cluster.silent_seconds
    if seconds > longest:
        found.append(
            f"{what} takes {duration(seconds)}: after {duration(longest)} at one step the others treat a "
            "member as stuck and continue without it. Use a faster machine or link, or a larger "
            "cluster.silent_seconds"
        )
    slow = [way for way, rate in (("up", plan.rates.up), ("down", plan.rates.down)) if rate.one < SLOWEST_BYTES]
    if slow:
        found.append(
            f"the link {' and '.join(slow)} is slower than {8e-6 * SLOWEST_BYTES:g} Mb/s: uploads of payloads time out"
        )
    if plan.checkpoint_share > 1:
        rounds = plan.spec.checkpoint_rounds
        found.append(
            f"a checkpoint of {size_words(plan.setting.sizes.model)} and {rounds} payloads take "
            f"{plan.checkpoint_share:.1f} times as long to send as {rounds} rounds last: a machine that joins "
            "finds no checkpoint that is recent enough. Use a faster uplink or a larger checkpoint_rounds"
        )
    return found


def as_json(plan: ClusterPlan, refused: Sequence[str]) -> dict[str, Any]:
    """Return the plan for a program, in bytes and seconds."""
    return {
        **figures_table(plan, refused),
        "members": plan.members,
        "phases": [phase_table(timed) for timed in plan.timeline],
        "restart": [{"name": name, "seconds": seconds} for name, seconds in plan.restart],
        "checkpoint_share": plan.checkpoint_share,
        "bucket_bytes": plan.bucket_bytes,
        "bucket_bytes_a_round": plan.bucket_bytes_a_round,
        "bucket_bytes_a_day": plan.bucket_bytes_a_day,
        "host_bytes": plan.trainer_host,
        "host_bytes_peak": max(plan.trainer_host.values()),
        "disk": plan.disk,
        "disk_bytes": sum(plan.disk.values()),
        "disk_bytes_per_day": plan.disk_bytes_per_day,
    }


def lines(plan: ClusterPlan, refused: Sequence[str], *, measured: bool) -> Iterator[str]:
    """Yield the plan as text, line by line, at most 100 columns wide."""
    yield from size(plan)
    yield ""
    yield from verdict(refused, f"IT FITS: {plan.members} members can train this.")
    yield ""
    yield f"{'begins':>9}{'takes':>10}   a member, from the record before on; * holds up the next one"
    rows = sorted((timed for timed in plan.timeline if timed.seconds), key=lambda timed: timed.begins)
    yield from map(timed_row, rows)
    yield ""
    yield from _shares(plan)
    yield ""
    yield from gpu_memory(plan)
    yield ""
    yield from _host_and_disk(plan)
    yield ""
    yield from wrapped(
        f"{machine_words(plan, measured=measured)} Assumed: {plan.members} members with such machines and links end "
        "their inner steps at once; each payload is in the bucket before it is fetched; transfers have the link to "
        f"themselves; {'the data set is on the disk' if plan.has_data else 'files of the data set are fetched'}.",
        "",
    )


def _shares(plan: ClusterPlan) -> Iterator[str]:
    yield (
        f"utilization    {plan.utilization:>7.1%}   inner steps over the whole round, "
        f"{duration(plan.compute_seconds)} of {duration(plan.round_seconds)}"
    )
    yield (
        f"               {plan.published_utilization:>7.1%}   as published runs count: over inner steps, one upload "
        "and one download"
    )
    yield f"uplink         {plan.checkpoint_share:>7.1%}   busy at the member whose turn it is to put a checkpoint up"
    joining = ", ".join(f"{name} {duration(seconds)}" for name, seconds in plan.restart)
    yield from wrapped(f"{'joining':<15}{duration(sum(s for _, s in plan.restart)):>8}   {joining}", " " * 26)
    yield from wrapped(
        f"{'bucket':<15}{size_words(plan.bucket_bytes):>8}   at most, without the data set; "
        f"{size_words(plan.bucket_bytes_a_round)} of downloads a round, {size_words(plan.bucket_bytes_a_day)} a day",
        " " * 26,
    )


def _host_and_disk(plan: ClusterPlan) -> Iterator[str]:
    host, disk = plan.trainer_host, plan.disk
    unit, symbol = unit_of(max(host.values()))
    yield f"memory of the host, {symbol}"
    for moment, held in [*host.items(), ("peak", max(host.values()))]:
        yield pair(f"  {moment}", [held / unit])
    unit, symbol = unit_of(sum(disk.values()))
    yield f"disk, {symbol}"
    for name, held in [*disk.items(), ("at most", sum(disk.values()))]:
        yield pair(f"  {name.replace('_', ' ')}", [held / unit])
    yield pair("  written a day, without data", [plan.disk_bytes_per_day / unit])
