"""Find the run: its spec from a file, from our home or through the owner's slot on chain."""

from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.data.shards import Fetch
from murmur.homes import expanded
from murmur.node.config.ports import Opener, is_local
from murmur.node.config.run_file import RunFile, folder_of, saved_runs
from murmur.node.config.settings import NetworkConfig
from murmur.node.fetch.sources import Sources, sources_as_of
from murmur.node.sync.amendments import MAX_AMENDMENTS, Reader, fetch_blob, owner_slot
from murmur.protocol.errors import ConfigError, InvalidMessage, StorageError, UpdateNeeded
from murmur.protocol.ports import Bucket, Chain
from murmur.protocol.run import Run, parse_amendment
from murmur.protocol.spec import PROTOCOL_VERSION, RunSpec, parse_spec, parse_text
from murmur.protocol.types import Digest, peer_id
from storage.realtime import REAL

SPEC_MAX_BYTES = 1 << 20
FETCH_SECONDS = 60.0


def find_run(
    config: NetworkConfig, chain: Chain, open_pointer: Opener, home: Path, read: dict[Digest, bytes] | None = None
) -> Run:
    """Find the run that this node is configured for, with the amendments that it followed in this home before
    (murmur/node/sync/amendments.py adds those since).

    With an owner: the run that its slot on chain names, from `home` if it is known there, so that a restart needs no
    bucket. `open_pointer` opens the owner's bucket; blobs read before it failed are kept in `read`. Raises ConfigError
    if there is no run, if it belongs to another chain or subnet, or if it is local and the chain is not. Raises
    StorageError if the owner's bucket does not answer and the home has nothing; ChainError.
    """
    if config.spec is not None:
        try:
            text = expanded(config.spec).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is not text"
            raise ConfigError(f"cannot read the run spec {config.spec}: {why}") from None
        run = Run(parse_text(text, str(config.spec)))
    else:
        assert config.owner is not None
        run = _published_run(config, config.owner, chain, open_pointer, saved_runs(home), {} if read is None else read)
    _belongs(run.first, config, chain.genesis())
    return RunFile(folder_of(home, run.id)).load() or run


def require_protocol(run: Run, round: int) -> None:
    """Raise UpdateNeeded if this release cannot take part in `round`."""
    spec = run.spec_at(round)
    if not spec.min_protocol <= PROTOCOL_VERSION <= spec.max_protocol:
        raise UpdateNeeded(
            f"from round {round} on the run needs protocol {spec.min_protocol} to {spec.max_protocol}, this release "
            f"speaks {PROTOCOL_VERSION}: update Murmuration and start again; nothing is lost"
        )


def blob_fetcher(bucket: Bucket, bytes_per_second: float) -> Fetch:
    """Return a fetch hook for checkpoints: it writes blobs of a bucket into files, whole or not at all."""

    def fetch(digest: Digest, max_bytes: int, path: Path) -> None:
        files.write(path, fetch_blob(bucket, digest, max_bytes, FETCH_SECONDS + max_bytes / bytes_per_second))

    return fetch


def _belongs(spec: RunSpec, config: NetworkConfig, genesis: bytes) -> None:
    if bytes.fromhex(spec.chain) != genesis:
        raise ConfigError(
            f"the spec of run {spec.name} is for the chain {spec.chain[:16]}.., but {config.network} is "
            f"{genesis.hex()[:16]}..: set --network to the run's chain"
        )
    if spec.netuid != config.netuid:
        raise ConfigError(
            f"run {spec.name} is on subnet {spec.netuid}, but {config.netuid} is configured: set --netuid"
        )
    if spec.local and not is_local(config.network):
        raise ConfigError(f"run {spec.name} is a local run, but {config.network} is not a chain on this machine")


def _published_run(
    config: NetworkConfig,
    owner: str,
    chain: Chain,
    open_pointer: Opener,
    saved: Sequence[Run],
    read: dict[Digest, bytes],
) -> Run:
    """Return the saved run that the owner's digest leads to, else the first spec that it leads back to."""
    head = chain.finalized().block
    peers = chain.peers(head)
    try:
        owner_id = peer_id(owner)
    except ValueError as fault:
        raise ConfigError(f"--owner: {fault}") from None
    slot = owner_slot(owner_id, peers)
    named = slot.amendment if slot is not None else None
    genesis = chain.genesis().hex()
    ours = [r for r in saved if (r.first.owner_id, r.first.chain, r.first.netuid) == (owner_id, genesis, config.netuid)]
    known = {digest: run for run in ours for digest in (run.id, *(a.digest for a in run.amendments))}
    if named is None:
        if ours:
            return ours[0]
        raise ConfigError(f"the owner {owner} names no run in its slot on chain: ask it, or use --spec")
    # The run defines which validators count: while none is known, only the owner is asked.
    sources = sources_as_of(ours[0], head, peers, open_pointer) if ours else Sources(peers, open_pointer)
    reader = Reader(owner_id, sources, read, MAX_AMENDMENTS, REAL)
    try:
        for _ in range(MAX_AMENDMENTS + 1):
            if named in known:
                return known[named]
            data = reader.blob(named, SPEC_MAX_BYTES)
            try:
                named = Digest(bytes.fromhex(parse_amendment(data, named).previous))
            except InvalidMessage:
                return Run(parse_spec(data, named))
    except StorageError as fault:
        if not ours:
            raise
        logger.warning("the owner's bucket cannot be read: {fault}; keeping the run known here", fault=str(fault))
        return ours[0]
    raise ConfigError(f"the run has more than {MAX_AMENDMENTS} amendments")
