"""One contract for every Bucket: the fake and the local network's SeaweedFS, and, with the slow tests,
`rclone serve s3` and OpenStack Swift's s3api where it is installed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from murmur.lab.localnet.store import StoreReady
from murmur.protocol.errors import AccessDenied, ObjectMissing, ObjectTooLarge, StorageError
from storage.behaviour import creates_once
from storage.s3 import PART_BYTES, ObjectReplaced, RangedBucket, open_bucket
from tests.fakes.bucket import FakeStore

SECONDS = 20.0


@dataclass(frozen=True)
class Buckets:
    """One bucket seen by three credentials: its owner's, the published read-only one, and another peer's own."""

    owner: RangedBucket
    reader: RangedBucket
    stranger: RangedBucket


def fake_buckets(request: pytest.FixtureRequest) -> Buckets:
    store = FakeStore()
    owner = store.bucket("miner-0")
    # The fake has no credentials of its own for other buckets: a stranger is a view that may not write.
    view = store.bucket("miner-0", read_only=True)
    return Buckets(owner, view, view)


def seaweed_buckets(request: pytest.FixtureRequest) -> Buckets:
    ready: StoreReady = request.getfixturevalue("s3_store")
    own, other = ready.users["miner-0"], ready.users["miner-1"]
    return Buckets(
        open_bucket(ready.endpoint, own.bucket, own.write_access_key, own.write_secret_key, local=True),
        open_bucket(ready.endpoint, own.bucket, own.read_access_key, own.read_secret_key, local=True),
        open_bucket(ready.endpoint, own.bucket, other.write_access_key, other.write_secret_key, local=True),
    )


def rclone_buckets(request: pytest.FixtureRequest) -> Buckets:
    return three_of(request.getfixturevalue("rclone_endpoint"), "")


def swift_buckets(request: pytest.FixtureRequest) -> Buckets:
    return three_of(request.getfixturevalue("swift_endpoint"), "test:")


def three_of(endpoint: str, prefix: str) -> Buckets:
    def credential(name: str) -> RangedBucket:
        return open_bucket(endpoint, "miner-0", f"{prefix}{name}", f"{name}-secret", local=True)

    return Buckets(credential("owner"), credential("reader"), credential("stranger"))


SERVERS: dict[str, Callable[[pytest.FixtureRequest], Buckets]] = {
    "fake": fake_buckets,
    "seaweedfs": seaweed_buckets,
    "rclone": rclone_buckets,
    "swift": swift_buckets,
}
ALWAYS = ("fake", "seaweedfs")
NOT_KEPT = {
    "rclone": {
        "test_only_the_owner_may_write": "every key may do everything",
        "test_only_the_owner_may_begin_or_abort_an_upload": "every key may do everything",
        "test_a_part_that_is_put_again_replaces_the_first_try": "a part that was written on can't be replaced: 501",
        "test_a_part_but_the_last_must_not_be_small": "parts of any size are taken",
        "test_of_many_that_create_at_once_one_wins_and_stands": "If-None-Match is not looked at",
        "test_what_is_created_stays_and_its_creator_is_told_so_again": "every key may do everything",
        "test_what_a_dead_process_left_unfinished_is_aborted_by_prefix": "a list of uploads says not if it is cut",
    }
}
"""Server -> what it does not keep of the contract, and why."""


@pytest.fixture(params=[pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in SERVERS])
def buckets(request: pytest.FixtureRequest) -> Buckets:
    assert isinstance(request.node, pytest.Function)
    reason = NOT_KEPT.get(request.param, {}).get(request.node.originalname)
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return SERVERS[request.param](request)


def test_what_was_put_is_read_back_by_the_published_key(buckets: Buckets) -> None:
    buckets.owner.put("round/1", b"payload", timeout_seconds=SECONDS)
    assert buckets.reader.get("round/1", max_bytes=7, timeout_seconds=SECONDS, exact=True) == b"payload"
    assert buckets.reader.get("round/1", max_bytes=1000, timeout_seconds=SECONDS) == b"payload"


def test_an_empty_object_is_an_object(buckets: Buckets) -> None:
    buckets.owner.put("empty", b"", timeout_seconds=SECONDS)
    assert buckets.reader.get("empty", max_bytes=0, timeout_seconds=SECONDS, exact=True) == b""


def test_a_put_replaces_the_object(buckets: Buckets) -> None:
    buckets.owner.put("again", b"first", timeout_seconds=SECONDS)
    buckets.owner.put("again", b"second!", timeout_seconds=SECONDS)
    assert buckets.reader.get("again", max_bytes=100, timeout_seconds=SECONDS) == b"second!"


def test_a_missing_object_is_missing_to_get_and_none_to_head(buckets: Buckets) -> None:
    with pytest.raises(ObjectMissing):
        buckets.reader.get("nowhere", max_bytes=1, timeout_seconds=SECONDS)
    assert buckets.reader.head("nowhere", timeout_seconds=SECONDS) is None


@pytest.mark.parametrize(("max_bytes", "exact"), [(9, False), (9, True), (11, True)])
def test_an_object_of_another_size_is_refused_with_the_claimed_size(
    buckets: Buckets, max_bytes: int, exact: bool
) -> None:
    buckets.owner.put("ten", b"0123456789", timeout_seconds=SECONDS)
    with pytest.raises(ObjectTooLarge) as caught:
        buckets.reader.get("ten", max_bytes=max_bytes, timeout_seconds=SECONDS, exact=exact)
    assert caught.value.size_bytes == 10


def test_head_tells_size_etag_and_time(buckets: Buckets) -> None:
    buckets.owner.put("facts", b"12345", timeout_seconds=SECONDS)
    facts = buckets.reader.head("facts", timeout_seconds=SECONDS)
    assert facts is not None
    assert (facts.size_bytes, bool(facts.etag)) == (5, True)
    assert facts.modified > 1_600_000_000


def test_a_range_is_read_from_the_version_with_the_given_etag(buckets: Buckets) -> None:
    buckets.owner.put("ranged", b"0123456789", timeout_seconds=SECONDS)
    facts = buckets.reader.head("ranged", timeout_seconds=SECONDS)
    assert facts is not None
    read = buckets.reader.get_range("ranged", first=3, num_bytes=4, etag=facts.etag, timeout_seconds=SECONDS)
    assert read == b"3456"
    buckets.owner.put("ranged", b"abcdefghij", timeout_seconds=SECONDS)
    with pytest.raises(ObjectReplaced):
        buckets.reader.get_range("ranged", first=3, num_bytes=4, etag=facts.etag, timeout_seconds=SECONDS)


def test_a_list_is_sorted_bounded_and_of_one_prefix(buckets: Buckets) -> None:
    for key in ("list/b", "list/a", "list/c", "other/a"):
        buckets.owner.put(key, b"x", timeout_seconds=SECONDS)
    assert buckets.reader.list("list/", max_keys=10, timeout_seconds=SECONDS) == ("list/a", "list/b", "list/c")
    assert buckets.reader.list("list/", max_keys=2, timeout_seconds=SECONDS) == ("list/a", "list/b")
    assert buckets.reader.list("nothing/", max_keys=2, timeout_seconds=SECONDS) == ()


def test_a_deleted_object_is_gone_and_deleting_it_again_is_no_error(buckets: Buckets) -> None:
    buckets.owner.put("doomed", b"x", timeout_seconds=SECONDS)
    buckets.owner.delete("doomed", timeout_seconds=SECONDS)
    buckets.owner.delete("doomed", timeout_seconds=SECONDS)
    assert buckets.reader.head("doomed", timeout_seconds=SECONDS) is None


def test_a_file_of_several_parts_arrives_whole(buckets: Buckets, tmp_path: Path) -> None:
    data = bytes(range(256)) * ((PART_BYTES + 5000) // 256)
    (tmp_path / "large").write_bytes(data)
    buckets.owner.put("large", tmp_path / "large", timeout_seconds=SECONDS)
    assert buckets.reader.get("large", max_bytes=len(data), timeout_seconds=SECONDS, exact=True) == data
    buckets.owner.put("large", data[::-1], timeout_seconds=SECONDS)
    assert buckets.reader.get("large", max_bytes=len(data), timeout_seconds=SECONDS, exact=True) == data[::-1]
    buckets.owner.delete("large", timeout_seconds=SECONDS)


@pytest.mark.parametrize("who", ["reader", "stranger"])
def test_only_the_owner_may_write(buckets: Buckets, who: str) -> None:
    buckets.owner.put("guarded", b"mine", timeout_seconds=SECONDS)
    other: RangedBucket = getattr(buckets, who)
    with pytest.raises(AccessDenied):
        other.put("guarded", b"theirs", timeout_seconds=SECONDS)
    with pytest.raises(AccessDenied):
        other.put("new", b"theirs", timeout_seconds=SECONDS)
    with pytest.raises(AccessDenied):
        other.delete("guarded", timeout_seconds=SECONDS)
    assert buckets.owner.get("guarded", max_bytes=10, timeout_seconds=SECONDS) == b"mine"
    assert buckets.owner.head("new", timeout_seconds=SECONDS) is None


LARGEST_SMALL_PART = (5 << 20) - 1


def uploaded(buckets: Buckets, key: str) -> bytes | None:
    if buckets.reader.head(key, timeout_seconds=SECONDS) is None:
        return None
    return buckets.reader.get(key, max_bytes=64 << 20, timeout_seconds=SECONDS)


def test_parts_in_any_order_are_one_object_and_invisible_before_the_completion(buckets: Buckets) -> None:
    parts = {number: bytes([number]) * (PART_BYTES if number < 3 else 7) for number in (1, 2, 3)}
    upload = buckets.owner.begin("parts", timeout_seconds=SECONDS)
    for number in (3, 2, 1):
        upload.put(number, parts[number], timeout_seconds=SECONDS)
        assert uploaded(buckets, "parts") is None
    upload.complete(timeout_seconds=SECONDS)
    assert uploaded(buckets, "parts") == b"".join(parts[number] for number in (1, 2, 3))
    buckets.owner.delete("parts", timeout_seconds=SECONDS)


def test_a_part_that_is_put_again_replaces_the_first_try(buckets: Buckets) -> None:
    upload = buckets.owner.begin("retried", timeout_seconds=SECONDS)
    upload.put(1, b"broken off", timeout_seconds=SECONDS)
    upload.put(1, b"whole", timeout_seconds=SECONDS)
    upload.complete(timeout_seconds=SECONDS)
    assert uploaded(buckets, "retried") == b"whole"


def test_a_part_but_the_last_must_not_be_small(buckets: Buckets) -> None:
    upload = buckets.owner.begin("small", timeout_seconds=SECONDS)
    upload.put(1, bytes(LARGEST_SMALL_PART), timeout_seconds=SECONDS)
    upload.put(2, b"end", timeout_seconds=SECONDS)
    with pytest.raises(StorageError):
        upload.complete(timeout_seconds=SECONDS)
    assert uploaded(buckets, "small") is None
    upload.abort(timeout_seconds=SECONDS)


def test_an_aborted_upload_takes_no_more_parts_and_aborting_again_is_no_error(buckets: Buckets) -> None:
    upload = buckets.owner.begin("aborted", timeout_seconds=SECONDS)
    upload.put(1, b"x", timeout_seconds=SECONDS)
    upload.abort(timeout_seconds=SECONDS)
    upload.abort(timeout_seconds=SECONDS)
    with pytest.raises(StorageError):
        upload.put(1, b"x", timeout_seconds=1)
    with pytest.raises(StorageError):
        upload.complete(timeout_seconds=1)
    assert uploaded(buckets, "aborted") is None


def test_what_a_dead_process_left_unfinished_is_aborted_by_prefix(buckets: Buckets) -> None:
    for key in ("left/1", "left/1", "left/2", "other/1"):
        buckets.owner.begin(key, timeout_seconds=SECONDS).put(1, b"x", timeout_seconds=SECONDS)
    assert buckets.owner.abort_unfinished("left/", timeout_seconds=SECONDS) == 3
    assert buckets.owner.abort_unfinished("left/", timeout_seconds=SECONDS) == 0
    assert buckets.owner.abort_unfinished("other/", timeout_seconds=SECONDS) == 1


@pytest.mark.parametrize("who", ["reader", "stranger"])
def test_only_the_owner_may_begin_or_abort_an_upload(buckets: Buckets, who: str) -> None:
    other: RangedBucket = getattr(buckets, who)
    with pytest.raises(AccessDenied):
        other.begin("guarded", timeout_seconds=SECONDS)
    # Some servers let a reader list uploads, and refuse when it aborts one.
    mine = buckets.owner.begin("unfinished", timeout_seconds=SECONDS)
    with pytest.raises(AccessDenied):
        other.abort_unfinished("", timeout_seconds=SECONDS)
    mine.put(1, b"x", timeout_seconds=SECONDS)
    mine.complete(timeout_seconds=SECONDS)


def test_of_many_that_create_at_once_one_wins_and_stands(buckets: Buckets) -> None:
    assert creates_once(buckets.owner, timeout_seconds=SECONDS)


def test_what_is_created_stays_and_its_creator_is_told_so_again(buckets: Buckets) -> None:
    assert buckets.owner.create("created", b"one", timeout_seconds=SECONDS)
    assert buckets.owner.create("created", b"one", timeout_seconds=SECONDS)
    if creates_once(buckets.owner, timeout_seconds=SECONDS):
        assert not buckets.owner.create("created", b"two", timeout_seconds=SECONDS)
        assert buckets.owner.get("created", max_bytes=3, timeout_seconds=SECONDS) == b"one"
    with pytest.raises(AccessDenied):
        buckets.reader.create("another", b"two", timeout_seconds=SECONDS)
