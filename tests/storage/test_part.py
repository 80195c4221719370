"""A part of an object is fetched by its bytes, over a real server as over the fake one."""

import pytest

from murmur.lab.localnet.store import StoreReady
from murmur.protocol.types import PeerId
from storage.collect import gather
from storage.exchange import FetchFault, Source, Wanted
from storage.s3 import RangedBucket, open_bucket
from tests.fakes.bucket import FakeStore

KEY = "parted"
DATA = bytes(range(256)) * 1000
ME = PeerId(bytes(32))


@pytest.fixture(params=["fake", "server"])
def bucket(request: pytest.FixtureRequest) -> RangedBucket:
    if request.param == "fake":
        return FakeStore().bucket("m1")
    store: StoreReady = request.getfixturevalue("s3_store")
    user = store.users["miner-0"]
    return open_bucket(store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)


def part(bucket: RangedBucket, first: int, num_bytes: int, size: int = len(DATA), key: str = KEY) -> object:
    told: list[tuple[int, FetchFault]] = []
    wanted = Wanted(
        ME,
        (Source(lambda: bucket, key),),
        size,
        lambda data: data == DATA[first : first + num_bytes],
        part=(first, num_bytes),
        failed=lambda index, fault: told.append((index, fault)),
    )
    found = gather([wanted], timeout_seconds=10, max_threads=1)[ME]
    assert told == ([(0, found)] if isinstance(found, FetchFault) else [])
    return found.kind if isinstance(found, FetchFault) else found


def test_a_part_is_what_stands_there(bucket: RangedBucket) -> None:
    bucket.put(KEY, DATA, timeout_seconds=10)
    assert part(bucket, 0, 10) == DATA[:10]
    assert part(bucket, 70_001, 100_000) == DATA[70_001:170_001]
    assert part(bucket, len(DATA) - 1, 1) == DATA[-1:]
    assert part(bucket, 0, 10, size=len(DATA) + 1) == "wrong_size"
    assert part(bucket, 0, 10, key="nothing") == "missing"


def test_a_lie_is_a_mismatch() -> None:
    store = FakeStore()
    bucket = store.bucket("m1")
    bucket.put(KEY, DATA[::-1], timeout_seconds=1)
    assert part(bucket, 0, 10) == "mismatch"
