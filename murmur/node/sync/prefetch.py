"""Fetching ahead what a round will probably select, so that nobody has to fetch it once it is selected: that would make
every node late for the next round. Nothing waits for it, and nothing depends on it."""

from collections.abc import Collection as Names
from itertools import islice

from loguru import logger

from gauntlet.commitment import commitment
from murmur.node.chain.follower import Follower
from murmur.node.fetch.payloads import prefetch, prefetch_keys
from murmur.node.fetch.selected import is_whole
from murmur.node.state.node_state import NodeState
from murmur.node.sync.expected_selection import guess_seconds
from murmur.protocol.errors import ChainError
from murmur.protocol.types import PeerId
from storage.collect import Collection


class Prefetch:
    """What one node fetches ahead."""

    def __init__(self, follower: Follower, state: NodeState) -> None:
        self._follower, self._state = follower, state
        self._fetching: list[Collection] = []
        self._keys_of: int | None = None
        """The round whose keys are fetched, .."""
        self._expected: Names[PeerId] = ()
        """.. the miners that will probably be selected in it, and when it is guessed."""
        self._until = 0.0

    def wait(self, round: int) -> None:
        """Wait until all that we expect of `round` is here, keys and bytes; no longer than until the moment of the
        guess."""
        run, cache = self._follower.run.id, self._state.cache
        for collection in self._fetching if self._keys_of == round else ():
            if not all(is_whole(run, round, peer, cache) for peer in self._expected):
                collection.wait(self._until - self._follower.time.now())

    def has_asked_for_keys(self, round: int) -> bool:
        return self._keys_of == round

    def start(self, round: int, again: Names[PeerId], here: Names[PeerId]) -> None:
        """Before the commit deadline: fetch the payloads of the miners selected last (`again`), if they are uploaded
        already. After it: those that committed, the last selected first, then the lowest uids, up to the number of
        places. Also once the keys of those that we expect, until the moment of the guess. Not those that are `here`."""
        self.stop()
        follower = self._follower
        clock, cache, verify = follower.clock, self._state.cache, follower.ports.verify
        try:
            last, head = clock.commit_deadline(round), follower.head()
            peers = follower.ports.chain.peers(min(last, head))
            timeout = follower.seconds_until(clock.vote_deadline(round))
            left, sources = follower.seconds_until(clock.reveal_deadline(round)), follower.sources(min(last, head))
        except ChainError as fault:
            logger.debug("round {round}: cannot fetch payloads early: {fault}", round=round, fault=str(fault))
            return
        spec, run = follower.run.spec_at(round), follower.run.id
        promises = {
            peer.id: commitment(peer, round, last)
            for peer in sorted(peers, key=lambda peer: (peer.id not in again, peer.uid))
        }
        promised = {
            peer: promise.envelope if promise is not None else None
            for peer, promise in promises.items()
            if (peer in again if head < last else promise is not None)
        }
        places = max(spec.gauntlet.contributors, len(again))
        wanted = [peer for peer in islice(promised, places) if peer != follower.me and peer not in here]
        if not wanted or timeout <= 0:
            return
        watch = follower.timeline.begin("prefetch")
        envelopes = {peer: promised[peer] for peer in wanted}
        if head >= last and self._keys_of != round:
            seconds = min(guess_seconds(follower.run.first.clock), left)
            self._keys_of, self._until = round, follower.time.now() + seconds
            # Strangers who commit are no reason to ask a bucket for a key, again and again, that we would not use.
            self._expected = expected = [peer for peer in wanted if peer in again] or wanted
            self._fetching.append(prefetch_keys(run, round, expected, sources, verify, seconds, cache, follower.time))
        self._fetching.append(
            prefetch(spec, run, round, envelopes, sources, verify, timeout, cache, watch.end, follower.time)
        )

    def stop(self) -> None:
        """Stop; what was fetched stays in the cache."""
        fetching, self._fetching = self._fetching, []
        for collection in fetching:
            collection.stop()
