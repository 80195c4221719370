"""Exports written and proved: finds the run that is meant, and says what was done."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from murmur import network
from node.sync.dataset import Copies
from post.export import export
from post.llama import Dtype
from post.origin import ORIGIN, Origin
from post.states import States
from post.tokenizer import MAX_BYTES, run_tokenizer
from post.verify import Differs, prove_by_digest, prove_by_export, prove_by_run, read_export, read_origin
from protocol.errors import ConfigError, StorageError
from protocol.types import Digest, hotkey, peer_id
from training.index import INDEX, Index
from training.remote_files import File
from training.shards import Shards


def tell(text: str) -> None:
    """To whoever waits."""
    print(f"{text} ..", file=sys.stderr, flush=True)  # noqa: T201


def write(options: argparse.Namespace) -> int:
    """Export; the exit status."""
    if options.source is None or options.folder is None:
        raise ConfigError("murmur export RUN DIR: name the run and the folder to write (murmur export --help)")
    if options.theta is not None:
        raise ConfigError("--theta needs --verify")
    there = open_source(options, options.source, options.netuid)
    try:
        with data_of(there, options) as (shards, folder):
            tokenizer = run_tokenizer(shards.index.tokenizer, shards.index.tokenizer_config, folder)
    except StorageError as fault:
        raise ConfigError(
            f"the index of the run's data set, or the tokenizer that it names, cannot be fetched ({fault}): "
            "give the folder of the data set as --data"
        ) from None
    states = States(there.run, there.doors, tell)
    round = states.newest if options.round is None else options.round
    dtype: Dtype = "float32" if options.fp32 else "bfloat16"
    origin = export(states, round, options.folder, tokenizer, dtype=dtype, tell=tell)
    sys.stdout.write(f"{options.folder}: {_described(origin)}\ntheta digest {origin.theta}\n")
    return 0


def prove(options: argparse.Namespace) -> int:
    """Verify; the exit status."""
    if options.folder is not None or options.fp32 or options.round is not None:
        raise ConfigError("murmur export --verify DIR [RUN]: leave out --round and the type, the export states both")
    if options.theta is not None and options.source is not None:
        raise ConfigError("give either --theta or a run, not both")
    origin = read_origin(options.verify)
    try:
        if options.theta is not None:
            lines = [*prove_by_digest(read_export(options.verify, tell), options.theta)]
        elif options.source is not None and (Path(options.source) / ORIGIN).is_file():
            other = read_export(Path(options.source), tell)
            lines = [*prove_by_export(read_export(options.verify, tell), other, tell)]
        else:
            lines = _by_run(options, origin)
    except Differs as fault:
        sys.stdout.write(f"{options.verify} is not proved: {fault}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in (f"{options.verify}: {_described(origin)}", *lines)))
    return 0


def _by_run(options: argparse.Namespace, origin: Origin) -> list[str]:
    spec = origin.run_spec
    if options.source is None and spec.local:
        raise ConfigError(f"{options.verify} is of a local network: give its run folder too")
    netuid = options.netuid or (str(spec.netuid) if options.source is None else None)
    there = open_source(options, options.source or spec.owner, netuid)
    named: Index | None = None
    with suppress(ConfigError, StorageError), data_of(there, options) as (shards, _):
        named = shards.index
    found = read_export(options.verify, tell)
    owner = (
        f"the run is {there.run.id.hex()[:16]} of the owner {hotkey(there.run.first.owner_id)}. Check that "
        "this is the right owner"
    )
    return [owner, *prove_by_run(found, States(there.run, there.doors, tell), named, tell)]


def open_source(options: argparse.Namespace, source: str, netuid: str | None) -> network.Opened:
    """The run that is meant by a run folder, a node's file or its owner's hotkey. Raises ConfigError, ChainError."""
    path = Path(source)
    folder, file = (path if path.is_dir() else None), (source if path.is_file() else None)
    owner = source if folder is None and file is None else None
    if owner is not None:
        try:
            peer_id(owner)
        except ValueError:
            raise ConfigError(
                f"{owner[:200]!r} is not a run folder, a node's TOML file or the hotkey of a run's owner"
            ) from None
    named = {"network": options.network, "netuid": netuid, "home": options.home}
    if folder is not None and any(value is not None for value in named.values()):
        raise ConfigError("leave out the other flags: a run folder already says which network it is")
    wanted = argparse.Namespace(run=folder, config=file, owner=owner, spec=None, data=None, **named)
    return network.open_network("murmur export", wanted)


@contextmanager
def data_of(there: network.Opened, options: argparse.Namespace) -> Iterator[tuple[Shards, Path]]:
    """The run's data set, the operator's or what the owner's and validators' buckets give of it, and a folder with the
    tokenizer's files that it names. Raises ConfigError, and StorageError where nobody has them."""
    digest = Digest(bytes.fromhex(there.run.first.data.index))
    given = options.data or there.config.data
    with TemporaryDirectory(prefix="murmur-export-") as temporary:
        folder, fetched = Path(given or temporary).expanduser(), Path(temporary)
        if not (folder / INDEX).is_file():
            folder = fetched
        remote = Copies(there.run, there.doors, folder / INDEX)
        shards = Shards.open(folder, index_digest=digest, remote=remote)
        files = shards.index.tokenizer_files
        if not all((folder / name).is_file() for name in files):
            folder = fetched
            remote.fetch([File(file, MAX_BYTES, folder / name, exact=False) for name, file in files.items()])
        yield shards, folder


def _described(origin: Origin) -> str:
    spec = origin.run_spec
    count, kind = spec.layout.num_parameters, origin.dtype
    return f"run {spec.name} ({origin.run[:16]}) at the start of round {origin.round}, {count:,} parameters in {kind}"
