"""A data set follows from its text and recipe alone: however often its build is killed, by any number of tasks."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from murmur import files
from murmur.data import build as building
from murmur.data.build import build
from murmur.data.concatenation import join
from murmur.data.index import INDEX
from murmur.data.job import BUILDING
from murmur.data.place import alone
from murmur.data.recipe import Execution, made
from murmur.data.scatter import draws, read_scattered
from murmur.data.shards import Shards
from murmur.lab.simulation.clock import Killed
from murmur.protocol.errors import ConfigError

ROOT = Path(__file__).parents[2]


def text_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir(exist_ok=True)
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


def documents(folder: Path) -> list[bytes]:
    """All documents of a data set, in both splits."""
    data = Shards.open(folder)
    return separated(whole(data.held_out) + whole(data.train))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_document_is_in_exactly_one_split_and_ends_with_the_separator(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    build(str(source), tmp_path / "out", shard_tokens=1000, held_out=0.25)
    assert sorted(documents(tmp_path / "out")) == sorted(file.read_bytes() for file in source.iterdir())
    data = Shards.open(tmp_path / "out")
    data.train.verify()
    data.held_out.verify()
    share = data.held_out.num_tokens / (data.held_out.num_tokens + data.train.num_tokens)
    assert share == pytest.approx(0.25, abs=0.05)


def test_documents_stand_in_the_order_of_their_draws_and_another_seed_is_another_order(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    for seed in (0, 7, -5):
        build(str(source), tmp_path / str(seed), seed=seed, shard_tokens=1000)
        data = Shards.open(tmp_path / str(seed))
        order = sorted(source.iterdir(), key=lambda file, seed=seed: draws(seed, 0, file.name, "0", 0))  # type: ignore[misc]
        assert separated(whole(data.held_out)) + separated(whole(data.train)) == [f.read_bytes() for f in order]


def test_held_out_is_a_share_or_a_number_of_tokens_and_never_all(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    for number, (wanted, expected) in enumerate(((0.5, 0.5), (2000.0, 2000), (0.9999, 1.0), (1e-9, 0.0))):
        out = tmp_path / str(number)
        build(str(source), out, held_out=wanted, shard_tokens=2000)
        data = Shards.open(out)
        total = data.held_out.num_tokens + data.train.num_tokens
        assert data.held_out.num_tokens == pytest.approx(expected * (total if expected <= 1 else 1), abs=400)
        assert len(separated(whole(data.train))) >= 1
    with pytest.raises(ConfigError, match="to be held out"):
        build(str(source), tmp_path / "all", held_out=1e6)


def test_a_limit_cuts_the_text_at_that_many_bytes(tmp_path: Path) -> None:
    build(str(text_folder(tmp_path)), tmp_path / "out", limit_bytes=1001)
    assert 1001 - 3 <= sum(map(len, documents(tmp_path / "out"))) <= 1001


def lines(folder: Path, word: str, count: int) -> str:
    path = folder / f"{word}.jsonl"
    texts = (f"{word} {number:06d} {'x' * (number % 50)}" for number in range(count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def test_sources_are_mixed_by_the_weights_of_their_tokens(tmp_path: Path) -> None:
    sizes = {"a": (1500, 3.0), "b": (1500, 1.0), "c": (200, 1.0)}
    sources = tuple({"path": lines(tmp_path, n, count), "weight": weight} for n, (count, weight) in sizes.items())
    build(made(sources=sources, shard_tokens=5000, held_out=0.1), tmp_path / "out")
    found = documents(tmp_path / "out")
    tokens: Counter[str] = Counter()
    for document in found:
        tokens[document.decode()[0]] += len(document) + 1
    for name, share in (("a", 0.6), ("b", 0.2), ("c", 0.2)):
        assert tokens[name] / tokens.total() == pytest.approx(share, rel=0.15)
    first = [document.decode()[0] for document in found]
    assert first.count("c") == 200, "the one that is too small for its share is used whole"
    assert max(Counter(found).values()) == 1
    half = len(first) // 2
    assert first[:half].count("a") / half == pytest.approx(first.count("a") / len(first), rel=0.15)
    told = {source.name: source for source in Shards.open(tmp_path / "out").index.sources}
    assert told["b.jsonl"].documents == first.count("b")
    assert told["b.jsonl"].tokens == tokens["b"]
    assert told["c.jsonl"].share == 1.0
    assert told["b.jsonl"].share < 0.5


def test_epochs_stand_in_the_training_text_and_no_copy_of_what_is_held_out(tmp_path: Path) -> None:
    sources = ({"path": lines(tmp_path, "a", 400), "repeats": 2.5}, {"path": lines(tmp_path, "b", 400)})
    build(made(sources=sources, shard_tokens=3000, held_out=0.2), tmp_path / "out")
    data = Shards.open(tmp_path / "out")
    train, held_out = Counter(separated(whole(data.train))), Counter(separated(whole(data.held_out)))
    assert not set(train) & set(held_out)
    assert set(held_out.values()) == {1}
    assert len(train) + len(held_out) == 800
    of_a = [count for document, count in train.items() if document.startswith(b"a")]
    assert set(of_a) == {2, 3}
    assert sum(of_a) / len(of_a) == pytest.approx(2.5, abs=0.1)
    assert {count for document, count in train.items() if document.startswith(b"b")} == {1}


# --- tasks and kills ---------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"shard_tokens": 2500, "held_out": 0.2, "seed": 3}


def test_tasks_workers_and_the_place_of_the_text_change_nothing(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    build(str(source), tmp_path / "one", **OPTIONS, tasks=1)
    build(str(source), tmp_path / "five", **OPTIONS, tasks=5, workers=2)
    (tmp_path / "other").mkdir()
    source.rename(tmp_path / "other" / "text")
    build(str(tmp_path / "other" / "text"), tmp_path / "forty", **OPTIONS, tasks=40, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "five") == contents(tmp_path / "forty")


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps run in this process."""

    def run_all(job: Any, execution: Any, parts: list[list[str]], on_progress: Any) -> None:
        from murmur.data import executors

        for part in parts:
            for each in part:
                step, first, tasks = each.split(":")
                executors.run(job, execution, step, int(first), int(tasks))

    monkeypatch.setattr(building, "_run_all", run_all)


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

    monkeypatch.setattr(files, "write", write)
    return lambda: count


@pytest.mark.check
@pytest.mark.usefixtures("within")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_build_that_is_killed_at_any_write_goes_on_to_the_same_bytes(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_folder(tmp_path)
    with monkeypatch.context() as patch:
        writes = dying(patch, -1, after)
        build(str(source), tmp_path / "whole", **OPTIONS, tasks=3)
        total = writes()
    assert total > 12
    for at in range(1, total + 1):
        out = tmp_path / f"{at}"
        with monkeypatch.context() as patch:
            dying(patch, at, after)
            with pytest.raises(Killed):
                build(str(source), out, **OPTIONS, tasks=3)
        with monkeypatch.context() as patch:
            writes = dying(patch, -1, after)
            build(str(source), out, **OPTIONS, tasks=3)
            assert writes() <= total - at + 5, "what was done is not done again, but for the task that was cut short"
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("within")
def test_an_unfinished_build_goes_on_with_its_own_text_and_options_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_folder(tmp_path)
    with monkeypatch.context() as patch:
        dying(patch, 4, True)
        with pytest.raises(Killed):
            build(str(source), tmp_path / "out", **OPTIONS)
    with pytest.raises(ConfigError, match="other options"):
        build(str(source), tmp_path / "out", **OPTIONS | {"seed": 4})
    kept = (source / "05.txt").read_text()
    (source / "05.txt").write_text("other words")
    with pytest.raises(ConfigError, match="text has changed"):
        build(str(source), tmp_path / "out", **OPTIONS)
    (source / "05.txt").write_text(kept)
    with pytest.raises(ConfigError, match="text has changed"):
        build(str(source), tmp_path / "out", **OPTIONS)


CHILD = """
import sys
from pathlib import Path
from murmur.data.build import build
if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]), shard_tokens=20_000, workers=2, tasks=6)
"""


def processes_of(out: Path) -> list[str]:
    """The processes that build there."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if b"murmur.data.engine" in words and str(out).encode() in words:
                found.append(place.parent.name)
    return found


@pytest.mark.check
@pytest.mark.parametrize("moment", ["building/log/text/completions/*", "building/plan.json", "train-*.npy"])
def test_processes_that_are_killed_leave_a_build_that_goes_on(moment: str, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for word in "abcdef":
        lines(source, word, 4000)
    program = tmp_path / "program.py"
    program.write_text(CHILD)
    child = subprocess.Popen(
        [sys.executable, str(program), str(source), str(out)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    until = time.monotonic() + 120
    while not list(out.glob(moment)) and child.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.002)
    assert child.poll() in (None, 0), "it has failed, so nothing was killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    while processes_of(out):
        assert time.monotonic() < until, "a process outlives the build"
        time.sleep(0.05)
    if not (out / INDEX).exists() or (out / BUILDING).exists():
        build(str(source), out, shard_tokens=20_000)
    build(str(source), tmp_path / "whole", shard_tokens=20_000)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("within")
def test_a_flipped_bit_in_what_was_scattered_does_not_get_into_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from murmur.data.gather import Gather

    source, real = text_folder(tmp_path), Gather._bucket

    def flipped(self: Any, bucket: int, plan: Any) -> None:
        path = self.job.bucket(bucket) / "00000"
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(ValueError, match="damaged"):
            read_scattered(path, np.dtype("<u2"))
        real(self, bucket, plan)

    monkeypatch.setattr(Gather, "_bucket", flipped)
    with pytest.raises(ConfigError, match="damaged"):
        build(str(source), tmp_path / "out", tasks=1)
    assert not (tmp_path / "out" / INDEX).exists()


def test_a_process_that_is_killed_ends_the_build_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a machine does that runs out of memory."""
    source, real = text_folder(tmp_path), subprocess.Popen

    def killed(words: list[str], **options: Any) -> Any:
        process = real(words, **options)
        if words[-1].startswith("text:"):
            process.kill()
        return process

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", killed)
        with pytest.raises(ConfigError, match=r"killed by signal 9.*fewer --workers"):
            build(str(source), tmp_path / "out", tasks=4, workers=2)
    assert build(str(source), tmp_path / "out", workers=2) == build(str(source), tmp_path / "whole", tasks=1)


@pytest.mark.usefixtures("within")
def test_a_disk_that_fills_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from murmur.data import engine
    from murmur.data.job import DISK_FULL

    def full(path: Path, *parts: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(building, "_run_all", lambda *words: None)
        patch.setattr(building, "_tidied", lambda out: b"")
        build(str(text_folder(tmp_path)), out)
    monkeypatch.setattr(files, "write", full)
    monkeypatch.setattr(engine, "end_with_parent", lambda *words: None)
    monkeypatch.setattr(sys, "argv", ["engine", str(out), Execution().model_dump_json(), "proof:0:1"])
    assert engine.main() == DISK_FULL


# --- what cannot be built ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 0.0}, "held_out"),
        ({"max_bad": 1.5}, "max_bad"),
        ({"shard_tokens": 0}, "shard"),
        ({"seed": 1 << 70}, "seed"),
        ({"weight": -1.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"repeats": 1e9}, "repeats"),
        ({"tokenizer": "nowhere.json"}, "cannot read the tokenizer"),
        ({"end": "</s>"}, "leave out --end"),
        ({"bos": True}, "leave out --end and --bos"),
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
    before = contents(data_folder)
    with pytest.raises(ConfigError, match="already holds"):
        build(str(text_folder(tmp_path)), data_folder)
    assert contents(data_folder) == before


def test_a_disk_without_room_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(building, "disk_usage", lambda place: usage(100, 95, 5))
    with pytest.raises(ConfigError, match="GB free"):
        build(str(text_folder(tmp_path)), tmp_path / "out")


def test_no_text_of_a_held_out_document_is_trained_on_whoever_has_it_too(tmp_path: Path) -> None:
    one, two = lines(tmp_path, "a", 500), lines(tmp_path, "b", 10)
    Path(two).write_text(Path(one).read_text() + json.dumps({"text": "of its own"}) + "\n")
    build(made(sources=({"path": one}, {"path": two}), held_out=0.2), tmp_path / "out")
    data = Shards.open(tmp_path / "out")
    held, trained = (separated(whole(split)) for split in (data.held_out, data.train))
    assert not set(held) & set(trained)
    assert len({*held, *trained}) == 501
    lost = sum(source.skipped["of which another is held out"] for source in data.index.sources)
    assert len(held) + len(trained) + lost == 1001


def test_weights_hold_for_tokens_where_documents_are_few_and_long(tmp_path: Path) -> None:
    for name, count, words in (("few", 12, 20_000), ("many", 3000, 30)):
        rows = (json.dumps({"text": f"{name} {number} " + "word " * words}) + "\n" for number in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    for seed in range(4):
        sources = tuple({"path": str(tmp_path / f"{name}.jsonl"), "weight": 1.0} for name in ("few", "many"))
        build(made(sources=sources, seed=seed), tmp_path / f"out{seed}")
        few, many = Shards.open(tmp_path / f"out{seed}").index.sources
        assert few.tokens == pytest.approx(many.tokens, rel=0.13), "within half of a document of 100,000 tokens"


def test_two_builds_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    source = text_folder(tmp_path)
    with alone(tmp_path / "out"), pytest.raises(ConfigError, match="another build works in"):
        build(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    build(str(source), tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_a_shard_that_was_cut_is_neither_shown_nor_joined(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(lines(tmp_path, name, 50), tmp_path / name)
    path = next((tmp_path / "one").glob("train-*.npy"))
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with pytest.raises(ConfigError, match="it was cut short"):
        Shards.open(tmp_path / "one")
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"train-00000\.npy"):
        join([tmp_path / "one", tmp_path / "two"], tmp_path / "joined")


def test_text_of_which_each_has_a_copy_that_is_held_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"one of {n % 2}"}) + "\n" for n in range(100)))
    with pytest.raises(ConfigError, match="nothing is left to train on"):
        build(str(tmp_path / "a.jsonl"), tmp_path / "out", held_out=0.3)
