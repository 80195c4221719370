"""`murmur localnet --trace`: one round in the ten stations of docs/tour.md, with its real values.

It reads the run folder after the round: the chain, the public objects, the nodes' events. No node knows of it. Where a
value is not public but follows from public ones, it is computed again here, and the line says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import sqrt
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch

from gauntlet.agreement import Tip, mirrors, named
from gauntlet.commitment import who_committed
from gauntlet.facts import Facts
from gauntlet.report import Report
from gauntlet.selection import Ranking, peer_score, standing
from murmur.data.shards import Shards
from murmur.lab.localnet import run_folder
from murmur.lab.localnet.stations import Peers, arrows, flow
from murmur.node.fetch.payloads import fetch_keys
from murmur.node.fetch.reports import FETCH_SECONDS
from murmur.node.observe.audit_inputs import Archive, observed, replica_at
from murmur.node.sync.dataset import open_data
from murmur.node.telemetry.events import read_events
from murmur.protocol.assignment import assigned
from murmur.protocol.errors import ConfigError, InvalidSubmission, MurmurError
from murmur.protocol.messages import ENVELOPE_BYTES, Reveal, link_of, parse_envelope, parse_reveal
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Page, PeerId, hotkey
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.replica import Replica
from murmur.training.sizes import Sizes
from sparseloco import ops
from sparseloco.update import Update, overlap
from storage.exchange import FetchFault
from storage.seal import unseal

INDENT = " " * 4
Station = tuple[str, list[str]]
"""Its name, and what happened there."""
HONEST = "miner-"
"""How the names of honest miners begin (murmur/lab/localnet/plan.py)."""


# --- a round that was played -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlayedRound:
    """A round as it can be read afterwards. `miner`: whose work is followed. `validator`: whose report is read.
    `updates`: the contributors' payloads, opened; None for one that does not parse. `events`: by node and kind, the
    last one of the round. `replica`: the model as it was at the round's start."""

    facts: Facts
    names: Mapping[PeerId, str]
    miner: PeerId
    validator: PeerId
    report: Report
    reveals: Mapping[PeerId, Reveal]
    updates: Mapping[PeerId, Update | None]
    events: Mapping[str, Mapping[str, Any]]
    replica: Replica
    shards: Shards

    @property
    def spec(self) -> RunSpec:
        return self.facts.spec

    def called(self, peer: PeerId) -> str:
        return self.names.get(peer) or hotkey(peer)

    def event(self, peer: PeerId, kind: str) -> Mapping[str, Any]:
        """Empty where the node has written none."""
        found: Mapping[str, Any] = self.events.get(self.called(peer), {}).get(kind, {})
        return found

    @property
    def update(self) -> Update:
        """That of the miner that is followed."""
        update = self.updates[self.miner]
        assert update is not None, "the payload of an honest miner parses"
        return update

    @property
    def passed(self) -> list[PeerId]:
        """Whom the validator rejects for nothing, and has seen."""
        return sorted(self.report.passed & self.facts.judged.keys())

    @property
    def ranking(self) -> Ranking:
        """The validator's order, by the book that it reports."""
        rows, facts = self.report.rows, self.facts
        twins = {peer: frozenset(row.twins) for peer, row in rows.items() if row.twins}
        return standing(self.report.before, self.passed, self.spec.gauntlet, facts.round, facts.commit_hash, twins)

    @property
    def peers(self) -> Peers:
        facts, last = self.facts, self.facts.run.clock.commit_deadline(self.facts.round)
        evaluated = sum(row.evaluation is not None for row in self.report.rows.values())
        committed = who_committed(facts.judged.values(), facts.round, last)
        return Peers(len(committed), len(self.passed), len(self.ranking.order), evaluated, len(self.updates))


def trace(folder: Path, round: int) -> Iterator[str]:
    """The lines to print of a round of the run in `folder`. Raises ConfigError where the round is void or its objects
    are gone, ChainError, StorageError."""
    config = run_folder.network_config("murmur localnet", folder)
    ports, run = run_folder.open_folder(folder, config)
    names = run_folder.names(folder)
    facts, archive = observed(run, ports, round)
    if facts.decision.selection is None:
        raise ConfigError(f"round {round} is void: nobody's work was applied, so there is nothing to follow")
    validator, report = _report(facts, archive)
    contributing = [peer for peer, _ in facts.decision.selection.contributing]
    miner = min(contributing, key=lambda peer: (not names.get(peer, "").startswith(HONEST), names.get(peer, "")))
    reveals = _reveals(facts, archive, contributing)
    updates = {peer: _opened(facts, peer, reveals[peer]) for peer in contributing}
    events = {path.parent.name: _events(path, round) for path in folder.glob("nodes/*/events.jsonl")}
    shards = open_data(config, run, ports, folder)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the nodes of a local network: only then training repeats to the bit
    try:
        start, device = Tip(round, facts.previous, facts.theta), torch.device("cpu")
        with replica_at(run, ports, start, Path(gettempdir()), device) as replica:
            played = PlayedRound(facts, names, miner, validator, report, reveals, updates, events, replica, shards)
            yield f"round {round} of run {run.first.name} in ten stations; it follows {played.called(miner)}"
            flows = flow(facts.spec, played.peers)
            sections = [
                *_training_stations(played),
                *_sending_stations(played),
                *_judging_stations(played),
                ("outer step", _outer_step_lines(played)),
            ]
            for number, (station, lines) in enumerate(sections, start=1):
                yield ""
                yield f"{number:>2}  {station}"
                yield from (f"{INDENT}{line}" for line in lines)
                yield INDENT + arrows(flows[station])
    finally:
        torch.set_num_threads(num_threads)


# --- 1 to 3: what the miner computes ---------------------------------------------------------------------------------


def _training_stations(played: PlayedRound) -> Iterator[Station]:
    """Assignment, inner round, compress."""
    facts, spec, who = played.facts, played.spec, played.called(played.miner)
    pages = assigned(
        facts.run.id,
        facts.page_hash,
        played.miner,
        num_pages=spec.num_pages,
        page_tokens=spec.page_tokens,
        count=spec.pages_per_round,
        first_page=spec.inner.first_page,
    )
    drawn = ", ".join(f"{page.first // page.num_tokens}, from token {page.first:,} on" for page in pages)
    yield (
        "assignment",
        [
            f"the hash of block {facts.run.clock.page_block(facts.round)}, {_short(facts.page_hash)}, draws for {who}",
            f"page {drawn}: one of {spec.num_pages} pages of {spec.page_tokens:,} tokens",
        ],
    )
    losses, delta = _repeated_training(played, pages)
    yield "inner round", [*_training_lines(played), *losses]
    layout, values, update = spec.layout, Sizes(spec).values, played.update
    yield (
        "compress",
        [
            delta,
            f"{values:,} of {layout.num_parameters:,} values are sent, in {layout.num_chunks:,} chunks: "
            f"Delta_hat has norm {update.norms.whole:.4g}",
            f"{8 * layout.records_bytes / values:.2f} bits a value sent, "
            f"{4 * layout.num_parameters / layout.records_bytes:.0f} times smaller than fp32",
        ],
    )


def _training_lines(played: PlayedRound) -> list[str]:
    """What the miner says of its training."""
    who, trained = played.called(played.miner), played.event(played.miner, "trained")
    if not trained:
        return [f"{who} was restarted with its work done, and has left no event of its training"]
    return [
        f"{who} made {played.spec.inner.steps} steps on {trained['tokens']:,} tokens in "
        f"{trained['seconds']['compute']:.1f} s; mean loss of the steps {trained['loss']:.3f}"
    ]


def _repeated_training(played: PlayedRound, pages: Sequence[Page]) -> tuple[list[str], str]:
    """What is said of the loss within the round, and of Delta. In round 0 both follow from public objects, since the
    miner has carried nothing over: its training is repeated."""
    replica, spec, shards, sent = played.replica, played.spec, played.shards, played.update
    count = spec.data.held_out_sequences
    before = f"held-out loss of theta {held_out_loss(replica, shards, count):.3f}"
    if played.facts.round:
        own = "not public after round 0: it follows from the miner's own optimizer and error feedback"
        return [before, f"the loss of a step is {own}"], f"the norm of Delta is {own}"
    done = replica.inner_round(sequences(shards.train, pages, spec.model.context), inner=spec.inner)
    after, ends = held_out_loss(replica, shards, count), dict(replica.model.named_parameters())
    squares = ((theta - ends[name].detach()).double().square().sum() for name, theta in replica.theta.items())
    norm = sqrt(sum(map(float, squares)))
    update = replica.compress()
    replica.reset()
    again = "the payload is the same, byte for byte"
    if update.digest != sent.digest:
        same = overlap(update, sent)
        again = f"{100 * same:.0f} % of the payload's positions are the same: it trained on other threads or ranks"
    return [
        f"repeated here: loss {done.losses[0]:.3f} in the first step, {done.losses[-1]:.3f} in the last",
        f"{before}, of theta_r {after:.3f}",
    ], f"repeated here: Delta = theta - theta_r has norm {norm:.4g}; {again}"


# --- 4 and 5: what the miner promises --------------------------------------------------------------------------------


def _sending_stations(played: PlayedRound) -> Iterator[Station]:
    """Seal and commit."""
    facts, clock, who = played.facts, played.facts.run.clock, played.called(played.miner)
    data = facts.payloads[played.miner]
    envelope, published = parse_envelope(data[:ENVELOPE_BYTES]), played.event(played.miner, "published")
    took = f", uploaded in {published['seconds']['upload']:.3f} s" if published else ""
    digest = sha256(data[:ENVELOPE_BYTES]).digest()
    yield (
        "seal",
        [
            f"{who} signs an envelope, sha256 {_short(digest)}: the ciphertext's Merkle root is "
            f"{_short(envelope.root)}, the key's sha256 {_short(envelope.key_hash)}",
            f"an object of {len(data):,} bytes in its own bucket{took}",
        ],
    )
    last, reveal = clock.commit_deadline(facts.round), played.reveals[played.miner]
    slot = next(peer.slot for peer in facts.log.commit if peer.id == played.miner)
    assert slot is not None, "a contributor has committed"
    key = sha256(reveal.key).digest()
    yield (
        "commit",
        [
            f"{_short(digest)} is on chain from block {slot.block} on; the commit deadline is block {last}, "
            f"{last - slot.block} later; "
            f"{played.peers.committed} hotkeys committed by then",
            f"after the commit deadline {who} published its key, sha256 {_short(key)}, and its in-sync proof, "
            f"{_short(reveal.proof)}; "
            f"keys count until the reveal deadline, block {clock.reveal_deadline(facts.round)}",
        ],
    )


# --- 6 to 9: what the validators make of it --------------------------------------------------------------------------


def _judging_stations(played: PlayedRound) -> Iterator[Station]:
    """Check, order, vote, score."""
    rows = sorted(played.report.rows.items(), key=lambda item: item[1].uid)
    verdicts = {peer: f"{row.rejected}, {row.detail}" for peer, row in rows if row.rejected is not None}
    verdicts |= dict.fromkeys(played.passed, "passes")
    yield "check", [f"{played.called(peer)}: {verdict}" for peer, verdict in verdicts.items()]
    ranking, book = played.ranking, played.report.before.peers
    rated = {peer for peer, record in book.items() if record.evaluations}
    scores = [
        f"{played.called(peer)} {peer_score(book[peer]):.2f}"
        if peer in rated
        else f"{played.called(peer)} (no rating yet)"
        for peer in ranking.order
    ]
    earning, places = sum(peer.incentive > 0 for peer in played.facts.log.commit), played.spec.gauntlet.contributors
    yield (
        "order",
        [
            f"{played.called(played.validator)} orders those that pass by PeerScore, equal ones by the "
            "hash of the commit deadline's block:",
            ", ".join(scores),
            *(f"{played.called(peer)} may not contribute: {why}" for peer, why in ranking.standing.items()),
            f"the chain's incentive decides where more than {places} are named: "
            + (f"{earning} hotkeys have one" if earning else "nobody has one yet"),
        ],
    )
    yield "vote", _vote_lines(played)
    yield "score", _score_lines(played)


def _vote_lines(played: PlayedRound) -> list[str]:
    """The votes on chain, and the selection that they come to."""
    facts, called = played.facts, {peer.uid: played.called(peer.id) for peer in played.facts.log.commit}
    selection, after = facts.decision.selection, facts.decision.block - facts.run.clock.commit_deadline(facts.round)
    assert selection is not None
    lines = []
    for post in facts.log.posts:
        who = ", ".join(called[uid] for uid in named(post.vote)) or "nobody"
        state = f"theta {_short(post.vote.theta)} and previous link {_short(post.vote.previous)}"
        vote = "abstains" if post.vote.state_ref is None else f"holds {state}, and names {who}"
        lines.append(f"{played.called(post.peer)} in block {post.block}: {vote}")
    return [
        *lines,
        f"decided in block {facts.decision.block}, {after} after the commit deadline: more than half of the stake "
        f"names {len(selection.contributing)} hotkeys; link {_short(link_of(selection))}",
    ]


def _score_lines(played: PlayedRound) -> list[str]:
    """LossScores, ratings and pay."""
    report, before, after = played.report, played.report.before.peers, played.report.after.peers
    step = played.spec.gauntlet.probe_step
    evaluated = {peer: row for peer, row in report.rows.items() if row.evaluation is not None}
    lines = []
    for peer, row in sorted(evaluated.items(), key=lambda item: item[1].uid):
        assert row.evaluation is not None
        score, rated = row.evaluation.score, peer in before and before[peer].evaluations
        first = f"{before[peer].rating.mu:.1f}" if rated else "none yet"
        lines.append(
            f"{played.called(peer)}: {step:g} of its update lowers the loss by {score.assigned:.4f} on its pages, "
            f"by {score.unassigned:.4f} on nobody's; gap {row.evaluation.gap:.2f}; "
            f"rating {first} -> {after[peer].rating.mu:.1f}; weight {row.weight:.3f}"
        )
    known = {peer: after[peer].work for peer, row in report.rows.items() if row.contributing and peer in after}
    shares = ", ".join(f"{played.called(peer)} {share:.2f}" for peer, share in known.items())
    lines.append(f"work that each is known to do, by repeated steps: {shares}")
    if report.paid.set_in is None:
        return [*lines, f"no weights were set: they are due every {played.spec.gauntlet.weight_rounds} rounds"]
    return [*lines, f"{played.called(played.validator)} set these weights in block {report.paid.set_in}"]


# --- 10: what everybody does -----------------------------------------------------------------------------------------


def _outer_step_lines(played: PlayedRound) -> list[str]:
    """The outer step, made again here, against what the nodes say."""
    replica, spec, count = played.replica, played.spec, played.spec.data.held_out_sequences
    before, loss = replica.digest(), held_out_loss(replica, played.shards, count)
    updates = [played.updates[peer] for peer in sorted(played.updates)]
    scales = replica.outer_step(updates, alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
    after = replica.digest()
    thetas = [found["applied"]["theta"] for found in played.events.values() if "applied" in found]
    said = played.event(played.validator, "held_out").get("val_loss")
    return [
        f"theta - {spec.outer.alpha:g} * {spec.outer.aggregate} of {len(updates)} updates, each scaled to the median "
        f"norm: by {min(map(min, scales)):.3f} to {max(map(max, scales)):.3f}",
        f"theta digest {_short(before)} -> {_short(after)}, repeated here; "
        f"{thetas.count(after.hex())} of {len(thetas)} nodes have the same",
        f"held-out loss {loss:.3f} -> {held_out_loss(replica, played.shards, count):.3f} nats a token; "
        f"{played.called(played.validator)} measured {'none' if said is None else f'{said:.3f}'}",
    ]


# --- reading ---------------------------------------------------------------------------------------------------------


def _short(digest: bytes) -> str:
    """The first bytes of a digest, for people."""
    return digest[:4].hex()


def _report(facts: Facts, archive: Archive) -> tuple[PeerId, Report]:
    """The report of the validator with the most stake that has one. Raises ConfigError."""
    for validator in mirrors(facts.run, facts.run.clock.commit_deadline(facts.round), facts.log.commit):
        with suppress(MurmurError):
            return validator, archive.report(validator, facts.round)[0]
    raise ConfigError(f"no validator has left a report of round {facts.round}: see logs/ in the run folder")


def _reveals(facts: Facts, archive: Archive, peers: Sequence[PeerId]) -> dict[PeerId, Reveal]:
    """The contributors' keys. Raises ConfigError when a payload or a key is gone."""
    envelopes = [
        (peer, parse_envelope(facts.payloads[peer][:ENVELOPE_BYTES])) for peer in peers if peer in facts.payloads
    ]
    found = fetch_keys(facts.run.id, facts.round, envelopes, archive.sources, FETCH_SECONDS)
    reveals = {peer: parse_reveal(data) for peer, data in found.items() if not isinstance(data, FetchFault)}
    if lacking := len(peers) - len(reveals):
        raise ConfigError(
            f"the payloads or keys of {lacking} contributors to round {facts.round} are in no bucket any more, so it "
            "cannot be followed: choose fewer rounds"
        )
    return reveals


def _opened(facts: Facts, peer: PeerId, reveal: Reveal) -> Update | None:
    """A payload's update; None where it does not parse, which counts as nothing in the outer step."""
    data = facts.payloads[peer]
    try:
        plaintext = unseal(parse_envelope(data[:ENVELOPE_BYTES]), reveal.key, data[ENVELOPE_BYTES:])
        return ops.parse(plaintext, facts.spec.layout, facts.spec.trace.num_bytes)
    except InvalidSubmission:
        return None


def _events(path: Path, round: int) -> dict[str, Any]:
    """By kind, the last event of the round."""
    return {event["event"]: event for event in read_events(path) if event["round"] == round}
