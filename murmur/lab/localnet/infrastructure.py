"""Infrastructure of a network on this machine: a chain and an S3 server, with a wallet, a slot and a bucket for every
member. Nodes and the run are added on top."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from murmur.lab.devnet.launch import Devnet
from murmur.lab.localnet.members import make_wallets
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.processes import Processes, undisturbed
from murmur.lab.localnet.store import StoreReady, read_ready
from murmur.lab.localnet.subnet import register, start_devnet
from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from bittensor.wallet import Wallet

START_SECONDS = 180.0
STORE, DEVNET = SERVERS = ("store", "devnet")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ground:
    """Both servers, running as `processes`, and all members' wallets by name."""

    devnet: Devnet
    store: StoreReady
    wallets: "Mapping[str, Wallet]"


def prepare(plan: Plan) -> Processes:
    """Return an empty set of processes. The operator's own settings are kept out of the network: a node's environment
    overrides its file."""
    if plan.store is not None:
        read_ready(plan.store, plan.names())  # before anything is started or written
    os.environ.setdefault("BITTENSOR_RUNTIME_CACHE_DIR", str(plan.folder / "runtime-cache"))
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
    logs = plan.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return Processes(logs, {**ours, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})


def infrastructure(plan: Plan, processes: Processes, say: Say) -> Ground:
    """Start the servers and register the members; `say` gets one line for every step. The caller stops the processes,
    also after a failure."""
    names = plan.names()
    say("starting the chain and the object store" if plan.store is None else "starting the chain")
    ready = _start_store(plan, processes, names)
    wallets = make_wallets(plan, names)
    devnet = start_devnet(plan, wallets)
    processes.adopt(DEVNET, devnet.process, devnet.again)
    wait_for(lambda: ready.exists(), processes, "the object store")
    store = read_ready(ready)
    say(f"registering {len(names)} hotkeys, staking {plan.validators}")
    register(devnet.url, wallets, names)
    return Ground(devnet, store, wallets)


def stop_nodes(processes: Processes) -> None:
    """Stop all processes except the servers."""
    with undisturbed():
        processes.stop(spared=SERVERS)


def stop(processes: Processes) -> None:
    """Stop the nodes first: they still use the store and the chain."""
    with undisturbed():
        try:
            processes.stop(spared=SERVERS)
        finally:
            processes.stop()


def wait_for(
    happened: Callable[[], bool], processes: Processes, what: str, patience_seconds: float = START_SECONDS
) -> None:
    """Wait until `happened`. Raises ConfigError at the time-out, or when a process ends."""
    until = time.monotonic() + patience_seconds
    while not happened():
        for child in processes.children.values():
            if child.process.poll() is not None:
                raise ConfigError(f"{child.name} ended while {what} started:\n{processes.last_lines(child.name)}")
        if time.monotonic() > until:
            raise ConfigError(
                f"{what} did not start within {patience_seconds:.0f} s: see the logs in {processes.folder}"
            )
        time.sleep(0.1)


def _start_store(plan: Plan, processes: Processes, names: Iterable[str]) -> Path:
    """Return the store's credentials file; our own server writes it when it is ready."""
    if plan.store is not None:
        return plan.store
    folder = plan.folder / "store"
    program = ["-m", "murmur.lab.localnet.seaweed", "--folder", str(folder), *names]
    processes.start(STORE, program, program)
    return folder / "ready.json"
