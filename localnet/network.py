"""A whole network on one machine: devnet, S3 store, validators, miners and faulty miners as separate processes.

`open_network` builds it up to running nodes; the caller follows `applied` and calls `close`, which stops everything.
The nodes run the programs that a real network runs, over the same adapters; only addresses differ.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localnet import calibration
from localnet.processes import Processes, undisturbed
from localnet.store import StoreReady, read_ready
from node.events import read_events
from protocol import keys
from protocol.errors import ConfigError
from protocol.messages import encode_slot
from protocol.spec import RunSpec
from protocol.types import Digest, PeerId, hotkey

if TYPE_CHECKING:
    from bittensor.wallet import Wallet

    from chain.adapter import SubtensorChain
    from chain.devnet.launch import Devnet

PRESET = Path(__file__).resolve().parents[1] / "configs" / "tiny.toml"
NETUID = 1
BLOCK_SECONDS = 0.25
TEXT_BYTES = 6_000_000
TAO = 10**9
STAKE_RAO = 1000 * TAO
FUNDS_RAO = 10_000 * TAO
START_SECONDS = 180.0
NODE_SECONDS = 30.0
"""What each further node may add to the start: they all rehearse at once."""
NEWCOMER = "newcomer-"
CALL_SECONDS = 15.0
LEAD_SECONDS = 4.0
"""From the sealed spec to round 0: what nodes that are loaded already need to find the run."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build. `faults`: kinds of localnet/faults.py, one miner each, beside `miners` honest ones. `newcomers`:
    honest miners that are registered, but run only from `Network.join` on. `ranks`: processes of each honest miner, in
    order; one where it ends."""

    folder: Path
    rounds: int = 12
    miners: int = 4
    validators: int = 1
    faults: tuple[str, ...] = ()
    seed: int = 0
    newcomers: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class Member:
    """One node: its wallet, its files, how it misbehaves and the number of its processes."""

    name: str
    role: str
    fault: str | None
    home: Path
    config: Path
    peer: PeerId
    ranks: int = 1

    @property
    def events(self) -> Path:
        return self.home / "events.jsonl"


@dataclass(slots=True)
class Network:
    """A running local network."""

    plan: Plan
    processes: Processes
    devnet: "Devnet"
    store: StoreReady
    spec: RunSpec
    members: dict[str, Member] = field(default_factory=dict)
    waiting: list[Member] = field(default_factory=list)
    """Registered, but not running yet."""
    _logs: dict[str, "EventLog"] = field(default_factory=dict)

    @property
    def honest(self) -> list[Member]:
        """Everybody whose replica has to be right."""
        return [member for member in self.members.values() if member.fault is None]

    @property
    def miners(self) -> list[Member]:
        return [member for member in self.members.values() if member.role == "miner"]

    def events(self, member: Member) -> list[dict[str, Any]]:
        """What the node has written so far."""
        return self._logs.setdefault(member.name, EventLog(member.events)).read()

    def watch(self) -> list[str]:
        """Restart nodes that died; names of the processes that are dead for good."""
        return self.processes.watch() + (["devnet"] if self.devnet.process.poll() is not None else [])

    def join(self) -> Member:
        """Start the next newcomer; it has to catch up by itself."""
        member = self.waiting.pop(0)
        self.members[member.name] = member
        self.processes.start(member.name, _program(member), _program(member))
        return member

    def close(self) -> None:
        """Stop every process."""
        _stop(self.processes, self.devnet)


class EventLog:
    """A node's events, read again only when the file has grown: the network is looked at several times a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = -1
        self._events: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All whole events so far. The list is ours."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size != self._bytes:
            self._events, self._bytes = list(read_events(self._path)), size
        return self._events


def open_network(plan: Plan, say: Say) -> Network:
    """Build the network and start its nodes; `say` gets one line for every step. On any failure everything that was
    started is stopped again."""
    os.environ.setdefault("BITTENSOR_RUNTIME_CACHE_DIR", str(plan.folder / "runtime-cache"))
    # A node's environment is stronger than its file: an operator's own settings must not leak into this network.
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
    environment = {**ours, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    logs = plan.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    processes = Processes(logs, environment)
    devnet: Devnet | None = None
    try:
        names = _names(plan)
        say("starting the chain and the object store")
        store_ready = _start_store(plan, processes, names)
        wallets = _wallets(plan, names)
        devnet = _start_devnet(plan, wallets)
        data = text_data(say)
        store = _store(store_ready, processes)
        everybody = {
            name: _member(plan, name, role, fault, wallets[name], devnet.url, store, data)
            for name, (role, fault) in names.items()
            if role != "owner"
        }
        members = {name: member for name, member in everybody.items() if not name.startswith(NEWCOMER)}
        say(f"registering {len(names)} hotkeys, staking {plan.validators}")
        owner = _chain(devnet.url, wallets["owner"])
        draft = _draft(plan, devnet, wallets["owner"], data)
        _register(devnet.url, wallets, names)
        say("starting the nodes and measuring how long a round takes on this machine")
        go = plan.folder / "go"
        _start_nodes(plan, processes, members, draft, go)
        phases = _measured(processes, members)
        _set_hyperparameters(owner, wallets["owner"], calibration.windows(phases, BLOCK_SECONDS, plan.validators))
        spec = _seal(plan, draft, phases, owner, wallets["owner"], store)
        owner.close()
        go.touch()
        clock = spec.clock
        say(
            f"a round has {clock.round_blocks} blocks ({clock.round_blocks * BLOCK_SECONDS:.1f} s), "
            f"{plan.rounds} rounds take about {plan.rounds * clock.round_blocks * BLOCK_SECONDS / 60:.1f} minutes"
        )
        waiting = [member for name, member in everybody.items() if name not in members]
        return Network(plan, processes, devnet, store, spec, members, waiting)
    except BaseException:
        _stop(processes, devnet)
        raise


def _stop(processes: Processes, devnet: "Devnet | None") -> None:
    """Nodes first: they still talk to the chain."""
    with undisturbed():
        try:
            processes.stop()
        finally:
            if devnet is not None:
                devnet.stop()


# --- members -------------------------------------------------------------------------------------------------


def _names(plan: Plan) -> dict[str, tuple[str, str | None]]:
    """name -> (role, fault), the owner first."""
    names: dict[str, tuple[str, str | None]] = {"owner": ("owner", None)}
    names |= {f"validator-{i}": ("validator", None) for i in range(1, plan.validators + 1)}
    names |= {f"miner-{i}": ("miner", None) for i in range(1, plan.miners + 1)}
    names |= {f"{NEWCOMER}{i}": ("miner", None) for i in range(1, plan.newcomers + 1)}
    for kind in plan.faults:
        count = 1 + sum(name.startswith(f"{kind}-") for name in names)
        names[f"{kind}-{count}"] = ("miner", kind)
    return names


def _wallets(plan: Plan, names: Mapping[str, object]) -> "dict[str, Wallet]":
    from chain.keys import create_wallet

    return {name: create_wallet(name, "default", str(plan.folder / "wallets")) for name in names}


def _member(
    plan: Plan, name: str, role: str, fault: str | None, wallet: "Wallet", url: str, store: StoreReady, data: Path
) -> Member:
    """Write the node's configuration, as an operator would."""
    home = plan.folder / "nodes" / name
    home.mkdir(parents=True, exist_ok=True)
    user = store.users[name]
    owner = PeerId(bytes(wallet.hotkey.public_key))
    lines = [
        f'network = "{url}"',
        f"netuid = {NETUID}",
        f'owner = "{_owner_address(plan)}"',
        f"call_timeout_seconds = {CALL_SECONDS}",
        f"data = {json.dumps(str(data))}",
        f"home = {json.dumps(str(home))}",
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
    config = home / "node.toml"
    config.touch(mode=0o600)
    config.write_text("\n".join(lines) + "\n")
    return Member(name, role, fault, home, config, owner, _ranks(plan, name))


def _ranks(plan: Plan, name: str) -> int:
    """Processes of the member with this name."""
    return {f"miner-{i}": ranks for i, ranks in enumerate(plan.ranks, start=1)}.get(name, 1)


def _owner_address(plan: Plan) -> str:
    from chain.keys import open_wallet

    wallet = open_wallet("owner", "default", str(plan.folder / "wallets"))
    return str(wallet.hotkey.ss58_address)


# --- chain, store, data --------------------------------------------------------------------------------------


def _start_store(plan: Plan, processes: Processes, names: Mapping[str, object]) -> Path:
    users, ready = plan.folder / "store-users.json", plan.folder / "store-ready.json"
    users.write_text(json.dumps(list(names)))
    processes.start("store", ["-m", "localnet.store", "--port", "0", "--ready-file", str(ready), "--users", str(users)])
    return ready


def _store(ready: Path, processes: Processes) -> StoreReady:
    _wait_for(lambda: ready.exists(), processes, "the object store")
    return read_ready(ready)


def _start_devnet(plan: Plan, wallets: "Mapping[str, Wallet]") -> "Devnet":
    from chain.devnet.genesis import Genesis
    from chain.devnet.launch import start

    owner = wallets["owner"]
    genesis = Genesis(
        owner_coldkey=owner.coldkeypub.ss58_address,
        owner_hotkey=owner.hotkey.ss58_address,
        balances={wallet.coldkeypub.ss58_address: FUNDS_RAO for wallet in wallets.values()},
        netuid=NETUID,
        max_validators=max(1, sum(name.startswith("validator-") for name in wallets)),
        weights_rate_limit_blocks=1,
    )
    with (plan.folder / "logs" / "devnet.log").open("a") as log:
        return start(plan.folder / "chain", genesis, block_seconds=BLOCK_SECONDS, log=log)


def _chain(url: str, wallet: "Wallet") -> "SubtensorChain":
    from chain.adapter import open_chain

    return open_chain(url, NETUID, wallet)


def cache_folder() -> Path:
    """Where data that can be made again is kept between runs."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "murmur"
    return Path(os.environ.get("MURMUR_CACHE", default)).expanduser()


def text_data(say: Say) -> Path:
    """Tokenised text: botocore's documentation strings, made once and kept."""
    from importlib.metadata import version

    from training.shards import build

    folder = cache_folder() / "data" / f"botocore-{version('botocore')}-{TEXT_BYTES}"
    if not (folder / "index.json").exists():
        say("extracting text to train on (once)")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        build("botocore", partial, limit_bytes=TEXT_BYTES)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    return folder


def _register(url: str, wallets: "Mapping[str, Wallet]", names: Mapping[str, tuple[str, str | None]]) -> None:
    """Register every hotkey and stake the validators, all at once, then wait until they have their permits."""
    from concurrent.futures import ThreadPoolExecutor

    from chain import operator

    def enter(name: str) -> None:
        chain = _chain(url, wallets[name])
        operator.register(chain, wallets[name])
        if names[name][0] == "validator":
            operator.add_stake(chain, wallets[name], STAKE_RAO)
        chain.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, [name for name in names if name != "owner"]))
    chain = _chain(url, wallets["owner"])
    wanted = sum(role == "validator" for role, _ in names.values())
    until = time.monotonic() + START_SECONDS
    while sum(peer.validates and peer.stake > 0 for peer in chain.peers(chain.finalized().block)) < wanted:
        if time.monotonic() > until:
            raise ConfigError("the validators got no permit from the chain: see logs/devnet.log in the run folder")
        time.sleep(BLOCK_SECONDS)
    chain.close()


def _set_hyperparameters(chain: "SubtensorChain", owner: "Wallet", windows: Mapping[str, int | float]) -> None:
    from chain import operator

    operator.set_hyperparameter(chain, owner, "tempo", int(windows["tempo"]), root=True)


# --- spec ----------------------------------------------------------------------------------------------------


def _draft(plan: Plan, devnet: "Devnet", owner: "Wallet", data: Path) -> dict[str, Any]:
    """Everything of the spec but the clock, which is a placeholder, and theta_0."""
    import tomllib

    from training.shards import Shards

    table = tomllib.loads(PRESET.read_text())
    shards = Shards.open(data)
    table["data"] |= {"index": shards.digest.hex(), "num_tokens": shards.train.num_tokens}
    return table | {
        "name": "localnet",
        "chain": devnet.genesis.removeprefix("0x"),
        "netuid": NETUID,
        "owner": owner.hotkey.ss58_address,
        "local": True,
        "genesis_checkpoint": "0" * 64,
        "checkpoint_rounds": 4,
        "clock": {
            "start_block": 100,
            "round_blocks": 400,
            "commit": 200,
            "reveal": 250,
            "leader_slots": 1,
            "leader_slot": 50,
            "attest": 350,
            "block_seconds": BLOCK_SECONDS,
        },
    }


def _seal(
    plan: Plan,
    draft: Mapping[str, Any],
    phases: Mapping[str, Sequence[float]],
    chain: "SubtensorChain",
    owner: "Wallet",
    store: StoreReady,
) -> RunSpec:
    """Make theta_0, fix the clock, and publish both: the moment at which the run exists."""
    from storage.s3 import open_bucket
    from training import checkpoint
    from training.replica import Replica, genesis_theta

    user = store.users["owner"]
    bucket = open_bucket(store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    provisional = RunSpec.model_validate(dict(draft))
    state = Replica(provisional, genesis_theta(provisional.model, plan.seed)).consensus_state()
    genesis = checkpoint.save(plan.folder / "genesis", state)
    for digest, path in checkpoint.blobs(plan.folder / "genesis", genesis):
        bucket.put(keys.blob(digest), path, timeout_seconds=60.0)
    start_block = chain.finalized().block + int(LEAD_SECONDS / BLOCK_SECONDS)
    clock = calibration.windows(phases, BLOCK_SECONDS, plan.validators) | {"start_block": start_block}
    spec = RunSpec.model_validate({**draft, "genesis_checkpoint": genesis.hex(), "clock": clock})
    data = spec.to_bytes()
    digest = Digest(sha256(data).digest())
    bucket.put(keys.blob(digest), data, timeout_seconds=60.0)
    chain.publish(encode_slot(store.pointer("owner"), None, digest))
    (plan.folder / "spec.json").write_bytes(data)
    (plan.folder / "calibration.json").write_text(json.dumps({"seconds": phases, "clock": clock}, indent=2) + "\n")
    return spec


# --- nodes ---------------------------------------------------------------------------------------------------


def _start_nodes(
    plan: Plan, processes: Processes, members: Mapping[str, Member], draft: Mapping[str, Any], go: Path
) -> None:
    path = plan.folder / "draft.toml"
    path.write_text(_toml(draft))
    for member in members.values():
        first = [*_module(member, "localnet.worker"), member.role, "--config", str(member.config)]
        first += ["--draft", str(path), "--ready", str(member.home / "measured.json"), "--go", str(go)]
        if member.fault:
            first += ["--fault", member.fault]
        processes.start(member.name, first, _program(member))


def _program(member: Member) -> list[str]:
    """Arguments to python for a node that finds its run on chain, without a rehearsal."""
    what = (
        [*_module(member, "localnet.faults"), member.fault]
        if member.fault
        else _module(member, f"neurons.{member.role}")
    )
    return [*what, "--config", str(member.config)]


def _module(member: Member, name: str) -> list[str]:
    """Arguments to python that run a module in the member's number of processes."""
    if member.ranks == 1:
        return ["-m", name]
    return ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(member.ranks), "--module", name]


def _toml(table: Mapping[str, Any]) -> str:
    """A table of plain values and one level of tables as TOML; JSON's literals for them are TOML's."""
    plain = [f"{name} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            plain += [f"[{name}]", *(f"{key} = {json.dumps(entry)}" for key, entry in value.items())]
    return "\n".join(plain) + "\n"


def _measured(processes: Processes, members: Mapping[str, Member]) -> dict[str, list[float]]:
    files = [member.home / "measured.json" for member in members.values()]
    patience = START_SECONDS + NODE_SECONDS * len(members)
    _wait_for(lambda: all(file.exists() for file in files), processes, "the nodes", patience)
    return calibration.merge(json.loads(file.read_text()) for file in files)


def _wait_for(
    happened: Callable[[], bool], processes: Processes, what: str, patience_seconds: float = START_SECONDS
) -> None:
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


def address(member: Member) -> str:
    """The member's hotkey as people see it."""
    return hotkey(member.peer)
