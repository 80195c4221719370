"""One node under examination: its configuration, and what the checks have opened so far, of which a node is built."""

from pathlib import Path
from typing import TYPE_CHECKING

from chain.adapter import SubtensorChain
from node.config.adapters import Doors, is_local
from node.config.settings import NodeConfig
from node.doctor.finding import Examined, Reaction
from node.state.store import StateStore
from protocol.errors import ChainError, MurmurError, StorageError, UpdateNeeded
from protocol.ports import Signer, Time
from protocol.run import Run
from protocol.types import Digest, Header, Peer, Subnet
from storage.realtime import REAL
from training.memory import Role
from training.shards import Shards

if TYPE_CHECKING:
    from chain.keys import Wallet


class Case(Examined):
    """Attributes without a value are there once the check that opens them has passed.

    keeps: whether the state folder is taken, for a node that is to run, or only looked at. found: the run as it was
    found, without amendments that have come since; `run` has those.
    """

    home: Path
    signer: Signer
    chain: SubtensorChain
    head: Header
    subnet: Subnet
    peers: tuple[Peer, ...]
    me: Peer
    found: Run
    doors: Doors
    store: StateStore
    run: Run
    round: int
    shards: Shards

    def __init__(self, config: NodeConfig, role: Role, *, keeps: bool, time: Time = REAL) -> None:
        self.config, self.role, self.keeps, self.time = config, role, keeps, time
        self.wallet: Wallet | None = None
        self.read: dict[Digest, bytes] = {}
        """What was read of the run before its owner's bucket failed: another look goes on from there."""
        self.undecided = 0
        """The first round that this node has not decided."""

    @property
    def endpoint(self) -> str:
        return self.config.bucket.endpoint

    @property
    def local(self) -> bool:
        """Whether the run is local; while it is not known, whether the chain is."""
        return self.found.first.local if hasattr(self, "found") else is_local(self.config.network)

    def close(self) -> None:
        """Let go of what was opened."""
        if hasattr(self, "store"):
            self.store.close()
        if hasattr(self, "chain"):
            self.chain.close()

    def reaction(self, fault: MurmurError) -> Reaction:
        """A server that fails may come back; what it says, it says for good. Of buckets, checks tell our own
        themselves; a chain that has answered before is the right one."""
        if isinstance(fault, UpdateNeeded):
            return Reaction.UPDATE
        if isinstance(fault, StorageError):
            return Reaction.WAIT
        if isinstance(fault, ChainError) and fault.code is None:
            return Reaction.HANGS if hasattr(self, "head") else Reaction.REACH
        return Reaction.END
