"""A run's rounds from public data, as events (docs/events.md) for a display (murmur/page/live/network.py). It reads the
chain and public objects; it signs, writes and decides nothing.

Agreed selections come from the chain while its node has the round's blocks, and from the links of selections before
that. Peers' results come from the signed reports of the validators with the most stake; training losses from some
contributors' signed claims. All but the agreed selections are unverified claims: they are bounded in number, size and
time, and become one of our events or a code.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from gauntlet.agreement import Agreed, Log, electorate, mirrors, named, refs_named, vote_by, vote_weights
from gauntlet.commitment import commitment
from gauntlet.report import Report
from murmur.node.chain.agreement import Agreement
from murmur.node.config.ports import Ports
from murmur.node.fetch.reports import SILENT, Reports, UnreadReason
from murmur.node.fetch.sources import Sources
from murmur.node.sync.amendments import settled
from murmur.node.sync.selection_chain import SelectionChain
from murmur.protocol import keys
from murmur.protocol.errors import STATE_PRUNED, ChainError, InvalidMessage
from murmur.protocol.messages import Shape, first_link, parse_as, parse_signed
from murmur.protocol.run import Run
from murmur.protocol.types import MAX_UIDS, Digest, Header, Peer, PeerId, Vote, hotkey
from storage.collect import gather
from storage.exchange import Data, Wanted

CHAIN = "chain"
"""The node name of events that are read from the chain."""
HISTORY_ROUNDS = 1000
"""Older rounds are not read."""
FULL_ROUNDS = 100
"""Fetch every asked validator's report for the newest 100 rounds, one validator's for older rounds: each report may
have 4 MiB."""
CHAIN_ROUNDS = 16
"""Rounds before these newest 16 are read from their links, not from the chain."""
LATE_ROUNDS = 3
"""Reports of the newest 3 rounds may still come: they are asked for again."""
MOST_VALIDATORS = 5
MOST_VOTES = 16
"""Number of validators, those with the most stake, whose votes are shown."""
MOST_CLAIMS = 8
CLAIM_BYTES = 4096
PORTION_ROUNDS = 8
"""Older rounds in one look."""
ASK_SECONDS = 10.0
LARGE_STAKE = 0.1
"""A validator with more than this share of the counted stake that holds another model gets an event."""
MAX_HOTKEYS = 16 * MAX_UIDS
"""Most hotkeys in all events together: anyone could invent unlimited unregistered ones."""


class HistoryEvent(NamedTuple):
    """An event, and the hotkey of the node that it is about."""

    node: str
    event: dict[str, Any]


class History:
    """The history of one run. One thread calls `look`."""

    def __init__(self, run: Run, ports: Ports) -> None:
        self.run, self.ports = run, ports
        self.head: Header | None = None
        self._agreement = Agreement(ports.chain)
        self._newest = -1
        """The last decided round that has events."""
        self._asked: Sequence[PeerId] = ()
        """Validators whose reports are read, those with the most stake."""
        self._stakes: dict[PeerId, float] = {}
        self._sources = Sources((), ports.open_pointer)
        self._walk: tuple[Digest, int] | None = None
        """Position of the walk back along the links: a link, and the round that it was taken from."""
        self._stuck: tuple[Digest, int] | None = None
        """The same where no source gave the next selection; retried in the next round."""
        self._seen: set[int] = set()
        """Rounds that came from the chain."""
        self._late: dict[int, dict[PeerId, UnreadReason | None]] = {}
        """By round, the validators whose reports may still come, and why they could not be read before."""
        self._silent: set[PeerId] = set()
        """Validators whose buckets do not answer: not asked again in this round."""
        self._hotkeys: set[PeerId] = set()
        self._blobs: dict[Digest, bytes] = {}

    @property
    def more(self) -> bool:
        """Whether older rounds remain to be read."""
        return self._walk is not None

    def look(self) -> Iterator[HistoryEvent]:
        """Yield the events since the last look; only a portion of a long history. Raises ChainError."""
        self.head = self.ports.chain.finalized()
        newest = self.run.clock.decided_before(self.head.block + 1)
        if newest > self._newest:
            yield from self._new(newest, self.head)
        for round in sorted(self._late, reverse=True):
            yield from self._reported(round, list(self._late[round]))
            if round <= newest - LATE_ROUNDS:
                del self._late[round]
        if self._walk is not None:
            yield from self._older(*self._walk)

    def _new(self, newest: int, head: Header) -> Iterator[HistoryEvent]:
        peers = self.ports.chain.peers(head.block)
        self.run = settled(self.run, self._newest + 1, self.ports, self._blobs)
        validators = mirrors(self.run, head.block, peers)
        self._asked, self._stakes = validators[:MOST_VALIDATORS], _shares(peers, validators)
        self._sources = Sources(peers, self.ports.open_pointer, validators)
        self._silent.clear()
        self._hotkeys |= {peer.id for peer in peers}
        first = max(0, self._newest + 1, newest - CHAIN_ROUNDS + 1)
        for round in range(newest, first - 1, -1):
            yield from self._decided(round, head)
        if self._newest < 0 or first > self._newest + 1:
            self._walk = self._newest_link(peers)
        elif self._walk is None:
            self._walk, self._stuck = self._stuck, None
        self._newest = newest
        self._seen = {round for round in self._seen if round > newest - HISTORY_ROUNDS}

    # --- agreed selections -------------------------------------------------------------------------------------

    def _decided(self, round: int, head: Header) -> Iterator[HistoryEvent]:
        """Yield the round's events from the chain; none if its node has pruned the round."""
        run, chain, clock = self.run, self.ports.chain, self.run.clock
        last, end = clock.commit_deadline(round), clock.vote_deadline(round)
        try:
            found, when = self._agreement.outcome(run, round).agreed, chain.header(end).time
            log, at_vote_deadline = self._agreement.log(run, round, end), chain.peers(end)
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
            return
        committed = [peer.id for peer in log.commit if commitment(peer, round, last) is not None]
        contributing = [peer for peer, _ in found.selection.contributing] if found.selection is not None else []
        yield from self._stated(round, log, when)
        self._late[round] = dict.fromkeys(self._asked)
        self._seen.add(round)
        yield self._agreed(round, when, contributing, committed, found.block, self._cause(round, found, head))
        yield from self._votes_of(round, log, when)
        yield from self._trained(round, contributing, Sources(at_vote_deadline, self.ports.open_pointer), when)

    def _stated(self, round: int, log: Log, when: float) -> Iterator[HistoryEvent]:
        """Yield the thetas that validators with a large stake name for the state after the round before, if they
        differ."""
        theta = next((theta for theta, _ in refs_named(self.run, round, log)), None)
        stakes = electorate(self.run, round, log.commit)
        large = LARGE_STAKE * sum(stakes.values())
        votes = {peer: vote_by(log, peer) for peer, stake in stakes.items() if stake > large}
        thetas = {peer: vote.theta for peer, vote in votes.items() if vote is not None and vote.state_ref is not None}
        if round and set(thetas.values()) - {theta}:
            for peer, named in thetas.items():
                yield HistoryEvent(hotkey(peer), _event("stated", round - 1, when, theta=named.hex()))

    def _cause(self, round: int, found: Agreed, head: Header) -> str | None:
        """Return why the round is void: declared so by the owner, no state named by most of the stake, or no peer
        selected."""
        if found.selection is not None:
            return None
        if self.run.voided(round, head.block):
            return "declared"
        return "no_state" if found.state_ref is None else "nobody"

    def _votes_of(self, round: int, log: Log, when: float) -> Iterator[HistoryEvent]:
        """Yield the votes of the validators with the most counted stake."""
        stakes, hotkeys = vote_weights(self.run, round, log.commit), {peer.uid: peer.id for peer in log.commit}
        total, blocks = sum(stakes.values()), {post.peer: post.block for post in log.posts}
        for peer in sorted(stakes, key=lambda peer: (-stakes[peer], peer))[:MOST_VOTES]:
            if (vote := vote_by(log, peer)) is None:
                continue
            names = [hotkey(hotkeys[uid]) for uid in named(vote) if uid in hotkeys]
            theta = vote.theta.hex() if vote.state_ref is not None else None
            fields = {"block": blocks[peer], "named": len(names), "abstains": vote.state_ref is None, "theta": theta}
            yield HistoryEvent(
                hotkey(peer), _event("word_posted", round, when, **fields, peers=names, stake=stakes[peer] / total)
            )

    def _agreed(
        self,
        round: int,
        when: float,
        contributing: Collection[PeerId],
        committed: Collection[PeerId] | None,
        decided: int | None = None,
        cause: str | None = None,
    ) -> HistoryEvent:
        """Return an `agreed` event. `committed`, `decided` (the block of the decision) and `cause` (of a void round)
        are None if they are not known (any more)."""
        self._hotkeys |= {*contributing}
        told = [hotkey(peer) for peer in contributing]
        here = None if committed is None else [hotkey(peer) for peer in committed]
        fields = {"void": not told, "contributing": told, "committed": here, "decided": decided, "cause": cause}
        return HistoryEvent(CHAIN, _event("agreed", round, when, **fields))

    def _newest_link(self, peers: Sequence[Peer]) -> tuple[Digest, int] | None:
        """Return the run's tip: its link and round. If that cannot be read, return the link and round that most stake
        names now."""
        try:
            tip = self._agreement.tip(self.run)
            return tip.link, tip.round
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
        backing: dict[tuple[Digest, int], float] = {}
        for peer in peers:
            vote = peer.slot.statement if peer.slot is not None else None
            if isinstance(vote, Vote) and vote.state_ref is not None:
                named = vote.previous, vote.round
                backing[named] = backing.get(named, 0.0) + self._stakes.get(peer.id, 0.0)
        return max(backing, key=lambda named: backing[named], default=None)

    def _older(self, link: Digest, below: int) -> Iterator[HistoryEvent]:
        """Yield some rounds before `below`, the newest first."""
        oldest, place = max(0, self._newest - HISTORY_ROUNDS + 1), (link, below)
        read = 0
        known = self._agreement.selections
        for at, after in SelectionChain(self.run.id, self._sources, link, below, self.ports.time, known=known).links():
            if after:
                selection, read = after[0], len(after)
                for void in range(below - 1, max(oldest - 1, selection.round), -1):
                    yield from self._old(void, ())
                below = selection.round
                if below >= oldest:
                    yield from self._old(below, [peer for peer, _ in selection.contributing])
            if at == first_link(self.run.id):
                for void in range(below - 1, oldest - 1, -1):
                    yield from self._old(void, ())
            place = at, below
            if read == PORTION_ROUNDS or at == first_link(self.run.id) or below <= oldest:
                break
        ended = place[0] == first_link(self.run.id) or below <= oldest
        self._walk = None if ended or read < PORTION_ROUNDS else place
        self._stuck = None if ended or read == PORTION_ROUNDS else place

    def _old(self, round: int, contributing: Collection[PeerId]) -> Iterator[HistoryEvent]:
        """Yield the events of one round that the chain node may have pruned."""
        if round in self._seen:
            return
        yield self._agreed(round, self._when(round), contributing, None)
        if round > self._newest - FULL_ROUNDS:
            yield from self._trained(round, list(contributing), self._sources, self._when(round))
        yield from self._reported(round, self._asked if round > self._newest - FULL_ROUNDS else self._asked[:1])

    def _when(self, round: int) -> float:
        """Return about when the round was decided (Unix seconds)."""
        assert self.head is not None
        return (
            self.head.time
            - (self.head.block - self.run.clock.vote_deadline(round)) * self.run.first.clock.block_seconds
        )

    # --- claims ------------------------------------------------------------------------------------------------

    def _reported(self, round: int, validators: Sequence[PeerId]) -> Iterator[HistoryEvent]:
        """Yield the new contents of these validators' reports of the round."""
        spec, when = self.run.spec_at(round).gauntlet, self._when(round)
        asked = [one for one in validators if one not in self._silent]
        known = self._late.get(round, {})
        for validator, found in Reports(self.run, self.ports, self._sources).look(round, asked, ASK_SECONDS).items():
            name = hotkey(validator)
            if isinstance(found, Report):
                known.pop(validator, None)
                rows = self._bounded(found).named(spec)
                fields = {"stake": self._stakes.get(validator, 0.0), "set_in": found.paid.set_in}
                yield HistoryEvent(name, _event("reported", round, when, peers=rows, **fields))
                if found.unobserved is not None:
                    yield HistoryEvent(name, _event("unobserved", round, when, why=str(found.unobserved)))
                continue
            if found in SILENT:
                self._silent.add(validator)
            if known.get(validator) != found:
                yield HistoryEvent(name, _event("unread", round, when, why=str(found)))
            if validator in known:
                known[validator] = found

    def _bounded(self, report: Report) -> Report:
        """Return the report without hotkeys beyond MAX_HOTKEYS."""
        room = max(0, MAX_HOTKEYS - len(self._hotkeys))
        self._hotkeys |= {*islice((peer for peer in report.rows if peer not in self._hotkeys), room)}
        return replace(report, rows={peer: row for peer, row in report.rows.items() if peer in self._hotkeys})

    def _trained(
        self, round: int, contributing: Sequence[PeerId], sources: Sources, when: float
    ) -> Iterator[HistoryEvent]:
        """Yield training losses and times from some contributors' own claims."""
        run, verify = self.run.id, self.ports.verify

        def claimed(peer: PeerId, data: Data) -> dict[str, Any] | None:
            try:
                return parse_as(parse_signed(bytes(data), "peer", run, round, peer, verify), _ClaimsShape)
            except InvalidMessage:
                return None

        def accept(peer: PeerId) -> Callable[[Data], bool]:
            return lambda data: claimed(peer, data) is not None

        key = keys.peer_report(run, round)
        asked = contributing[:MOST_CLAIMS]
        answers = gather(
            [Wanted(one, sources.own(one, key), CLAIM_BYTES, accept(one), exact=False) for one in asked],
            timeout_seconds=ASK_SECONDS,
            max_threads=MOST_CLAIMS,
            time=self.ports.time,
        )
        for peer, data in answers.items():
            body = claimed(peer, data) if isinstance(data, bytes | memoryview) else None
            if body is not None:
                told = {"loss": body["loss"], "seconds": body["seconds"]}
                yield HistoryEvent(hotkey(peer), _event("trained", round, when, **told))


class _SecondsShape(Shape):
    compute: float


class _ClaimsShape(Shape):
    """A miner's claims about its round (murmur/rounds/contribution.py)."""

    loss: float | None
    tokens: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
    seconds: _SecondsShape


def _event(kind: str, round: int, when: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "round": round, "time": when, **fields}


def _shares(peers: Sequence[Peer], validators: Collection[PeerId]) -> dict[PeerId, float]:
    """Return each validator's share of their stake; equal shares if none has any."""
    stakes = {peer.id: peer.stake for peer in peers if peer.id in set(validators)}
    total = sum(stakes.values())
    return {peer: stake / total if total else 1 / len(stakes) for peer, stake in stakes.items()}
