"""Checkpoints of the run's state in validators' buckets: the starts of joiners (docs/protocol.md section 8).

Every validator keeps one signed document under a fixed key. It lists the last states that it published completely, with
their files (murmur/training/checkpoint.py) as blobs, and its state in many more rounds. This is all a claim until the
theta that follows from a state has been compared with the chain's (murmur/node/sync/catchup.py). May not publish
anything: murmur/rounds/checkpoints.py does.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gauntlet.agreement import electorate
from murmur.data.shards import Fetch
from murmur.node.chain.follower import Follower
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.node.state.saved import Snapshot
from murmur.node.sync.run_discovery import blob_fetcher
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError, InvalidMessage, StorageError
from murmur.protocol.messages import NO_ROUND, encode_signed, parse_signed
from murmur.protocol.ports import Signer, Verify
from murmur.protocol.types import DIGEST_BYTES, Digest, Peer, PeerId
from storage.collect import gather
from storage.exchange import Data, Wanted
from storage.s3 import RangedBucket

DOCUMENT_MAX_BYTES = 1 << 17
CHECKPOINTS_KEPT = 3
"""Each is as large as the model. More than one, since the newest may be of a state that only a minority holds."""
STATES_TOLD = 64
FETCH_SECONDS = 30.0
RETAINED_ROUNDS = 8
"""Payloads, keys and mirrors are kept this many rounds longer than joiners and the interval of checkpoints need."""
RETAINED_INTERVALS = 16
"""While no newer checkpoint is published, they are kept for at most this many intervals of checkpoints, and
RETAINED_ROUNDS: a bucket is finite."""
_COUNTS = struct.Struct("<3I")
_CHECKPOINT = struct.Struct("<2I32s32s")
_DOCUMENT = "states"
"""In the head of a document that belongs to no one round."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete published state at the start of `round`. `link`: to the last selection before it. `state`: digest of
    its manifest; `files`: digests of all its files, with the manifest."""

    round: int
    link: Digest
    state: Digest
    files: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """The states that a validator shows.

    `checkpoints`: the newest first. `states`: (link, state) of its rounds, the newest last; two validators that follow
    the run name the same state for a link, whether or not they published it. `loose`: blobs that may be in its bucket
    although no checkpoint names them: it was killed before it deleted them, or is publishing them.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    states: tuple[tuple[Digest, Digest], ...] = ()
    loose: tuple[Digest, ...] = ()

    @property
    def newest(self) -> int:
        """The round of the newest checkpoint; 0 without one: the owner has theta_0."""
        return max((checkpoint.round for checkpoint in self.checkpoints), default=0)


def encode_shown(shown: Shown, run: Digest, signer: Signer) -> bytes:
    """Return the signed document: how many checkpoints, states and loose files there are; of each checkpoint its round,
    how many files it has, link and manifest; then all digests, of the checkpoints' files, the states and the loose
    files."""
    head = _COUNTS.pack(len(shown.checkpoints), len(shown.states), len(shown.loose))
    checkpoints = [_CHECKPOINT.pack(c.round, len(c.files), c.link, c.state) for c in shown.checkpoints]
    files = [file for c in shown.checkpoints for file in c.files]
    states = [digest for pair in shown.states for digest in pair]
    return encode_signed(
        _DOCUMENT, run, NO_ROUND, b"".join([head, *checkpoints, *files, *states, *shown.loose]), signer
    )


def parse_shown(data: bytes, run: Digest, peer: PeerId, verify: Verify) -> Shown:
    """Inverse of `encode_shown`, for a document that `peer` signed. Raises InvalidMessage."""
    if len(data) > DOCUMENT_MAX_BYTES:
        raise InvalidMessage("a document of states that is too long")
    content = parse_signed(data, _DOCUMENT, run, NO_ROUND, peer, verify)
    try:
        num_checkpoints, num_states, num_loose = _COUNTS.unpack_from(content)
        if num_checkpoints > CHECKPOINTS_KEPT or num_states > STATES_TOLD:
            raise InvalidMessage("a document of more states than anybody keeps")
        heads = [
            _CHECKPOINT.unpack_from(content, _COUNTS.size + number * _CHECKPOINT.size)
            for number in range(num_checkpoints)
        ]
    except struct.error:
        raise InvalidMessage("a document of states that is cut short") from None
    first = _COUNTS.size + num_checkpoints * _CHECKPOINT.size
    num_files = sum(count for _, count, _, _ in heads)
    if len(content) != first + DIGEST_BYTES * (num_files + 2 * num_states + num_loose):
        raise InvalidMessage("a document of states that holds more or less than it says")
    digests = (Digest(content[at : at + DIGEST_BYTES]) for at in range(first, len(content), DIGEST_BYTES))
    checkpoints = tuple(
        Checkpoint(round, Digest(link), Digest(state), tuple(islice(digests, count)))
        for round, count, link, state in heads
    )
    states = tuple((next(digests), next(digests)) for _ in range(num_states))
    return Shown(checkpoints, states, tuple(digests))


def shown_by_all(follower: Follower, sources: Sources, seconds: float) -> dict[PeerId, Shown]:
    """Return the documents of the validators that can be read within `seconds`; all are asked concurrently."""
    run, found = follower.run.id, dict[PeerId, Shown]()

    def accept(holder: PeerId) -> Callable[[Data], bool]:
        def check(data: Data) -> bool:
            with suppress(InvalidMessage):
                found[holder] = parse_shown(bytes(data), run, holder, follower.ports.verify)
            return holder in found

        return check

    gather(
        [
            Wanted(holder, sources.own(holder, keys.checkpoints(run)), DOCUMENT_MAX_BYTES, accept(holder), exact=False)
            for holder in sources.validators()
        ],
        timeout_seconds=seconds,
        max_threads=FETCH_THREADS,
        time=follower.time,
    )
    return dict(found)


# --- starting from one -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """A state to start from: our own, which is in place (`snapshot` is None), a checkpoint's or genesis, on disk or
    fetched through `fetch`. A published one is a claim until the replayed theta has been compared with the chain's."""

    round: int
    link: Digest
    snapshot: Snapshot | None
    origin: str
    fetch: Fetch | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A published state. The agreed selections define its round: a validator may claim any number."""

    link: Digest
    state: Digest
    fetch: Fetch
    holders: frozenset[PeerId] = frozenset()

    def at(self, round: int) -> Start:
        """Return the start from it in `round`, the first one after its link that changes it."""
        snapshot = Snapshot(round, self.link, self.state)
        return Start(round, self.link, snapshot, f"the checkpoint of round {round}", self.fetch)


def published_starts(
    follower: Follower, stakes: Mapping[PeerId, int], sources: Sources, shown: Mapping[PeerId, Shown]
) -> tuple[list[Offer], list[Offer], list[Offer]]:
    """Return every published checkpoint once, in three lists. First: more than half of the stake names its state.
    Second: no more stake names another state for its link. Third: the rest. Each list is sorted by the stake that names
    the state, the most first: a joiner must not download the model from every liar before it reaches the honest
    majority. `stakes`: of the validators that count."""
    backing: dict[Digest, dict[Digest, int]] = {}
    holders: dict[tuple[Digest, Digest], list[PeerId]] = {}
    for holder in sources.validators():
        if holder not in shown:
            continue
        put_up = {(checkpoint.link, checkpoint.state) for checkpoint in shown[holder].checkpoints}
        for state in sorted(put_up):
            holders.setdefault(state, []).append(holder)
        for link, digest in sorted({*put_up, *shown[holder].states}):
            named = backing.setdefault(link, {})
            named[digest] = named.get(digest, 0) + stakes.get(holder, 0)
    named_by_most: list[Offer] = []
    likely: list[Offer] = []
    doubted: list[Offer] = []
    for link, digest in sorted(holders, key=lambda state: (-backing[state[0]][state[1]], state)):
        buckets = [opener for holder in holders[link, digest] if (opener := sources.bucket_of(holder)) is not None]
        shown_by = frozenset(holders[link, digest])
        offer, stake = Offer(link, digest, fetcher(follower, buckets), shown_by), backing[link][digest]
        if 2 * stake > sum(stakes.values()):
            named_by_most.append(offer)
        else:
            (likely if stake == max(backing[link].values()) else doubted).append(offer)
    return named_by_most, likely, doubted


def fetcher(follower: Follower, buckets: Sequence[Callable[[], RangedBucket]]) -> Fetch:
    """Return a fetch hook for the files of a checkpoint in these buckets. All files together have a deadline: about
    four times the planned time of the model on the spec's slowest link."""
    spec, time = follower.run.first, follower.time
    seconds = FETCH_SECONDS + 4 * state_bytes(follower) * 8e-6 / spec.clock.download_mbps
    began: list[float] = []
    order = list(buckets)
    """Buckets that failed come last."""

    def fetch(digest: Digest, max_bytes: int, path: Path) -> None:
        began.append(time.now())
        faults: list[str] = []
        for opener in tuple(order):
            if time.now() > began[0] + seconds:
                raise StorageError(f"a checkpoint could not be fetched within {seconds:.0f} s")
            try:
                return blob_fetcher(opener(), spec.clock.download_mbps * 1e6 / 8 / 4)(digest, max_bytes, path)
            except (StorageError, ConfigError) as fault:
                faults.append(str(fault))
                order.remove(opener)
                order.append(opener)
        raise StorageError(f"a file of a checkpoint is in none of {len(buckets)} buckets ({'; '.join(faults[:2])})")

    return fetch


def state_bytes(follower: Follower) -> int:
    """Return about the bytes of a checkpoint: theta in fp32."""
    return 4 * follower.run.layout.num_parameters


# --- retention ---------------------------------------------------------------------------------------------------


def kept_from(every: int, round: int, published: int) -> int:
    """Return the first round whose payloads, keys, claims and mirrors are kept in `round`. `published` is the round of
    the newest checkpoint and `every` their interval. The rounds that a joiner applies to that checkpoint are kept,
    unless they are older than RETAINED_INTERVALS."""
    wanted = min(published, round - every) - RETAINED_ROUNDS
    return max(0, wanted, round - RETAINED_INTERVALS * every - RETAINED_ROUNDS)


def counted_stakes(follower: Follower, round: int, peers: Sequence[Peer]) -> Mapping[PeerId, int]:
    """Return the counted stake of each validator in `round`; 1 each if none has stake. `peers` as of its commit
    deadline."""
    stakes = electorate(follower.run, round, peers)
    return stakes if any(stakes.values()) else dict.fromkeys(stakes, 1)


def published_by_most(follower: Follower, round: int, seconds: float) -> int:
    """Return the newest round for which validators with more than half of the counted stake show a checkpoint of it or
    a newer one; 0 if there is none. A claim by fewer may be false. Takes at most `seconds`; raises ChainError."""
    peers = follower.ports.chain.peers(follower.clock.commit_deadline(round))
    stakes = counted_stakes(follower, round, peers)
    shown = shown_by_all(follower, follower.sources(follower.clock.commit_deadline(round)), seconds)
    behind = 0
    for newest, stake in sorted(((shown[peer].newest, stakes.get(peer, 0)) for peer in shown), reverse=True):
        behind += stake
        if 2 * behind > sum(stakes.values()):
            return newest
    return 0
