"""Writing and verifying exports: find the run, and print the results."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from murmur.cli import network
from murmur.cluster.bootstrap import SharedData, open_ledger
from murmur.cluster.group_keys import Token, is_token, parse_token, read_token
from murmur.data.index import INDEX, Index
from murmur.data.remote_files import File, Remote
from murmur.data.shards import Shards
from murmur.export.cluster_states import ClusterStates
from murmur.export.folder import export
from murmur.export.llama import Dtype
from murmur.export.origin import ORIGIN, Origin
from murmur.export.states import States
from murmur.export.tokenizer import MAX_BYTES, run_tokenizer
from murmur.export.verify import Differs, prove_by_digest, prove_by_export, prove_by_run, read_export, read_origin
from murmur.homes import expanded
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.sync.dataset import RemoteShards
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import ChainError, ConfigError, OutOfSync, StorageError
from murmur.protocol.types import Digest, hotkey


def tell(text: str) -> None:
    """Print progress to stderr."""
    print(f"{text} ..", file=sys.stderr, flush=True)  # noqa: T201


def write(options: argparse.Namespace) -> int:
    """Write an export; return the exit status."""
    source = find_source(options, options.source, options.netuid)
    try:
        with source.data() as (shards, folder):
            tokenizer = run_tokenizer(shards.index.tokenizer, shards.index.tokenizer_config, folder)
    except StorageError as fault:
        raise ConfigError(
            f"the index of the run's data set, or the tokenizer that it names, cannot be fetched ({fault}): "
            "give the folder of the data set as --data"
        ) from None
    states = source.states()
    round = states.newest if options.round is None else options.round
    dtype: Dtype = "float32" if options.fp32 else "bfloat16"
    origin = export(states, round, options.folder, tokenizer, dtype=dtype, tell=tell)
    sys.stdout.write(f"{options.folder}: {_described(origin)}\ntheta digest {origin.theta}\n")
    return 0


def prove(options: argparse.Namespace) -> int:
    """Verify an export; return the exit status."""
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
    except (ChainError, StorageError, OutOfSync) as fault:
        raise network.undecided(fault) from None
    sys.stdout.write("".join(f"{line}\n" for line in (f"{options.verify}: {_described(origin)}", *lines)))
    return 0


def _by_run(options: argparse.Namespace, origin: Origin) -> list[str]:
    spec = origin.run_spec
    if options.source is not None:
        source = find_source(options, options.source, options.netuid)
    elif isinstance(spec, ClusterSpec):
        raise ConfigError(f"{options.verify} is of a cluster: give the file with its token too")
    elif spec.local:
        raise ConfigError(f"{options.verify} is of a local network: give its run folder too")
    else:
        source = find_source(options, spec.owner, options.netuid or str(spec.netuid))
    named: Index | None = None
    with suppress(ConfigError, StorageError), source.data() as (shards, _):
        named = shards.index
    found, states = read_export(options.verify, tell), source.states()
    whose = f"the run is {states.id.hex()[:16]} of {source.whose}. Check that this is the right one"
    return [whose, *prove_by_run(found, states, named, tell)]


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run on a chain or of a cluster. `data` yields its data set and a folder with the tokenizer's files."""

    states: Callable[[], States | ClusterStates]
    data: Callable[[], AbstractContextManager[tuple[Shards, Path]]]
    whose: str


def find_source(options: argparse.Namespace, source: str, netuid: str | None) -> ExportedRun:
    """Open the run given by a run folder, a node's file, its owner's hotkey or a cluster's token file. Raises
    ConfigError, ChainError, StorageError."""
    path = Path(source)
    if path.is_file() and is_token(text := read_token(path)):
        if any((options.network, netuid, options.home)):
            raise ConfigError("a token says everything about its cluster: leave out the flags of a chain")
        return _of_cluster(parse_token(text), options)
    there = open_source(options, source, netuid)
    owner = f"the owner {hotkey(there.run.first.owner_id)}"
    return ExportedRun(lambda: States(there.run, there.ports, tell), lambda: data_of(there, options), owner)


def _of_cluster(token: Token, options: argparse.Namespace) -> ExportedRun:
    ledger, spec = open_ledger(token)
    index = spec.data.index_digest
    return ExportedRun(
        lambda: ClusterStates(spec, ledger, tell),
        lambda: _data(index, options.data, lambda file: SharedData(ledger.bucket)),
        f"the cluster {spec.name}",
    )


def open_source(options: argparse.Namespace, source: str, netuid: str | None) -> OpenedNetwork:
    """Open the run given by a run folder, a node's file or its owner's hotkey. Raises ConfigError, ChainError."""
    path = Path(source)
    folder, file = (path if path.is_dir() else None), (source if path.is_file() else None)
    owner = source if folder is None and file is None else None
    named = {"network": options.network, "netuid": netuid, "home": options.home}
    if folder is not None and any(value is not None for value in named.values()):
        raise ConfigError("leave out the other flags: a run folder already says which network it is")
    wanted = argparse.Namespace(run=folder, config=file, owner=owner, spec=None, data=None, **named)
    return network.open_network("murmur export", wanted)


def data_of(there: OpenedNetwork, options: argparse.Namespace) -> AbstractContextManager[tuple[Shards, Path]]:
    """Yield the run's data set, the operator's or the part available in the owner's and validators' buckets, and a
    folder with its tokenizer's files. Raises ConfigError, and StorageError where no source has them."""
    digest = there.run.first.data.index_digest
    return _data(digest, options.data or there.config.data, lambda file: RemoteShards(there.run, there.ports, file))


@contextmanager
def _data(
    digest: Digest, given: str | Path | None, remote_of: Callable[[Path], Remote]
) -> Iterator[tuple[Shards, Path]]:
    with TemporaryDirectory(prefix="murmur-export-") as temporary:
        folder, fetched = expanded(given or temporary), Path(temporary)
        if not (folder / INDEX).is_file():
            folder = fetched
        remote = remote_of(folder / INDEX)
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
