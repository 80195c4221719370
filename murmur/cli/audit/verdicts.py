"""The findings of a round's audit, for people and for programs."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from gauntlet.audit import GAP_TOLERANCE, SCORE_TOLERANCE
from murmur.cli import network
from murmur.data.shards import Shards
from murmur.homes import expanded
from murmur.node.config.device import choose_device
from murmur.node.observe.audit_inputs import Audited, audit_round, last_reported
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.sync.dataset import open_data
from murmur.protocol.errors import ChainError, ConfigError, StorageError
from murmur.protocol.run import Run
from murmur.protocol.types import PeerId, hotkey


def show(who: str | None, options: argparse.Namespace) -> int:
    """Audit and print the findings. The exit status is 0 when nothing differs, else 1. Raises ConfigError when nothing
    could be audited."""
    try:
        there = network.open_network("murmur audit", options)
        validator = there.peer(who, "--validator") if who is not None else None
        round = options.round if options.round is not None else last_reported(there.run, there.ports)
        device = choose_device(there.config.device)
        temporary = Path(gettempdir()) if there.recorded else there.home
        audits = audit_round(there.run, there.ports, _shards(there), round, temporary, device, validator)
    except (ChainError, StorageError) as fault:
        raise network.undecided(fault) from None
    body = as_json(there.run, round, audits)
    sys.stdout.write(json.dumps(body, indent=2) + "\n" if options.json else as_text(body, there.names))
    if not any(audited.report is not None or audited.differs for audited in audits):
        raise ConfigError(
            f"nothing of round {round} could be audited: no validator's report could be read. Try again when their "
            "buckets answer"
        )
    return 1 if any(audited.differs for audited in audits) else 0


def _shards(there: OpenedNetwork) -> Shards | None:
    """Return the data set; None where it is not published or not reachable: everything but the scores can be checked
    without."""
    data = there.config.data
    if there.recorded and data is not None and not expanded(data).exists():
        return None
    try:
        return open_data(there.config, there.run, there.ports, there.home)
    except StorageError:
        return None


def as_json(run: Run, round: int, audits: Sequence[Audited]) -> dict[str, Any]:
    """Return the audits as one JSON object."""
    return {
        "run": run.first.name,
        "id": run.id.hex(),
        "round": round,
        "tolerance": {"score": SCORE_TOLERANCE, "gap": GAP_TOLERANCE},
        "validators": [
            {
                "validator": hotkey(audited.validator),
                "differs": audited.differs,
                "hotkeys": len(audited.report.rows) if audited.report is not None else None,
                "evaluated": sum(row.evaluation is not None for row in audited.report.rows.values())
                if audited.report is not None
                else None,
                "findings": [
                    {
                        "topic": str(finding.topic),
                        "verdict": str(finding.verdict),
                        "hotkey": hotkey(finding.peer) if finding.peer is not None else None,
                        "text": finding.text,
                    }
                    for finding in audited.findings
                ],
            }
            for audited in audits
        ],
    }


def as_text(body: dict[str, Any], names: Mapping[PeerId, str]) -> str:
    """Return the audits as text for people; peers appear by their `names` where those are known."""
    called = {hotkey(peer): name for peer, name in names.items()}
    lines = [f"round {body['round']} of run {body['run']} ({body['id'][:16]})"]
    for audited in body["validators"]:
        findings = audited["findings"]
        count = sum(finding["verdict"] == "differs" for finding in findings)
        outcome = f"{count} difference{'s' * (count != 1)}" if count else "agrees"
        seen = f", {audited['hotkeys']} hotkeys, {audited['evaluated']} evaluated" if audited["hotkeys"] else ""
        if not count and audited["hotkeys"] is None:
            outcome = "not audited"
        lines.append(f"validator {called.get(audited['validator'], audited['validator'])}: {outcome}{seen}")
        for finding in findings:
            who = f"{called.get(finding['hotkey'], finding['hotkey'])}: " if finding["hotkey"] else ""
            lines.append(f"  {finding['verdict']:<9}  {finding['topic']:<8}  {who}{finding['text']}")
    return "\n".join(lines) + "\n"
