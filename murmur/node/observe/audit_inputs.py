"""Fetch the inputs of one round's audit (gauntlet/audit.py): chain states, public objects, and the model at the round's
start, by the catch-up that a joiner uses. Reads only."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gauntlet.agreement import Tip, mirrors, outcome, refs_named
from gauntlet.audit import STATED_ROUNDS, audit
from gauntlet.checks import CheckFunctions
from gauntlet.commitment import commitment
from gauntlet.facts import ChainWeights, Facts, State, ValidatorFacts
from gauntlet.finding import Finding, Topic, Verdict
from gauntlet.judge import Earlier
from gauntlet.remembered import Remembered
from gauntlet.replay import drawn_after, judge_of
from gauntlet.report import Report
from gauntlet.sketch import Sketch
from murmur.data.shards import Shards
from murmur.node.chain.agreement import Agreement
from murmur.node.chain.weights_status import UnseenReason, row_of
from murmur.node.config.ports import Ports
from murmur.node.fetch.payloads import fetch_keys, fetch_pinned
from murmur.node.fetch.reports import FETCH_SECONDS, LOOK_BACK_ROUNDS, Found, Reports
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.node.node import Node
from murmur.node.observe.reader import AsOf
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.node.sync.catchup import Followed, catch_up
from murmur.node.sync.checkpoints import RETAINED_ROUNDS
from murmur.node.telemetry.events import Events
from murmur.protocol.errors import ChainError, ConfigError, InvalidMessage, InvalidSubmission, MurmurError, OutOfSync
from murmur.protocol.messages import ENVELOPE_BYTES, Envelope, parse_envelope, parse_reveal
from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import MAX_UIDS, Digest, Peer, PeerId
from murmur.training.parallel import Ranks
from murmur.training.probe import Prober
from murmur.training.replica import Replica
from sparseloco import ops
from sparseloco.update import Records
from storage.collect import gather
from storage.exchange import Data, Wanted
from storage.seal import unseal

GONE = "this chain node no longer has it"


@dataclass(frozen=True)
class Audited:
    """The audit of one validator's round. `report`: None if it has no readable report of this round."""

    validator: PeerId
    report: Report | None
    findings: tuple[Finding, ...]

    @property
    def differs(self) -> bool:
        return any(finding.verdict is Verdict.DIFFERS for finding in self.findings)


class Archive:
    """A run's public objects, from any bucket that still has them. `views`: blocks, and the peers registered as of
    them, whose buckets are asked; the newest last."""

    def __init__(self, run: Run, ports: Ports, *views: tuple[int, Sequence[Peer]]) -> None:
        self.run, self.ports = run, ports
        self.peers = {p.id: p for _, peers in views for p in peers if p.slot is not None and p.slot.pointer is not None}
        copies = dict.fromkeys(mirror for block, peers in views for mirror in mirrors(run, block, peers))
        self.sources = Sources(self.peers.values(), ports.open_pointer, copies)
        self._reports = Reports(run, ports, self.sources)

    def report(self, validator: PeerId, round: int) -> Found:
        """Return a validator's report and its body. Raises what `Reports.read` does."""
        return self._reports.read(validator, round)

    def payloads(self, spec: RunSpec, round: int, pairs: Sequence[tuple[PeerId, Digest]]) -> dict[PeerId, bytes]:
        """Return the sealed objects that hash to their commitments, as far as they can be fetched."""
        found = fetch_pinned(spec, self.run.id, round, pairs, self.sources, _seconds(spec, len(pairs)))
        return {peer: data for peer, data in found.items() if isinstance(data, bytes)}

    def sketches(self, wanted: Earlier) -> tuple[Sketch, ...]:
        """Return sketches of these payloads, as far as they can be fetched. The digest of the records decides."""
        by_round: dict[int, set[Remembered]] = {}
        for past in wanted.names:
            by_round.setdefault(past.round, set()).add(past)
        found: list[Sketch] = []
        for round, named in sorted(by_round.items()):
            if len(named) > MAX_UIDS:
                continue  # more than can exist: a report that wants us to fetch for ever
            ordered = sorted(named)
            for first in range(0, len(ordered), FETCH_THREADS):  # a few at a time: payloads are large
                for past, records in self._records(round, ordered[first : first + FETCH_THREADS]):
                    excerpt = wanted.sample.excerpt(records)
                    found.append(Sketch(past.peer, past.round, past.payload, excerpt))
        return tuple(found)

    def _records(self, round: int, wanted: Sequence[Remembered]) -> Iterator[tuple[Remembered, Records]]:
        spec, run = self.run.spec_at(round), self.run.id
        sealed = gather(
            [
                Wanted(
                    p.peer, self.sources.payload(run, round, p.peer), spec.object_bytes, self._sealed_by(round, p.peer)
                )
                for p in {past.peer: past for past in wanted}.values()
            ],
            timeout_seconds=_seconds(spec, len(wanted)),
            max_threads=FETCH_THREADS,
        )
        objects = {peer: data for peer, data in sealed.items() if isinstance(data, bytes)}
        envelopes = {peer: parse_envelope(data[:ENVELOPE_BYTES]) for peer, data in objects.items()}
        reveals = fetch_keys(run, round, list(envelopes.items()), self.sources, FETCH_SECONDS)
        for past in wanted:
            reveal = reveals.get(past.peer)
            if isinstance(reveal, bytes):
                ciphertext = objects[past.peer][ENVELOPE_BYTES:]
                plaintext = unseal(envelopes[past.peer], parse_reveal(reveal).key, ciphertext)
                try:
                    update = ops.parse(plaintext, spec.layout, spec.trace.num_bytes)
                except InvalidSubmission:
                    continue
                if update.digest == past.payload:
                    yield past, update.records

    def _sealed_by(self, round: int, peer: PeerId) -> Callable[[Data], bool]:
        def accept(data: Data) -> bool:
            try:
                envelope: Envelope = parse_envelope(data[:ENVELOPE_BYTES])
            except InvalidMessage:
                return False
            meant = (envelope.run, envelope.round, envelope.peer) == (self.run.id, round, peer)
            return meant and self.ports.verify(peer, envelope.signed_part, envelope.signature)

        return accept


def audit_round(
    run: Run,
    ports: Ports,
    shards: Shards | None,
    round: int,
    home: Path,
    device: torch.device,
    validator: PeerId | None,
) -> list[Audited]:
    """Audit `round` of one validator, or of every one that counted or voted in it. Without `shards` scores are not
    measured. `home`: the folder for a temporary copy of the model.

    Raises ConfigError for a round that cannot be audited (from this chain node), and says which can.
    """
    first, last = auditable(run, ports)
    if not first <= round <= last:
        raise ConfigError(_not_auditable(run, round, first, last))
    with _facts(run, ports, shards, round, home, device) as (facts, archive):
        block = run.clock.vote_deadline(round)
        everyone = mirrors(run, block, ports.chain.peers(block))
        wanted = [validator] if validator is not None else sorted(everyone)
        return [_audited(facts, archive, peer) for peer in wanted]


def auditable(run: Run, ports: Ports) -> tuple[int, int]:
    """Return the first and the last round whose state the chain's node has from its page block to its last statement.
    The last is below the first when there is none."""
    head = ports.chain.finalized().block
    last = run.clock.round_at(head) - (head < run.clock.vote_deadline(run.clock.round_at(head)))
    low, high = 0, max(0, last + 1)
    while low < high:
        middle = (low + high) // 2
        try:
            ports.chain.header(run.clock.page_block(middle))
            ports.chain.peers(run.clock.page_block(middle))
        except ChainError:
            low = middle + 1
        else:
            high = middle
    return low, last


def last_reported(run: Run, ports: Ports) -> int:
    """Return the newest round that can be audited and that a validator has reported. Raises ConfigError when there is
    none."""
    first, last = auditable(run, ports)
    head = ports.chain.finalized().block
    peers = ports.chain.peers(head)
    reports = Reports(run, ports, Sources(peers, ports.open_pointer))
    found = reports.newest(last, mirrors(run, head, peers))
    newest = max((report.round for report in found.values()), default=-1)
    if newest < first:
        raise ConfigError(f"no round of run {run.first.name} can be audited: no validator has reported one yet")
    return newest


def _not_auditable(run: Run, round: int, first: int, last: int) -> str:
    if last < 0:
        return f"round {round} cannot be audited: no round of run {run.first.name} is over yet"
    if round > last:
        return f"round {round} cannot be audited: the last round whose selection is final is {last}"
    has = f"it has rounds {first} to {last}" if first <= last else "it has no complete round"
    return (
        f"round {round} cannot be audited: this chain node has pruned the state of its blocks; {has}. Give an archive "
        f"node as --network for older rounds; their payloads are kept for about "
        f"{run.first.checkpoint_rounds + RETAINED_ROUNDS} rounds"
    )


def observed(run: Run, ports: Ports, round: int) -> tuple[Facts, Archive]:
    """Return the round's public facts, without the model, and where its objects are. Raises ChainError; ConfigError
    for a round in which no validator voted."""
    chain, clock, spec = ports.chain, run.clock, run.spec_at(round)
    last = clock.commit_deadline(round)
    commit, at_reveal = chain.peers(last), chain.peers(clock.reveal_deadline(round))
    log = Agreement(chain).log(run, round, clock.vote_deadline(round))
    if not (named := refs_named(run, round, log)):
        raise ConfigError(f"round {round} cannot be audited: no validator posted a vote for it")
    theta, previous = next(iter(named))
    at_vote_deadline = chain.peers(clock.vote_deadline(round))
    head = chain.finalized().block
    archive = Archive(run, ports, (clock.vote_deadline(round), at_vote_deadline), (head, chain.peers(head)))
    pairs = [(peer.id, promise.envelope) for peer in commit if (promise := commitment(peer, round, last)) is not None]
    facts = Facts(
        run,
        round,
        chain.header(clock.page_block(round)).hash,
        chain.header(clock.sample_block(round)).hash,
        log,
        at_reveal,
        theta,
        previous,
        outcome(run, round, log, clock.vote_deadline(round)).agreed,
        archive.payloads(spec, round, pairs),
        CheckFunctions(ports.verify, lambda envelope, key, data: unseal(envelope, key, data)),
        head,
    )
    return facts, archive


@contextmanager
def replica_at(run: Run, ports: Ports, tip: Tip, home: Path, device: torch.device) -> Iterator[Replica]:
    """The model as it stood at this tip, caught up like a joiner's; nothing later is on its chain. Its files lie below
    `home` while the block is open. Raises MurmurError where it cannot be rebuilt."""
    zeros = {name: torch.zeros(shape) for name, shape in run.first.model.shapes().items()}
    then = replace(ports, chain=AsOf(ports.chain, run.clock.vote_deadline(tip.round)))
    with TemporaryDirectory(dir=home, prefix="audit-") as folder:
        store, events = StateStore(Path(folder), run.id), Events(Path(folder) / "events.jsonl", "audit")
        try:
            replica = Replica(run.first, zeros, ranks=Ranks(device=device))
            node = Node(run, then, NodeState(run.first, run.id, replica, store, events), waits=False)
            if catch_up(node, node.state, tip) is not Followed.YES:
                raise OutOfSync("its selections or payloads can no longer be fetched")
            yield replica
        finally:
            store.close()


@contextmanager
def _facts(
    run: Run, ports: Ports, shards: Shards | None, round: int, home: Path, device: torch.device
) -> Iterator[tuple[Facts, Archive]]:
    """The round as everybody can see it; the model lives while the block is open."""
    facts, archive = observed(run, ports, round)
    with ExitStack() as stack:
        try:
            tip = Tip(round, facts.previous, facts.theta)
            replica = stack.enter_context(replica_at(run, ports, tip, home, device))
        except MurmurError as fault:
            yield (
                replace(facts, stateless=f"the model at the start of round {round} cannot be rebuilt: {fault}"),
                archive,
            )
            return
        state = State(lambda peer: replica.sync_proof(facts.commit_hash, peer), replica.outer, None)
        if shards is not None:
            prober = stack.enter_context(Prober(replica, shards.train, facts.spec.gauntlet.probe_step))
            state = replace(state, losses=prober.losses)
        yield replace(facts, state=state), archive


def _audited(facts: Facts, archive: Archive, validator: PeerId) -> Audited:
    try:
        report, body = archive.report(validator, facts.round)
    except InvalidMessage as fault:
        return Audited(validator, None, (Finding(Topic.REPORT, Verdict.DIFFERS, f"is malformed: {fault}"),))
    except MurmurError as fault:
        text = f"the report of round {facts.round} cannot be read: {fault}"
        unshown = _weights_without_report(facts, archive.ports, validator)
        return Audited(validator, None, (Finding(Topic.REPORT, Verdict.UNCHECKED, text), *unshown))
    earlier = _report(archive, validator, report.before.round)
    # For a book that builds on an older round: was there a later report on which it should have built?
    since = max(report.before.round + 1, facts.round - LOOK_BACK_ROUNDS)
    later = ((r, _report(archive, validator, r)) for r in range(facts.round - 1, since - 1, -1))
    skipped = (r for r, found in later if found is not None and found.unobserved is None)
    judge = judge_of(facts, report)
    claim = ValidatorFacts(
        validator,
        report,
        body["peers"],
        earlier,
        next(skipped, None),
        archive.sketches(judge.compared()),
        *_paid(facts, archive.ports, validator, report),
        _report(archive, validator, facts.round - 1),
        *_repeated(facts, archive, validator, report),
    )
    return Audited(validator, report, tuple(audit(facts, claim)))


def _weights_without_report(facts: Facts, ports: Ports, validator: PeerId) -> Iterator[Finding]:
    """Check the weights of a validator without a report: whether it set any between this round's evaluation and the
    next one's."""
    clock = facts.run.clock
    by = min(facts.height, clock.reveal_deadline(facts.round + 1))
    try:
        me = next((peer for peer in ports.chain.peers(by) if peer.id == validator), None)
    except ChainError:
        return
    if me is not None and me.last_update > clock.reveal_deadline(facts.round):
        text = f"weights were set in block {me.last_update}, but no report explains them"
        yield Finding(Topic.WEIGHTS, Verdict.UNCHECKED, text)


def _repeated(
    facts: Facts, archive: Archive, validator: PeerId, report: Report
) -> tuple[dict[int, list[PeerId]], set[tuple[PeerId, int]]]:
    """Return whose steps the validator has drawn in each round of which its report states repeated steps, and the
    hotkeys and rounds whose repeated steps its reports since have stated."""
    rounds = {row.repetition.round for row in report.rows.values() if row.repetition is not None}
    rounds = {round for round in rounds if facts.round - STATED_ROUNDS <= round < facts.round}
    clock, drawn, stated = facts.run.clock, {}, set[tuple[PeerId, int]]()
    for round in range(min(rounds, default=facts.round), facts.round):
        then = _report(archive, validator, round)
        if then is None:
            continue
        stated |= {(peer, row.repetition.round) for peer, row in then.rows.items() if row.repetition is not None}
        if round not in rounds:
            continue
        try:
            hashes = [archive.ports.chain.header(at(round)).hash for at in (clock.commit_deadline, clock.sample_block)]
        except ChainError:
            continue
        drawn[round] = drawn_after(facts.run, validator, then, *hashes)
    return drawn, stated


def _report(archive: Archive, validator: PeerId, round: int) -> Report | None:
    try:
        return archive.report(validator, round)[0] if round >= 0 else None
    except MurmurError:
        return None


def _paid(facts: Facts, ports: Ports, validator: PeerId, report: Report) -> tuple[Any, ChainWeights | str]:
    """Return the peers at the block of payment, whose uids were paid, and the row of weights that took effect on chain,
    or why it is unknown."""
    paid, chain = report.paid, ports.chain
    try:
        peers = chain.peers(paid.block)
    except ChainError:
        return None, GONE
    if paid.set_in is None:
        return peers, "nothing was set"
    try:
        row = row_of(chain, validator, paid.set_in)
    except ChainError:
        return peers, GONE
    return peers, str(row) if isinstance(row, UnseenReason) else row


def _seconds(spec: RunSpec, num_payloads: int) -> float:
    return FETCH_SECONDS + 4 * num_payloads * spec.object_bytes * 8e-6 / spec.clock.download_mbps
