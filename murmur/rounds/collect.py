"""Collecting: what every peer left by the reveal deadline, its sealed bytes and its key (docs/protocol.md section
4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gauntlet.book import ScoreBook
from gauntlet.checks import Gathered
from gauntlet.commitment import commitment, is_late
from gauntlet.observed import Looked
from gauntlet.selection import in_order
from murmur.node.fetch.payloads import collect_keys, collect_pinned
from murmur.node.node import Node
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.types import Digest, Peer, PeerId
from storage.exchange import Data, FetchFault


@dataclass(frozen=True, slots=True)
class Seen:
    """A validator's view of a round: the peers registered at the commit deadline, what each left, and when it
    looked."""

    round: int
    at_commit: tuple[Peer, ...]
    gathered: list[Gathered]
    looked: Looked


class Collector:
    """Collects for one validator."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seen: Seen | None = None

    def look(self, round: int, book: ScoreBook) -> Seen:
        """All that we have of the round. A round that broke off and is taken up again is not read again: keys that were
        readable in time may be gone."""
        if self.seen is None or self.seen.round != round:
            at_commit, began = self.commitments(round), self.node.head()
            gathered = self.collect(round, at_commit, book)
            self.seen = Seen(round, at_commit, gathered, Looked(began, self.node.head()))
        return self.seen

    def commitments(self, round: int) -> tuple[Peer, ...]:
        """Every registered hotkey as of the commit deadline."""
        last = self.node.clock.commit_deadline(round)
        self.node.wait_for(last, f"the commitments of round {round}")
        return self.node.ports.chain.peers(last)

    def collect(self, round: int, at_commit: Sequence[Peer], book: ScoreBook) -> list[Gathered]:
        """Return what every peer left: its sealed bytes, and its key if that was readable before the reveal deadline
        was final. The peers that our book ranks best come first. Peers whose payload does not fit on our disk are left
        out and not judged."""
        node, clock = self.node, self.node.clock
        last, reveal_deadline = clock.commit_deadline(round), clock.reveal_deadline(round)
        promised = {p.id: c.envelope for p in at_commit if (c := commitment(p, round, last)) is not None}
        with node.state.timeline.begin("gather") as watch:
            sealed, reveals = self.fetch(round, promised, book)
        node.wait_for(reveal_deadline, f"the keys of round {round}")
        at_reveal = {peer.id: peer for peer in node.ports.chain.peers(reveal_deadline)}
        gathered = []
        for peer in at_commit:
            found = sealed.get(peer.id)
            if isinstance(found, FetchFault) and found.kind == "left_out":
                continue
            gathered.append(
                Gathered(
                    peer,
                    payload=None if isinstance(found, FetchFault) else found,
                    wrong_size=found.size_bytes if isinstance(found, FetchFault) else None,
                    reveal=reveals.get(peer.id),
                    late=is_late(peer, at_reveal.get(peer.id), round, last, reveal_deadline),
                )
            )
        node.state.events.emit(
            "gathered",
            round,
            committed=len(promised),
            revealed=len(reveals),
            seconds={"gather": round_seconds(watch.seconds)},
        )
        return gathered

    def fetch(
        self, round: int, promised: Mapping[PeerId, Digest], book: ScoreBook
    ) -> tuple[Mapping[PeerId, Data | FetchFault], Mapping[PeerId, bytes]]:
        """Sealed objects and keys of these peers, as far as there is time for them."""
        node, clock, run = self.node, self.node.clock, self.node.run.id
        last, reveal_deadline = clock.commit_deadline(round), clock.reveal_deadline(round)
        order, sources = in_order(book, promised, node.ports.chain.header(last).hash), node.sources(last)

        def seconds_left() -> float:
            return node.seconds_until(reveal_deadline)

        fetching = collect_pinned(
            node.run.spec_at(round),
            run,
            round,
            [(peer, promised[peer]) for peer in order],
            sources,
            node.ports.verify,
            seconds_left=seconds_left,
            cache=node.state.cache,  # what is selected is not fetched again
            time=node.time,
        )
        try:
            reveals = collect_keys(
                run,
                round,
                order,
                sources,
                node.ports.verify,
                seconds_left=seconds_left,
                cache=node.state.cache,
                time=node.time,
            )
            return fetching.outcome(), reveals
        finally:
            fetching.stop()
