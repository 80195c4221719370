"""A validator's vote on a round: the state that it holds, and the peers that it names (docs/protocol.md section 6). It
holds the payload of every peer that it names; copies are published in parallel (murmur/rounds/copies.py)."""

from collections.abc import Collection, Sequence, Set
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import Log, Order, abstention, named, vote_by, vote_for
from gauntlet.checks import Checked, Gathered
from gauntlet.commitment import who_committed
from gauntlet.selection import Ranking, in_order
from murmur.node.chain.follower import RETURN_BLOCKS
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.node.node import Node
from murmur.node.sync.repair_requests import say_wanted
from murmur.protocol import keys
from murmur.protocol.errors import ChainError
from murmur.protocol.messages import REVEAL_BYTES
from murmur.protocol.types import Peer, PeerId, StateRef, Uid, Vote
from murmur.rounds.copies import ValidatorCopies
from murmur.rounds.score import Scores
from storage.collect import gather
from storage.exchange import FetchFault, Wanted
from storage.realtime import seconds_until
from storage.seal import matches

LOOK_WINDOWS = 2
"""We follow the names in others' votes for at most this many reveal windows: after that we have scores to compute."""
LAST_BLOCKS = 3
"""This many blocks before that ends we post the names that we have, and wait for no more copies."""


class Votes:
    """One validator's votes in a round."""

    def __init__(self, node: Node, scores: Scores, copies: ValidatorCopies) -> None:
        self.node, self.scores, self.copies = node, scores, copies
        self.seen: dict[PeerId, Gathered] = {}
        """The objects of every peer registered at the commit deadline, as far as we have them by now."""
        self.lacked: frozenset[PeerId] = frozenset()
        """Peers whose payloads we have listed as wanted."""
        self._sent: tuple[int, Vote, int] | None = None
        """The vote that we posted last: round, vote, block."""

    def ask(self, round: int, at_commit: Sequence[Peer], gathered: Sequence[Gathered]) -> None:
        """List as wanted the missing payloads of peers that will probably be named: nodes that hold one have time to
        copy it."""
        node, last = self.node, self.node.clock.commit_deadline(round)
        rules = node.run.spec_at(round).gauntlet
        self.seen = {peer.id: Gathered(peer) for peer in at_commit} | {item.peer.id: item for item in gathered}
        committed = who_committed(at_commit, round, last)
        best = in_order(self.scores.book, committed, node.ports.chain.header(last).hash)
        likely = best[: rules.contributors + rules.reserve]
        self.lacked = frozenset()
        # If we had no time to ask for a peer's bytes, we know nothing: they may be there.
        lacked = {item.peer.id for item in gathered if item.payload is None and item.wrong_size is None}
        self.want(round, lacked.intersection(likely))

    def want(self, round: int, lacked: Set[PeerId]) -> None:
        """List these payloads as wanted too, unless they are listed."""
        if lacked - self.lacked:
            self.lacked |= lacked
            say_wanted(self.node, round, self.lacked)

    def hold(self, round: int, at_commit: Sequence[Peer], checked: Checked) -> None:
        """Serve copies of the payloads that pass from now on."""
        self.copies.hold(round, at_commit, [self.seen[peer] for peer in checked.passed])

    def cast(self, round: int, ranking: Ranking, at_commit: Sequence[Peer], checked: Checked) -> None:
        """Post which state we hold, and all peers that may contribute by our book. Then add peers that others name and
        whose objects we lacked, as soon as we have them. If we are not at the tip, post an abstention."""
        node = self.node
        if (state_ref := node.state_ref) is None:
            self.post(round, None)
            return
        uids = {peer.id: peer.uid for peer in at_commit}
        ours = {uids[peer] for peer in ranking.order}
        self.post(round, state_ref, ours)
        order = Order(node.run, round, node.ports.chain.header(node.clock.commit_deadline(round)).hash, at_commit)
        self.copies.name(round, [order.committed[uid] for uid in order.first(ours)])
        lacking = {uid for peer, uid in uids.items() if uid in order.committed and self._lacks(peer)}
        if lacking and (added := self.add(round, state_ref, lacking, checked, order)):
            self.post(round, state_ref, ours | added)

    def keep_seat(self) -> None:
        """Post an abstention if votes of the current round may be posted now: we are not at the tip."""
        clock, head = self.node.clock, self.node.head()
        round = clock.round_at(head)
        if round >= 0 and clock.commit_deadline(round) < head < clock.vote_deadline(round):
            self.post(round, None)

    def _lacks(self, peer: PeerId) -> bool:
        """Whether we could not read the peer's payload or its key."""
        item = self.seen[peer]
        return item.wrong_size is None and (item.payload is None or item.reveal is None)

    def add(self, round: int, state_ref: StateRef, lacking: Set[Uid], checked: Checked, order: Order) -> set[Uid]:
        """Return the peers that we lacked, others name, and we can name too once they or others give us their objects.
        Runs while the round is open, and for a limited number of blocks. So a peer that we could not read for a moment
        does not lose its place."""
        node, clock = self.node, self.node.clock
        began = max(node.head(), clock.reveal_deadline(round))
        last = min(clock.vote_deadline(round), began + LOOK_WINDOWS * (clock.reveal - clock.commit))
        block_seconds, added = node.run.first.clock.block_seconds, set[Uid]()
        while (left := node.seconds_to_post(last)) and node.agreement.agreed(
            node.run, round, head := node.head()
        ) is None:
            log = node.agreement.log(node.run, round, head)
            by_others = _named_by(log, state_ref)
            open_ones = {uid: by_others[uid] for uid in sorted(lacking & by_others.keys() - added)}
            if open_ones:
                seconds = min(left / 2, node.transfer_seconds(len(open_ones)))  # then check whether it is decided
                repaired = self._repaired(round, open_ones, order, seconds)
                added |= self._eligible(round, repaired, checked)
            hopeless = open_ones.keys() <= added or left <= LAST_BLOCKS * block_seconds
            if added and hopeless:
                break
            node.wait_for(min(head + 1, last), f"what others say of round {round}")
        return added

    def _eligible(self, round: int, repaired: Sequence[Gathered], checked: Checked) -> set[Uid]:
        """Return those of these peers that pass and may contribute by our book."""
        if not repaired:
            return set()
        self.seen |= {item.peer.id: item for item in repaired}
        passed = self.scores.checks(round, repaired).passed
        self.copies.add([item for item in repaired if item.peer.id in passed])
        everybody = replace(checked, passed={**checked.passed, **passed})
        order = self.scores.judge(round).rank(everybody).order
        return {item.peer.uid for item in repaired if item.peer.id in passed and item.peer.id in order}

    def _repaired(self, round: int, named_by: dict[Uid, list[PeerId]], order: Order, seconds: float) -> list[Gathered]:
        """Return these peers' objects that we have, or get within `seconds`. Payloads come from the mirrors of the
        validators that name the peers, or from the peers' own buckets. Keys come from the validators that name them: by
        that they state that they have read the keys in time. The digests on chain decide. Missing payloads are listed
        as wanted."""
        node, until = self.node, self.node.time.now() + seconds
        sources, run, size = node.sources(), node.run.id, node.run.first.object_bytes
        peers = {order.committed[uid][0]: namers for uid, namers in named_by.items()}
        envelopes = dict(order.committed[uid] for uid in named_by)
        wanted = [
            Wanted(
                peer,
                (
                    *(source for one in namers for source in sources.own(one, keys.mirror(run, round, peer))),
                    *sources.own(peer, keys.payload(run, round)),
                ),
                size,
                matches(envelopes[peer]),
            )
            for peer, namers in peers.items()
            if self.seen[peer].payload is None
        ]
        payloads = gather(
            wanted, timeout_seconds=seconds / 2, max_threads=FETCH_THREADS, cache=node.state.cache, time=node.time
        )
        self.want(round, {peer for peer, found in payloads.items() if isinstance(found, FetchFault)})
        wanted = [
            Wanted(
                peer,
                tuple(s for one in namers for s in sources.own(one, keys.mirror_reveal(run, round, peer))),
                REVEAL_BYTES,
                lambda data: True,
            )
            for peer, namers in peers.items()
            if self.seen[peer].reveal is None
        ]
        left = seconds_until(until, node.time)
        reveals = gather(wanted, timeout_seconds=left, max_threads=FETCH_THREADS, time=node.time)
        items = [
            (self.seen[peer], payloads.get(peer, self.seen[peer].payload), reveals.get(peer, self.seen[peer].reveal))
            for peer in peers
        ]
        return [
            replace(item, payload=payload, reveal=bytes(reveal))
            for item, payload, reveal in items
            if payload is not None
            and reveal is not None
            and not isinstance(payload, FetchFault)
            and not isinstance(reveal, FetchFault)
        ]

    def post(self, round: int, state_ref: StateRef | None, uids: Collection[Uid] = ()) -> None:
        """Post the vote, unless it is posted. An earlier vote stays valid, after a restart too, and binds us."""
        node = self.node
        vote = abstention(round) if state_ref is None else vote_for(round, uids, state_ref)
        stands = vote_by(node.agreement.log(node.run, round, node.head()), node.me)
        if stands is not None and stands.state_ref is not None:
            if state_ref != stands.state_ref:
                return
            vote = replace(vote, bitmap=vote.bitmap | stands.bitmap)
        if vote == stands or self._is_on_its_way(round, vote):
            return
        if not node.seconds_to_post(node.clock.vote_deadline(round)):
            logger.warning("round {round}: the checks ended after the vote deadline, so our vote is late", round=round)
            return
        block = self.send(round, vote)
        if block is not None:
            self._sent = round, vote, block
            node.state.events.emit(
                "word_posted", round, block=block, named=len(named(vote)), abstains=vote.state_ref is None
            )

    def _is_on_its_way(self, round: int, vote: Vote) -> bool:
        """Whether we posted this vote so lately that its block need not be final yet: each post costs bytes."""
        if self._sent is None or self._sent[:2] != (round, vote):
            return False
        return self.node.head() < self._sent[2] + RETURN_BLOCKS

    def send(self, round: int, vote: Vote) -> int | None:
        """Put the vote on chain; return its block. A refusal costs our vote, never the round's scores."""
        try:
            with self.node.state.timeline.begin("post"):
                return self.node.post(vote)
        except ChainError as fault:
            self.node.backoff.failed(round, fault)
            return None


def _named_by(log: Log, state_ref: StateRef) -> dict[Uid, list[PeerId]]:
    """Return the peers that validators of this state name, each with those validators."""
    found: dict[Uid, list[PeerId]] = {}
    for post in log.posts:
        if post.vote.state_ref == state_ref:
            for uid in named(post.vote):
                found.setdefault(uid, []).append(post.peer)
    return found
