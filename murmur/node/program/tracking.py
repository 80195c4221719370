"""Starts a node's tracker as a process of its own: what it does, and how it ends, is no matter of the node's rounds."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from loguru import logger

from murmur.node.config.settings import TelemetryConfig


def start_tracker(config: TelemetryConfig, run: str, name: str, home: Path) -> None:
    """Start the tracker that the settings name, if any, for the events from now on. run: names the project. name: the
    node's."""
    if config.track.to is None:
        return
    events, told = home / "events.jsonl", home / "track.log"
    words = [
        *(sys.executable, "-m", "murmur", "track", str(home), "--to", config.track.to, "--name", name),
        *("--project", config.track.project or run, "--node", str(os.getpid())),
        *("--first-byte", str(events.stat().st_size if events.exists() else 0)),
    ]
    try:
        home.mkdir(parents=True, exist_ok=True)
        with told.open("wb") as log:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_without_ours(), start_new_session=True
            )
    except OSError as fault:
        told_fault = "cannot start the tracker {to}: {fault}. The node goes on without it"
        logger.warning(told_fault, to=config.track.to, fault=str(fault))
        return
    logger.info("tracker {to} shows this node; it writes to {told}", to=config.track.to, told=told)
    threading.Thread(target=_tell_its_end, args=(child, config.track.to, told), name="tracker", daemon=True).start()


def _without_ours() -> dict[str, str]:
    """Return the environment without this node's settings: a tracker needs no bucket's secret."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}


def _tell_its_end(child: "subprocess.Popen[bytes]", to: str, told: Path) -> None:
    status = child.wait()
    logger.warning(
        "the tracker {to} has ended with status {status}; {told} says why. The node goes on without it, and `murmur "
        "track` shows its events later",
        to=to,
        status=status,
        told=told,
    )
