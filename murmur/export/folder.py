"""`murmur export`: a state of a run, in a folder that transformers opens. Complete or absent: everything is made in
DIR.partial next to it, which is renamed at the end."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from murmur import files
from murmur.export import tensors
from murmur.export.llama import Dtype
from murmur.export.origin import CARD, Origin, Outer, card, small_files
from murmur.export.states import AnyStates, Named, Rebuilt
from murmur.export.tokenizer import TokenizerFiles
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest

Tell = Callable[[str], None]


def export(
    states: AnyStates,
    round: int,
    folder: Path,
    tokenizer: TokenizerFiles,
    *,
    dtype: Dtype = "bfloat16",
    shard_bytes: int = tensors.SHARD_BYTES,
    tell: Tell,
) -> Origin:
    """Export the state at the start of `round` to `folder`, which must not exist yet, or be empty. Meanwhile it needs
    additional disk space of three times theta in fp32.

    Raises ConfigError, StorageError when the state cannot be fetched, ChainError.
    """
    if tokenizer.end >= states.spec.model.vocabulary:
        raise ConfigError(
            f"the tokenizer ends a document by token {tokenizer.end}, the model's vocabulary has "
            f"{states.spec.model.vocabulary}: this is not the run's tokenizer"
        )
    with partial_beside(folder) as partial:
        work = partial / "work"
        named, state = rebuilt(states, round, work)
        origin = write(partial, states.id, states.spec, named, state, tokenizer, dtype, shard_bytes, tell)
        rmtree(work)
    return origin


def rebuilt(states: AnyStates, round: int, work: Path) -> tuple[Named, Rebuilt]:
    """Return the state at the start of `round`, in files of `work`. Raises the errors of `States.rebuild`."""
    named = states.at(round)
    return named, states.rebuild(named, work)


def write(
    folder: Path,
    run: Digest,
    spec: RunSpec | ClusterSpec,
    named: Named,
    state: Rebuilt,
    tokenizer: TokenizerFiles,
    dtype: Dtype,
    shard_bytes: int,
    tell: Tell,
) -> Origin:
    """Write every file of an export of this state to an empty folder, flushed to disk. Raises OSError."""
    plan = tensors.plan(spec.model, spec.layout, dtype, shard_bytes)
    written = tensors.write(folder, plan, state.theta, state.outer, told(tell, "written"))
    if dtype == "float32" and written != state.digest and not spec.momentum:
        raise RuntimeError("the written tensors differ from those whose digest was checked")
    outer = Outer(
        rounds=state.outer.rounds,
        averages=[average.hex() for average in state.outer.averages],
        whole=state.outer.whole.hex(),
    )
    origin = Origin(
        run=run.hex(),
        round=named.round,
        link=state.link.hex(),
        theta=state.digest.hex(),
        dtype=dtype,
        tensors=written.hex(),
        shard_bytes=shard_bytes,
        tokenizer=tokenizer.name,
        tokenizer_config=tokenizer.config_digest,
        end=tokenizer.end,
        outer=outer,
        spec=spec.model_dump(mode="json"),
    )
    for name, data in {**small_files(origin, tokenizer), CARD: card(origin, named.theta is not None)}.items():
        files.write(folder / name, data)
    return origin


@contextmanager
def partial_beside(folder: Path) -> Iterator[Path]:
    """Yield an empty DIR.partial that becomes `folder` when the block succeeds, and is removed otherwise; remains of a
    killed process are removed first.

    Raises ConfigError for a folder that is not empty, or that another process writes, and where the disk refuses.
    """
    folder = folder.absolute()
    partial, lock = _begun(folder)
    try:
        for left in partial.iterdir():
            rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield partial
            files.sync(partial)
            os.rename(partial, folder)
            files.sync(folder.parent)
        except OSError as fault:
            raise ConfigError(
                f"{partial} cannot be written ({fault.strerror}): an export needs room for its tensors and, "
                "while it is made, for three times theta in fp32; the partial files were deleted"
            ) from None
        finally:
            rmtree(partial, ignore_errors=True)
    finally:
        os.close(lock)


@contextmanager
def resumed(folder: Path) -> Iterator[Path]:
    """Yield DIR.partial with an earlier process' files; it becomes `folder` when the block succeeds, and stays
    otherwise. Raises ConfigError as `partial_beside`."""
    folder = folder.absolute()
    partial, lock = _begun(folder)
    try:
        yield partial
        files.sync(partial)
        os.rename(partial, folder)
        files.sync(folder.parent)
    finally:
        os.close(lock)


def _begun(folder: Path) -> tuple[Path, int]:
    """Return DIR.partial, and the lock by which this process holds it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already: choose another folder, or remove it")
    partial = partial_of(folder)
    return partial, _locked(partial)


def partial_of(folder: Path) -> Path:
    """Return the path at which a folder is made."""
    return folder.absolute().with_name(f"{folder.name}.partial")


def _locked(partial: Path) -> int:
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as fault:
        raise ConfigError(f"cannot make {partial} ({fault.strerror}): choose another folder") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"another process writes to {partial}: wait for it, or choose another folder") from None
    return lock


def told(tell: Tell, what: str) -> Callable[[int, int], None]:
    """Return a callback that reports progress at each tenth of a large job."""
    said = 0

    def step(done: int, total: int) -> None:
        nonlocal said
        if total > 1 << 30 and (tenths := 10 * done // total) > said:
            said = tenths
            tell(f"{what} {done / 1e9:.0f} of {total / 1e9:.0f} GB")

    return step
