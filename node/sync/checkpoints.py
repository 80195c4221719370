"""Checkpoints of the run's state in validators' buckets: what joiners start from (docs/protocol.md section 8).

Every validator keeps one signed document under a key that never changes: the last states that it put up whole, files
(training/checkpoint.py) as blobs, and of many more rounds which state it stood at. All of it is anybody's claim until
the theta that follows from a state has been compared with the chain's (node/sync/catchup.py). May not publish anything:
rounds/checkpoints.py does.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gauntlet.agreement import electorate
from node.chain.follower import Follower
from node.fetch.payloads import MAX_THREADS
from node.fetch.sources import Sources
from node.state.saved import Snapshot
from node.sync.run_discovery import blob_fetcher
from protocol import keys
from protocol.errors import ConfigError, InvalidMessage, StorageError
from protocol.messages import encode_document, parse_document
from protocol.ports import Signer, Verify
from protocol.types import DIGEST_BYTES, Digest, Peer, PeerId
from storage.collect import gather
from storage.exchange import Data, Wanted
from storage.s3 import RangedBucket
from training.shards import Fetch

DOCUMENT_MAX_BYTES = 1 << 17
CHECKPOINTS_KEPT = 3
"""Each is as large as the model. More than one, since the newest may be of a state that most do not hold."""
STATES_TOLD = 64
FETCH_SECONDS = 30.0
RETAINED_ROUNDS = 8
"""Payloads, keys and mirrors are kept so many rounds longer than joiners and the interval of checkpoints need."""
RETAINED_INTERVALS = 16
"""So many intervals of checkpoints, and RETAINED_ROUNDS, they are kept while no newer checkpoint is published; then
they go all the same: a bucket is not endless."""
_DOCUMENT = "states"
_NO_ROUND = 0
"""In the head of a document that is of no one round."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state at the start of `round`, put up whole. `link`: to the last selection before it. `state`: the digest
    of its manifest, `files`: of all its files, the manifest's among them."""

    round: int
    link: Digest
    state: Digest
    files: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a validator shows of its states.

    `checkpoints`: the newest first. `states`: (link, state) wherever it stood, the newest last: two that follow the run
    name the same state for a link, whoever of them has put it up. `loose`: blobs that may lie in its bucket although no
    checkpoint names them, for itself, should it be killed before it has deleted them.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    states: tuple[tuple[Digest, Digest], ...] = ()
    loose: tuple[Digest, ...] = ()

    @property
    def newest(self) -> int:
        """The round of the newest checkpoint; 0 without one: theta_0 is to be had from the owner."""
        return max((checkpoint.round for checkpoint in self.checkpoints), default=0)


def encode_shown(shown: Shown, run: Digest, signer: Signer) -> bytes:
    """The signed document."""
    body = {
        "checkpoints": [
            {"round": c.round, "link": c.link.hex(), "state": c.state.hex(), "files": [file.hex() for file in c.files]}
            for c in shown.checkpoints
        ],
        "states": [[link.hex(), state.hex()] for link, state in shown.states],
        "loose": [file.hex() for file in shown.loose],
    }
    return encode_document(_DOCUMENT, run, _NO_ROUND, body, signer)


def parse_shown(data: bytes, run: Digest, peer: PeerId, verify: Verify) -> Shown:
    """Inverse of `encode_shown`, of a document that `peer` signed. Raises InvalidMessage."""
    body = parse_document(data, _DOCUMENT, run, _NO_ROUND, peer, verify)
    try:
        shown = Shown(
            tuple(_checkpoint(entry) for entry in body["checkpoints"]),
            tuple((_digest(link), _digest(state)) for link, state in body["states"]),
            tuple(_digest(file) for file in body["loose"]),
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidMessage("a document of states without links, states or files") from None
    if len(shown.checkpoints) > CHECKPOINTS_KEPT or len(shown.states) > STATES_TOLD:
        raise InvalidMessage("a document of more states than anybody keeps")
    return shown


def _checkpoint(entry: Any) -> Checkpoint:
    round = entry["round"]
    if type(round) is not int or not 0 <= round < 1 << 32:
        raise ValueError("no round")
    return Checkpoint(
        round, _digest(entry["link"]), _digest(entry["state"]), tuple(_digest(file) for file in entry["files"])
    )


def _digest(text: Any) -> Digest:
    digest = bytes.fromhex(text)
    if len(digest) != DIGEST_BYTES:
        raise ValueError("no digest")
    return Digest(digest)


def shown_by_all(follower: Follower, sources: Sources, seconds: float) -> dict[PeerId, Shown]:
    """What the validators show, as far as it can be read within `seconds`; all are asked beside each other."""
    run, found = follower.run.id, dict[PeerId, Shown]()

    def accept(holder: PeerId) -> Callable[[Data], bool]:
        def check(data: Data) -> bool:
            with suppress(InvalidMessage):
                found[holder] = parse_shown(bytes(data), run, holder, follower.doors.verify)
            return holder in found

        return check

    gather(
        [
            Wanted(holder, sources.own(holder, keys.checkpoints(run)), DOCUMENT_MAX_BYTES, accept(holder), exact=False)
            for holder in sources.validators()
        ],
        timeout_seconds=seconds,
        max_threads=MAX_THREADS,
        time=follower.time,
    )
    return dict(found)


# --- starting from one -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """A state to start from: our own, which is in place (`snapshot` is None), a checkpoint's or genesis, on disk or to
    be had through `fetch`. A published one is anybody's claim until the replayed theta has been compared with the
    chain's."""

    round: int
    link: Digest
    snapshot: Snapshot | None
    origin: str
    fetch: Fetch | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A state that is shown. Of which round it is the agreed selections say: whoever shows it may say any number."""

    link: Digest
    state: Digest
    fetch: Fetch
    holders: frozenset[PeerId] = frozenset()

    def at(self, round: int) -> Start:
        """To start from it in `round`, the first one after its link that changes it."""
        snapshot = Snapshot(round, self.link, self.state)
        return Start(round, self.link, snapshot, f"the checkpoint of round {round}", self.fetch)


def published_starts(
    follower: Follower, stakes: Mapping[PeerId, int], sources: Sources, shown: Mapping[PeerId, Shown]
) -> tuple[list[Offer], list[Offer], list[Offer]]:
    """Every checkpoint that is shown, whoever shows it, once: those whose state more than half of the stake names,
    those for whose link no more stake names another state, and the rest. Each by the stake that names their state, the
    most first: a joiner must not download the model from every liar before it comes to those who are of one mind.
    `stakes`: of those who count."""
    backing: dict[Digest, dict[Digest, int]] = {}
    holders: dict[tuple[Digest, Digest], list[PeerId]] = {}
    for holder in sources.validators():
        if holder not in shown:
            continue
        put_up = {(checkpoint.link, checkpoint.state) for checkpoint in shown[holder].checkpoints}
        for state in put_up:
            holders.setdefault(state, []).append(holder)
        for link, digest in {*put_up, *shown[holder].states}:
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
    """A fetch hook for the files of a checkpoint that lies in these buckets. From the first file on, all of them take
    at most four times what the spec's slowest planned link needs for the model."""
    spec, time = follower.run.first, follower.time
    seconds = FETCH_SECONDS + 4 * state_bytes(follower) * 8e-6 / spec.clock.download_mbps
    began: list[float] = []
    order = list(buckets)
    """Those that failed last."""

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
    """About what a checkpoint takes: theta in fp32."""
    return 4 * follower.run.layout.num_parameters


# --- retention ---------------------------------------------------------------------------------------------------


def kept_from(every: int, round: int, published: int) -> int:
    """The first round whose payloads, keys, claims and mirrors are kept in `round`, when `published` is the round of
    the newest checkpoint and `every` their interval: what a joiner applies to it is not deleted, unless it is older
    than RETAINED_INTERVALS."""
    wanted = min(published, round - every) - RETAINED_ROUNDS
    return max(0, wanted, round - RETAINED_INTERVALS * every - RETAINED_ROUNDS)


def counted_stakes(follower: Follower, round: int, peers: Sequence[Peer]) -> Mapping[PeerId, int]:
    """Who counts how much in `round`, by heads where nobody has stake. `peers` as of its D."""
    stakes = electorate(follower.run, round, peers)
    return stakes if any(stakes.values()) else dict.fromkeys(stakes, 1)


def published_by_most(follower: Follower, round: int, seconds: float) -> int:
    """The newest round of which validators with more than half of the counted stake show a checkpoint, or a newer one:
    what fewer say may be untrue. 0 when they do not. Takes at most `seconds`; raises ChainError."""
    peers = follower.doors.chain.peers(follower.clock.commit_by(round))
    stakes = counted_stakes(follower, round, peers)
    shown = shown_by_all(follower, follower.sources(follower.clock.commit_by(round)), seconds)
    behind = 0
    for newest, stake in sorted(((shown[peer].newest, stakes.get(peer, 0)) for peer in shown), reverse=True):
        behind += stake
        if 2 * behind > sum(stakes.values()):
            return newest
    return 0
