"""The two sides of bench_cluster.py's comparison, each as real processes in namespaces with shaped links: members of a
cluster over one bucket, and torchft's replica groups with their lighthouse. Model, theta_0, data, inner steps are the
same."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cluster_namespaces import HUB, INTERFACE, Namespaces
from cluster_readings import Event, Reading, of_members, of_replicas
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from murmur.cluster.bootstrap import member_id
from murmur.cluster.creation import draft
from murmur.cluster.group_keys import Token
from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.lab.localnet import cluster as demo
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.ports import free_ports
from murmur.lab.localnet.training_text import text_data
from murmur.node.fetch.opening import open_pinned
from murmur.node.fetch.payloads import fetch_pinned
from murmur.node.telemetry.events import read_events
from murmur.protocol.cluster import ClusterSpec, Record
from murmur.protocol.errors import ConfigError
from murmur.training import checkpoint
from murmur.training.evaluate import held_out_loss
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from storage.realtime import REAL

Say = Callable[[str], None]

TORCHFT = "0.2.0"
STORE, LIGHTHOUSE = "store", "lighthouse"
FETCH_SECONDS = 60.0
KEEP_ROUNDS = 4096
"""Of payloads: so many outer steps are replayed for the loss at the end."""
STATE_COPIES = 5
"""Of the model, in torchft's state transfer: parameters, their last synchronised values, AdamW's two moments, and the
outer momentum."""
COLLECTIVE_SECONDS = 5.0
"""Time-out of gloo in torchft's example of DiLoCo; `collective_seconds` adds what this link takes."""


@dataclass(frozen=True)
class Setting:
    """What both sides have in common. join: seconds for which torchft's quorum waits for stragglers."""

    members: int
    mbps: float
    seed: int
    join: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"member-{number}" for number in range(1, self.members + 1))

    @property
    def bytes_per_second(self) -> float:
        return self.mbps * 1e6 / 8


def spec_table() -> dict[str, Any]:
    """Return the table of both sides' spec: the demo's, with more parameters in proportion to its steps, so that an
    fp32 exchange takes a part of a round that counts; and AdamW, whose state torchft's transfer can load."""
    table = presets.table("tiny")
    table["model"] |= {"layers": 4, "width": 128, "ffn": 384}
    table["inner"] |= {"sequences": 4, "optimizer": "adamw", "peak_lr": 3e-3, "final_lr": 3e-4}
    table["data"]["page_sequences"] = 80
    table["cluster"] = {"keep_rounds": KEEP_ROUNDS}
    return table


def collective_seconds(setting: Setting, parameters: int) -> float:
    """Return the time-out of torchft's all-reduce: a replica that is in it waits for one that still gets its state.
    The example's, and what state transfer and all-reduce take on an idle link."""
    num_bytes = (STATE_COPIES + all_reduce_share(setting.members)) * 4 * parameters
    return round(COLLECTIVE_SECONDS + num_bytes / setting.bytes_per_second, 1)


def all_reduce_share(members: int) -> float:
    """Return the part of the reduced tensor that each member of a ring sends, and gets."""
    return 2 * (members - 1) / members


class Side(ABC):
    """One side, from its start to its results. `processes`: all of it, by name; the members' are setting.names."""

    name: str

    def __init__(self, folder: Path, setting: Setting, network: Namespaces) -> None:
        self.folder, self.setting, self.network = folder, setting, network
        self.processes = demo.prepare(folder)

    @abstractmethod
    def start(self, say: Say) -> ClusterSpec:
        """Start servers and members; return the spec."""

    @abstractmethod
    def taken_part(self) -> int:
        """Return how many members have taken part in an outer step."""

    @abstractmethod
    def reading(self) -> Reading:
        """Return what they have written."""

    @abstractmethod
    def theta(self) -> Mapping[str, Tensor]:
        """Return the parameters after the last outer step."""

    @abstractmethod
    def settings(self, spec: ClusterSpec) -> dict[str, Any]:
        """Return what this side alone has: bytes that a member's link carries for each outer step, and time-outs."""

    def loss(self, spec: ClusterSpec) -> float:
        """Return the held-out loss after the last outer step, nats a token."""
        replica = Replica(spec, dict(self.theta()))
        return round(held_out_loss(replica, Shards.open(text_data(lambda line: None)), spec.data.held_out_sequences), 4)

    def close(self) -> None:
        """Stop all that was started."""
        self.processes.stop()

    def home(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def events(self, name: str) -> list[Event]:
        return list(read_events(self.home(name) / "events.jsonl"))


class Cluster(Side):
    """Members as they are: neurons/member.py, over SeaweedFS in the hub."""

    name = "cluster"
    links: Links | None = None

    def start(self, say: Say) -> ClusterSpec:
        self.token, self.spec = demo.set_up(self.folder, self.processes, self.setting.seed, spec_table(), say)
        # The store listens at the hub's loopback address alone, these at the one that members reach.
        self.links = Links(self.token.endpoint, self.setting.names, HUB)
        data = text_data(say)
        for name in self.setting.names:
            path = self.folder / f"token-{name}"
            demo.write_token(path, self.token.model_copy(update={"endpoint": self.links.endpoint(name)}))
            words = self.network.inside(name, demo.program(self.folder, name, token=path, data=data))
            self.processes.start(name, words, words)
        return self.spec

    def close(self) -> None:
        super().close()
        if self.links is not None:
            self.links.close()

    def taken_part(self) -> int:
        return sum(any(event["event"] == "applied" for event in self.events(name)) for name in self.setting.names)

    def reading(self) -> Reading:
        ids = {name: member_id(self.spec.digest, name).hex() for name in self.setting.names}
        records = {round: {one.member.hex(): one.steps for one in record.updates} for round, record in self._records()}
        inner = self.spec.inner
        return of_members(
            {ids[name]: self.events(name) for name in self.setting.names},
            records,
            inner.sequences * self.spec.model.context,
        )

    def theta(self) -> Mapping[str, Tensor]:
        """Replay all records: so their thetas are checked too."""
        return replayed(self.token, self.spec, self.folder / "theta", self._records())

    def settings(self, spec: ClusterSpec) -> dict[str, Any]:
        rules = spec.cluster
        return {
            "bytes_up": spec.object_bytes,
            "bytes_down": (self.setting.members - 1) * spec.object_bytes,
            "beat_seconds": rules.beat_seconds,
            "silent_seconds": rules.silent_seconds,
        }

    def _records(self) -> Iterator[tuple[int, Record]]:
        ledger, round = demo.reader(self.token, self.spec), 0
        while (record := ledger.record(round)) is not None:
            yield round, record
            round += 1


def replayed(
    token: Token, spec: ClusterSpec, genesis: Path, records: Iterator[tuple[int, Record]]
) -> Mapping[str, Tensor]:
    """Apply all records to theta_0, from the folder `genesis`. Raises ConfigError if a record names another theta."""
    ledger, replica = demo.reader(token, spec), Replica(spec, genesis_theta(spec.model, 0))
    digest = spec.genesis_digest
    replica.load_consensus(checkpoint.load(genesis, digest, spec.model.shapes()))
    for round, record in records:
        if record.theta != replica.digest():
            raise ConfigError(f"the record of round {round} names another theta than the records before it give")
        pairs = record.selection(spec.digest, round).contributing
        sources = ledger.payloads(record.claims)
        sealed = fetch_pinned(spec, spec.digest, round, pairs, sources, FETCH_SECONDS)
        shown = {update.member: ledger.key_of(update) for update in record.updates}
        opened = open_pinned(spec, round, pairs, sealed, shown, REAL)
        if any(one.update is None for one in opened):
            raise ConfigError(f"a payload of round {round} is gone")
        replica.outer_step([one.update for one in opened], alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
    return {name: tensor.clone() for name, tensor in replica.theta.items()}


class Torchft(Side):
    """torchft's DiLoCo over gloo (cluster_replica.py), with the lighthouse in the hub."""

    name = "torchft"

    def start(self, say: Say) -> ClusterSpec:
        data = text_data(say)
        self.spec = draft(spec_table(), "demo", Shards.open(data), local=True, own_vocabulary=True)
        path, (port,) = self.folder / "spec.json", free_ports(1)
        path.write_bytes(self.spec.to_bytes())
        script = str(Path(__file__).with_name("cluster_replica.py"))
        server = [script, LIGHTHOUSE, "--port", str(port), "--join", str(self.setting.join)]
        self.processes.environment = {**self.processes.environment, "GLOO_SOCKET_IFNAME": INTERFACE}
        self.processes.start(LIGHTHOUSE, server, server)
        given = {
            "--lighthouse": f"http://{HUB}:{port}",
            "--spec": path,
            "--data": data,
            "--seed": self.setting.seed,
            "--collective": collective_seconds(self.setting, self.spec.layout.num_parameters),
        }
        for name in self.setting.names:
            own = given | {"--name": name, "--folder": self.home(name)}
            arguments = [script, "replica", *(str(word) for pair in own.items() for word in pair)]
            words = self.network.inside(name, arguments)
            self.processes.start(name, words, words)
        return self.spec

    def taken_part(self) -> int:
        return sum(any(event.get("committed") for event in self.events(name)) for name in self.setting.names)

    def reading(self) -> Reading:
        return of_replicas({name: self.events(name) for name in self.setting.names})

    def theta(self) -> Mapping[str, Tensor]:
        kept = [self.home(name) / "theta.safetensors" for name in self.setting.names]
        tensors: Mapping[str, Tensor] = load_file(max((path for path in kept if path.exists()), key=_step_of))
        return tensors

    def settings(self, spec: ClusterSpec) -> dict[str, Any]:
        reduced = round(all_reduce_share(self.setting.members) * 4 * spec.layout.num_parameters)
        return {
            "bytes_up": reduced,
            "bytes_down": reduced,
            "join_seconds": self.setting.join,
            "collective_seconds": collective_seconds(self.setting, spec.layout.num_parameters),
            "torchft": version("torchft"),
        }


def _step_of(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return int(file.metadata()["step"])


def require_torchft() -> None:
    """Raise ConfigError where torchft is missing, or another release than was measured."""
    try:
        found = version("torchft")
    except PackageNotFoundError:
        found = None
    if found != TORCHFT:
        have = "is not installed" if found is None else f"is here as {found}, and {TORCHFT} was measured"
        raise ConfigError(f"torchft {have}: pip install torchft=={TORCHFT}. Only this comparison needs it")


SIDES: Mapping[str, type[Side]] = {side.name: side for side in (Cluster, Torchft)}
