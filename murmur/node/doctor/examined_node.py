"""One node under examination: its configuration, and everything that the checks have opened so far. A node is built
from it."""

from pathlib import Path
from typing import TYPE_CHECKING

from murmur.chain.adapter import SubtensorChain
from murmur.data.shards import Shards
from murmur.node.config.ports import Ports, is_local
from murmur.node.config.settings import NodeConfig
from murmur.node.doctor.finding import Examined, Reaction
from murmur.node.state.store import StateStore
from murmur.protocol.errors import ChainError, MurmurError, StorageError, UpdateNeeded
from murmur.protocol.ports import Signer, Time
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Header, Peer, Subnet
from murmur.training.memory import Role
from storage.realtime import REAL

if TYPE_CHECKING:
    from murmur.chain.keys import Wallet


class ExaminedNode(Examined):
    """Attributes without a value are set once the check that opens them has passed.

    keeps: whether the state folder is taken, for a node that will run, or only examined. found: the run without
    amendments that have come since; `run` has those.
    """

    home: Path
    signer: Signer
    chain: SubtensorChain
    head: Header
    subnet: Subnet
    peers: tuple[Peer, ...]
    me: Peer
    found: Run
    ports: Ports
    store: StateStore
    run: Run
    round: int
    shards: Shards

    def __init__(self, config: NodeConfig, role: Role, *, keeps: bool, time: Time = REAL) -> None:
        self.config, self.role, self.keeps, self.time = config, role, keeps, time
        self.wallet: Wallet | None = None
        self.read: dict[Digest, bytes] = {}
        """Blobs of the run that were read before its owner's bucket failed: the next try continues from there."""
        self.undecided = 0
        """The first round that this node has not decided."""
        self.in_use = False
        """Whether another process runs a node in this home."""

    @property
    def endpoint(self) -> str:
        return self.config.bucket.endpoint

    @property
    def local(self) -> bool:
        """Whether the run is local; while the run is unknown, whether the chain is."""
        return self.found.first.local if hasattr(self, "found") else is_local(self.config.network)

    def close(self) -> None:
        """Close the store and the chain, if open."""
        if hasattr(self, "store"):
            self.store.close()
        if hasattr(self, "chain"):
            self.chain.close()

    def reaction(self, fault: MurmurError) -> Reaction:
        """Return how a starting node reacts to a fault that is no Fault. A failing server may come back; any other
        fault is final. StorageErrors that arrive here are of other nodes' buckets: the checks report our own as Faults.
        A chain that has answered before is the right one."""
        if isinstance(fault, UpdateNeeded):
            return Reaction.UPDATE
        if isinstance(fault, StorageError):
            return Reaction.WAIT
        if isinstance(fault, ChainError) and fault.code is None:
            return Reaction.HANGS if hasattr(self, "head") else Reaction.REACH
        return Reaction.END
