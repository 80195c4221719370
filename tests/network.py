"""A whole network in one process: real nodes in threads, over the fake chain and the fake store, in modelled time.

A node's work takes no time, so nobody is late because a machine is busy, and what is waited for costs none. Between two
`run_until` time stands still, so a test can look around and change things.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from gauntlet.agreement import abstention
from murmur.data.shards import Shards
from murmur.lab.simulation.clock import EPOCH, Clock, Killed, Life, Work
from murmur.lab.simulation.store import Link
from murmur.node.chain import follower, retrying_chain
from murmur.node.chain.subnet_terms import require_fit
from murmur.node.config.ports import Ports
from murmur.node.node import Node
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Saved
from murmur.node.state.store import StateStore
from murmur.node.sync import backoff
from murmur.node.sync.amendments import settled
from murmur.node.telemetry.events import Events, read_events
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Amendment, Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Header, Peer, PeerId, Pointer, Uid
from murmur.rounds.collect import Collector
from murmur.rounds.miner import Miner
from murmur.rounds.pay import Pay
from murmur.rounds.retention import Retention
from murmur.rounds.score import Scores
from murmur.rounds.validator import Validator
from murmur.rounds.verify import Verifier
from murmur.rounds.votes import Votes
from murmur.training import checkpoint
from murmur.training.inner import InnerReport
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from tests.fakes.bucket import FakeBucket, FakeStore
from tests.fakes.chain import FakeChain, FakeSigner, FakeWorld, fake_verify
from tests.small_run import BLOCK_SECONDS, OWNER, data_set, small_spec

MOST_BLOCKS = 5000
"""For whatever is not reached at all."""


Program = Miner | Validator
waiting = partial(Miner, speculates=False)
"""A miner that waits for the decision before it trains on."""


def with_parts(*parts: type) -> type[Validator]:
    """A validator some of whose six parts are these."""
    names = {Collector: "collecting", Scores: "scoring", Votes: "voting", Pay: "paying", Retention: "keeping"}
    names[Verifier] = "verifying"
    own = {name: part for part in parts for kind, name in names.items() if issubclass(part, kind)}
    return type("Dishonest", (Validator,), own)


class ModelledReplica(Replica):
    """Whose training takes its time, unlike all other work."""

    def __init__(self, spec: RunSpec, theta: dict[str, torch.Tensor], life: Life) -> None:
        super().__init__(spec, theta)
        self._life = life

    def inner_round(self, *arguments: Any, **named: Any) -> InnerReport:
        self._life.sleep(BLOCK_SECONDS / 10)
        return super().inner_round(*arguments, **named)


class MortalChain(FakeChain):
    """A node's chain: kills the node at the call at which it is to die."""

    def __init__(self, world: FakeWorld, member: "Member") -> None:
        super().__init__(world, member.peer)
        self._member = member

    def _alive(self) -> None:
        member = self._member
        assert member.life is not None
        member.life.now()
        if member.calls_left is not None:
            member.calls_left -= 1
            if member.calls_left < 0:
                member.die()

    def finalized(self) -> Header:
        self._alive()
        return super().finalized()

    def header(self, block: int) -> Header:
        self._alive()
        return super().header(block)

    def peers(self, block: int) -> tuple[Peer, ...]:
        self._alive()
        return super().peers(block)

    def wait(self, block: int, timeout_seconds: float) -> Header:
        self._alive()
        return super().wait(block, timeout_seconds)

    def publish(self, fields: tuple[bytes, ...]) -> int:
        self._alive()
        return super().publish(fields)

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        self._alive()
        return super().set_weights(weights)


@dataclass
class Member:
    """One node: what stays when its process dies, and the process."""

    name: str
    role: type[Miner] | type[Validator]
    home: Path
    signer: FakeSigner
    bucket: FakeBucket
    program: Program | None = None
    store: StateStore | None = None
    life: Life | None = None
    main: Work | None = None
    """What its main thread does."""
    error: BaseException | None = None
    calls_left: int | None = None
    """It dies at the call of the chain after so many."""

    @property
    def peer(self) -> PeerId:
        return self.signer.peer

    @property
    def node(self) -> Node:
        assert self.program is not None
        return self.program.node

    @property
    def round(self) -> int:
        """The round at whose start its saved state stands; -1 while it starts."""
        return -1 if self.program is None else self.program.node.state.saved.round

    @property
    def alive(self) -> bool:
        return self.main is not None and not self.main.ended

    def die(self) -> NoReturn:
        """kill -9, in one of the node's own threads: nothing of it runs after this."""
        assert self.life is not None
        self.life.kill()
        raise Killed

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.home / "events.jsonl") if event["event"] == kind]

    def thetas(self) -> dict[int, str]:
        """Digest after every round that it applied."""
        return {event["round"]: event["theta"] for event in self.events("applied")}

    def voids(self) -> list[int]:
        return [event["round"] for event in self.events("applied") if event["void"]]

    def contributing(self, round: int) -> list[str]:
        return next(e["contributing"] for e in self.events("applied") if e["round"] == round)


class FakeNetwork:
    """The network. `miners` and `validators` (name -> stake) are registered at once and started with `start`."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        *,
        miners: int = 2,
        validators: Mapping[str, int] | None = None,
        finality_lag: int = 0,
        keep_blocks: int | None = None,
        archive: bool = False,
        weights_rate_limit: int = 1,
        commit_reveal: bool = False,
        **gauntlet: Any,
    ) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.time = Clock(0)
        self.world = FakeWorld(
            finality_lag=finality_lag,
            keep_blocks=keep_blocks,
            archive_blocks=MOST_BLOCKS,
            epoch_blocks=100,
            weights_rate_limit=weights_rate_limit,
            commit_reveal=commit_reveal,
            block_seconds=BLOCK_SECONDS,
            start_time=EPOCH,
            time=self.time.life("world"),
        )
        self.world.archive_answers = archive
        gauntlet["weights_rate_limit"] = weights_rate_limit
        self.store = FakeStore()
        self.data = data
        self.members: dict[str, Member] = {}
        self.refused: set[str] = set()
        """Names of buckets whose pointers may not be followed."""
        stakes = {"validator": 100} if validators is None else validators
        self._owner_bucket = self.store.bucket("owner", reader="owner")
        opened = Shards.open(data)
        provisional = small_spec(opened, Digest(bytes(32)), self.world, **gauntlet)
        replica = Replica(provisional, genesis_theta(provisional.model, 1))
        state = replica.consensus_state()
        genesis = checkpoint.save(folder / "genesis", state)
        for digest, path in checkpoint.blobs(folder / "genesis", genesis):
            self._owner_bucket.put(keys.blob(digest), path, timeout_seconds=1)
        self.spec = small_spec(opened, genesis, self.world, **gauntlet)
        self.run = Run(self.spec)
        self.clock = self.run.clock
        self._register("owner", OWNER.peer)
        for name, stake in stakes.items():
            self._add(name, Validator, stake)
        for number in range(1, miners + 1):
            self._add(f"miner-{number}", Miner, 0)
        self._publish(OWNER.peer, "owner", self.run.id)
        for name in stakes:
            self.announce(name)
        self.world.step(1 + finality_lag)

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    # --- people ------------------------------------------------------------------------------------------------

    def _register(self, name: str, peer: PeerId, stake: int = 0) -> None:
        self.world.register(peer, stake=stake, validates=stake > 0)
        self.store.bucket(name)

    def _add(self, name: str, role: type[Miner] | type[Validator], stake: int) -> None:
        signer = FakeSigner(name)
        self._register(name, signer.peer, stake)
        self.members[name] = Member(name, role, self.folder / name, signer, self.store.bucket(name, reader=name))

    def _publish(self, peer: PeerId, bucket: str, amendment: Digest | None) -> None:
        self.world.publish(peer, encode_slot(self.store.pointer(bucket), None, amendment))

    def announce(self, name: str) -> None:
        """As if the validator had been started before the run begins."""
        self.world.publish(self[name].peer, encode_slot(self.store.pointer(name), abstention(0), None))

    def amend(self, **changes: Any) -> Amendment:
        """The owner publishes an amendment and names it on chain."""
        amendment = Amendment(previous=self.run.head.hex(), **changes)
        self.run = self.run.amended([amendment])
        self._owner_bucket.put(keys.blob(amendment.digest), amendment.to_bytes(), timeout_seconds=1)
        self._publish(OWNER.peer, "owner", amendment.digest)
        return amendment

    def ports(self, member: Member, life: Life) -> Ports:
        def here(key: str, num_bytes: int, *, up: bool) -> float:
            """No way at all; but nothing of a dead process arrives."""
            life.now()
            return 0.0

        return Ports(
            chain=MortalChain(self.world, member),
            signer=member.signer,
            verify=fake_verify,
            bucket=self.store.bucket(member.name, reader=member.name, time=life, link=here),
            pointer=self.store.pointer(member.name),
            open_pointer=partial(self._open, reader=member.name, time=life, link=here),
            time=life,
        )

    def _open(self, pointer: Pointer, *, reader: str, time: Life, link: Link) -> FakeBucket:
        if pointer.bucket in self.refused:
            raise ConfigError("the pointer leads to an address that is not public; it was not followed")
        return self.store.open(pointer, reader=reader, time=time, link=link)

    # --- processes ---------------------------------------------------------------------------------------------

    def start(self, *names: str, role: Callable[[Node, Shards], Program] | None = None) -> None:
        """Start the named nodes (default: all) on the state in their homes. `role` replaces their program."""
        for name in names or tuple(self.members):
            member = self[name]
            assert not member.alive, f"{name} runs already"
            member.program, member.error = None, None
            member.life = life = self.time.life(name)
            member.main = life.start(partial(self._live, member, life, role), "main")

    def _live(self, member: Member, life: Life, role: Callable[[Node, Shards], Program] | None) -> None:
        try:
            member.store = StateStore(member.home, self.run.id)
            node = self._node(member, life, member.store)
            member.program = (role or member.role)(node, self.shards(member, node))
            member.program.run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread's error is raised in the test
            member.error = error
        finally:
            life.kill()
            if member.store is not None:
                member.store.close()

    def _node(self, member: Member, life: Life, store: StateStore) -> Node:
        ports = self.ports(member, life)
        first = Run(self.spec)
        saved = store.load()
        run = settled(store.run.load() or first, saved.round if saved else 0, ports, store.run.read, life)
        store.run.save(run)
        head = self.world.final
        require_fit(run, max(0, run.clock.round_at(head)), ports.chain.subnet(head))
        zeros = {name: torch.zeros(shape) for name, shape in first.first.model.shapes().items()}
        replica = ModelledReplica(first.first, zeros, life)
        events = Events(member.home / "events.jsonl", member.name)
        return Node(run, ports, NodeState(first.first, run.id, replica, store, events, life))

    def shards(self, member: Member, node: Node) -> Shards:
        """The data set as a node has it: all of it in its folder."""
        return Shards.open(self.data)

    def kill(self, *names: str) -> None:
        """kill -9 for the named nodes: none of their threads does anything any more."""
        for name in names:
            life = self[name].life
            if life is not None:
                life.kill()
        self.wait_for(lambda: not any(self[name].alive for name in names))

    def close(self) -> None:
        self.kill(*[name for name, member in self.members.items() if member.alive])
        self.time.close()

    # --- time --------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let the nodes live so long, without a new block."""
        self.time.run(self.time.now + seconds)

    def stand_still(self, seconds: float) -> None:
        """The chain makes no block for so long; later ones say the time at which they are made."""
        self.wait(seconds)
        self.world._start_time += seconds

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Let the nodes live, without a new block."""
        until = self.time.now + MOST_BLOCKS * BLOCK_SECONDS
        while not happened():
            assert self.time.now < until, f"it did not happen: {self.state()}"
            self.wait(BLOCK_SECONDS / 10)

    def hold(self, until: Callable[[], bool]) -> None:
        """Inside a node's own call: it waits for this, while all others live."""
        while not until():
            self.time.park(self.time.now + BLOCK_SECONDS / 10)

    def run_blocks(self, done: Callable[[], bool], *, expected: bool = False) -> None:
        """Make blocks until `done`. A node that fails on its own fails the test, with its error, unless `expected`."""
        last = self.world.head + MOST_BLOCKS
        self.world._running = True
        try:
            while not done():
                for member in self.members.values():
                    if member.error is not None and not expected:
                        raise member.error
                assert self.world.head < last, f"not reached in time: {self.state()}"
                self.wait(BLOCK_SECONDS)
                self.world.step()
        finally:
            self.world._running = False

    def run_until(self, round: int, *names: str) -> None:
        """Make blocks until the named nodes (default: all that live) stand at the start of `round` or later."""
        members = [self[name] for name in names] or self.alive
        self.run_blocks(lambda: all(member.round >= round or not member.alive for member in members))

    def run_to_block(self, block: int) -> None:
        self.run_blocks(lambda: self.world.final >= block)

    def until_dead(self, *names: str) -> list[BaseException | None]:
        """Make blocks until the named nodes have ended by themselves; their errors, None for one that was killed."""
        self.run_blocks(lambda: not any(self[name].alive for name in names), expected=True)
        return [self[name].error for name in names]

    def state(self) -> dict[str, object]:
        return {
            "block": self.world.head,
            "round": self.clock.round_at(self.world.final),
            "nodes": {name: (member.round, member.alive) for name, member in self.members.items()},
        }

    def assert_agreement(self, *names: str) -> dict[int, str]:
        """Every round's digest is the same on all named nodes (default: all) that applied it; the digests."""
        found: dict[int, str] = {}
        for name in names or tuple(self.members):
            for round, theta in self[name].thetas().items():
                assert found.setdefault(round, theta) == theta, f"{name} differs in round {round}"
        return dict(sorted(found.items()))


def saved_state(network: FakeNetwork, name: str) -> tuple[Saved, StateStore]:
    """What a dead node left on its disk. Close the store."""
    store = StateStore(network[name].home, network.run.id)
    saved = store.load()
    assert saved is not None
    return saved, store


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    data_set(folder)
    return folder


@pytest.fixture
def networks(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., FakeNetwork]]:
    """networks(**options): a FakeNetwork that is stopped after the test."""
    # Pauses that spare a real network; here everything answers at once.
    monkeypatch.setattr(backoff, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(follower, "STALL_SECONDS", 0.02)
    monkeypatch.setattr(retrying_chain, "PAUSE_SECONDS", 0.02)
    made: list[FakeNetwork] = []

    def make(**options: Any) -> FakeNetwork:
        made.append(FakeNetwork(tmp_path / f"network-{len(made)}", data_folder, **options))
        return made[-1]

    yield make
    for network in made:
        network.close()


def posts(network: FakeNetwork, name: str, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts the node's posts of each round, from now on, refused ones too."""
    publish, found = network.world.publish, Counter[int]()

    def counted(peer: PeerId, fields: tuple[bytes, ...]) -> int:
        if peer == network[name].peer:
            found[network.clock.round_at(network.world.head)] += 1
        return publish(peer, fields)

    monkeypatch.setattr(network.world, "publish", counted)
    return found
