"""What the chain says of a run's states: which are claimed for the start of a round, and by which agreed records they
came about, read back from the newest (docs/protocol.md section 8)."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from loguru import logger

from gauntlet.agreement import Claim, claims
from node.checkpoints import FETCH_SECONDS
from node.follower import QUIET_SECONDS, Follower
from node.payloads import MAX_THREADS
from node.sources import Sources
from protocol import keys
from protocol.errors import ChainError, InvalidMessage, OutOfSync, StorageError
from protocol.messages import LINK_MAX_BYTES, Link, first_link, parse_link
from protocol.types import Attestation, Digest, Peer, PeerId, Record
from storage.collect import first
from storage.exchange import Data, Wanted

LINK_SECONDS = 1.0
"""What a walk along the links may take for each on average, beside FETCH_SECONDS."""


def newest_decided(follower: Follower) -> int:
    """The newest round whose attestations are final; -1 before the first."""
    head = follower.head()
    round = follower.clock.round_at(head)
    return round if head >= follower.clock.attest_by(round) else round - 1


def newest_claims(follower: Follower, newest: int) -> tuple[int, tuple[Claim, ...]]:
    """The newest round up to `newest` with a statement made in time, and what is worth following of the claims for its
    start, the most staked first; -1 for none. A slot keeps its last statement, however long its author has been silent,
    so one look at the newest round's X does."""
    peers = follower.doors.chain.peers(follower.clock.attest_by(newest))
    stated = {
        peer.slot.statement.round
        for peer in peers
        if peer.slot is not None and isinstance(peer.slot.statement, Record | Attestation)
    }
    for round in sorted(stated, reverse=True):
        if round <= newest and (found := claims(follower.run, round, at_commit(follower, round), peers)):
            total = sum(found.values())
            return round, tuple(claim for claim, stake in found.items() if 2 * stake >= total)[: 2 if total else 1]
    return -1, ()


def at_commit(follower: Follower, round: int) -> Sequence[Peer]:
    """Whose stake counts in `round`; nobody's where the chain's node has pruned that: then stake as of now orders."""
    try:
        return follower.doors.chain.peers(follower.clock.commit_by(round))
    except ChainError:
        return ()


class Records:
    """The agreed records that lead to a claim, from the newest back, read as far as anybody asks. Each is authenticated
    by the one after it, so whoever has one will do: all validators are asked beside each other."""

    def __init__(self, follower: Follower, claim: Claim, round: int, sources: Sources) -> None:
        self._follower, self._claim, self._sources = follower, claim, sources
        self._below = round
        self._links: list[Link] = []
        """The newest first."""
        self._ended = False
        """Whether nobody gives us more."""
        self._giver: PeerId | None = None
        """Who had the last one; asked alone at first for the next."""
        self._began = self._told = follower.time.now()

    def links(self) -> Iterator[tuple[Digest, list[Link]]]:
        """Every link on the way back, from the claimed one to the run's first, and the records after it, the oldest
        first. Ends early where nobody has the next record, or where it cannot be of this run."""
        link, depth = self._claim[1], 0
        while True:
            yield link, self._links[:depth][::-1]
            if link == first_link(self._follower.run.id):
                return
            if depth == len(self._links):
                try:
                    if self._ended:
                        return
                    self._links.append(self._read(link))
                except (StorageError, OutOfSync) as fault:
                    self._ended = True
                    logger.warning("the agreed records cannot be followed further back: {fault}", fault=str(fault))
                    return
            link, depth = self._links[depth].record.previous, depth + 1

    def _read(self, link: Digest) -> Link:
        time = self._follower.time
        left = self._began + FETCH_SECONDS + LINK_SECONDS * len(self._links) - time.now()
        if left <= 0:
            raise StorageError(f"only {len(self._links)} agreed records could be had in time")
        if time.now() - self._told > QUIET_SECONDS:
            self._told = time.now()
            logger.info(
                "catching up: reading the agreed records back, at round {round}, {count} so far",
                round=self._below,
                count=len(self._links),
            )
        found = self._ask(link, left)
        if found.record.round >= self._below:
            raise OutOfSync(f"the chain of records does not lead back: round {found.record.round} before {self._below}")
        self._below = found.record.round
        return found

    def _ask(self, link: Digest, left: float) -> Link:
        """The record under this link, from whoever gives it first."""
        key, validators = keys.statement(self._follower.run.id, link), self._sources.validators()
        rest = [holder for holder in validators if holder != self._giver]
        for holders in ([self._giver] if self._giver is not None else [], rest):
            found = first(
                [
                    Wanted(holder, self._sources.own(holder, key), LINK_MAX_BYTES, _is_link(link), exact=False)
                    for holder in holders
                ],
                timeout_seconds=left if holders is rest else min(left, QUIET_SECONDS),
                max_threads=MAX_THREADS,
                time=self._follower.time,
            )
            if found is not None:
                self._giver = found[0]
                return parse_link(bytes(found[1]), link)
        raise StorageError(
            f"the agreed record {link.hex()[:16]} before round {self._below} is in none of {len(validators)} "
            "validators' buckets"
        )


def hashes_to(digest: Digest) -> Callable[[Data], bool]:
    return lambda data: sha256(data).digest() == digest


def _is_link(link: Digest) -> Callable[[Data], bool]:
    def check(data: Data) -> bool:
        try:
            parse_link(bytes(data), link)
        except InvalidMessage:
            return False
        return True

    return check
