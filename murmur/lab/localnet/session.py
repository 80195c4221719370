"""A local network from the first process to the report: build it, show its rounds, stop it."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from murmur.lab.localnet.chaos_report import survived
from murmur.lab.localnet.network import Network, open_network
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.report import build_report
from murmur.lab.localnet.table import Table

STALL_ROUNDS = 3.0
"""Rounds without progress after which a network is stuck: stop, and name the logs."""
CHAOS_STALL_ROUNDS = 10.0
"""The same where nodes are kept away on purpose: a round's row waits for every honest node."""
STOPPED = 130
"""The exit status of a run that was stopped on request."""


def play(plan: Plan, go_on: Callable[[], None]) -> int:
    """Run the network and return the exit status. It is 0 when all rounds were played, every replica agrees, the chain
    has refused no weights and chaos did no lasting harm; STOPPED when it was stopped on request.

    `go_on` is called between the steps of the start; it raises KeyboardInterrupt to stop there.
    """
    began = time.monotonic()
    table = Table(sys.stderr)

    def say(line: str) -> None:
        go_on()
        table.say(line)

    try:
        with table.status("starting"):
            network = open_network(plan, say)
        try:
            table.follow(network, STALL_ROUNDS if plan.chaos is None else CHAOS_STALL_ROUNDS)
            table.await_votes(network)
            table.await_reveals(network)
            report = _write_report(network, time.monotonic() - began)
        except BaseException as fault:
            if isinstance(fault, KeyboardInterrupt):
                table.say("stopping")
            # A failure of this report must not hide why the run broke.
            with suppress(Exception):
                _write_report(network, time.monotonic() - began)
                table.say(f"the report so far: {plan.folder / 'report.json'}")
            raise
        finally:
            network.close()
    except KeyboardInterrupt:
        table.say("stopped")
        return STOPPED
    table.close(report, plan.folder)
    whole = len(report["rounds"]) == plan.rounds
    sound = report["chaos"] is None or survived(report["chaos"])
    summary = report["summary"]
    return 0 if whole and sound and summary["replicas_identical"] and not summary["weights_refused"] else 1


def _write_report(network: Network, wall_seconds: float) -> dict[str, Any]:
    report = build_report(network, wall_seconds)
    (network.plan.folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report
