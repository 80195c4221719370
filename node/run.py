"""Finding the run: its spec from a file or through the owner's slot on chain, its amendments, its data."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from loguru import logger

from node.adapters import Doors, is_local
from node.config import NetworkConfig
from protocol import keys
from protocol.errors import ChainError, ConfigError, InvalidMessage, MurmurError, StorageError, UpdateNeeded
from protocol.ports import Bucket
from protocol.run import Amendment, Run, parse_amendment
from protocol.spec import PROTOCOL_VERSION, RunSpec, parse_spec, parse_toml
from protocol.types import Digest, Peer, PeerId, hotkey, peer_id
from training.shards import Fetch, Shards

SPEC_MAX_BYTES = 1 << 20
MAX_AMENDMENTS = 256
FETCH_SECONDS = 60.0


def find_run(config: NetworkConfig, doors: Doors) -> Run:
    """The run that this node is configured for, amendments included. Raises ConfigError when there is none or when it
    belongs to another chain, subnet or protocol version."""
    peers = doors.chain.peers(doors.chain.finalized().block)
    if config.spec is not None:
        try:
            text = config.spec.expanduser().read_text(encoding="utf-8")
        except OSError as fault:
            raise ConfigError(f"cannot read the run spec {config.spec}: {fault.strerror}") from None
        run = Run(parse_toml(text, str(config.spec)))
    else:
        assert config.owner is not None
        run = _published_run(config.owner, peers, doors)
    _belongs(run.first, config, doors.chain.genesis())
    return refreshed(run, peers, doors)


def refreshed(run: Run, peers: tuple[Peer, ...], doors: Doors) -> Run:
    """The run with all amendments that the owner's slot names by now. One that cannot be read, or that is not valid,
    changes nothing: what one account writes must not stop every node."""
    named = _owner_digest(run.first.owner_id, peers)
    if named is None or named == run.head:
        return run
    try:
        fresh = _amendments_since(run, named, _owner_bucket(run.first.owner_id, peers, doors))
        return run.amended(_in_time(run, fresh, doors))
    except MurmurError as fault:
        logger.warning("the run's amendment cannot be used: {fault}; going on with the spec known", fault=str(fault))
        return run


def _in_time(run: Run, fresh: Sequence[Amendment], doors: Doors) -> list[Amendment]:
    """The amendments up to the first that came too late: one that changes round r has to stand in the owner's slot
    before round r-1 starts (docs/protocol.md section 0), or nodes that read it on either side of a round would part.
    What the chain has pruned cannot be judged any more and is taken as the others took it."""
    good: list[Amendment] = []
    for at, amendment in enumerate(fresh):
        last = run.clock.start(amendment.from_round - 1) - 1
        if amendment.changes and doors.chain.finalized().block > last:
            try:
                then = _owner_digest(run.first.owner_id, doors.chain.peers(last))
            except ChainError:
                then = amendment.digest
            if then not in {later.digest for later in fresh[at:]}:
                logger.error(
                    "the owner's amendment for round {round} came after block {last}: it is not followed",
                    round=amendment.from_round,
                    last=last,
                )
                break
        good.append(amendment)
    return good


def require_protocol(run: Run, round: int) -> None:
    """Raise UpdateNeeded when this release cannot take part in `round`."""
    spec = run.spec_at(round)
    if not spec.min_protocol <= PROTOCOL_VERSION <= spec.max_protocol:
        raise UpdateNeeded(
            f"from round {round} on the run needs protocol {spec.min_protocol} to {spec.max_protocol}, this release "
            f"speaks {PROTOCOL_VERSION}: update Murmuration and start again; nothing is lost"
        )


def fetch_blob(bucket: Bucket, digest: Digest, max_bytes: int, timeout_seconds: float) -> bytes:
    """Content-addressed bytes from a bucket. Raises StorageError when they are not there or not what they claim."""
    data = bucket.get(keys.blob(digest), max_bytes=max_bytes, timeout_seconds=timeout_seconds)
    if sha256(data).digest() != digest:
        raise StorageError(f"an object does not hash to its name {digest.hex()}: its bucket serves other bytes")
    return data


def blob_fetcher(bucket: Bucket, bytes_per_second: float) -> Fetch:
    """A fetch hook for shards and checkpoints: blobs of a bucket into files, written whole or not at all."""

    def fetch(digest: Digest, max_bytes: int, path: Path) -> None:
        data = fetch_blob(bucket, digest, max_bytes, FETCH_SECONDS + max_bytes / bytes_per_second)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a row that names this file must never reach the disk before it
        os.replace(partial, path)

    return fetch


def open_data(config: NetworkConfig, run: Run, doors: Doors, home: Path) -> Shards:
    """The run's shards: the configured folder, or `home`/data, filled from the owner's bucket as pages are needed."""
    spec = run.first
    index = Digest(bytes.fromhex(spec.data.index))
    if config.data is not None:
        shards = Shards.open(config.data.expanduser(), index_digest=index)
    else:
        bucket = _owner_bucket(spec.owner_id, doors.chain.peers(doors.chain.finalized().block), doors)
        slowest = spec.clock.download_mbps * 1e6 / 8 / 4
        shards = Shards.open(
            home / "data" / spec.data.index[:16], index_digest=index, fetch=blob_fetcher(bucket, slowest)
        )
    shards.check(spec)
    return shards


def _belongs(spec: RunSpec, config: NetworkConfig, genesis: bytes) -> None:
    if bytes.fromhex(spec.chain) != genesis:
        raise ConfigError(
            f"the spec of run {spec.name} is for the chain {spec.chain[:16]}.., but {config.network} is "
            f"{genesis.hex()[:16]}..: set --network to the run's chain"
        )
    if spec.netuid != config.netuid:
        raise ConfigError(f"run {spec.name} is on subnet {spec.netuid}, configured is {config.netuid}: set --netuid")
    if spec.local and not is_local(config.network):
        raise ConfigError(f"run {spec.name} is a local run, but {config.network} is not a chain on this machine")


def _owner_digest(owner: PeerId, peers: tuple[Peer, ...]) -> Digest | None:
    for peer in peers:
        if peer.id == owner and peer.slot is not None:
            return peer.slot.amendment
    return None


def _owner_bucket(owner: PeerId, peers: tuple[Peer, ...], doors: Doors) -> Bucket:
    for peer in peers:
        if peer.id == owner and peer.slot is not None and peer.slot.pointer is not None:
            return doors.open_pointer(peer.slot.pointer)
    raise ConfigError(
        f"the run's owner {hotkey(owner)} has published no bucket on this subnet: check --owner and --netuid, or use "
        "--spec and --data"
    )


def _published_run(owner: str, peers: tuple[Peer, ...], doors: Doors) -> Run:
    """Follow the owner's digest back through the amendments to the first spec."""
    try:
        owner_id = peer_id(owner)
    except ValueError as fault:
        raise ConfigError(f"--owner: {fault}") from None
    bucket = _owner_bucket(owner_id, peers, doors)
    named = _owner_digest(owner_id, peers)
    if named is None:
        raise ConfigError(f"the owner {owner} names no run in its slot on chain: ask it, or use --spec")
    amendments: list[Amendment] = []
    try:
        while True:
            data = fetch_blob(bucket, named, SPEC_MAX_BYTES, FETCH_SECONDS)
            try:
                amendments.append(parse_amendment(data, named))
            except InvalidMessage:
                run = Run(parse_spec(data, named))
                break
            named = Digest(bytes.fromhex(amendments[-1].previous))
            if len(amendments) > MAX_AMENDMENTS:
                raise ConfigError(f"the run has more than {MAX_AMENDMENTS} amendments")
    except StorageError as fault:
        raise ConfigError(f"the run's spec cannot be read from its owner's bucket: {fault}") from None
    return run.amended(amendments[::-1])


def _amendments_since(run: Run, named: Digest, bucket: Bucket) -> list[Amendment]:
    known = {run.id, *(amendment.digest for amendment in run.amendments)}
    fresh: list[Amendment] = []
    try:
        while named not in known and len(fresh) <= MAX_AMENDMENTS:
            fresh.append(parse_amendment(fetch_blob(bucket, named, SPEC_MAX_BYTES, FETCH_SECONDS), named))
            named = Digest(bytes.fromhex(fresh[-1].previous))
    except MurmurError as fault:
        logger.warning("the run's amendment cannot be read: {fault}; going on with the spec known", fault=str(fault))
        return []
    if named != run.head:
        logger.warning("the owner's slot does not follow on from the run known; going on with the spec known")
        return []
    return fresh[::-1]
