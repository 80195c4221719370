"""Saved state: killed at any step a node finds the state before or the state after, and damage is told, never used."""

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from gauntlet.agreement import Tip
from murmur.node.state.saved import Consensus, Payload, Saved, SealedRound, Snapshot, Step
from murmur.node.state.store import DAMAGED_KEPT, StateStore
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, DiskFull
from murmur.protocol.types import Digest, PeerId
from murmur.training import checkpoint
from tests.forked import exit_code

RUN = Digest(sha256(b"run").digest())
LINK = Digest(sha256(b"link").digest())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    opened = StateStore(tmp_path, RUN)
    yield opened
    opened.close()


def state_files(store: StateStore, value: float) -> Digest:
    return checkpoint.save(
        store.snapshot, checkpoint.TensorState({"w": torch.full((3,), value)}, {"value": str(value)})
    )


def full(store: StateStore, round: int) -> Saved:
    """A state of a later round with every part."""
    pinned = Digest(sha256(b"payload %d" % round).digest())
    (store.log / pinned.hex()).write_bytes(b"payload %d" % round)
    payloads = (Payload(PeerId(bytes(32)), pinned, bytes(32)), Payload(PeerId(bytes([1]) * 32), LINK, None))
    step = Step(round - 1, LINK, RUN, 0.1 + 0.2, "mean", payloads)
    return Saved(
        round,
        Consensus(Snapshot(round - 1, LINK, state_files(store, float(round))), (step,)),
        RUN,
        LINK,
        sealed=SealedRound(round, store.write(b"sealed %d" % round), bytes([round]) * 32, 60, 36.5, loss=4.25),
        book=store.write(b"book %d" % round),
        scored=round - 1,
        tip=Tip(round, LINK, RUN),
        vain_from=round - 2,
    )


def assert_whole(store: StateStore, saved: Saved) -> None:
    """Everything that the state names can be read."""
    checkpoint.load(store.snapshot, saved.consensus.snapshot.state, {"w": (3,)})
    pinned = saved.consensus.log[0].payloads[0].envelope
    assert (store.log / pinned.hex()).read_bytes() == b"payload %d" % saved.round
    assert saved.sealed is not None
    assert saved.book is not None
    assert store.read(saved.sealed.object) == b"sealed %d" % saved.round
    assert store.read(saved.book) == b"book %d" % saved.round


def test_a_fresh_folder_has_no_state(store: StateStore) -> None:
    assert store.load() is None


@pytest.mark.parametrize("tip", [Tip(4, LINK, RUN), Tip(4, LINK), None])
def test_what_was_committed_is_found_by_the_next_process(tmp_path: Path, tip: Tip | None) -> None:
    store = StateStore(tmp_path, RUN)
    saved = replace(full(store, 4), tip=tip)
    store.commit(saved)
    store.close()
    again = StateStore(tmp_path, RUN)
    assert again.load() == saved
    assert_whole(again, saved)
    again.close()


def test_who_holds_another_theta_or_link_or_has_not_read_this_round_is_not_where_the_run_stands(
    store: StateStore,
) -> None:
    saved, other = full(store, 4), Digest(bytes(32))
    assert [
        replace(saved, tip=tip).at_tip
        for tip in (Tip(4, LINK, RUN), Tip(4, LINK), Tip(4, LINK, other), Tip(4, other, RUN), Tip(3, LINK, RUN), None)
    ] == [True, True, False, False, False, False]


def test_a_commit_sweeps_what_no_row_names_and_nothing_else(store: StateStore) -> None:
    first, second = full(store, 1), full(store, 2)
    (store.files / "leftover.partial").write_bytes(b"half")
    store.commit(first)
    assert_whole(store, first)
    with pytest.raises(CheckpointCorrupt):
        store.commit(second)  # its files were written too early and are swept by now
    assert store.load() == first
    third = full(store, 3)
    store.commit(third)
    assert_whole(store, third)
    assert [len(list(folder.iterdir())) for folder in (store.files, store.snapshot, store.log)] == [1 + 1, 2, 1]


def test_a_state_whose_files_were_never_written_is_not_committed(store: StateStore) -> None:
    saved = full(store, 1)
    store.commit(saved)
    nothing = Digest(sha256(b"nothing").digest())
    for changes in ({"book": nothing}, {"consensus": Consensus(Snapshot(0, LINK, nothing))}):
        with pytest.raises(CheckpointCorrupt):
            store.commit(replace(saved, **changes))
        assert store.load() == saved
    assert_whole(store, saved)


def test_killed_at_any_step_of_a_save_the_state_before_or_after_is_there(tmp_path: Path) -> None:
    outcomes = set()
    for step in range(0, 40, 3):
        home = tmp_path / str(step)
        store = StateStore(home, RUN)
        before = full(store, 1)
        store.commit(before)
        after_book = sha256(b"book 2").digest()
        store.close()
        exited = exit_code(_save_and_die, home, step)
        store = StateStore(home, RUN)
        found = store.load()
        assert found is not None
        assert_whole(store, found)
        assert found == before or (found.round == 2 and found.book == after_book)
        outcomes.add((found.round, exited))
        store.close()
    assert {(1, 9), (2, 0)} <= outcomes


def _save_and_die(home: Path, step: int) -> None:
    """In a forked child: save round 2, and end without a word at the step-th change of the folder."""
    left = step

    def die(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wa")
        if writes or event in ("os.rename", "os.remove"):
            left -= 1
            if left < 0:
                os._exit(9)

    try:
        store = StateStore(home, RUN)
        sys.addaudithook(die)
        store.commit(full(store, 2))
    finally:
        os._exit(0)


def test_a_full_disk_is_told_from_other_faults_and_leaves_the_state_before(store: StateStore) -> None:
    before = full(store, 1)
    store.commit(before)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DiskFull, match="free disk space and start again"):
        store.commit(replace(full(store, 2), consensus=replace(before.consensus, log=before.consensus.log * 100)))
    assert store.load() == before
    store._db.execute("PRAGMA query_only=1")
    with pytest.raises(ConfigError) as fault:
        store.commit(before)
    assert not isinstance(fault.value, DiskFull)


def test_a_payload_of_the_log_that_is_missing_hinders_no_commit(store: StateStore) -> None:
    """Others have it, and a disk that would not take it must not stop the node."""
    saved = full(store, 1)
    for path in store.log.iterdir():
        path.unlink()
    store.commit(saved)
    assert store.load() == saved


def test_a_second_process_is_refused(tmp_path: Path, store: StateStore) -> None:
    names = "from pathlib import Path; from murmur.node.state.store import StateStore"
    code = f"{names}; StateStore(Path({str(tmp_path)!r}), {RUN!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 1
    assert "another process uses the state folder" in done.stderr
    with pytest.raises(ConfigError, match="another process"):
        StateStore(tmp_path, RUN)


def test_any_changed_byte_of_the_database_leaves_the_state_or_none(tmp_path: Path) -> None:
    """Never another state, and never a node that can't start."""
    store = StateStore(tmp_path / "first", RUN)
    saved = full(store, 1)
    store.commit(saved)
    store.close()
    (whole,) = (path.read_bytes() for path in store.folder.glob("state.db*"))
    used = [at for at, byte in enumerate(whole) if byte]
    version = range(60, 64)  # which says that another release wrote it
    outcomes = set()
    for number, at in enumerate(random.Random(7).sample([at for at in used if at not in version], 100)):
        folder = tmp_path / str(number) / RUN.hex()[:16]
        folder.mkdir(parents=True)
        changed = bytearray(whole)
        changed[at] ^= 1 << number % 8
        (folder / "state.db").write_bytes(changed)
        again = StateStore(tmp_path / str(number), RUN)
        found = again.load()
        assert found in (saved, None)
        assert (folder / "damaged").exists() <= (found is None)
        outcomes.add(found is None)
        again.commit(full(again, 2))
        again.close()
    assert outcomes == {True, False}


@pytest.mark.parametrize("value", ["", "{}", "[]", "null", '{"round": 1}', "not json", b"\xff", None, 7])
def test_a_damaged_row_is_set_aside(tmp_path: Path, value: object) -> None:
    store = StateStore(tmp_path, RUN)
    store.commit(full(store, 1))
    store.close()
    with sqlite3.connect(store.folder / "state.db") as database:
        database.execute("UPDATE saved SET value = ?", (value,))
    database.close()
    again = StateStore(tmp_path, RUN)
    assert again.load() is None
    assert [path.name for path in (again.folder / "damaged").iterdir()] == ["1-state.db"]
    again.close()


def test_a_damaged_file_is_never_read_and_can_be_set_aside(store: StateStore) -> None:
    saved = full(store, 1)
    store.commit(saved)
    assert saved.book is not None
    others = {path.name for path in store.files.iterdir()} - {saved.book.hex()}
    store.path(saved.book).write_bytes(b"book 7")
    with pytest.raises(CheckpointCorrupt, match="sets it aside"):
        store.read(saved.book)
    store.set_aside_damaged()
    assert {path.name for path in store.files.iterdir()} == others
    assert [path.read_bytes() for path in (store.folder / "damaged").iterdir()] == [b"book 7"]
    with pytest.raises(CheckpointCorrupt, match="sets it aside"):
        store.read(saved.book)


def test_only_the_last_damaged_files_are_kept(store: StateStore) -> None:
    for number in range(DAMAGED_KEPT + 5):
        store.path(store.write(b"file %d" % number)).write_bytes(b"%d" % number)
        store.set_aside_damaged()
    found = sorted(int(path.read_bytes()) for path in (store.folder / "damaged").iterdir())
    assert found == list(range(5, DAMAGED_KEPT + 5))


def test_a_folder_of_another_release_is_refused(tmp_path: Path) -> None:
    store = StateStore(tmp_path, RUN)
    store.close()
    with sqlite3.connect(store.folder / "state.db") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(ConfigError, match="schema 99"):
        StateStore(tmp_path, RUN)


def test_two_runs_in_one_home_do_not_meet(tmp_path: Path, store: StateStore) -> None:
    store.commit(full(store, 1))
    other = StateStore(tmp_path, LINK)
    assert other.load() is None
    other.close()


def test_the_state_folder_is_its_owners_alone_and_no_repr_tells_the_key(store: StateStore) -> None:
    saved = full(store, 65)
    store.commit(saved)
    assert store.files.stat().st_mode & 0o077 == 0
    assert "AAAA" not in repr(saved)


def test_what_the_folder_holds_is_the_owners_alone_also_where_it_was_open_before(tmp_path: Path) -> None:
    folder = tmp_path / RUN.hex()[:16]
    old = os.umask(0o022)
    try:
        folder.mkdir(mode=0o755)
        (folder / "state.db").touch(mode=0o644)
        store = StateStore(tmp_path, RUN)
        store.commit(full(store, 1))
        assert folder.stat().st_mode & 0o777 == 0o700
        modes = {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir() if path.name != "files"}
        store.close()
    finally:
        os.umask(old)
    assert "state.db" in modes
    assert not any(modes.values()), modes
