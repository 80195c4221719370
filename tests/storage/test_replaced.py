"""An object that is replaced while it is read, and downloads that are killed and go on, through everything that the
proxy knows to spoil: what arrives is one version of the object, whole, or an error.

A server that serves new bytes under the old ETag is not here: nothing in its answers tells, and only the digest that
every caller checks does (docs/protocol.md section 8)."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from murmur.lab.localnet.store import StoreReady
from murmur.protocol.errors import ObjectReplaced, StorageError
from storage import s3, transport
from storage.resume import download_to
from storage.s3 import S3Bucket
from tests.storage import faults
from tests.storage.conftest import ROOT
from tests.storage.faults import after, breaks_body, ignores_if_match
from tests.storage.proxy import Action, Exchange, Fault, Proxy
from tests.storage.trials import OLD, SMALL, Truth, named

SECONDS = 20.0
BLOCK_BYTES = 16 << 10


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the object each: what is read at once, and kept at once."""
    monkeypatch.setattr(s3, "_READ_BYTES", BLOCK_BYTES)


@pytest.fixture(params=["If-Match is honoured", "If-Match is ignored"])
def replaced(request: pytest.FixtureRequest, truth: Truth, proxy: Proxy, key: str) -> Callable[[bytes], None]:
    """The object is OLD, and another when its first body has broken off halfway."""

    def replaced(by: bytes) -> None:
        truth.put(key, OLD)
        serves: Action = Exchange.forward if request.param == "If-Match is honoured" else ignores_if_match(truth)
        proxy.faults += [
            Fault(breaks_body(0.5, reset=False), ("GetObject",), times=1),
            Fault(after(lambda: truth.put(key, by), serves), ("GetObject",), times=1),
            Fault(serves, ("GetObject",)),
        ]

    return replaced


SHORTER, LONGER = OLD[:50_000], OLD + SMALL


@pytest.mark.parametrize("new", [SMALL, SHORTER, LONGER], ids=["as long", "shorter", "longer"])
def test_get_returns_the_new_version(
    replaced: Callable[[bytes], None], proxy: Proxy, bucket: S3Bucket, key: str, new: bytes
) -> None:
    replaced(new)
    assert bucket.get(key, max_bytes=len(LONGER), timeout_seconds=SECONDS) == new
    assert proxy.operations().count("GetObject") > 2


@pytest.mark.parametrize("new", [SMALL, SHORTER, LONGER], ids=["as long", "shorter", "longer"])
def test_get_range_says_that_the_version_is_gone(
    replaced: Callable[[bytes], None], truth: Truth, bucket: S3Bucket, key: str, new: bytes
) -> None:
    replaced(new)
    with pytest.raises(ObjectReplaced):
        bucket.get_range(key, first=0, num_bytes=len(OLD), etag=truth.etag(key), timeout_seconds=SECONDS)


def test_a_download_is_of_one_version(
    replaced: Callable[[bytes], None], proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path
) -> None:
    replaced(SMALL)
    download_to(bucket, key, tmp_path / "file", len(OLD), timeout_seconds=SECONDS)
    assert named((tmp_path / "file").read_bytes()) == named(SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("new", [SHORTER, LONGER], ids=["shorter", "longer"])
def test_a_download_of_what_now_has_another_size_is_an_error(
    replaced: Callable[[bytes], None], bucket: S3Bucket, key: str, tmp_path: Path, new: bytes
) -> None:
    replaced(new)
    with pytest.raises(StorageError):
        download_to(bucket, key, tmp_path / "file", len(OLD), timeout_seconds=SECONDS)
    assert not (tmp_path / "file").exists()


# --- killed, and started again ----------------------------------------------------------------------------------------


CHILD = f"""
import sys
from pathlib import Path
from storage import s3
from storage.resume import download_to
s3._READ_BYTES = {BLOCK_BYTES}
*credential, key, path, size = sys.argv[1:]
download_to(s3.open_bucket(*credential, local=True), key, Path(path), int(size), timeout_seconds=60)
"""


@pytest.mark.slow
def test_a_process_killed_again_and_again_brings_each_byte_once(
    truth: Truth, proxy: Proxy, s3_store: StoreReady, key: str, tmp_path: Path
) -> None:
    truth.put(key, OLD)
    proxy.faults.append(Fault(faults.stalls_body(0.5, 3600), ("GetObject",), times=3))
    path, part, user = tmp_path / "file", tmp_path / "file.part", s3_store.users["miner-0"]
    credential = (proxy.endpoint, user.bucket, user.write_access_key, user.write_secret_key)
    command = [sys.executable, "-c", CHILD, *credential, key, str(path), str(len(OLD))]
    asked = []
    for kill in (True, True, True, False):
        before = part.stat().st_size if part.exists() else 0
        child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        while kill and (part.stat().st_size if part.exists() else 0) <= before:
            assert child.poll() is None
            time.sleep(0.005)
        if kill:
            child.kill()
        assert child.wait(60) == (-signal.SIGKILL if kill else 0)
        asked.append((before, proxy.seen[-1].request.headers["range"]))
    assert named(path.read_bytes()) == named(OLD)
    assert asked == [(before, f"bytes={before}-{len(OLD) - 1}") for before, _ in asked]
    assert len({before for before, _ in asked}) == len(asked)


class Killed(BaseException):
    """Where the process ended."""


@dataclass(frozen=True)
class Run:
    """One life of a process that downloads: what goes wrong meanwhile, after how many blocks it is killed (None: it is
    not), and what of the unfinished file's end and of the note beside it the kill leaves, in bytes cut."""

    faults: tuple[str, ...]
    killed_after: int | None
    cut_part: int
    cut_note: int


SPOILS: dict[str, Action] = {
    "reset": faults.resets_unheard,
    "closed": faults.closes_unheard,
    "lost": faults.loses_the_answer,
    "begun": breaks_body(0.3, reset=False),
    "begun and reset": breaks_body(0.3, reset=True),
    "stalled": faults.stalls_body(0.6, 3600),
    "slow down": faults.refuses("503 Slow Down", "SlowDown"),
    "gone": faults.refuses("404 Not Found", "NoSuchKey"),
    "range": faults.refuses("416 Range Not Satisfiable", "InvalidRange", content_range="bytes */50000"),
    "longer": faults.miscounts(1000),
    "shorter": faults.miscounts(-1000),
    "no etag": faults.without("etag"),
    "other etag": faults.saying(etag='"beef"'),
    "gzip": faults.compresses,
    "more": faults.sends_more,
}
REPLACED, REPLACED_IGNORED = "replaced", "replaced, If-Match ignored"

RUNS = st.lists(
    st.builds(
        Run,
        st.lists(st.sampled_from([*SPOILS, REPLACED, REPLACED_IGNORED]), max_size=4).map(tuple),
        st.none() | st.integers(0, 12),
        st.sampled_from([0, 1, BLOCK_BYTES, 1 << 20]) | st.integers(0, len(OLD)),
        st.sampled_from([0, 0, 1, 1000]),
    ),
    min_size=1,
    max_size=5,
)


def lived(run: Run, truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, path: Path) -> None:
    """One run: `path` is not there after it, or holds a version that stood meanwhile."""
    stood = [truth.stands(key)]

    def replace() -> None:
        stood.append(SMALL if stood[-1] == OLD else OLD)
        truth.put(key, stood[-1] or b"")

    serves = ignores_if_match(truth)
    every = {**SPOILS, REPLACED: after(replace), REPLACED_IGNORED: after(replace, serves)}
    # Each spoils one request for the object and, where it can, one for its facts.
    proxy.faults[:] = [Fault(every[name], ("GetObject",), first=nth, times=1) for nth, name in enumerate(run.faults, 1)]
    proxy.faults += [Fault(SPOILS[name], ("HeadObject",), times=1) for name in run.faults[:1] if name in SPOILS]
    proxy.restart()
    blocks = 0

    def stopped() -> bool:
        nonlocal blocks
        blocks += 1
        if blocks == run.killed_after:
            raise Killed
        return False

    try:
        download_to(bucket, key, path, len(OLD), timeout_seconds=SECONDS, stopped=stopped)
    except StorageError:
        assert not path.exists()
    except Killed:
        assert not path.exists()
        for left, cut in ((f"{path}.part", run.cut_part), (f"{path}.etag", run.cut_note)):
            if Path(left).exists():
                data = Path(left).read_bytes()
                Path(left).write_bytes(data[: max(0, len(data) - cut)])
    else:
        assert named(path.read_bytes()) in {named(version) for version in stood}
        path.unlink()


def check_runs(runs: list[Run], truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str) -> None:
    truth.put(key, OLD)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for run in runs:
            lived(run, truth, proxy, bucket, key, path)
        proxy.faults.clear()
        download_to(bucket, key, path, len(OLD), timeout_seconds=SECONDS)
        assert named(path.read_bytes()) == named(truth.stands(key))
        assert [left.name for left in path.parent.iterdir()] == ["file"]


FIXTURES: Any = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture
def _quick_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "READ_SECONDS", 0.5)


@pytest.mark.usefixtures("_quick_to_give_up")
@settings(max_examples=25, suppress_health_check=FIXTURES)
@given(runs=RUNS)
def test_a_download_through_faults_and_restarts_is_one_version_or_an_error(
    runs: list[Run], truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str
) -> None:
    check_runs(runs, truth, proxy, bucket, key)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_to_give_up")
@settings(max_examples=400, derandomize=False, suppress_health_check=FIXTURES)
@given(runs=RUNS)
def test_a_download_through_many_faults_and_restarts_is_one_version_or_an_error(
    runs: list[Run], truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str
) -> None:
    check_runs(runs, truth, proxy, bucket, key)
