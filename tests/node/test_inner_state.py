"""A miner's own state on disk: the newest whole one, whatever was interrupted, and never a mixture of two."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from murmur.node.state.inner_state import InnerState
from murmur.protocol.errors import CheckpointCorrupt
from murmur.training import checkpoint
from murmur.training.checkpoint import TensorState
from storage.realtime import REAL

SHAPES = {"error/w": (1000,), "adam.first/w": (1000,)}


class Carrier:
    """What a replica carries: every value is one number, so that a mixture shows."""

    def __init__(self) -> None:
        self.tensors = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        self.taken: float | None = None

    def own_state(self) -> TensorState:
        return TensorState(self.tensors, {"adam_steps": 1})

    def own_shapes(self) -> dict[str, tuple[int, ...]]:
        return SHAPES

    def load_own(self, saved: TensorState) -> None:
        values = torch.cat([tensor.reshape(-1) for tensor in saved.tensors.values()]).unique()
        assert len(values) == 1
        self.taken = float(values)

    def become(self, value: float) -> None:
        for tensor in self.tensors.values():
            tensor.fill_(value)


def opened(folder: Path) -> tuple[InnerState, Carrier]:
    carrier: Any = Carrier()
    return InnerState(folder, carrier, REAL), carrier


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Lets the writing go on by so many pieces."""
    allowed, real = threading.Semaphore(0), checkpoint._encoded

    def slow(tensors: Any) -> Iterator[Any]:
        for piece in real(tensors):
            allowed.acquire(timeout=5.0)
            yield piece

    monkeypatch.setattr(checkpoint, "_encoded", slow)
    yield lambda count: [allowed.release() for _ in range(count)] and None
    for _ in range(100):
        allowed.release()


def settled(own: InnerState) -> None:
    task = own._task
    assert task is not None
    task.join(5.0)
    assert not task.is_alive()


def test_the_newest_whole_state_comes_back_in_another_process(tmp_path: Path) -> None:
    own, carrier = opened(tmp_path / "own")
    assert not own.load()
    for value in (1.0, 2.0):
        carrier.become(value)
        own.save()
        settled(own)
    other, found = opened(tmp_path / "own")
    assert other.load()
    assert found.taken == 2.0
    assert len(list((tmp_path / "own").iterdir())) == 3  # tensors, manifest, the name of the newest


def test_nothing_waits_for_the_disk_and_what_is_given_up_leaves_the_state_of_before(
    tmp_path: Path, pieces: Callable[[int], None]
) -> None:
    own, carrier = opened(tmp_path / "own")
    carrier.become(1.0)
    pieces(3)
    own.save()
    settled(own)
    carrier.become(2.0)
    own.save()  # returns, though no piece can be written
    pieces(1)
    held = threading.Thread(target=own.hold)
    held.start()
    while own._wanted:  # it has said so before the next piece is written
        time.sleep(0.001)
    pieces(1)
    held.join(5.0)
    assert not held.is_alive()
    carrier.become(3.0)  # as a compression does
    other, found = opened(tmp_path / "own")
    assert other.load()
    assert found.taken == 1.0
    assert not list((tmp_path / "own").glob("*.partial"))


def test_files_that_were_complete_when_the_write_was_given_up_do_not_stay(
    tmp_path: Path, pieces: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round's have other names: a disk that is always too slow would fill."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 4000)  # two tensors, two files
    own, carrier = opened(tmp_path / "own")
    carrier.become(1.0)
    pieces(100)
    own.save()
    settled(own)
    before = {path.name for path in (tmp_path / "own").iterdir()}
    real = checkpoint._write

    def gives_up(folder: Path, suffix: str, pieces: Any, stopped: Any = lambda: False) -> Any:
        written = real(folder, suffix, pieces)
        own._wanted = False
        return written if suffix == ".safetensors" and not stopped() else _give_up()

    monkeypatch.setattr(checkpoint, "_write", gives_up)
    carrier.become(2.0)
    own.save()
    settled(own)
    assert {path.name for path in (tmp_path / "own").iterdir()} == before
    assert len(before) == 4


def _give_up() -> Any:
    raise checkpoint.GivenUp


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_process_that_dies_while_it_writes_leaves_the_state_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, carrier = opened(tmp_path / "own")
    carrier.become(1.0)
    own.save()
    settled(own)
    for name in ("replace", "fsync"):
        with monkeypatch.context() as context:

            def dead(*_: Any, **__: Any) -> None:
                raise SystemExit  # the thread is gone, and does nothing more

            context.setattr(os, name, dead)
            carrier.become(2.0)
            own.save()
            settled(own)
        other, found = opened(tmp_path / "own")
        assert other.load()
        assert found.taken == 1.0


def test_a_full_disk_costs_the_write_and_not_the_state_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, carrier = opened(tmp_path / "own")
    carrier.become(1.0)
    own.save()
    settled(own)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        carrier.become(2.0)
        own.save()
        settled(own)
    assert own.load()
    assert carrier.taken == 1.0
    own.save()
    settled(own)
    assert own.load()
    assert carrier.taken == 2.0


@pytest.mark.parametrize("text", ["", "zz" * 32, "00" * 31, "00" * 32])
def test_a_damaged_name_is_corrupt_and_can_be_forgotten(tmp_path: Path, text: str) -> None:
    own, carrier = opened(tmp_path / "own")
    own.save()
    settled(own)
    (tmp_path / "own" / "latest").write_text(text)
    with pytest.raises(CheckpointCorrupt):
        own.load()
    own.forget()
    assert not own.load()
    assert carrier.taken is None
