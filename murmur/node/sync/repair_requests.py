"""Payloads that a node lacks: a signed list in its own bucket, so that nodes that hold one copy it (docs/protocol.md
section 6). The list is a claim; a false one costs the nodes that believe it one upload of bytes that they hold."""

import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from loguru import logger

from murmur.node.chain.follower import Follower
from murmur.node.fetch.sources import Sources
from murmur.protocol import keys
from murmur.protocol.errors import InvalidMessage, ObjectMissing, StorageError
from murmur.protocol.messages import DOCUMENT_HEAD_BYTES, NO_ROUND, encode_signed, parse_signed
from murmur.protocol.ports import Signer, Time, Verify
from murmur.protocol.types import MAX_UIDS, Digest, PeerId
from storage.collect import gather
from storage.exchange import Data, Wanted

Place = tuple[int, PeerId]
"""The round and the peer of a payload."""

MOST_WANTED = MAX_UIDS
"""As many as a selection can name."""
_PLACE = struct.Struct("<I32s")
DOCUMENT_MAX_BYTES = DOCUMENT_HEAD_BYTES + MOST_WANTED * _PLACE.size
_DOCUMENT = "wanted"
"""In the head of a document that belongs to no one round."""
_THREADS = 64


def encode_wanted(wanted: Collection[Place], run: Digest, signer: Signer) -> bytes:
    """Return the signed list: round and hotkey of each payload, in order."""
    places = b"".join(_PLACE.pack(round, peer) for round, peer in sorted(wanted)[:MOST_WANTED])
    return encode_signed(_DOCUMENT, run, NO_ROUND, places, signer)


def parse_wanted(data: bytes, run: Digest, peer: PeerId, verify: Verify) -> frozenset[Place]:
    """Inverse of `encode_wanted`, for a list that `peer` signed. Raises InvalidMessage."""
    if len(data) > DOCUMENT_MAX_BYTES:
        raise InvalidMessage("a list of more payloads than a selection can name")
    places = parse_signed(data, _DOCUMENT, run, NO_ROUND, peer, verify)
    if len(places) % _PLACE.size:
        raise InvalidMessage("a list of wanted payloads that is cut short")
    found = [(round, PeerId(lacked)) for round, lacked in _PLACE.iter_unpack(places)]
    if found != sorted(set(found)):
        raise InvalidMessage("a list of wanted payloads that is not in order")
    return frozenset(found)


def say_wanted(follower: Follower, round: int, peers: Collection[PeerId]) -> bool:
    """Publish that we lack the payloads of these peers in `round`. Return whether our bucket took the list."""
    ports, run = follower.ports, follower.run
    logger.info(
        "round {round}: {count} payloads are in none of the buckets that we can read: asking for copies",
        round=round,
        count=len(peers),
    )
    follower.may_want = True
    said = encode_wanted([(round, peer) for peer in peers], run.id, ports.signer)
    try:
        # One try: the caller has other things to do, and a vote to post in time.
        ports.bucket.put(keys.wanted(run.id), said, timeout_seconds=run.first.clock.block_seconds)
    except StorageError as fault:
        logger.warning(
            "round {round}: could not publish the list of payloads that we lack: {fault}", round=round, fault=str(fault)
        )
        return False
    return True


def take_back_wanted(follower: Follower) -> None:
    """Empty the list in our bucket, even one from before a restart: we lack nothing now. Otherwise all nodes that hold
    its payloads would copy them in turn."""
    if not follower.may_want:
        return
    ports, run, key = follower.ports, follower.run, keys.wanted(follower.run.id)
    seconds = run.first.clock.block_seconds
    try:
        said = ports.bucket.get(key, max_bytes=DOCUMENT_MAX_BYTES, timeout_seconds=seconds)
        if parse_wanted(said, run.id, follower.me, ports.verify):
            ports.bucket.put(key, encode_wanted((), run.id, ports.signer), timeout_seconds=seconds)
        follower.may_want = False
    except ObjectMissing:
        follower.may_want = False  # we never lacked anything
    except (InvalidMessage, StorageError) as fault:
        logger.warning("could not delete the list of payloads that we lack: {fault}", fault=str(fault))


def hear_wanted(
    run: Digest, peers: Collection[PeerId], sources: Sources, verify: Verify, seconds: float, time: Time
) -> Mapping[PeerId, frozenset[Place]]:
    """Return each peer's wanted list, as far as the lists can be read within `seconds`."""
    found: dict[PeerId, frozenset[Place]] = {}

    def accept(peer: PeerId) -> Callable[[Data], bool]:
        def check(data: Data) -> bool:
            with suppress(InvalidMessage):
                found[peer] = parse_wanted(bytes(data), run, peer, verify)
            return peer in found

        return check

    gather(
        [
            Wanted(peer, sources.own(peer, keys.wanted(run)), DOCUMENT_MAX_BYTES, accept(peer), exact=False)
            for peer in peers
        ],
        timeout_seconds=seconds,
        max_threads=_THREADS,
        time=time,
    )
    return dict(found)
