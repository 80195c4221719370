"""Checks of this machine: the state folder and its disk, the device, the clock."""

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from murmur import files
from murmur.node.config.device import choose_device, describe
from murmur.node.config.run_file import folder_of
from murmur.node.config.settings import ClusterConfig, NetworkConfig
from murmur.node.config.settings import home as open_home
from murmur.node.config.settings_sources import variable_of
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Advice, FailedCheck, Reaction
from murmur.node.fetch.room import taken_bytes
from murmur.node.state.store import STATE
from murmur.node.sync.dataset import DATA
from murmur.node.telemetry.event_tail import read_event_tail
from murmur.node.telemetry.trouble import seen
from murmur.protocol.errors import StorageError
from murmur.protocol.spec import TrainingSpec
from murmur.training.memory import disk_parts, trainer_disk
from murmur.training.sizes import MemberSizes, TrainingSizes
from sparseloco import ops
from storage.behaviour import server_time

STARTING = ("cannot_start", "waits", "never_began")
"""Causes of a node that has not begun."""
HOME_FIX = f"free space there, correct its permissions, or choose another folder: --home, {variable_of('home')}"
CLOCK_SECONDS = 120.0
"""Servers refuse signatures that are 5 to 15 minutes off their clocks."""
BLOCK_AGE_SECONDS = 300.0
"""On a healthy chain the newest final block is younger than this."""
DATE_SECONDS = 5.0
_TRIAL_BYTES = 1 << 16
DATA_FIX = f"; or keep less of the data set there: --data_gigabytes, {variable_of('data_gigabytes')}"
CLOCK_FIX = "set this machine's clock and keep it right by NTP: timedatectl set-ntp true"


def home(node: ExaminedNode) -> str:
    """Check that the state folder exists and is writable."""
    node.home = open_home(node.config)
    path = node.home / f".trial-{os.getpid()}"
    try:
        with path.open("wb") as file:
            file.write(secrets.token_bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as fault:
        raise FailedCheck(
            f"nothing can be written to the state folder {node.home} ({fault.strerror}), but a node has to "
            "save every round before it publishes",
            HOME_FIX,
            Reaction.FULL if files.is_full(fault) else Reaction.END,
        ) from None
    finally:
        path.unlink(missing_ok=True)
    return f"{node.home} can be written"


def node(examined: ExaminedNode) -> str:
    """Check that a node that runs here says nothing is wrong."""
    tail = read_event_tail(examined.home)
    if tail.newest is None:
        return "no node runs here now"
    if tail.on_request:
        return "the node here was stopped on request"
    # Why it could not start these checks find out anew.
    if found := [one for one in tail.troubles(examined.time.wall()) if one["cause"] not in STARTING]:
        raise FailedCheck("; ".join(map(seen, found)), "; ".join(f"by {one['owner']}: {one['do']}" for one in found))
    return f"the node here says nothing is wrong in round {tail.newest['round']}"


def disk(node: ExaminedNode) -> str:
    """Check that the disk has room for the most that the run's state and the fetched shards take, less the bytes there
    already."""
    spec, folder = node.found.first, folder_of(node.home, node.found.id)
    data = _shards(node.config, spec) if node.role == "miner" else 0  # a validator keeps none
    return room(node.home, folder, sum(disk_parts(spec, node.role).values()), data, node.role)


def member_disk(node: Any) -> str:
    """Check the same for a cluster's member, one of all members that there are now (murmur/cli/cluster/doctor.py)."""
    state = sum(trainer_disk(MemberSizes(node.spec, node.members)).values())
    folder = folder_of(node.home, node.token.run_id)
    return room(node.home, folder, state, _shards(node.config, node.spec), "member")


def room(home: Path, folder: Path, state: int, data: int, who: str) -> str:
    """Check that the disk of `home` has room for `state` bytes of state, in `folder`, and `data` bytes of data. Raises
    Fault."""
    there = min(state, taken_bytes([folder])) + min(data, taken_bytes([home / DATA]))
    free = shutil.disk_usage(home).free
    parts = f"{_bytes(state)} of state" + (f" and {_bytes(data)} of the data set" if data else "")
    if free + there < state + data:
        raise FailedCheck(
            f"the disk of {home} has {_bytes(free)} free, but a {who} of this run needs {parts}, of which "
            f"{_bytes(there)} are there: the node would stop when it is full",
            HOME_FIX + (DATA_FIX if data else ""),
            Reaction.FULL if (folder / STATE).exists() else Reaction.END,
        )
    return f"{_bytes(free)} free, {_bytes(there)} in use; the run needs {parts}"


def _shards(config: NetworkConfig | ClusterConfig, spec: TrainingSpec) -> int:
    """Return the most bytes of shards in the state folder; 0 if the operator gives a folder of its own."""
    if config.data is not None:
        return 0
    return min(int(config.data_gigabytes * 1e9), TrainingSizes(spec).token * spec.data.num_tokens)


def device(node: ExaminedNode) -> str | Advice:
    """Check that the device and the codec exist."""
    ops.use(node.config.codec)
    told = f"{describe(choose_device(node.config.device))}; codec {ops.backend()}"
    if ops.is_fallback():
        return Advice(
            f"{told}, the slow reference: compressing and judging take dozens of times longer",
            f"build the native codec, or accept this speed with --codec reference ({ops.reason()})",
        )
    return told


def clock(node: ExaminedNode) -> str | Advice:
    """Compare this machine's clock with the store's and the chain's. A store refuses signatures by a wrong clock."""
    try:
        date = server_time(node.endpoint, timeout_seconds=DATE_SECONDS)
    except StorageError:
        date = None
    now = node.time.wall()
    off = None if date is None else now - date
    age = now - node.head.time if hasattr(node, "head") else None
    if off is not None and abs(off) > CLOCK_SECONDS:
        raise FailedCheck(f"{_off(off)} of {node.endpoint}, which refuses what is signed by it", CLOCK_FIX)
    if off is None and age is not None and age < -CLOCK_SECONDS:
        raise FailedCheck(
            f"{_off(age)} of the chain's newest final block; a store refuses what is signed by it", CLOCK_FIX
        )
    if off is None and age is not None and age > BLOCK_AGE_SECONDS:
        raise FailedCheck(
            f"{_off(age)} of the chain's newest final block, or the chain has stopped: the store does not show which",
            f"{CLOCK_FIX}. If the clock is right, wait for the chain, or use another chain node (--network wss://..)",
            Reaction.REACH,
        )
    if age is not None and age > BLOCK_AGE_SECONDS:
        return Advice(
            f"right by the store's clock, but the chain's newest final block is {age / 60:.0f} minutes old",
            f"if this lasts, use another chain node: --network wss://.., {variable_of('network')}",
        )
    told = ([] if off is None else [f"{abs(off):.0f} s off the store's"]) + (
        [] if age is None else [f"the chain's newest final block is {max(0, age):.0f} s old"]
    )
    return "; ".join(told) or "neither the store nor the chain says what time it is"


def _off(seconds: float) -> str:
    return f"this machine's clock is {abs(seconds) / 60:.0f} minutes {'ahead of' if seconds > 0 else 'behind'} that"


def _bytes(num_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"
