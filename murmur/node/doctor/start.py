"""The one list of checks, and how a starting node reacts to their findings.

A fault that the operator has to fix ends the node, with all faults and their fixes. If a server does not answer but has
answered a node of this home before, the node waits: it is an outage, and a supervisor that restarts nodes must not find
them ended for good. If it never has, its address is probably wrong, and the node ends too: at once if it cannot be
reached, after HANG_SECONDS if it hangs.
"""

import json
from collections.abc import Sequence
from contextlib import closing, suppress

from loguru import logger

from murmur import files
from murmur.node.config.settings import NodeConfig
from murmur.node.doctor import bucket, chain, machine, run
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Check, Finding, Reaction, Status
from murmur.node.telemetry.events import EVENTS, Events
from murmur.node.telemetry.trouble import Trouble, write
from murmur.protocol.errors import ConfigError, DiskFull, UpdateNeeded
from murmur.protocol.ports import Time
from murmur.training.memory import Role
from storage.realtime import REAL

RETRY_SECONDS = 5.0
AGAIN_SECONDS = 60.0
HANG_SECONDS = 120.0
"""For a server that accepts or drops connections, and does not answer. It may be busy, and nothing shows that its
address is wrong; but it has never answered this home."""
ANSWERED = "answered.json"
"""File in the home with the addresses for which every check has passed."""

CHECKS: Sequence[Check] = (
    Check("home", machine.home, machine.HOME_FIX),
    Check("device", machine.device, "choose another --device or --codec"),
    Check("wallet", chain.wallet, f"give a wallet of this machine that the node's user can read: {chain.WALLET}"),
    Check("chain", chain.chain, f"check {chain.NETWORK}"),
    Check("history", chain.history, f"name archives: {chain.ARCHIVES}", ("chain",)),
    Check("clock", machine.clock, machine.CLOCK_FIX),
    Check(
        "subnet",
        chain.subnet,
        f"give the number of the run's subnet: {chain.NETUID}, or check {chain.NETWORK}",
        ("chain",),
    ),
    Check("spec", run.spec, run.SPEC_FIX, ("home", "subnet")),
    Check("hotkey", chain.registered, f"check {chain.WALLET}", ("wallet", "spec")),
    Check("permit", chain.permit, "stake to the hotkey", ("hotkey",), ("validator",)),
    Check("balance", chain.balance, f"check {chain.NETWORK}", ("hotkey",)),
    Check("pointer", bucket.pointer, bucket.POINTER_FIX, ("wallet",)),
    Check("bucket", bucket.bucket, bucket.POINTER_FIX, ("pointer", "clock")),
    Check("disk", machine.disk, machine.HOME_FIX, ("spec",)),
    Check("state", run.state, run.STATE_FIX, ("spec",)),
    Check("run", run.run, run.RUN_FIX, ("state", "pointer")),
    Check("weights", chain.weights, f"check {chain.NETUID}", ("permit", "spec"), ("validator",)),
    Check("data", run.data, run.DATA_FIX, ("run",)),
)


NODE = Check("node", machine.node, machine.HOME_FIX, ("home",))
"""For who examines a node that runs: what it says itself."""


_Said = tuple[frozenset[str], float]
"""The checks whose faults were said, and when."""
_NOTHING_SAID: _Said = frozenset(), 0.0


def ready(config: NodeConfig, role: Role, time: Time = REAL) -> ExaminedNode:
    """Return everything that a node is built of, once all checks have passed. Raises ConfigError for faults that the
    operator has to fix, DiskFull for a full disk alone, UpdateNeeded if this release is too old. Nothing is published
    before it returns."""
    until, said = time.now() + HANG_SECONDS, _NOTHING_SAID
    while True:
        node = ExaminedNode(config, role, keeps=True, time=time)
        try:
            found = list(node.examine(CHECKS))
            said = _say(found, node, said)
            if _may_begin(found, node, until - time.now()):
                return node
        except BaseException:
            node.close()
            raise
        node.close()
        time.sleep(RETRY_SECONDS)


def _say(found: Sequence[Finding], node: ExaminedNode, said: _Said) -> _Said:
    """Write why the node does not start yet into its events, where `murmur status` and the page look; again only after
    AGAIN_SECONDS while it is the same. `said`: the last time."""
    faults = [finding for finding in found if finding.status is Status.FAULT]
    if not faults or not hasattr(node, "home") or node.in_use:
        return said  # another node's home has that node's events
    names, now = frozenset(fault.name for fault in faults), node.time.now()
    if names == said[0] and now < said[1] + AGAIN_SECONDS:
        return said
    ends = [fault for fault in faults if fault.reaction in (Reaction.END, Reaction.UPDATE, Reaction.FULL)]
    seen = "; ".join(f"{fault.name}: {fault.detail}. Fix: {fault.fix}" for fault in ends or faults)
    own = node.config.wallet
    with suppress(OSError):  # a disk that is full or read-only: it is said on the terminal
        events = Events(node.home / EVENTS, f"{own.name}/{own.hotkey}", node.time)
        with closing(events):
            write(events, 0, Trouble("cannot_start" if ends else "waits", seen))
    return names, now


def _may_begin(found: Sequence[Finding], node: ExaminedNode, patience: float) -> bool:
    """Whether all checks have passed; False to wait for a server. `patience`: seconds left for one that has never
    answered. Raises ConfigError, UpdateNeeded."""
    faults = [finding for finding in found if finding.status is Status.FAULT]
    if not faults:
        for finding in found:
            if finding.fix:
                logger.warning("{detail}. {fix}", detail=finding.detail, fix=finding.fix)
        _remember(node)
        return True
    if any(fault.reaction is Reaction.UPDATE for fault in faults):
        raise UpdateNeeded(next(fault.detail for fault in faults if fault.reaction is Reaction.UPDATE))
    known = _answered(node) == _addresses(node.config)
    waits = {Reaction.WAIT} | ({Reaction.REACH, Reaction.HANGS} if known else set())
    if not known and patience > 0:
        waits.add(Reaction.HANGS)
    if not all(fault.reaction in waits for fault in faults):
        only_full = all(fault.reaction in waits | {Reaction.FULL} for fault in faults)
        raise (DiskFull if only_full else ConfigError)(told(faults, len(found)))
    for fault in faults:
        hangs = not known and fault.reaction is Reaction.HANGS
        logger.warning(
            "{detail}. {what}: trying again every {seconds} s, nothing goes on chain before",
            detail=fault.detail,
            what=f"It has not answered yet and may be busy: waiting up to {patience:.0f} s more"
            if hangs
            else "No action is needed here",
            seconds=int(RETRY_SECONDS),
        )
    return False


def told(faults: Sequence[Finding], num_checks: int) -> str:
    """Return the text of all faults and their fixes for the operator."""
    lines = [
        f"cannot start, {len(faults)} of {num_checks} checks failed. Nothing was trained, nothing was put on chain."
    ]
    for fault in faults:
        lines += [f"  {fault.name}: {fault.detail}", f"    to fix it: {fault.fix}"]
    return "\n".join([*lines, "More, slower checks: murmur doctor"])


def _addresses(config: NodeConfig) -> dict[str, str]:
    own = config.bucket
    return {"network": config.network, "endpoint": own.endpoint, "public_url": own.public_url or ""}


def _answered(node: ExaminedNode) -> dict[str, str] | None:
    """Return the addresses for which every check has passed in this home; None when there are none."""
    try:
        found = json.loads((node.home / ANSWERED).read_bytes())
    except (AttributeError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _remember(node: ExaminedNode) -> None:
    addresses = _addresses(node.config)
    if _answered(node) != addresses:
        files.write(node.home / ANSWERED, json.dumps(addresses).encode())
