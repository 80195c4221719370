"""Which buckets are followed, where anybody may publish a pointer to any of them."""

from functools import partial
from hashlib import sha256
from typing import Any

from murmur.lab.simulation.clock import Life
from murmur.lab.simulation.store import StoreBucket
from murmur.node.fetch.credentials import Credentials
from murmur.node.fetch.sources import Sources
from murmur.protocol.types import Peer, PeerId, Pointer, Slot, Uid
from storage.collect import gather
from storage.exchange import FetchFault, Wanted
from tests.fakes.bucket import FakeStore

KEY = "run/wanted"
CROWD = 20


def named(number: int) -> PeerId:
    return PeerId(sha256(number.to_bytes(2, "little")).digest())


def pointing(number: int, pointer: Pointer) -> Peer:
    return Peer(named(number), Uid(number), 0, False, 0, Slot(1, pointer, None))


def credential(number: int) -> Pointer:
    """One for the bucket of all tests."""
    return Pointer("https://store.example", "victim", f"key-{number}", "secret")


class World:
    """A bucket whose server takes these credentials, and a node that reads it."""

    def __init__(self, life: Life, *valid: Pointer) -> None:
        self.store, self.life, self.valid = FakeStore(), life, set(valid)
        self.store.bucket("victim").put(KEY, b"x", timeout_seconds=1)
        self.credentials = Credentials()
        self.draws = 0

    def open(self, pointer: Any) -> StoreBucket:
        bucket = self.store.open(pointer, time=self.life)
        bucket.revoked = pointer not in self.valid
        return bucket

    def sources(self, *peers: Peer) -> Sources:
        self.draws += 1
        return Sources(peers, self.open, (), self.credentials, self.draws.to_bytes(8, "little"))

    def read(self, sources: Sources) -> tuple[int, set[PeerId]]:
        """Read all peers' objects; return the number of requests, and the peers whose objects were read."""
        before = len(self.store.log)
        wanted = [Wanted(peer, sources.own(peer, KEY), 1, partial(bool)) for peer in sources.published()]
        found = gather(wanted, timeout_seconds=1, max_threads=4, time=self.life)
        return len(self.store.log) - before, {p for p, got in found.items() if not isinstance(got, FetchFault)}


def test_of_invented_credentials_one_is_tried_where_another_is_accepted(life: Life) -> None:
    """Whoever stands first in the order."""
    world = World(life, credential(CROWD))
    peers = [pointing(number, credential(number)) for number in range(CROWD + 1)]
    assert world.read(world.sources(*peers)) == (CROWD + 1, {named(CROWD)}), "nothing is known yet"
    sources = world.sources(*peers)
    assert world.read(sources) == (2, {named(CROWD)})
    assert world.read(sources) == (1, {named(CROWD)})


def test_a_newcomer_whose_bucket_has_the_name_of_anothers_is_read_at_once(life: Life) -> None:
    """Some servers have a name space for each account."""
    world = World(life, credential(0), credential(1))
    world.read(world.sources(pointing(0, credential(0))))
    sources = world.sources(pointing(0, credential(0)), pointing(1, credential(1)))
    for _ in range(2):
        assert world.read(sources) == (2, {named(0), named(1)})


def test_among_many_it_is_read_after_some_draws(life: Life) -> None:
    world = World(life, credential(0), credential(CROWD))
    world.read(world.sources(pointing(0, credential(0))))
    peers = [pointing(number, credential(number)) for number in range(CROWD + 1)]
    for _ in range(10 * CROWD):
        number, read = world.read(world.sources(*peers))
        assert number <= 3
        if named(CROWD) in read:
            break
    assert world.read(world.sources(*peers))[1] == {named(0), named(CROWD)}


def test_who_replaces_its_credential_does_not_wait_for_those_who_publish_the_old_one(life: Life) -> None:
    world = World(life, credential(0))
    world.read(world.sources(pointing(0, credential(0))))
    world.valid = {credential(1)}
    crowd = [pointing(number, credential(number)) for number in range(2, CROWD)]
    sources = world.sources(pointing(CROWD, credential(0)), *crowd, pointing(0, credential(1)))
    world.read(sources)
    assert named(0) in world.read(sources)[1]
    assert world.read(world.sources(*crowd, pointing(0, credential(1)))) == (2, {named(0)})


def test_a_new_token_is_read_at_once_while_the_old_one_still_works(life: Life) -> None:
    """Strangers publish the old one again, and inventions of theirs."""
    world = World(life, credential(0))
    world.read(world.sources(pointing(0, credential(0))))
    world.valid.add(credential(1))
    crowd = [pointing(CROWD, credential(0)), *(pointing(number, credential(number)) for number in range(2, CROWD))]
    assert world.read(world.sources(*crowd, pointing(0, credential(1)))) == (2, {named(0), named(CROWD)})
    world.valid.remove(credential(0))
    world.read(sources := world.sources(*crowd, pointing(0, credential(1))))
    assert named(0) in world.read(sources)[1]


def test_who_was_there_first_and_invents_credentials_now_stands_in_nobodys_way(life: Life) -> None:
    world = World(life, credential(0), credential(1))
    world.read(world.sources(pointing(0, credential(0)), pointing(1, credential(1))))
    peers = [pointing(0, credential(3)), pointing(1, credential(1)), pointing(2, credential(2))]
    world.valid.add(credential(2))
    assert any(named(2) in world.read(world.sources(*peers))[1] for _ in range(5))


def test_memory_of_credentials_is_bounded(life: Life) -> None:
    credentials = Credentials()
    for number in range(3000):
        credentials.note(credential(number), True, [named(number)])
        credentials.note(Pointer("https://store.example", f"bucket-{number}", "k", "s"), True)
    held = credentials._accepted
    assert max(map(len, held.values()), default=0) <= 1024
    assert len(held) <= 1024
    assert max(len(credentials.order(address)) for address in credentials._peers) <= 1024
    assert len(credentials._peers) <= 1024
    credentials.note(Pointer("https://store.example", "bucket-2999", "k", "s"), False)
    assert not credentials.accepted(("https://store.example", "bucket-2999"))
