"""A complete network on one machine: devnet, S3 store, validators, miners and faulty miners as separate processes.

`open_network` builds it up to running nodes; the caller follows `applied` and calls `close`, which stops everything.
The nodes run the programs of a real network, over the same adapters; only addresses differ.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from murmur.lab.devnet.launch import Devnet
from murmur.lab.localnet import calibration
from murmur.lab.localnet.chaos_injector import Injector
from murmur.lab.localnet.infrastructure import (
    DEVNET,
    START_SECONDS,
    Say,
    infrastructure,
    prepare,
    stop,
    stop_nodes,
    wait_for,
)
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.members import LocalNode, configured, first_program, program, tell_metrics
from murmur.lab.localnet.plan import NEWCOMER, PRESETS, Plan
from murmur.lab.localnet.processes import Processes
from murmur.lab.localnet.record import Recorder
from murmur.lab.localnet.spec import drafted, open_owner, seal
from murmur.lab.localnet.store import StoreReady
from murmur.lab.localnet.subnet import await_permits, end_epoch
from murmur.lab.localnet.training_text import text_data
from murmur.lab.localnet.weights_check import Standing
from murmur.node.telemetry.events import read_events
from murmur.owner.folder import to_toml
from murmur.protocol.errors import ChainError
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import PeerId
from murmur.training.sizes import FP32


@dataclass(slots=True)
class Network:
    """A running local network."""

    plan: Plan
    processes: Processes
    devnet: Devnet
    store: StoreReady
    spec: RunSpec
    members: dict[str, LocalNode] = field(default_factory=dict)
    waiting: list[LocalNode] = field(default_factory=list)
    """Registered, but not running yet."""
    links: Links | None = None
    chaos: Injector | None = None
    standing: Standing | None = None
    recorder: Recorder | None = None
    lead_seconds: float = 0.0
    """Seconds from when it was open to round 0."""
    _progress: float = 0.0
    _logs: dict[str, "EventLog"] = field(default_factory=dict)

    @property
    def round_seconds(self) -> float:
        """Planned length of a round."""
        return self.spec.clock.round_blocks * self.plan.block_seconds

    @property
    def honest(self) -> list[LocalNode]:
        """Members whose replica has to be right."""
        return [member for member in self.members.values() if member.fault is None]

    @property
    def miners(self) -> list[LocalNode]:
        return [member for member in self.members.values() if member.role == "miner"]

    def events(self, member: LocalNode) -> list[dict[str, Any]]:
        """Return the events that the node has written so far."""
        return self._logs.setdefault(member.name, EventLog(member.events)).read()

    def disturb(self) -> list[str]:
        """Run the plan's chaos that is due; return one line for each injection."""
        if self.chaos is None:
            return []
        if not self.chaos.frozen(DEVNET):  # a frozen chain answers late and would delay other injections
            with suppress(ChainError):
                clock, head = self.spec.clock, self.devnet.admin().info()["head"]
                self._progress = (head - clock.start_block) / clock.round_blocks
        return self.chaos.step(self._progress)

    def look_at_weights(self) -> None:
        """Check the weights that were set, while the chain still has their state."""
        if self.standing is not None and not (self.chaos is not None and self.chaos.frozen(DEVNET)):
            self.standing.look(self._pay())

    def paid(self) -> dict[str, int]:
        """Return what became of the weights that honest validators set in the plan's rounds, as numbers of
        report.json."""
        return (self.standing or Standing(self.devnet.url)).counts(self._pay())

    def blocks_left(self) -> int:
        """Return the blocks until votes on the last round no longer count, at most 0 after that. Only then can an
        outside reader determine that round's agreement. Raises ChainError."""
        return self.spec.rounds_clock.vote_deadline(self.plan.rounds - 1) - int(self.devnet.admin().info()["finalized"])

    def open_weights(self) -> None:
        """After the last round: stop the nodes, since no block matters to them any more, and make the chain open the
        weights that are still sealed. Raises ChainError."""
        stop_nodes(self.processes)
        end_epoch(self.devnet)

    def _pay(self) -> dict[PeerId, list[dict[str, Any]]]:
        return {
            member.peer: [event for event in self.events(member) if event["round"] < self.plan.rounds]
            for member in self.honest
            if member.role == "validator"
        }

    def join(self) -> LocalNode:
        """Start the next newcomer; it has to catch up by itself."""
        member = self.waiting.pop(0)
        self.members[member.name] = member
        self.processes.start(member.name, program(member), program(member))
        return member

    def close(self) -> None:
        """Stop every process."""
        if self.recorder is not None:
            self.recorder.close()
        stop(self.processes)
        if self.standing is not None:
            self.standing.close()
        if self.links is not None:
            self.links.close()


class EventLog:
    """A node's events, read again only when the file has grown: the network is polled several times per second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = -1
        self._events: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Return all complete events so far. Callers must not change the list."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size != self._bytes:
            self._events, self._bytes = list(read_events(self._path)), size
        return self._events


def open_network(plan: Plan, say: Say) -> Network:
    """Build the network and start its nodes; `say` gets one line for every step. On any failure everything that was
    started is stopped again."""
    names = plan.names()
    processes = prepare(plan)
    try:
        ground = infrastructure(plan, processes, say)
        wallets, devnet, store = ground.wallets, ground.devnet, ground.store
        data = text_data(say)
        links = _open_links(plan, store)
        everybody = {
            name: configured(plan, name, role, fault, wallets[name], devnet.url, _seen(store, links, name), data)
            for name, (role, fault) in names.items()
            if role != "owner"
        }
        tell_metrics(plan, everybody.values())
        members = {name: member for name, member in everybody.items() if not name.startswith(NEWCOMER)}
        go, phases = plan.folder / "go", None
        owner = open_owner(plan, devnet.url, store)
        draft = drafted(plan, owner, data)
        if plan.clock is None:
            say("starting the nodes and measuring how long a round takes on this machine")
            _start_nodes(plan, processes, members, draft, go)
            phases = _measured(
                processes, members, START_SECONDS + PRESETS.get(plan.preset, max(PRESETS.values())) * len(members)
            )
        await_permits(devnet, wallets, names, say, plan.block_seconds)
        spec = seal(plan, draft, phases, owner, data)
        if plan.clock is None:
            go.touch()
        else:
            say("starting the nodes")
            for member in members.values():
                processes.start(member.name, program(member), program(member))
        waiting = [member for name, member in everybody.items() if name not in members]
        network = Network(plan, processes, devnet, store, spec, members, waiting, links)
        head = int(devnet.admin().info()["head"])
        network.lead_seconds = max(0.0, (spec.clock.start_block - head) * plan.block_seconds)
        say(
            f"round 0 begins in {network.lead_seconds:.0f} s; "
            f"a round has {spec.clock.round_blocks} blocks ({network.round_seconds:.1f} s), "
            f"{plan.rounds} rounds take about {plan.rounds * network.round_seconds / 60:.1f} minutes"
        )
        network.standing = Standing(devnet.url)
        largest = 2 * max(spec.object_bytes, FP32 * spec.layout.num_parameters)
        network.recorder = Recorder(store, plan.folder, largest)
        if links is not None and plan.chaos is not None:
            homes = {name: member.home for name, member in everybody.items()}
            network.chaos = Injector(plan.injections(), network.round_seconds, processes, links, homes, network.join)
        return network
    except BaseException:
        stop(processes)
        raise


def _open_links(plan: Plan, store: StoreReady) -> Links | None:
    """Open links: in front of each bucket for chaos, or as each node's own where the plan gives its speed."""
    if plan.chaos is None and not plan.links:
        return None
    roles = {name: role for name, (role, _) in plan.names().items() if name != "owner"}
    links = Links(store.endpoint, roles)
    for name, role in roles.items():
        if (link := plan.links.get(role)) is not None:
            links.slow(name, link.up_mbps / 8e-6, link.down_mbps / 8e-6)
    return links


def _seen(store: StoreReady, links: Links | None, name: str) -> StoreReady:
    """Return the store's address for this member, and for readers of its bucket."""
    return store if links is None else replace(store, endpoint=links.endpoint(name))


def _start_nodes(
    plan: Plan, processes: Processes, members: Mapping[str, LocalNode], draft: Mapping[str, Any], go: Path
) -> None:
    path = plan.folder / "draft.toml"
    path.write_text(to_toml(draft))
    for member in members.values():
        processes.start(member.name, first_program(member, path, go), program(member))


def _measured(processes: Processes, members: Mapping[str, LocalNode], patience: float) -> dict[str, list[float]]:
    files = [member.measured for member in members.values()]
    wait_for(lambda: all(file.exists() for file in files), processes, "the nodes", patience)
    return calibration.merge(json.loads(file.read_text()) for file in files)
