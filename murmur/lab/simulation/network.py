"""A simulated network: the chain, the store, and members that run the real programs in modelled time."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from murmur.lab.simulation.chain import BLOCK_SECONDS, Blocks, NodeChain, NodeConnection
from murmur.lab.simulation.clock import Life
from murmur.lab.simulation.hostile import Faces, HostileValidator, TwoFacedMiner
from murmur.lab.simulation.machine import COMPRESSION, DATA, Machine, Machines, Recorder, inner, transfer_seconds
from murmur.lab.simulation.modelled_replica import MODEL, Costs, ModelledReplica, NoText
from murmur.lab.simulation.signer import HashSigner, hash_verify
from murmur.lab.simulation.store import StoreBucket
from murmur.lab.simulation.world import World
from murmur.node.config.ports import Ports
from murmur.node.node import Node
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.node.sync.amendments import settled
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Run
from murmur.protocol.spec import ClockSpec, GauntletSpec, RunSpec
from murmur.protocol.types import Digest, PeerId, Pointer, PublicPointer, hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator

OWNER = HashSigner("owner")
FINALITY_LAG = 3
CLOCK = ClockSpec(
    start_block=12,
    round_blocks=86,
    commit=44,
    reveal=50,
    words=84,
    finality_blocks=FINALITY_LAG,
    tempo=360,
    block_seconds=BLOCK_SECONDS,
)
"""As the presets have it: 17 minutes a round."""
INNER_SECONDS = 270.0
CONTRIBUTORS = 4
STAKE = 1_000_000
KEEP_BLOCKS = 400
"""What a chain node that keeps no archive still has."""
ARCHIVE_BLOCKS = 100 * CLOCK.round_blocks
"""More than anybody asks for, and all that memory is spent on."""

Told = Callable[["SimulatedNode", str, int, dict[str, Any]], None]
Program = Miner | Validator


@dataclass(frozen=True)
class Programs:
    """What members run."""

    miner: type[Miner] = Miner
    validator: type[Validator] = Validator
    hostile: type[Validator] = HostileValidator


HONEST = Programs()


@dataclass
class SimulatedNode(Machine[Program]):
    """One node."""

    validates: bool
    signer: HashSigner
    stake: int
    hostile: bool = False
    gone: bool = False
    """It has left the run for good."""
    connection: NodeConnection = field(default_factory=NodeConnection)

    @property
    def peer(self) -> PeerId:
        return self.signer.peer

    @property
    def round(self) -> int:
        """The round at whose start its state stands; -1 while it starts."""
        return self.program.node.state.saved.round if self.up and self.program is not None else -1


class Judges(Mapping[str, Validator | None]):
    """The programs of these validators, by name, as they are at the moment."""

    def __init__(self, members: Sequence[SimulatedNode]) -> None:
        self._members = {member.name: member for member in members}

    def __getitem__(self, name: str) -> Validator | None:
        member = self._members[name]
        return member.program if member.up and isinstance(member.program, Validator) else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class Network(Machines[SimulatedNode]):
    """All members of a run, on one clock. `tell` hears every event of every node, in order."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        validators: int,
        miners: int,
        tell: Told,
        hostile_stake: float = 0.0,
        two_faced: int = 0,
        programs: Programs = HONEST,
    ) -> None:
        """`hostile_stake`: share of all stake that hostile validators hold, the last ones of all; at least one.
        `two_faced`: of the miners, the last ones. There are then as many places as a validator finds workers, or none
        of them would be missed."""
        super().__init__("network", folder, seed, tell)
        self.programs = programs
        self.world = World(
            f"simulation {seed}".encode(),
            finality_lag=FINALITY_LAG,
            epoch_blocks=CLOCK.tempo,
            weights_rate_limit=CLOCK.weights_rate_limit,
            commit_reveal=True,
            keep_blocks=KEEP_BLOCKS,
            archive_blocks=ARCHIVE_BLOCKS,
            block_seconds=BLOCK_SECONDS,
            time=self.outside,
        )
        self.blocks = Blocks(self.clock, self.world, seed)
        self.members: dict[str, SimulatedNode] = {}
        self.by_hotkey: dict[str, SimulatedNode] = {}
        owner = self.store.bucket("owner", reader="owner")
        places = miners - two_faced + two_faced // validators if two_faced else CONTRIBUTORS
        self.spec = self.found(owner, lambda genesis: draft_spec(self.world, genesis, places))
        self.run = Run(self.spec)
        self.world.register(OWNER.peer)
        num_hostile = max(1, int(hostile_stake * validators)) if hostile_stake else 0
        for number in range(1, validators + 1):
            bad = number > validators - num_hostile
            stake = (
                STAKE * hostile_stake / num_hostile if bad else STAKE * (1 - hostile_stake) / (validators - num_hostile)
            )
            self.add(f"validator-{number}", validates=True, stake=int(stake), hostile=bad)
        for number in range(1, miners + 1):
            self.add(f"miner-{number}", validates=False, stake=0, hostile=number > miners - two_faced)
        self.faces = self._faces(seed)
        self.store.before = self.faces.answer
        self.world.publish(OWNER.peer, encode_slot(self.store.pointer("owner"), None, self.run.id))
        self.world.step(1 + FINALITY_LAG)

    def add(
        self, name: str, *, validates: bool, stake: int, hostile: bool = False, uid: int | None = None
    ) -> SimulatedNode:
        """Register a new member, at the next free uid or in place of whoever holds `uid`. It is not started."""
        pace = self.random.uniform(0.8, 1.2)
        member = SimulatedNode(name, self.folder / name, pace, validates, HashSigner(name), stake, hostile)
        self.members[name] = self.by_hotkey[hotkey(member.peer)] = member
        self.store.bucket(name)
        self.world.register(member.peer, stake=stake, validates=validates, uid=uid)
        return member

    def _faces(self, seed: int) -> Faces:
        honest = [member for member in self.members.values() if member.validates and not member.hostile]
        two_faced = [member.name for member in self.members.values() if member.hostile and not member.validates]
        return Faces(
            Faces.drawn(seed, two_faced, [member.name for member in honest]),
            Judges(honest),
            {name: self.members[name].peer for name in two_faced},
            self.spec.gauntlet,
        )

    # --- processes ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Blocks are made from now on, and everybody starts."""
        self.store.log = deque(maxlen=0)
        self.blocks.begin()
        for member in list(self.members.values()):
            self.start(member)

    def everyone(self) -> Iterable[SimulatedNode]:
        return self.members.values()

    def run_id(self) -> Digest:
        return self.run.id

    def start(self, member: SimulatedNode) -> None:
        if not member.gone:
            super().start(member)

    def make_program(self, member: SimulatedNode, life: Life, disk: StateStore) -> Program:
        draw = random.Random(f"{self.seed} {member.name} {member.lives}")
        ports = self._ports(member, life, draw)
        saved = disk.load()
        # Its spec is written as JSON, which knows no shapes but a language model's.
        known = disk.run.load() or self.run
        run = settled(
            Run(self.spec, known.amendments), saved.round if saved is not None else 0, ports, disk.run.read, life
        )
        disk.run.save(run)
        modelled = ModelledReplica(self.spec, self.problem, life, Costs(INNER_SECONDS * member.pace), draw)
        events = Recorder(partial(self.told, member))
        node = Node(run, ports, NodeState(self.spec, self.run.id, modelled, disk, events, life))
        if not member.validates:
            if member.hostile:
                return TwoFacedMiner(node, NoText(), self.faces, member.name)
            return self.programs.miner(node, NoText())
        return (self.programs.hostile if member.hostile else self.programs.validator)(node, NoText())

    def _ports(self, member: SimulatedNode, life: Life, draw: random.Random) -> Ports:
        def link(key: str, num_bytes: int, *, up: bool) -> float:
            large = "/payload/" in key or "/mirror/" in key or "blob/" in key
            return transfer_seconds(draw, num_bytes, large=large, up=up)

        def open_pointer(pointer: Pointer | PublicPointer) -> StoreBucket:
            assert isinstance(pointer, Pointer)  # nobody's bucket is public here
            return self.store.open(pointer, reader=member.name, time=life, link=link)

        return Ports(
            chain=NodeChain(self.blocks, member.connection, member.peer, life, draw),
            signer=member.signer,
            verify=hash_verify,
            bucket=self.store.bucket(member.name, reader=member.name, time=life, link=link),
            pointer=self.store.pointer(member.name),
            open_pointer=open_pointer,
            time=life,
        )


def draft_spec(world: World, genesis: Digest, places: int) -> RunSpec:
    """The run of a simulation, with theta_0 of this digest, in which so many contribute."""
    return RunSpec(
        name="simulation",
        chain=world.genesis().hex(),
        netuid=1,
        owner=hotkey(OWNER.peer),
        genesis_checkpoint=genesis.hex(),
        checkpoint_rounds=4,
        local=True,
        model=MODEL,
        compression=COMPRESSION,
        inner=inner(1),
        data=DATA,
        clock=CLOCK,
        # Who works honestly is the arena's subject: peers are judged leniently.
        gauntlet=GauntletSpec(
            contributors=places,
            reserve=2,
            evaluations=places,
            sample_sequences=8,
            references=1,
            copy_overlap=1.0,
            proof_floor=0.0,
            proof_allowance=1000.0,
            score_floor=0.0,
            weight_rounds=2,
        ),
    )
