"""The members of a local network: wallets, a configuration as an operator would write it, and the command that starts
each."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from murmur.chain.keys import create_wallet, open_wallet
from murmur.lab.localnet.plan import CALL_SECONDS, NETUID, Plan
from murmur.lab.localnet.ports import HOST, free_ports
from murmur.lab.localnet.store import StoreReady
from murmur.protocol.types import PeerId, hotkey

if TYPE_CHECKING:
    from bittensor.wallet import Wallet

COMMANDS = {"miner": "mine", "validator": "validate"}
"""The subcommand of `murmur` that plays a role."""


@dataclass(slots=True)
class LocalNode:
    """One node: its wallet, its files, its fault and its number of processes."""

    name: str
    role: str
    fault: str | None
    home: Path
    config: Path
    peer: PeerId
    ranks: int = 1
    linked: bool = False
    """Whether it reaches all buckets through its own link."""
    metrics_port: int = 0
    """The port of this machine from which Prometheus may scrape it."""

    @property
    def events(self) -> Path:
        return self.home / "events.jsonl"

    @property
    def measured(self) -> Path:
        """The file in which its rehearsal records the seconds."""
        return self.home / "measured.json"


def address(member: LocalNode) -> str:
    """Return the member's hotkey as people see it."""
    return hotkey(member.peer)


def make_wallets(plan: Plan, names: Iterable[str]) -> "dict[str, Wallet]":
    """Create a wallet for every name."""
    return {name: create_wallet(name, "default", str(plan.folder / "wallets")) for name in names}


def configured(
    plan: Plan,
    name: str,
    role: str,
    fault: str | None,
    wallet: "Wallet",
    url: str,
    store: StoreReady,
    data: Path | None,
) -> LocalNode:
    """Write the node's configuration, as an operator would. `data`: None where the data set comes from the owner."""
    home = plan.folder / "nodes" / name
    home.mkdir(parents=True, exist_ok=True)
    config = home / "node.toml"
    (port,) = free_ports(1)
    lines = [f'owner = "{_owner_address(plan)}"', f"home = {json.dumps(str(home))}", f"metrics_port = {port}"]
    if plan.track is not None:
        lines.append(f'track.to = "{plan.track}"')
    if data is not None:
        lines.append(f"data = {json.dumps(str(data))}")
    _write(config, lines + _place_of(plan, name, url, store))
    peer, linked = PeerId(bytes(wallet.hotkey.public_key)), role in plan.links
    return LocalNode(name, role, fault, home, config, peer, plan.ranks_of(name), linked, port)


def tell_metrics(plan: Plan, members: Iterable[LocalNode]) -> None:
    """Write the addresses of all nodes' metrics in Prometheus' format (`file_sd_configs`)."""
    told = [{"targets": [f"{HOST}:{member.metrics_port}"], "labels": {"node": member.name}} for member in members]
    (plan.folder / "metrics.json").write_text(json.dumps(told, indent=2) + "\n")


def configured_owner(plan: Plan, url: str, store: StoreReady) -> Path:
    """Write the configuration of an owner who publishes a run by hand."""
    path = plan.folder / "owner.toml"
    _write(path, _place_of(plan, "owner", url, store))
    return path


def _place_of(plan: Plan, name: str, url: str, store: StoreReady) -> list[str]:
    """Return lines of a configuration: the subnet, and this member's wallet and bucket."""
    user = store.users[name]
    return [
        f'network = "{url}"',
        f"netuid = {NETUID}",
        f"call_timeout_seconds = {CALL_SECONDS}",
        "[wallet]",
        f'name = "{name}"',
        f"path = {json.dumps(str(plan.folder / 'wallets'))}",
        "[bucket]",
        f'endpoint = "{store.endpoint}"',
        f'name = "{user.bucket}"',
        f'access_key = "{user.write_access_key}"',
        f'secret_key = "{user.write_secret_key}"',
        f'read_access_key = "{user.read_access_key}"',
        f'read_secret_key = "{user.read_secret_key}"',
    ]


def _write(path: Path, lines: list[str]) -> None:
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")


def _owner_address(plan: Plan) -> str:
    wallet = open_wallet("owner", "default", str(plan.folder / "wallets"))
    return str(wallet.hotkey.ss58_address)


def first_program(member: LocalNode, draft: Path, go: Path) -> list[str]:
    """Return python's arguments for a node's first start: a rehearsal by the spec's draft, and the program once `go`
    exists."""
    return [*_worker(member), "--draft", str(draft), "--ready", str(member.measured), "--go", str(go)]


def program(member: LocalNode) -> list[str]:
    """Return python's arguments for a node that finds its run on chain, without a rehearsal."""
    if member.linked:
        return _worker(member)
    what = (
        [*_module(member, "murmur.lab.localnet.faults"), member.fault]
        if member.fault
        else [*_module(member, "murmur"), COMMANDS[member.role]]
    )
    return [*what, "--config", str(member.config)]


def _worker(member: LocalNode) -> list[str]:
    words = [*_module(member, "murmur.lab.localnet.worker"), member.role, "--config", str(member.config)]
    words += ["--fault", member.fault] if member.fault else []
    return words + ["--own-link"] * member.linked


def _module(member: LocalNode, name: str) -> list[str]:
    """Return python's arguments that run a module in the member's number of processes."""
    if member.ranks == 1:
        return ["-m", name]
    return ["-m", "murmur", "torchrun", "--nproc_per_node", str(member.ranks), "--module", name]
