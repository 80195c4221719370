"""A data set follows from its text and options alone: however often its build is killed, by any number of processes."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from murmur import files
from murmur.data import build as building
from murmur.data import sorted_runs
from murmur.data.build import BUILDING, build
from murmur.data.index import INDEX
from murmur.data.shards import Shards
from murmur.data.sorted_runs import draw
from murmur.data.sources import documents
from murmur.protocol.errors import ConfigError
from tests.network import Killed

ROOT = Path(__file__).parents[2]


def text_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.txt").write_text(f"file {number}: " + "ä word " * (number + 5), encoding="utf-8")
    return folder


def whole(split: Any) -> list[int]:
    tokens: list[int] = split.tokens(0, split.num_tokens).tolist()
    return tokens


def separated(tokens: list[int]) -> list[bytes]:
    """The documents of tokens that the byte tokenizer made."""
    *texts, rest = "".join(map(chr, tokens)).split(chr(256))
    assert not rest
    return [text.encode("latin-1") for text in texts]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_document_is_in_exactly_one_split_and_ends_with_the_separator(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    build(str(source), tmp_path / "out", shard_tokens=100, held_out_fraction=0.25)
    data = Shards.open(tmp_path / "out")
    found: list[bytes] = []
    for split in (data.train, data.held_out):
        found += separated(whole(split))
    assert sorted(found) == sorted(file.read_bytes() for file in source.iterdir())
    share = data.held_out.num_tokens / (data.held_out.num_tokens + data.train.num_tokens)
    assert share == pytest.approx(0.25, abs=0.05)


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    assert build(str(source), tmp_path / "a") == build(str(source), tmp_path / "b")
    assert build(str(source), tmp_path / "c", shard_tokens=100) != build(str(source), tmp_path / "d", shard_tokens=99)


def test_a_limit_cuts_the_text_at_that_many_bytes(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    build(str(source), tmp_path / "out", limit_bytes=1001)
    data = Shards.open(tmp_path / "out")
    num_bytes = sum(token < 256 for split in (data.train, data.held_out) for token in whole(split))
    assert 1001 - 3 <= num_bytes <= 1001


def test_progress_is_reported_in_bytes_so_far(tmp_path: Path) -> None:
    seen: list[int] = []
    source = text_folder(tmp_path)
    build(str(source), tmp_path / "out", on_text=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == sum(file.stat().st_size for file in source.iterdir())


def test_the_order_is_that_of_sorting_all_documents_by_their_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_folder(tmp_path)
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 700)
    build(str(source), tmp_path / "out", shard_tokens=100, seed=7)
    data = Shards.open(tmp_path / "out")
    texts = [text.encode() for text in documents(str(source))]
    expected = [texts[at] for at in sorted(range(len(texts)), key=lambda at: draw(7, 0, at))]
    assert separated(whole(data.held_out) + whole(data.train)) == expected
    assert expected != texts


def test_another_seed_is_another_order_of_the_same_documents(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    found = []
    for seed in (0, 1, -5):
        build(str(source), tmp_path / str(seed), seed=seed)
        data = Shards.open(tmp_path / str(seed))
        found.append(separated(whole(data.held_out) + whole(data.train)))
    assert found[0] != found[1] != found[2] != found[0]
    assert sorted(found[0]) == sorted(found[1]) == sorted(found[2])


def words(folder: Path, word: str, count: int) -> str:
    path = folder / f"{word}.txt"
    with path.open("w") as file:
        for number in range(count):
            file.write(f"{word} {number:06d} {'x' * (number % 50)}\n")
    return str(path)


def test_sources_are_mixed_by_the_weights_of_their_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmur.data.sources.PIECE_BYTES", 100)
    sources = {words(tmp_path, "a", 1500): 3.0, words(tmp_path, "b", 1500): 1.0, words(tmp_path, "c", 200): 1.0}
    build(sources, tmp_path / "out", shard_tokens=5000, held_out_fraction=0.1)
    data = Shards.open(tmp_path / "out")
    tokens = separated(whole(data.held_out) + whole(data.train))
    first = [document.split()[0].decode() for document in tokens]
    sizes: Counter[str] = Counter()
    for name, document in zip(first, tokens, strict=True):
        sizes[name] += len(document) + 1
    for name, share in (("a", 0.6), ("b", 0.2), ("c", 0.2)):
        assert sizes[name] / sizes.total() == pytest.approx(share, rel=0.15)
    assert sum(len(document) for name, document in zip(first, tokens, strict=True) if name == "c") == (
        (tmp_path / "c.txt").stat().st_size
    ), "the one that is too small for its share is used whole"
    assert max(Counter(tokens).values()) == 1
    half = len(first) // 2
    assert first[:half].count("a") / half == pytest.approx(first.count("a") / len(first), rel=0.15)


# --- cut short ---------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"shard_tokens": 2500, "held_out_fraction": 0.2, "seed": 3}


def dying(monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> Callable[[], int]:
    """The build dies before, or `after`, its write number `at`. Returns a counter of writes."""
    count = 0
    real = files.write

    def write(path: Path, *parts: Any) -> None:
        nonlocal count
        count += 1
        if count == at and not after:
            path.with_name(f"{path.name}.1.partial").write_bytes(b"half of it")
            raise Killed
        real(path, *parts)
        if count == at:
            raise Killed

    for module in (sorted_runs, building):
        monkeypatch.setattr(module, "write", write)
    return lambda: count


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_build_that_is_killed_at_any_write_goes_on_to_the_same_bytes(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_folder(tmp_path)
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 2000)
    with monkeypatch.context() as patch:
        writes = dying(patch, -1, after)
        build(str(source), tmp_path / "whole", **OPTIONS)
        total = writes()
    assert total > 12
    for at in range(1, total + 1):
        out = tmp_path / f"{at}"
        with monkeypatch.context() as patch:
            dying(patch, at, after)
            with pytest.raises(Killed):
                build(str(source), out, **OPTIONS)
        with monkeypatch.context() as patch:
            writes = dying(patch, -1, after)
            build(str(source), out, **OPTIONS)
            assert writes() <= total - at + 3, "what was done is not done again, but for a shard's list and file"
        assert contents(out) == contents(tmp_path / "whole")


def test_text_that_has_changed_meanwhile_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_folder(tmp_path)
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 2000)
    with monkeypatch.context() as patch:
        dying(patch, 4, True)
        with pytest.raises(Killed):
            build(str(source), tmp_path / "out", **OPTIONS)
    (source / "05.txt").write_text("other words")
    assert build(str(source), tmp_path / "out", **OPTIONS) == build(str(source), tmp_path / "whole", **OPTIONS)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_unfinished_build_is_not_gone_on_with_under_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_folder(tmp_path)
    with monkeypatch.context() as patch:
        dying(patch, 2, True)
        with pytest.raises(Killed):
            build(str(source), tmp_path / "out", **OPTIONS)
    with pytest.raises(ConfigError, match="other options"):
        build(str(source), tmp_path / "out", **OPTIONS | {"seed": 4})
    build(str(source), tmp_path / "out", **OPTIONS)


CHILD = """
import sys
from pathlib import Path
from murmur.data import build, sorted_runs
if __name__ == "__main__":
    sorted_runs.RUN_BYTES = 20_000
    build.build(sys.argv[1], Path(sys.argv[2]), shard_tokens=20_000, processes=int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("processes", "moment"),
    [
        (1, "building/*.run"),
        pytest.param(2, "building/*.run", marks=pytest.mark.slow),
        pytest.param(2, "building/order.json", marks=pytest.mark.slow),
        pytest.param(2, "train-*.npy", marks=pytest.mark.slow),
    ],
)
def test_processes_that_are_killed_leave_a_build_that_goes_on(
    processes: int, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = words(tmp_path, "a", 10_000), tmp_path / "out"
    program = tmp_path / "program.py"
    program.write_text(CHILD)
    child = subprocess.Popen(
        [sys.executable, str(program), source, str(out), str(processes)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    until = time.monotonic() + 120
    while not list(out.glob(moment)) and child.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.002)
    assert child.poll() in (None, 0), "it has failed, so nothing was killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    # Whether it was quick enough to be done is not the question here: the test before this one kills at every write.
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 20_000)
    if not (out / INDEX).exists() or (out / BUILDING).exists():
        build(source, out, shard_tokens=20_000)
    build(source, tmp_path / "whole", shard_tokens=20_000)
    assert contents(out) == contents(tmp_path / "whole")


def test_two_processes_make_the_same_bytes_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_folder(tmp_path)
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 3000)
    build(str(source), tmp_path / "one", **OPTIONS)
    build(str(source), tmp_path / "two", **OPTIONS, processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# --- memory ------------------------------------------------------------------------------------------------------


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def grown(tmp_path: Path, small: int, large: int, **options: Any) -> float:
    """How many times as much memory a large text takes as a small one."""
    peaks = []
    for count in (small, large):
        source = words(tmp_path, "a", count)
        peaks.append(peak(partial(build, source, tmp_path / f"{count}", **options)))
    return peaks[1] / peaks[0]


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 100_000)
    assert grown(tmp_path, 10_000, 80_000, shard_tokens=100_000) < 1.3


@pytest.mark.slow
def test_memory_does_not_grow_with_a_gigabyte_of_text(tmp_path: Path) -> None:
    assert grown(tmp_path, 2_500_000, 25_000_000) < 1.3


def test_one_endless_line_is_not_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmur.data.sources.LINE_BYTES", 10_000)
    (tmp_path / "line.txt").write_text("word " * 100_000)
    assert max(map(len, documents(str(tmp_path / "line.txt")))) < 40_000


# --- what cannot be built ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_fraction": 0.0}, "fraction"),
        ({"held_out_fraction": 1.5}, "fraction"),
        ({"shard_tokens": 0}, "shard"),
        ({"seed": 1 << 70}, "seed"),
        ({"tokenizer": Path("nowhere.json")}, "cannot read the tokenizer"),
    ],
)
def test_impossible_build_options_are_config_errors(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        build(str(text_folder(tmp_path)), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_too_little_text_is_a_config_error_and_leaves_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one line")
    with pytest.raises(ConfigError, match="too small"):
        build(str(tmp_path / "one.txt"), tmp_path / "out")
    with pytest.raises(ConfigError, match="is missing"):
        Shards.open(tmp_path / "out")


def test_an_existing_data_set_is_not_overwritten(data_folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in data_folder.iterdir()}
    with pytest.raises(ConfigError, match="already holds"):
        build(str(text_folder(tmp_path)), data_folder)
    assert {path.name: path.read_bytes() for path in data_folder.iterdir()} == before


def test_sources_without_weight_or_text_are_config_errors(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="weight"):
            build({str(source): weight}, tmp_path / "out")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ConfigError, match=r"empty.txt.*no text"):
        build({str(source): 1.0, str(tmp_path / "empty.txt"): 1.0}, tmp_path / "out")
