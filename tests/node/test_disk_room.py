"""A small disk and 256 hotkeys whose noise passes the fast checks: the state is saved in every round, and the payloads
of the best are remembered. Real files, real collections and a real state; the size of the disk is modelled."""

import errno
import os
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import IO, Any

import pytest
import torch

from gauntlet.remembered import Remembered
from murmur import files
from murmur.node.fetch import room
from murmur.node.fetch.payloads import collect_pinned
from murmur.node.fetch.room import room_for_downloads, room_for_remembered, spare_bytes, taken_bytes
from murmur.node.fetch.sources import Sources
from murmur.node.state.payload_history import PayloadHistory
from murmur.node.state.saved import Consensus, Payload, Saved, Snapshot, Step
from murmur.node.state.store import StateStore
from murmur.protocol import keys
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.types import DIGEST_BYTES, Digest, Peer, PeerId, Slot, Uid
from murmur.training import checkpoint
from murmur.training.memory import RECENT_ROUNDS, disk_parts
from storage.exchange import Data, FetchFault, cached
from storage.seal import seal
from tests.fakes.bucket import FakeStore
from tests.specs import toy_spec

RUN = Digest(bytes(32))
SPEC = toy_spec({"gauntlet.contributors": 16, "gauntlet.reserve": 8, "model.width": 128, "model.layers": 8})
"""Payloads so large that the row and the file headers count for little beside them, as in every real run."""
HONEST, NOISY = 24, 256
ROUNDS = 12
PAYLOAD, RECORDS, CONSENSUS = SPEC.object_bytes, SPEC.layout.records_bytes, SPEC.consensus_bytes
BOOK_BYTES = 20_000
_PLAN = disk_parts(SPEC, "validator")


def named(number: int) -> PeerId:
    return PeerId(sha256(number.to_bytes(2, "little")).digest())


class Signer:
    def __init__(self, peer: PeerId) -> None:
        self.peer = peer

    def sign(self, message: bytes) -> bytes:
        return sha256(self.peer + message).digest() * 2


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return sha256(peer + message).digest() * 2 == signature


class Disk:
    """Takes `size` bytes below `folder`; what is written by `murmur.files` fails beyond. `least`: fewest bytes that
    were ever free."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.size, self.least = folder, 1 << 40, 1 << 40
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(room, "disk_usage", lambda path: usage(self.free))
        monkeypatch.setattr(files, "open", self.open, raising=False)

    @property
    def free(self) -> int:
        return self.size - taken_bytes([self.folder])

    def open(self, *words: Any, **options: Any) -> IO[bytes]:
        file, disk = open(*words, **options), self  # noqa: SIM115 - the caller closes it

        class Limited:
            def write(self, data: bytes) -> int:
                file.flush()
                free = disk.free - len(memoryview(data).cast("B"))
                if free < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                disk.least = min(disk.least, free)
                return int(file.write(data))

            def __enter__(self) -> "Limited":
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return Limited()  # type: ignore[return-value]


class Node:
    """What a validator writes in a round: downloads, remembered payloads, the log, a snapshot, a checkpoint, the book
    and the row."""

    def __init__(self, home: Path, disk: Disk) -> None:
        self.disk, self.store = disk, StateStore(home, RUN)
        self.folder = self.store.folder
        self.cache = self.folder / "cache"
        self.memory = PayloadHistory(self.folder / "payloads", RECORDS, ())
        self.remembered: list[Remembered] = []
        self.log: list[Step] = []
        self.save(0)

    def save(self, round: int) -> None:
        """Raises what the disk raises."""
        row = (round, Digest(bytes(32)))
        tensors = {"theta": torch.full((CONSENSUS // 4,), float(round))}
        state = checkpoint.save(self.store.snapshot, checkpoint.TensorState(tensors, {}))
        shown = self.folder / "checkpoint"
        rmtree(shown, ignore_errors=True)
        shown.mkdir()
        for digest, path in checkpoint.blobs(self.store.snapshot, state):
            os.link(path, shown / digest.hex())
        self.log = self.log[-SPEC.checkpoint_rounds - RECENT_ROUNDS :]
        book = self.store.write(os.urandom(BOOK_BYTES))
        self.store.commit(Saved(round, Consensus(Snapshot(*row, state), tuple(self.log)), row[1], row[1], book=book))

    def play(self, round: int, peers: list[Peer], objects: dict[PeerId, bytes], open_bucket: Any) -> None:
        """Peers: best first; all pass the fast checks."""
        pairs = [(peer.id, Digest(sha256(objects[peer.id][:ENVELOPE_BYTES]).digest())) for peer in peers]
        found = collect_pinned(
            SPEC,
            RUN,
            round,
            pairs,
            Sources(peers, open_bucket),
            verify,
            seconds_left=lambda: 100.0,
            cache=self.cache,
        ).outcome()
        self.keep(round, {peer: found[peer] for peer, _ in pairs if not isinstance(found[peer], FetchFault)})
        self.apply(round, pairs)

    def keep(self, round: int, got: dict[PeerId, Data]) -> None:
        sent = {
            Remembered(round, peer, Digest(sha256(data[-RECORDS:]).digest())): data[-RECORDS:]
            for peer, data in got.items()
        }
        self.memory.keep(round, sent, room_for_remembered(SPEC, self.folder))
        copies = SPEC.gauntlet.copy_rounds
        self.remembered = [past for past in (*self.remembered, *sent) if past.round > round - copies]
        self.memory.prune(self.remembered)

    def apply(self, round: int, pairs: list[tuple[PeerId, Digest]]) -> None:
        applied = []
        for peer, envelope in pairs[: SPEC.gauntlet.contributors]:
            with suppress(FileNotFoundError):  # a node would fetch it now
                os.link(cached(self.cache, peer, keys.payload(RUN, round)), self.store.log / envelope.hex())
            applied.append(Payload(peer, envelope, bytes(32)))
        self.log.append(Step(round, RUN, RUN, 1.0, "mean", tuple(applied)))
        self.save(round + 1)
        rmtree(self.cache)

    def remembers(self, round: int) -> set[PeerId]:
        return {past.peer for past in self.memory._records if past.round == round}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


@pytest.fixture
def node(tmp_path: Path, disk: Disk) -> Iterator[Node]:
    held = Node(tmp_path, disk)
    yield held
    held.store.close()


def smallest(node: Node) -> int:
    """The smallest disk that the plan allows. It does not count the book, the row, headers and manifests."""
    return int(1.05 * sum(_PLAN.values())) + 2 * taken_bytes([node.folder / "files", *node.folder.glob("state.db*")])


Rounds = Callable[[int], tuple[list[Peer], dict[PeerId, bytes], Any]]


@pytest.fixture(scope="module")
def rounds() -> Rounds:
    """The peers of a round, best first, and what each has put up: noise, as the honest payloads seem to be."""
    nonces = count()

    def drawn(round: int) -> tuple[list[Peer], dict[PeerId, bytes], Any]:
        world = FakeStore()
        objects: dict[PeerId, bytes] = {}
        peers = []
        for number in range(HONEST + NOISY):
            peer, name = named(number), f"m{number}"
            noise = sha256(next(nonces).to_bytes(8, "little")).digest() * (RECORDS // 32 + 2)
            sealed = seal(noise[: DIGEST_BYTES + RECORDS], run=RUN, round=round, signer=Signer(peer))
            objects[peer] = sealed.object
            world.bucket(name).put(keys.payload(RUN, round), sealed.object, timeout_seconds=1)
            peers.append(Peer(peer, Uid(number), 0, False, 0, Slot(1, world.pointer(name), None)))
        return peers, objects, partial(world.open)

    return drawn


def test_on_the_smallest_disk_that_the_plan_allows_the_best_are_remembered_and_the_state_is_saved(
    disk: Disk, node: Node, rounds: Rounds
) -> None:
    assert 5 * _PLAN["cache"] < NOISY * PAYLOAD, "the noise would fit: this shows nothing"
    for round in range(ROUNDS):
        disk.size = smallest(node)
        node.play(round, *rounds(round))
        assert {named(number) for number in range(HONEST)} <= node.remembers(round)
    assert disk.least >= 0


def test_on_a_disk_that_has_become_too_small_the_state_is_saved_and_the_best_come_first(
    disk: Disk, node: Node, rounds: Rounds
) -> None:
    """It has lost half of what payloads may take: the best of each round still have room, of those before, too."""
    lost = (_PLAN["cache"] + _PLAN["payloads"]) // 2
    for round in range(ROUNDS):
        disk.size = smallest(node) - (lost if round >= 3 else 0)
        node.play(round, *rounds(round))
        for past in range(max(0, round - SPEC.gauntlet.copy_rounds + 1), round + 1):
            kept = node.remembers(past) & {named(number) for number in range(HONEST)}
            assert kept == {named(number) for number in range(len(kept))}
            assert len(kept) >= HONEST // 3 or past == round == 3
    assert disk.least >= 0


def test_a_validators_downloads_take_the_share_of_one_copy_of_many(disk: Disk, node: Node) -> None:
    disk.size = 100 * sum(_PLAN.values())
    spare, copies = spare_bytes(SPEC, "validator", node.folder), SPEC.gauntlet.copy_rounds + 2
    node.cache.mkdir()
    assert room_for_downloads(SPEC, "validator", node.cache) == spare // copies
    assert room_for_downloads(SPEC, "miner", node.cache) == spare_bytes(SPEC, "miner", node.folder)
    (node.cache / "one").write_bytes(bytes(PAYLOAD))
    (node.folder / "payloads" / "0").write_bytes(bytes(3 * PAYLOAD))
    assert room_for_downloads(SPEC, "validator", node.cache) == spare // copies - PAYLOAD
    disk.size = 0
    assert room_for_downloads(SPEC, "validator", node.cache) == 0
    assert room_for_downloads(SPEC, "miner", node.cache) == 0


def test_what_has_two_names_takes_its_bytes_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one").write_bytes(bytes(1000))
    os.link(tmp_path / "folder" / "one", tmp_path / "two")
    assert taken_bytes([tmp_path]) == taken_bytes([tmp_path / "folder", tmp_path / "two"]) == 1000
    assert taken_bytes([tmp_path / "none"]) == 0
