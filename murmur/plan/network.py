"""The plan of a node in a run on a chain, as text and as JSON: why it cannot work, if it cannot."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from murmur.plan.machine import figures_table, machine, measured_or_given, phase_table, too_small
from murmur.plan.requirements import ROLES, Missed, Plan
from murmur.plan.timetable import duration
from murmur.plan.verification import repeats_nobody, verification
from murmur.protocol.spec import RunSpec
from murmur.training.memory import Role, disk_parts

TOLD = 3
"""Phases that a refusal names."""


def planned(spec: RunSpec, options: argparse.Namespace) -> Plan:
    """The spec on the machine that the options say (`add_machine`). Raises ConfigError for one that cannot be."""
    gpus, memory = machine(spec, options)
    plan = Plan(spec, gpus, memory, validators=options.validators, has_data=options.with_data)
    return measured_or_given(options, plan)


def refusals(plan: Plan, roles: Sequence[Role] = ROLES) -> list[str]:
    """Why a node as planned cannot take part in one of these roles, one sentence each; none when it can."""
    found = too_small(plan)
    found += [_late(missed) for missed in plan.missed if missed.deadline.role in roles]
    if "validator" in roles and plan.uplink_share > 1:
        found.append(
            f"a validator's uplink is needed {plan.uplink_share:.0%} of the time: its copies and checkpoints are "
            "never finished, and joiners find none"
        )
    if "validator" in roles:
        found += repeats_nobody(plan)
    return found


def _late(missed: Missed) -> str:
    deadline = missed.deadline
    longest = ", ".join(f"{timed.phase.name!r} {duration(timed.seconds)}" for timed in missed.path[:TOLD])
    return (
        f"a {deadline.role} {deadline.does} {duration(missed.ends - missed.by)} after {deadline.when}: "
        f"{deadline.missed}. The longest phases before it: {longest}"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan for a program, in bytes and seconds."""
    found = verification(plan)
    of = (
        {}
        if found is None
        else asdict(found) | {"rounds": found.rounds if isfinite(found.rounds) else None, "repeats": found.repeats}
    )
    repeated = {"verification": of} if of else {}
    return {
        **figures_table(plan, refusals(plan)),
        "loses_own_state": plan.loses_own_state,
        "validators": plan.validators,
        "margin": plan.margin,
        "clock": plan.spec.clock.model_dump(),
        "parameters_untied": plan.parameters_untied,
        "optimizer_flops": plan.optimizer_flops,
        "correction_seconds": plan.correction_seconds,
        "published_after_correction": plan.published_after_correction,
        "uplink_share": plan.uplink_share,
        "phases": [phase_table(timed) | {"role": role} for role in ROLES for timed in plan.timeline(role)],
        "restart": [
            {"name": name, "role": role, "seconds": seconds} for role in ROLES for name, seconds in plan.restart(role)
        ],
        "host_bytes_peak": plan.host_bytes_peak("miner"),
        "disk_bytes": plan.disk_bytes("miner"),
        "disk_bytes_per_day": plan.disk_bytes_per_day("miner"),
        "nodes": {role: _node_table(plan, role) for role in ROLES},
        **repeated,
    }


def _node_table(plan: Plan, role: Role) -> dict[str, Any]:
    return {
        "host_bytes": plan.host(role),
        "host_bytes_peak": plan.host_bytes_peak(role),
        "disk": disk_parts(plan.spec, role),
        "disk_bytes": plan.disk_bytes(role),
        "disk_bytes_per_day": plan.disk_bytes_per_day(role),
        "data_bytes_per_day": plan.data_bytes_per_day(role),
    }
