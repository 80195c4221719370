"""An in-memory chain behind the Chain port.

`World` is the chain; each `WorldChain` sees it as one hotkey. Blocks are made by hand (`step`) or by a thread
(`running`). State is kept per block, so reads at an old height answer as they did; hashes are a function of the seed.
It obeys the contract suite that the real adapter obeys (tests/chain/test_contract.py), quotas and error names included.
Tests use it as their fake of the chain; a simulation makes its blocks on the modelled clock.

In manual mode a write goes into the block that is being built and returns its number at once: it stands on chain after
the next `step`. While a thread makes blocks, a write waits for its block like a real one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from math import isfinite

from murmur.chain.slots import encode_fields
from murmur.lab.devnet.epoch import per_u16, shares, yuma
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.messages import parse_slot
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest, Header, Peer, PeerId, Slot, Subnet, Uid
from storage.realtime import REAL

_U16_MAX = 65535
_KAPPA = 0.5
"""Of the stake that votes, what stands behind a weight that counts."""
_MIN_CHARGED_BYTES = 100
_INCLUSION_SECONDS = 30.0
_BALANCE_RAO = 10**10


@lru_cache(maxsize=4096)
def _parsed(block: int, fields: tuple[bytes, ...]) -> Slot:
    return parse_slot(block, fields)


@dataclass
class _State:
    """The chain's state after a block. Values are immutable, so a copy of the maps is a copy of the state; blocks
    without a write share one."""

    neurons: dict[Uid, Peer] = field(default_factory=dict)
    slots: dict[PeerId, tuple[int, tuple[bytes, ...]]] = field(default_factory=dict)
    weights: dict[Uid, dict[Uid, int]] = field(default_factory=dict)
    used: dict[PeerId, tuple[int, int]] = field(default_factory=dict)
    commits: dict[tuple[int, PeerId], dict[Uid, int]] = field(default_factory=dict)
    """Rows of weights that wait to be revealed, by the block of their commit."""

    def copy(self) -> "_State":
        return _State(dict(self.neurons), dict(self.slots), dict(self.weights), dict(self.used), dict(self.commits))

    @cached_property
    def peers(self) -> tuple[Peer, ...]:
        """Every hotkey with its slot, by uid; of a state that is written no more."""
        slots = {peer: _parsed(*slot) for peer, slot in self.slots.items()}
        return tuple(replace(self.neurons[uid], slot=slots.get(self.neurons[uid].id)) for uid in sorted(self.neurons))

    def neuron(self, peer: PeerId) -> Peer | None:
        return next((neuron for neuron in self.neurons.values() if neuron.id == peer), None)


_Write = Callable[[_State, int], None]


@dataclass(frozen=True, slots=True)
class _Block:
    hash: Digest
    state: _State
    writes: tuple[_Write, ...]


class World:
    """The chain that all its WorldChain views share. Thread-safe."""

    def __init__(
        self,
        seed: bytes = b"fake",
        *,
        finality_lag: int = 0,
        epoch_blocks: int = 360,
        max_space_bytes: int = 3100,
        weights_rate_limit: int = 100,
        commit_reveal: bool = False,
        keep_blocks: int | None = None,
        archive_blocks: int | None = None,
        block_seconds: float = 12.0,
        start_time: float = 1_700_000_000.0,
        time: Time = REAL,
    ) -> None:
        """`commit_reveal`: weights stand on chain from the first block of the epoch after the one that set them.
        `keep_blocks`: state older than this many blocks below the head is pruned; None keeps all. `archive_blocks`:
        what an archive still has of it.
        `block_seconds` and `start_time` are the chain's clock, whatever the pace at which blocks are made."""
        self.finality_lag = finality_lag
        self.down = False
        """While True every call fails as if the chain's node were unreachable."""
        self.archive_answers = False
        """While True a WorldChain reads from the archive what its own node has pruned."""
        self.owner: PeerId | None = None
        """The subnet's owner: its hotkey may always set weights."""
        self.balances: dict[PeerId, int] = {}
        """Rao that pay a hotkey's fees, where it is not enough for everything. Nothing here costs any."""
        self._revealed: dict[int, int] = {}
        """By the block of a commit, the one that revealed it."""
        self._failing: dict[PeerId, int] = {}
        self.finality_stops: int | None = None
        """While set, no later block becomes final."""
        self._seed = seed
        self._epoch_blocks = epoch_blocks
        self._max_space = max_space_bytes
        self._rate_limit = weights_rate_limit
        self._commit_reveal = commit_reveal
        self._keep, self._archive = keep_blocks, archive_blocks
        self._block_seconds = block_seconds
        self._start_time = start_time
        self._time = time
        self._changed = time.condition()
        self._running = False
        self._forks = 0
        self._pending = _State()
        self._pending_writes: list[_Write] = []
        self._blocks: dict[int, _Block] = {}
        self.head = -1
        self._genesis = b""
        self.step()
        self._genesis = self._blocks[0].hash

    # --- the test's hand -----------------------------------------------------------------------------------------

    def chain(self, peer: PeerId) -> "WorldChain":
        return WorldChain(self, peer)

    def register(self, peer: PeerId, *, stake: int = 0, validates: bool = False, uid: int | None = None) -> Uid:
        """Register a hotkey in the block being built, at the next free uid or in place of whoever holds `uid`."""

        def write(state: _State, block: int) -> None:
            place = Uid(len(state.neurons) if uid is None else uid)
            state.neurons[place] = Peer(peer, place, stake, validates, block)
            state.weights.pop(place, None)

        self._write(write)
        neuron = self._pending.neuron(peer)
        assert neuron is not None
        return neuron.uid

    def set_stake(self, peer: PeerId, stake: int, validates: bool) -> None:
        """Stake (rao) and validator permit of a registered hotkey, from the block being built on."""

        def write(state: _State, block: int) -> None:
            neuron = _registered(state, peer)
            state.neurons[neuron.uid] = replace(neuron, stake=stake, validates=validates)

        self._write(write)

    def step(self, num_blocks: int = 1) -> int:
        """Seal `num_blocks` blocks; returns the number of the head."""
        with self._changed:
            for _ in range(num_blocks):
                self._seal()
            return self.head

    def reorg(self, depth: int, *, lost: bool = False) -> None:
        """Replace the last `depth` blocks by depth + 1 others. Their writes are made again in the first of those, or
        are `lost`."""
        with self._changed:
            if not 0 < depth <= self.finality_lag:
                raise ValueError(f"a reorg of {depth} blocks would undo final ones: the lag is {self.finality_lag}")
            dropped = [self._blocks.pop(block) for block in range(self.head - depth + 1, self.head + 1)]
            self.head -= depth
            made = [] if lost else [write for block in dropped for write in block.writes]
            waiting = made + self._pending_writes
            self._forks += 1
            self._pending, self._pending_writes = self._blocks[self.head].state.copy(), []
            self._begin()
            for write in waiting:
                try:
                    self._apply(write)
                except ChainError:
                    continue  # what no longer holds on the new branch falls out of the pool
            for _ in range(depth + 1):
                self._seal()

    @contextmanager
    def running(self, block_seconds: float) -> Iterator["World"]:
        """A thread seals a block every `block_seconds` (wall clock)."""
        stop = threading.Event()

        def produce() -> None:
            while not stop.wait(block_seconds):
                self.step()

        producer = threading.Thread(target=produce, name="fake-chain", daemon=True)
        self._running = True
        producer.start()
        try:
            yield self
        finally:
            self._running = False
            stop.set()
            producer.join()

    @property
    def pending_peers(self) -> tuple[Peer, ...]:
        """Every hotkey as the block that is being built has it, without slots."""
        return tuple(self._pending.neurons.values())

    @property
    def final(self) -> int:
        lagging = max(0, self.head - self.finality_lag)
        return lagging if self.finality_stops is None else min(lagging, self.finality_stops)

    # --- what the views use --------------------------------------------------------------------------------------

    def header(self, block: int, *, archive: bool = False) -> Header:
        self._at(block, archive=archive)
        return Header(block, self._blocks[block].hash, self._start_time + block * self._block_seconds)

    def state(self, block: int, *, archive: bool = False) -> _State:
        """`archive`: as one that keeps more has it."""
        return self._at(block, archive=archive).state

    def genesis(self) -> bytes:
        return self._genesis

    def fail(self, peer: PeerId, num_calls: int) -> None:
        """The next calls by this hotkey's views fail, but for waits."""
        self._failing[peer] = num_calls

    def check(self, peer: PeerId) -> None:
        if self.down:
            raise ChainError("the connection to the chain failed")
        if self._failing.get(peer, 0) > 0:
            self._failing[peer] -= 1
            raise ChainError("the connection to the chain was lost")

    def wait(self, block: int, timeout_seconds: float) -> Header:
        with self._changed:
            if not self._wait_for(lambda: not self.down and self.final >= block, timeout_seconds):
                raise ChainError(f"block {block} was not final within {timeout_seconds:.1f} s")
            return self.header(block)

    def _wait_for(self, happened: Callable[[], bool], timeout_seconds: float) -> bool:
        until = self._time.now() + timeout_seconds
        while not happened():
            if not self._changed.wait(max(0.0, until - self._time.now())) and self._time.now() >= until:
                return happened()
        return True

    def publish(self, peer: PeerId, fields: tuple[bytes, ...]) -> int:
        encode_fields(fields)  # the real adapter's refusal of fields that fit no variant
        charged = max(_MIN_CHARGED_BYTES, sum(map(len, fields)))

        def write(state: _State, block: int) -> None:
            if state.neuron(peer) is None:
                raise ChainError("the hotkey is not registered", code="AccountNotAllowedCommit")
            epoch = block // self._epoch_blocks
            last_epoch, used = state.used.get(peer, (epoch, 0))
            used = charged + (used if last_epoch == epoch else 0)
            if used > self._max_space:
                raise ChainError("the quota of this epoch is spent", code="SpaceLimitExceeded")
            state.used[peer] = (epoch, used)
            state.slots[peer] = (block, fields)

        return self._write(write)

    def set_weights(self, peer: PeerId, weights: Mapping[Uid, float]) -> int:
        if not all(isfinite(weight) and weight >= 0 for weight in weights.values()) or not any(weights.values()):
            raise ValueError("weights must be finite and non-negative, and at least one positive")
        top = max(weights.values())
        given = {uid: round(weight / top * _U16_MAX) for uid, weight in weights.items()}

        def write(state: _State, block: int) -> None:
            neuron = _registered(state, peer)
            if neuron.last_update and block - neuron.last_update < self._rate_limit:
                code = "CommittingWeightsTooFast" if self._commit_reveal else "SettingWeightsTooFast"
                raise ChainError("weights were set too recently", code=code)
            if not (neuron.validates or peer == self.owner):
                raise ChainError("no validator permit", code="NeuronNoValidatorPermit")
            if not given.keys() <= state.neurons.keys():
                raise ChainError("weights for an unknown uid", code="UidVecContainInvalidOne")
            row = {uid: given.get(uid, 0) for uid in sorted(state.neurons)}
            if self._commit_reveal:
                state.commits[block, peer] = row
            else:
                state.weights[neuron.uid] = row
            state.neurons[neuron.uid] = replace(neuron, last_update=block)

        return self._write(write)

    def subnet(self, block: int) -> Subnet:
        self._at(block)
        return Subnet(self._epoch_blocks, self._max_space, self._rate_limit, self._commit_reveal, self.owner)

    def stands_from(self, set_in: int) -> int | None:
        if set_in > self.final or any(block == set_in for block, _ in self.state(self.final).commits):
            return None
        if set_in not in self._revealed:
            self._at(set_in)
        return self._revealed.get(set_in, set_in)

    def balance(self, peer: PeerId) -> int:
        if self.state(self.final).neuron(peer) is None:
            raise ChainError("no coldkey owns this hotkey", code="HotKeyAccountNotExists")
        return self.balances.get(peer, _BALANCE_RAO)

    # --- blocks --------------------------------------------------------------------------------------------------

    def _at(self, block: int, *, archive: bool = False) -> _Block:
        if not 0 <= block <= self.final:
            raise ChainError(f"block {block} is not final yet: the last final block is {self.final}")
        keep = self._archive if archive and self._archive is not None else self._keep
        if keep is not None and block < self.head - keep:
            raise ChainError(f"block {block} is below the pruning horizon of this chain node", STATE_PRUNED)
        return self._blocks[block]

    def _write(self, write: _Write) -> int:
        with self._changed:
            block = self._apply(write)
            if self._running and not self._wait_for(lambda: self.head >= block, _INCLUSION_SECONDS):
                raise ChainError("the chain makes no blocks")
            return block

    def _apply(self, write: _Write) -> int:
        block = self.head + 1
        self._own_pending()
        write(self._pending, block)
        self._pending_writes.append(write)
        return block

    def _own_pending(self) -> None:
        if self._blocks and self._pending is self._blocks[self.head].state:
            self._pending = self._pending.copy()

    def _begin(self) -> None:
        """What comes before the next block's writes: reveals of commits and, in an epoch's first block, incentive."""
        block = self.head + 1
        self._reveal(block)
        if block % self._epoch_blocks == 0:
            self._weigh()

    def _weigh(self) -> None:
        """What the weights of all who may set some amount to, as incentive: Yuma without bonds."""
        self._own_pending()
        neurons, weights = self._pending.neurons, self._pending.weights
        count = max(neurons, default=-1) + 1
        stakes, rows = [0] * count, [dict[int, float]() for _ in range(count)]
        for uid, neuron in neurons.items():
            if neuron.validates or neuron.id == self.owner:
                stakes[uid], rows[uid] = neuron.stake, shares(weights.get(uid, {}).items(), uid, count)
        _, incentive, _, _ = yuma(stakes, rows, _KAPPA)
        quantised = per_u16(incentive)
        neurons.update({uid: replace(neuron, incentive=quantised[uid]) for uid, neuron in neurons.items()})

    def _reveal(self, block: int) -> None:
        """Weights that were committed in an epoch before this block's stand from here; who may not set any, loses."""
        due = [key for key in self._pending.commits if key[0] // self._epoch_blocks < block // self._epoch_blocks]
        if due:
            self._own_pending()
        for key in due:
            self._revealed[key[0]] = block
            row, neuron = self._pending.commits.pop(key), self._pending.neuron(key[1])
            if neuron is not None and (neuron.validates or neuron.id == self.owner):
                self._pending.weights[neuron.uid] = row

    def _seal(self) -> None:
        self.head += 1
        position = self.head.to_bytes(8, "little") + self._forks.to_bytes(8, "little")
        digest = Digest(sha256(b"fake block" + position + self._seed).digest())
        self._blocks[self.head] = _Block(digest, self._pending, tuple(self._pending_writes))
        self._pending_writes = []
        if self._keep is not None:
            self._blocks.pop(self.head - max(self._keep, self._archive or 0) - 1, None)
        self._begin()
        self._changed.notify_all()


class WorldChain:
    """The Chain port on a World, signing as one hotkey."""

    def __init__(self, world: World, peer: PeerId) -> None:
        self.world = world
        self.peer = peer

    def genesis(self) -> bytes:
        self.world.check(self.peer)
        return self.world.genesis()

    def finalized(self) -> Header:
        self.world.check(self.peer)
        return self.world.header(self.world.final)

    def header(self, block: int) -> Header:
        self.world.check(self.peer)
        return self.world.header(block, archive=self.world.archive_answers)

    def wait(self, block: int, timeout_seconds: float) -> Header:
        return self.world.wait(block, timeout_seconds)

    def peers(self, block: int) -> tuple[Peer, ...]:
        self.world.check(self.peer)
        return self.world.state(block, archive=self.world.archive_answers).peers

    def subnet(self, block: int) -> Subnet:
        self.world.check(self.peer)
        return self.world.subnet(block)

    def balance(self) -> int:
        self.world.check(self.peer)
        return self.world.balance(self.peer)

    def publish(self, fields: tuple[bytes, ...]) -> int:
        self.world.check(self.peer)
        return self.world.publish(self.peer, fields)

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        self.world.check(self.peer)
        return self.world.set_weights(self.peer, weights)

    def stands_from(self, set_in: int) -> int | None:
        self.world.check(self.peer)
        return self.world.stands_from(set_in)

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        self.world.check(self.peer)
        return dict(self.world.state(block).weights.get(uid, {}))


def _registered(state: _State, peer: PeerId) -> Peer:
    neuron = state.neuron(peer)
    if neuron is None:
        raise ChainError("the hotkey is not registered", code="HotKeyNotRegisteredInSubNet")
    return neuron
