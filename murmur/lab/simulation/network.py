"""A simulated network: the chain, the store, and members that run the real programs in modelled time."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from murmur.lab.simulation.chain import BLOCK_SECONDS, Blocks, NodeChain, NodeConnection
from murmur.lab.simulation.clock import Life
from murmur.lab.simulation.conditions import FINALITY_LAG, WIDE, Conditions
from murmur.lab.simulation.hostile import Attack, Faces, HostileValidator, TwoFacedMiner, Withheld, WithholdingMiner
from murmur.lab.simulation.machine import COMPRESSION, DATA, Machine, Machines, Recorder, inner
from murmur.lab.simulation.modelled_replica import MODEL, ModelledReplica, NoText
from murmur.lab.simulation.signer import HashSigner, hash_verify
from murmur.lab.simulation.store import Call, StoreBucket
from murmur.lab.simulation.world import World
from murmur.node.config.ports import Ports
from murmur.node.node import Node
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.node.sync.amendments import settled
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId, Pointer, PublicPointer, hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator

OWNER = HashSigner("owner")
STAKE = 1_000_000
KEEP_BLOCKS = 400
"""What a chain node that keeps no archive still has."""
ARCHIVE_BLOCKS = 10_000
"""More than anybody asks for, and all that memory is spent on."""

Told = Callable[["SimulatedNode", str, int, dict[str, Any]], None]
Program = Miner | Validator


@dataclass(frozen=True)
class Programs:
    """What honest members run."""

    miner: type[Miner] = Miner
    validator: type[Validator] = Validator


HONEST = Programs()


@dataclass
class SimulatedNode(Machine[Program]):
    """One node."""

    validates: bool
    signer: HashSigner
    stake: int
    hostile: Attack | None = None
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
        withholding: int = 0,
        conditions: Conditions = WIDE,
        programs: Programs = HONEST,
    ) -> None:
        """`hostile_stake`: share of all stake that hostile validators hold, the last ones of all; at least one.
        `two_faced`: of the miners, the last ones. There are then as many places as a validator finds workers, or none
        of them would be missed. `withholding`: miners, the last ones before these."""
        super().__init__("network", folder, seed, tell)
        self.conditions, self.programs = conditions, programs
        clock = conditions.clock
        self.world = World(
            f"simulation {seed}".encode(),
            finality_lag=FINALITY_LAG,
            epoch_blocks=clock.tempo,
            weights_rate_limit=clock.weights_rate_limit,
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
        places = miners - two_faced + two_faced // validators if two_faced else conditions.gauntlet.contributors
        self.spec = self.found(owner, lambda genesis: draft_spec(self.world, genesis, conditions, places))
        self.run = Run(self.spec)
        self.world.register(OWNER.peer)
        num_hostile = max(1, int(hostile_stake * validators)) if hostile_stake else 0
        for number in range(1, validators + 1):
            lies = number > validators - num_hostile
            share = hostile_stake / num_hostile if lies else (1 - hostile_stake) / (validators - num_hostile)
            self.add(f"validator-{number}", validates=True, stake=int(STAKE * share), hostile="votes" if lies else None)
        for number in range(1, miners + 1):
            left = miners - number
            attack: Attack | None = (
                "faces" if left < two_faced else "withholds" if left < two_faced + withholding else None
            )
            self.add(f"miner-{number}", validates=False, stake=0, hostile=attack)
        self.faces = self._faces(seed)
        withholders = [name for name, member in self.members.items() if member.hostile == "withholds"]
        judges = [name for name, member in self.members.items() if member.validates]
        self.withheld = Withheld(self.run, self.blocks, withholders, judges)
        self.store.before = self._served
        self.world.publish(OWNER.peer, encode_slot(self.store.pointer("owner"), None, self.run.id))
        self.world.step(1 + FINALITY_LAG)

    def add(
        self, name: str, *, validates: bool, stake: int, hostile: Attack | None = None, uid: int | None = None
    ) -> SimulatedNode:
        """Register a new member, at the next free uid or in place of whoever holds `uid`. It is not started."""
        spread = self.conditions.spread
        pace = self.random.uniform(1 - spread, 1 + spread)
        member = SimulatedNode(name, self.folder / name, pace, validates, HashSigner(name), stake, hostile)
        self.members[name] = self.by_hotkey[hotkey(member.peer)] = member
        self.store.bucket(name)
        self.world.register(member.peer, stake=stake, validates=validates, uid=uid)
        return member

    def _faces(self, seed: int) -> Faces:
        honest = [member for member in self.members.values() if member.validates and not member.hostile]
        two_faced = [member.name for member in self.members.values() if member.hostile == "faces"]
        return Faces(
            Faces.drawn(seed, two_faced, [member.name for member in honest]),
            Judges(honest),
            {name: self.members[name].peer for name in two_faced},
            self.spec.gauntlet,
        )

    def _served(self, call: Call) -> None:
        """Called before a bucket answers: what its owner does to this reader."""
        self.faces.answer(call)
        self.withheld.answer(call)

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
        costs = replace(self.conditions.costs, inner=self.conditions.costs.inner * member.pace)
        modelled = ModelledReplica(self.spec, self.problem, life, costs, draw)
        events = Recorder(partial(self.told, member))
        node = Node(run, ports, NodeState(self.spec, self.run.id, modelled, disk, events, life))
        if member.validates:
            return (HostileValidator if member.hostile else self.programs.validator)(node, NoText())
        if member.hostile == "faces":
            return TwoFacedMiner(node, NoText(), self.faces, member.name)
        if member.hostile == "withholds":
            return WithholdingMiner(node, NoText(), self.withheld, member.name)
        return self.programs.miner(node, NoText())

    def _ports(self, member: SimulatedNode, life: Life, draw: random.Random) -> Ports:
        def link(key: str, num_bytes: int, *, up: bool) -> float:
            large = "/payload/" in key or "/mirror/" in key or "blob/" in key
            return self.conditions.line.seconds(draw, num_bytes, large=large, up=up)

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


def draft_spec(world: World, genesis: Digest, conditions: Conditions, places: int) -> RunSpec:
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
        inner=inner(conditions.steps),
        data=DATA,
        clock=conditions.clock,
        gauntlet=conditions.gauntlet.model_copy(update={"contributors": places, "evaluations": places}),
    )
