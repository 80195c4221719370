"""Versioned keys in SQLite against a plain list of dictionaries, one per height."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.lab.devnet.state import Block, State

KEYS = [b"a", b"ab", b"abc", b"b"]
Changes = dict[bytes, bytes | None]
changes = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=2)), max_size=3)
steps = st.lists(st.one_of(changes, st.integers(1, 3), st.just("reopen")), min_size=1, max_size=25)


def append(state: State, values: Changes, branch: int = 0, included: list[bytes] | None = None) -> None:
    number = state.head + 1
    digest = bytes([number, branch]) + bytes(30)
    state.append(Block(number, digest, {"number": hex(number)}, []), values, included or [], max(0, number - 3))


class Model:
    """Everything that ever was, kept plainly."""

    def __init__(self) -> None:
        self.heights: list[dict[bytes, bytes]] = []
        self.oldest = 0

    def append(self, values: Changes, keep: int) -> None:
        merged = {**(self.heights[-1] if self.heights else {}), **values}
        self.heights.append({key: value for key, value in merged.items() if value is not None})
        self.oldest = max(self.oldest, len(self.heights) - 1 - keep)


@settings(max_examples=40, deadline=None)
@given(steps=steps, keep=st.integers(1, 6))
def test_every_kept_height_reads_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Changes | int | str], keep: int
) -> None:
    path = tmp_path_factory.mktemp("state") / "chain.sqlite"
    state, model = State(path, keep), Model()
    append(state, {b"a": b"0"})
    model.append({b"a": b"0"}, keep)
    for branch, step in enumerate(steps):
        if isinstance(step, dict):
            append(state, step, branch)
            model.append(step, keep)
        elif step == "reopen":
            state.close()
            state = State(path, keep)
        elif isinstance(step, int) and state.head - step >= max(model.oldest, 0):
            state.rollback(state.head - step, [])
            del model.heights[-step:]
        assert state.head == len(model.heights) - 1
        assert state.oldest == model.oldest
        for height in range(model.oldest, state.head + 1):
            expected = model.heights[height]
            assert {key: state.read(key, height) for key in KEYS} == {key: expected.get(key) for key in KEYS}
            assert state.keys_after(b"a", b"", 9, height) == sorted(key for key in expected if key.startswith(b"a"))
            assert state.keys_after(b"a", b"a", 1, height) == sorted(expected.keys() & {b"ab", b"abc"})[:1]
    state.close()


def test_pruning_keeps_the_database_small(tmp_path: Path) -> None:
    state = State(tmp_path / "chain.sqlite", 8)
    append(state, {b"old": b"1"})
    for index in range(200):
        append(state, {b"often": bytes([index])})
    (rows,) = state._database.execute("SELECT count(*) FROM versions").fetchone()
    assert rows == 1 + 9
    assert state.read(b"old", state.oldest) == b"1"
    state.close()


def test_a_block_takes_its_extrinsics_out_of_the_pool_and_a_rollback_brings_them_back(tmp_path: Path) -> None:
    state = State(tmp_path / "chain.sqlite", 8)
    append(state, {})
    state.add_to_pool(b"one")
    state.add_to_pool(b"two")
    append(state, {}, included=[b"one"])
    assert state.pooled() == [b"two"]
    state.rollback(0, [b"one"])
    assert state.pooled() == [b"two", b"one"]
    state.close()


def test_discarded_blocks_are_unknown_by_hash(tmp_path: Path) -> None:
    state = State(tmp_path / "chain.sqlite", 8)
    append(state, {})
    append(state, {}, branch=1)
    discarded = state.hash_of(1)
    assert discarded is not None
    state.rollback(0, [])
    append(state, {}, branch=2)
    assert state.number_of(discarded) is None
    assert state.hash_of(1) != discarded
    state.close()
