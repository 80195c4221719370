"""Collecting: what every peer left by block V, its sealed bytes and its key (docs/protocol.md section 4)."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gauntlet.checks import Gathered, commitment, is_late
from node.events import round_seconds
from node.node import Node
from node.payloads import MAX_THREADS, Sources, fetch_pinned
from protocol.errors import InvalidMessage
from protocol.messages import REVEAL_BYTES, parse_reveal
from protocol.types import Peer, PeerId
from storage.exchange import Fault, Wanted, gather

POLL_SECONDS = 0.25
REVEAL_SECONDS = 5.0
"""Longest time that one round of polls for keys waits for slow servers: those that have published meanwhile are asked
again after it."""


class Collector:
    """Collects for one validator."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def commitments(self, round: int) -> tuple[Peer, ...]:
        """Every registered hotkey as of block D."""
        last = self.node.clock.commit_by(round)
        self.node.wait_for(last, f"the commitments of round {round}")
        return self.node.doors.chain.peers(last)

    def collect(self, round: int, at_commit: Sequence[Peer]) -> list[Gathered]:
        """What every peer left: its sealed bytes, and its key if one was readable before block V was final."""
        node, clock = self.node, self.node.clock
        last, reveal_by = clock.commit_by(round), clock.reveal_by(round)
        promised = {p.id: c.envelope for p in at_commit if (c := commitment(p, round, last)) is not None}
        sources = Sources(at_commit, node.doors.open_pointer)
        # Beside each other: a server that holds on to its payload until V must not keep us from the others' keys.
        with node.held.timeline.begin("gather") as watch, ThreadPoolExecutor(1) as beside:
            fetching = beside.submit(
                fetch_pinned,
                node.run.spec_at(round),
                node.run.id,
                round,
                list(promised.items()),
                sources,
                max(POLL_SECONDS, node.seconds_until(reveal_by)),
                node.held.cache,  # what is selected is not fetched again
            )
            reveals = self.reveals(round, list(promised), sources)
            sealed = fetching.result()
        node.wait_for(reveal_by, f"the keys of round {round}")
        at_reveal = {peer.id: peer for peer in node.doors.chain.peers(reveal_by)}
        gathered = []
        for peer in at_commit:
            found = sealed.get(peer.id)
            gathered.append(
                Gathered(
                    peer,
                    payload=found if isinstance(found, bytes) else None,
                    wrong_size=found.size_bytes if isinstance(found, Fault) else None,
                    reveal=reveals.get(peer.id),
                    late=is_late(peer, at_reveal.get(peer.id), round, last, reveal_by),
                )
            )
        node.held.events.emit(
            "gathered",
            round,
            committed=len(promised),
            revealed=len(reveals),
            seconds={"gather": round_seconds(watch.seconds)},
        )
        return gathered

    def reveals(self, round: int, peers: Sequence[PeerId], sources: Sources) -> dict[PeerId, bytes]:
        """Keys as they appear, until all are there or our finalised head reaches V: being late is our observation. Only
        what the peer has signed for this round counts: a mirror that answers with anything else is passed over."""
        node, clock = self.node, self.node.clock

        def signed_by(peer: PeerId) -> Callable[[bytes], bool]:
            def accept(data: bytes) -> bool:
                try:
                    reveal = parse_reveal(data)
                except InvalidMessage:
                    return False
                meant = (reveal.run, reveal.round, reveal.peer) == (node.run.id, round, peer)
                return meant and node.doors.verify(peer, reveal.signed_part, reveal.signature)

            return accept

        found: dict[PeerId, bytes] = {}
        while len(found) < len(peers) and (left := node.seconds_until(clock.reveal_by(round))) > 0:
            wanted = [
                Wanted(peer, sources.reveal(node.run.id, round, peer), REVEAL_BYTES, signed_by(peer))
                for peer in peers
                if peer not in found
            ]
            got = gather(wanted, timeout_seconds=min(REVEAL_SECONDS, left / 4), max_threads=MAX_THREADS)
            found |= {peer: data for peer, data in got.items() if isinstance(data, bytes)}
            if len(found) < len(peers):
                node.time.sleep(POLL_SECONDS)
        return found
