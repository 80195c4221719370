"""`murmur cluster doctor` on a real S3 server: what it finds, that nothing stays there, and what it says of faults."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest

from murmur.cli.cluster import doctor
from murmur.cli.main import main
from murmur.cluster.bootstrap import Group, find_spec, open_shared
from murmur.cluster.group_keys import Token, parse_token
from murmur.cluster.ledger import Ledger
from murmur.lab.localnet.store import read_ready
from murmur.protocol import keys
from murmur.protocol.cluster import Amendment, Beat, Claim, Contribution, Record
from murmur.protocol.messages import link_of
from murmur.protocol.types import PeerId
from storage.realtime import REAL
from storage.s3 import S3Bucket
from tests.cli.test_cluster import words_for
from tests.storage.conftest import served

NAMES = [check.name for check in doctor.CHECKS]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Token]:
    """Of a run on an S3 server."""
    folder = tmp_path_factory.mktemp("cluster")
    store = folder / "store"
    with (
        served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "shared"], store / "ready.json"),
        pytest.MonkeyPatch.context() as patch,
    ):
        words = words_for(read_ready(store / "ready.json"), folder, patch)
        assert main([*words, "--local"]) == 0
        yield parse_token((folder / "ours.token").read_text())


@pytest.fixture
def words(token: Token, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(token.encode())
    words = ["--token-file", str(tmp_path / "token"), "--home", str(tmp_path / "home"), "--device", "cpu"]
    return ["cluster", "doctor", *words]


def examined(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    status = main([*words, "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert status == any(check["status"] == "fault" for check in checks)
    return status, {check["name"]: check for check in checks}


def test_all_is_well_and_nothing_stays_in_the_bucket(
    token: Token, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = open_shared(token)
    before = bucket.list("", max_keys=1000, timeout_seconds=10)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert f"all {len(NAMES)} checks passed" in shown
    for told in ("one wins and the others learn it", "Mb/s to the bucket", "of which", "codec"):
        assert told in " ".join(shown.split())
    assert token.secret_key not in shown
    assert token.secret not in shown
    assert bucket.list("", max_keys=1000, timeout_seconds=10) == before


def record_of(member: PeerId, steps: int, amendments: int = 0) -> Record:
    """A record of one update, whose steps took a millisecond."""
    theta, by = "44" * 32, member.hex()
    update = {"theta": theta, "previous": theta, "envelope": "55" * 32, "key": "66" * 32, "member": by}
    contribution = Contribution.model_validate({**update, "steps": steps, "seconds": 1e-3})
    return Record(by=by, theta=theta, previous=theta, updates=(contribution,), amendments=amendments)


def test_a_slower_machine_is_told_what_it_will_do(
    token: Token, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the last records, here one of a machine that needs a millisecond a step."""
    bucket, run = open_shared(token), token.run_id
    spec, ledger = find_spec(bucket, run), Ledger(bucket, run, Group(token.secret), PeerId(b"\5" * 32), REAL)
    assert ledger.rounds() == 0
    assert ledger.close(0, record_of(ledger.me, spec.inner.steps))
    try:
        assert ledger.rounds() == 1
        status, found = examined(capsys, words)
    finally:
        bucket.delete(keys.record(run, 0), timeout_seconds=10)
    assert (status, found["run"]["status"]) == (0, "ok")
    assert "round 1" in found["run"]["detail"]
    assert f"of {spec.inner.steps}, and the others do not wait for it" in found["pace"]["detail"]
    assert "no action is needed" in found["pace"]["fix"]


@pytest.mark.usefixtures("quick")
def test_members_that_live_are_counted_by_the_spec_in_force(
    token: Token, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead member has left its beat. The spec's amendment makes beats far more frequent than the first spec's."""
    bucket, run = open_shared(token), token.run_id
    dead, living = (Ledger(bucket, run, Group(token.secret), PeerId(bytes([number]) * 32), REAL) for number in (6, 7))
    beat = Beat(name="m", process="0" * 16, count=1, round=0, step=0, phase="train")
    stop = Event()

    def live() -> None:
        count = 0
        while not stop.wait(0.05):
            living.beat(beat.model_copy(update={"count": (count := count + 1)}), 5)

    beating = Thread(target=live)
    try:
        dead.beat(beat, 5)
        beating.start()
        assert dead.amend(1, Amendment(changes={"cluster": {"beat_seconds": 0.5, "silent_seconds": 2.0}}))
        assert dead.close(0, record_of(dead.me, steps=1, amendments=1))
        began = monotonic()
        status, found = examined(capsys, words)
        assert monotonic() - began < 1.5 * find_spec(bucket, run).cluster.beat_seconds
    finally:
        stop.set()
        beating.join()
        for key in (keys.record(run, 0), keys.amendment(run, 1)):
            bucket.delete(key, timeout_seconds=10)
        for one in (dead, living):
            one.clear(one.me)
    assert status == 0
    assert "others that live: 1" in found["run"]["detail"]


def test_status_tells_who_holds_another_theta_and_who_goes_on_from_another_record(
    token: Token, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, run = open_shared(token), token.run_id
    ledgers = [Ledger(bucket, run, Group(token.secret), PeerId(bytes([number]) * 32), REAL) for number in (1, 2, 3, 4)]
    first = record_of(ledgers[0].me, steps=3)
    link = link_of(first.selection(run, 0)).hex()
    beats, stop = Counter[int](), Event()

    def live() -> None:  # the fourth is dead: what it left counts for nothing
        while not stop.wait(0.05):
            for at, ledger in enumerate(ledgers[: 3 if beats[0] else 4]):
                beats[at] += 1
                theta = ("aa", "bb", "aa", "cc")[at] * 32
                named = {"name": f"lab-{at}", "process": f"{at:016x}", "count": beats[at], "theta": theta}
                ledger.beat(Beat.model_validate({**named, "round": 1, "step": 0, "phase": "train"}), 5)

    beating = Thread(target=live)
    try:
        assert ledgers[0].close(0, first)
        for ledger, previous in zip(ledgers, (link, link, "dd" * 32, "ee" * 32), strict=True):
            said = {"theta": "aa" * 32, "previous": previous, "envelope": "55" * 32, "key": "66" * 32}
            ledger.claim(1, Claim.model_validate({**said, "steps": 1, "seconds": 1.0}))
        beating.start()
        while not beats[0] > 1:
            REAL.sleep(0.05)
        assert main(["cluster", "status", "--token-file", "ours.token"]) == 0
        shown = capsys.readouterr().out
    finally:
        stop.set()
        beating.join()
        bucket.delete(keys.record(run, 0), timeout_seconds=10)
        for ledger in ledgers:
            bucket.delete(keys.claims(run, 1) + ledger.me.hex(), timeout_seconds=10)
            ledger.clear(ledger.me)
    assert "different thetas at the start of round 1: lab-1; lab-0, lab-2." in shown
    assert "round 1: lab-2 go on from another record of round 0 than the bucket shows" in shown


def test_status_tells_of_a_damaged_record_and_shows_the_rest(token: Token, capsys: pytest.CaptureFixture[str]) -> None:
    bucket, run = open_shared(token), token.run_id
    ledger = Ledger(bucket, run, Group(token.secret), PeerId(bytes([7]) * 32), REAL)
    try:
        bucket.put(keys.record(run, 0), b"of nobody", timeout_seconds=10)
        assert ledger.close(1, record_of(ledger.me, steps=3, amendments=1))
        assert main(["cluster", "status", "--token-file", "ours.token"]) == 0
        shown = capsys.readouterr()
    finally:
        for round in (0, 1):
            bucket.delete(keys.record(run, round), timeout_seconds=10)
    assert "the record of round 0" in shown.out
    assert "amendment 1, which the bucket has lost" in shown.out
    assert "round 1: 1 contributed, 3 steps" in shown.out
    assert "waiting for each member's next beat, at most 20 s" in shown.err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what measures for seconds."""
    checks = [check for check in doctor.CHECKS if check.name not in ("links", "pace", "memory")]
    monkeypatch.setattr(doctor, "CHECKS", checks)


@pytest.mark.usefixtures("quick")
def test_a_store_that_creates_twice_is_a_fault(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(self: S3Bucket, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        self.put(key, data, timeout_seconds=timeout_seconds)
        return True

    monkeypatch.setattr(S3Bucket, "create", create)
    status, found = examined(capsys, words)
    assert status == 1
    assert [name for name, check in found.items() if check["status"] == "fault"] == ["once"]
    assert "two members could close one round differently" in found["once"]["detail"]
    assert "SeaweedFS 4.48" in found["once"]["fix"]


@pytest.mark.usefixtures("quick")
def test_what_a_token_leads_to_is_told(
    token: Token,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(changes: dict[str, str]) -> dict[str, dict[str, Any]]:
        (tmp_path / "token").write_text(token.model_copy(update=changes).encode())
        status, found = examined(capsys, words)
        assert status == 1
        assert found.keys() <= set(NAMES)
        return found

    assert "another group" in of({"secret": "99" * 32})["run"]["detail"]
    assert "holds no run" in of({"run": "99" * 32})["run"]["detail"]
    refused = of({"secret_key": "wrong"})
    assert refused["bucket"]["status"] == "fault"
    assert refused["run"]["status"] == refused["once"]["status"] == "skip"
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "CALL_SECONDS", 0.5)  # so long it is tried again
        assert of({"endpoint": "http://127.0.0.1:9"})["bucket"]["status"] == "fault"
    (tmp_path / "token").write_text("murmur1.half")
    status, found = examined(capsys, words)
    assert status == 1
    assert found["token"]["status"] == "fault"
    assert found["home"]["status"] == "ok"
    status, found = examined(capsys, ["cluster", "doctor"])
    assert "token_file" in found["configuration"]["detail"]
    assert main(["cluster", "doctor"]) == 2


@pytest.mark.usefixtures("quick")
def test_a_full_disk_is_found(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    status, found = examined(capsys, words)
    assert status == 1
    assert "a member of this run needs" in found["disk"]["detail"]


def test_it_needs_no_bittensor() -> None:
    program = """
import sys
sys.modules["bittensor"] = sys.modules["bittensor_wallet"] = None
import murmur.cli.cluster.doctor
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
