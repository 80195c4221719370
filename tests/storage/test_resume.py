"""Downloads that go on after a break, a restart and a replacement; compared with the bytes that are stored."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import FrameType

import pytest

from murmur.lab.simulation import store as world
from murmur.protocol.errors import ConfigError, ObjectMissing, ObjectTooLarge, StorageError
from storage import resume
from storage.realtime import REAL
from storage.resume import Busy, _claimed, download_to
from tests.fakes.bucket import FakeBucket, FakeStore, Faults

PART = 1000
DATA = bytes(number * 7 % 251 for number in range(3 * PART + 500))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "PART_BYTES", PART)


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    store.bucket("m").put("k", DATA, timeout_seconds=1)
    return store


class FailsAfter(FakeBucket):
    """Serves so many parts, then fails: the process that is killed in between."""

    parts = 0

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        if self.parts == 0:
            raise StorageError("get: the body broke")
        self.parts -= 1
        return super().get_range(key, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)


def cut_off_after(store: FakeStore, parts: int, path: Path) -> None:
    bucket = FailsAfter(store, "m", read_only=True, reader="")
    bucket.parts = parts
    with pytest.raises(StorageError):
        download_to(bucket, "k", path, len(DATA), timeout_seconds=5)
    assert not path.exists()


def parts_read(store: FakeStore) -> int:
    return sum(verb == "get" for _, verb, _ in store.log)


def test_a_whole_download_leaves_only_the_file(store: FakeStore, tmp_path: Path) -> None:
    download_to(store.bucket("m"), "k", tmp_path / "new" / "file", len(DATA), timeout_seconds=5)
    assert (tmp_path / "new" / "file").read_bytes() == DATA
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_a_restart_reads_only_what_is_not_there_yet(store: FakeStore, tmp_path: Path) -> None:
    cut_off_after(store, 2, tmp_path / "file")
    store.log.clear()
    download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA), timeout_seconds=5)
    assert (tmp_path / "file").read_bytes() == DATA
    assert parts_read(store) == 2


def test_what_came_of_a_part_is_not_read_again(store: FakeStore, tmp_path: Path) -> None:
    cut_off_after(store, 2, tmp_path / "file")
    with (tmp_path / "file.part").open("ab") as file:
        file.write(DATA[2 * PART : 2 * PART + 300])
    asked: list[int] = []

    class Watched(FakeBucket):
        def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
            asked.append(first)
            return super().get_range(key, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)

    bucket = Watched(store, "m", read_only=True, reader="")
    download_to(bucket, "k", tmp_path / "file", len(DATA), timeout_seconds=5)
    assert (tmp_path / "file").read_bytes() == DATA
    assert asked[0] == 2 * PART + 300


class Killed(BaseException):
    """The process ends here."""


def test_a_download_killed_at_any_line_is_gone_on_with_and_never_gives_wrong_bytes(
    store: FakeStore, tmp_path: Path
) -> None:
    def die_at(line: int) -> Callable[[FrameType, str, object], object]:
        left = line

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left
            # Not of what claims the path in this process, which a death would take along.
            if frame.f_code.co_filename != resume.__file__ or frame.f_code.co_name not in what_writes:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise Killed
            return trace

        return trace

    what_writes = ("_download", "go_on", "append", "_forget")
    before, lines = sys.gettrace(), 0
    while True:
        lines += 1
        folder = tmp_path / str(lines)
        try:
            sys.settrace(die_at(lines))
            download_to(store.bucket("m"), "k", folder / "file", len(DATA), timeout_seconds=5)
            break
        except Killed:
            pass
        finally:
            sys.settrace(before)
        path, part = folder / "file", folder / "file.part"
        assert not path.exists() or path.read_bytes() == DATA
        came = part.read_bytes() if part.exists() else b""
        assert DATA.startswith(came)
        if path.exists():
            continue
        store.log.clear()
        download_to(store.bucket("m"), "k", path, len(DATA), timeout_seconds=5)
        assert path.read_bytes() == DATA
        assert parts_read(store) == -(-(len(DATA) - len(came)) // PART)
        assert [left.name for left in folder.iterdir()] == ["file"]
    assert lines > 30


def test_an_object_replaced_between_two_runs_is_read_from_its_beginning(store: FakeStore, tmp_path: Path) -> None:
    cut_off_after(store, 2, tmp_path / "file")
    store.bucket("m").put("k", DATA[::-1], timeout_seconds=1)
    download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA), timeout_seconds=5)
    assert (tmp_path / "file").read_bytes() == DATA[::-1]


def test_an_object_replaced_during_a_run_is_read_from_its_beginning(store: FakeStore, tmp_path: Path) -> None:
    class Replaced(FakeBucket):
        def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
            if first == PART:
                store.bucket("m").put("k", DATA[::-1], timeout_seconds=1)
            return super().get_range(key, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)

    bucket = Replaced(store, "m", read_only=True, reader="")
    download_to(bucket, "k", tmp_path / "file", len(DATA), timeout_seconds=5)
    assert (tmp_path / "file").read_bytes() == DATA[::-1]


@pytest.mark.parametrize("note", ["", "{", "null", '{"etag": "other", "size": 3500}', "\udcff"])
def test_a_spoilt_note_means_starting_again(store: FakeStore, tmp_path: Path, note: str) -> None:
    cut_off_after(store, 2, tmp_path / "file")
    (tmp_path / "file.part").write_bytes(b"x" * 2 * PART)
    (tmp_path / "file.etag").write_bytes(note.encode("utf-8", "surrogateescape"))
    download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA), timeout_seconds=5)
    assert (tmp_path / "file").read_bytes() == DATA


def test_another_size_is_refused_unread(store: FakeStore, tmp_path: Path) -> None:
    store.log.clear()
    with pytest.raises(ObjectTooLarge):
        download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA) - 1, timeout_seconds=5)
    assert parts_read(store) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_missing_object_is_missing(store: FakeStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing):
        download_to(store.bucket("m"), "nowhere", tmp_path / "file", 5, timeout_seconds=5)


def test_a_stalled_server_ends_at_the_deadline_and_keeps_what_came(store: FakeStore, tmp_path: Path) -> None:
    cut_off_after(store, 2, tmp_path / "file")
    store.faults["m"] = Faults(stalls=True)
    with pytest.raises(StorageError):
        download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA), timeout_seconds=0.2)
    assert (tmp_path / "file.part").read_bytes() == DATA[: 2 * PART]


def test_a_folder_that_cannot_be_written_is_the_operators_to_fix(store: FakeStore, tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot keep downloads"):
        download_to(store.bucket("m"), "k", tmp_path / "taken" / "file", len(DATA), timeout_seconds=5)


def test_what_another_thread_is_bringing_is_waited_for_and_gone_on_with(store: FakeStore, tmp_path: Path) -> None:
    """As where what was fetched ahead is selected: a stopped download ends with its next block only."""
    arrived, goes_on, stopped = threading.Event(), threading.Event(), threading.Event()

    class Slow(FakeBucket):
        def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
            if first == 2 * PART:
                arrived.set()
                goes_on.wait()
            return super().get_range(key, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)

    def ahead() -> None:
        with suppress(StorageError):
            slow = Slow(store, "m", read_only=True, reader="")
            download_to(slow, "k", tmp_path / "file", len(DATA), timeout_seconds=5, stopped=stopped.is_set)

    before = threading.Thread(target=ahead)
    before.start()
    arrived.wait()
    store.log.clear()
    stopped.set()
    threading.Timer(0.2, goes_on.set).start()
    download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA), timeout_seconds=5)
    before.join()
    assert (tmp_path / "file").read_bytes() == DATA
    assert parts_read(store) == 2  # the third by the one that was stopped, the fourth by us


def test_one_that_stays_at_a_file_is_not_waited_for_longer_than_a_quarter(store: FakeStore, tmp_path: Path) -> None:
    with _claimed(tmp_path / "file", 0.0, REAL):
        began = monotonic()
        with pytest.raises(Busy):
            download_to(store.bucket("m"), "k", tmp_path / "file", len(DATA), timeout_seconds=4.0)
        assert 1.0 <= monotonic() - began < 4.0
