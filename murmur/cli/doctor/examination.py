"""A node's checks, run one by one and shown as they end: a table for people, one object for programs."""

import json
import os
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from shutil import get_terminal_size

from murmur.cli.doctor import slow_checks
from murmur.cli.doctor.slow_checks import Thorough
from murmur.node.config.settings import load
from murmur.node.doctor.finding import Check, Examined, Finding, Status
from murmur.node.doctor.start import CHECKS, NODE
from murmur.node.program import process
from murmur.plan.machine import tell
from murmur.protocol.errors import ConfigError

NAME_WIDTH = 11
MARKS = {Status.OK: "ok", Status.FAULT: "FAULT", Status.SKIP: "skip"}
MARK_WIDTH = 6
MOST_COLUMNS = 100


def examine(options: Namespace) -> int:
    """Run the checks and return the exit status: 1 when a check has failed."""
    try:
        config = load("murmur doctor", "", ["--config", options.config] if options.config else [], os.environ)
    except ConfigError as fault:
        if not options.json:
            raise
        sys.stdout.write(
            as_json(
                [Finding("configuration", Status.FAULT, str(fault), "correct the settings that are missing or wrong")]
            )
        )
        return 1
    process.log_to_stderr("ERROR")
    node = Thorough(config, options.role, keeps=False)
    node.tell = tell
    try:
        slow = () if options.fast else slow_checks.CHECKS
        return show(node, [*CHECKS, NODE, *slow], json=options.json)
    finally:
        node.close()


def show(node: Examined, checks: Sequence[Check], *, json: bool) -> int:
    """Run these checks and show each finding at once, or all as one JSON object; return the exit status."""
    found = []
    for finding in node.examine(checks):
        found.append(finding)
        if not json:
            sys.stdout.writelines(f"{line}\n" for line in lines(finding, width()))
            sys.stdout.flush()
    sys.stdout.write(as_json(found) if json else "\n" + verdict(found) + "\n")
    return 1 if any(finding.status is Status.FAULT for finding in found) else 0


def as_json(found: list[Finding]) -> str:
    """Return the findings as JSON."""
    checks = [{name: value for name, value in asdict(finding).items() if name != "reaction"} for finding in found]
    return json.dumps({"checks": checks}, indent=2) + "\n"


def lines(finding: Finding, columns: int) -> Iterator[str]:
    """Yield a finding as text, at most `columns` wide."""
    head = f"{finding.name:<{NAME_WIDTH}} {MARKS[finding.status]:<{MARK_WIDTH}}"
    room = columns - len(head)
    for number, line in enumerate(textwrap.wrap(finding.detail, room, break_on_hyphens=False)):
        yield (head if number == 0 else " " * len(head)) + line
    if finding.fix:
        lead = "fix: " if finding.status is Status.FAULT else "better: "
        for number, line in enumerate(textwrap.wrap(finding.fix, room - len(lead), break_on_hyphens=False)):
            yield " " * len(head) + (lead if number == 0 else " " * len(lead)) + line


def verdict(found: list[Finding]) -> str:
    faults = [finding.name for finding in found if finding.status is Status.FAULT]
    skipped = sum(finding.status is Status.SKIP for finding in found)
    left = f"; {skipped} not tried" if skipped else ""
    if not faults:
        return f"all {len(found) - skipped} checks passed{left}"
    return f"{len(faults)} of {len(found)} checks failed: {', '.join(faults)}{left}"


def width() -> int:
    return min(get_terminal_size().columns, MOST_COLUMNS)
