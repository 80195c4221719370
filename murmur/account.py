"""A miner's account, from validators' newest signed reports: claims, which `murmur audit` checks."""

import argparse
import sys
from collections.abc import Iterator

from gauntlet.agreement import mirrors
from gauntlet.book import PeerRecord, least_gap, least_score
from gauntlet.report import Report, Row
from gauntlet.selection import peer_score
from murmur import network
from node.evidence import LOOK_BACK_ROUNDS, Archive
from protocol.errors import ChainError, ConfigError, InvalidMessage, MurmurError, ObjectMissing
from protocol.ports import Chain
from protocol.spec import GauntletSpec
from protocol.types import Peer, PeerId, Reason, Standing, hotkey

ADVICE: dict[Reason | Standing, str] = {
    Reason.MISSING: "check that the miner runs, that the chain takes its posts, and that its bucket answers with the "
    "read key published on chain; the upload has to be whole before the commitment is posted",
    Reason.LATE: "the commitment has to be on chain by block D: see in the miner's log what held it up",
    Reason.WRONG_SIZE: "update the miner, and let nothing else write into its bucket",
    Reason.UNSIGNED: "wallet and bucket have to belong together: one bucket for each hotkey",
    Reason.WRONG_RUN: "check --owner or --spec, and update the miner",
    Reason.UNREVEALED: "the key has to be readable from outside between blocks D and V: check the bucket's speed, and "
    "that nothing stops the miner after its commitment",
    Reason.BAD_KEY: "run one miner only for each hotkey and bucket",
    Reason.OUT_OF_SYNC: "restart the miner, it catches up; if this comes back, remove its state folder",
    Reason.MALFORMED: "update the miner; where it is unchanged code, report a bug with its log",
    Reason.NORM: "train with the run's inner settings unchanged, and look for a loss that diverges",
    Reason.COPY: "send work of one's own, from the assigned pages: one miner for each hotkey",
    Standing.NOT_ELIGIBLE: "go on: it is evaluated when the draw comes to it, the likelier the longer it waits",
    Standing.LOW_SCORE: "its work helps too little: train all inner steps, on the assigned pages, from the run's theta",
    Standing.NOT_SELECTED: "its work is good enough, others rank higher: train every step and miss no round",
}
"""What a miner does next, by its outcome."""

CONTRIBUTING = "go on like this"
NOT_JUDGED = "nothing: a hotkey with a validator permit, and the owner's, mine only if they commit"
_SHOWN_IN_FULL = 3


def show(peer: PeerId, options: argparse.Namespace) -> int:
    """Print the account. Raises ConfigError when no validator says anything of this hotkey."""
    there = network.open_network("murmur explain", options)
    chain, clock = there.doors.chain, there.run.clock
    head = chain.finalized().block
    peers = chain.peers(head)
    newest = clock.round_at(head)
    archive = Archive(there.run, there.doors, (head, peers))
    mine = next((one for one in peers if one.id == peer), None)
    where = f"uid {mine.uid}" if mine is not None else "not registered any more"
    lines = [f"{hotkey(peer)}, {where}, in run {there.run.first.name} (round {newest} now)"]
    told = 0
    stakes = {one.id: one.stake for one in peers}
    validators = mirrors(there.run, head, peers)
    for validator in validators:
        report = _newest(archive, validator, newest)
        if report is None or peer not in report.rows:
            continue
        spec = there.run.spec_at(report.round).gauntlet
        share = 100 * stakes[validator] / (sum(stakes[one] for one in validators) or 1)
        lines += [
            "",
            f"validator {hotkey(validator)} ({share:.0f} % of the validators' stake), round {report.round}:",
        ]
        if told < _SHOWN_IN_FULL:
            before = _newest(archive, validator, report.round - 1)
            lines += [f"  {line}" for line in account(peer, report, before, spec)]
            lines.append(f"  {on_chain(chain, head, validator, mine)}")
        else:
            lines.append(f"  {outcome(report.rows[peer])}")
        told += 1
    if not told:
        known = "is registered, but no" if mine is not None else "is not registered on this subnet, and no"
        raise ConfigError(
            f"{hotkey(peer)} {known} validator's report of the last rounds lists it: look again after the next round, "
            "and check the hotkey, --netuid and --owner"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def account(peer: PeerId, report: Report, earlier: Report | None, spec: GauntletSpec) -> Iterator[str]:
    """Outcome, reason, what changed it, and what to do next, a line each. `earlier`: the validator's report before."""
    row, judged_by, now = report.rows[peer], report.before.peers.get(peer), report.after.peers.get(peer)
    yield outcome(row)
    yield from (f"because {why}" for why in _reasons(peer, row, report, spec))
    if earlier is not None and peer in earlier.rows and (then := outcome(earlier.rows[peer])) != outcome(row):
        yield f"in round {earlier.round} it was: {then}"
    yield from _changes(row, judged_by, now)
    yield f"next: {advice(row)}"


def on_chain(chain: Chain, block: int, validator: PeerId, miner: Peer | None) -> str:
    """What stands on chain of a validator's weights for this miner, as of `block`."""
    payer = next((peer for peer in chain.peers(block) if peer.id == validator), None)
    if payer is None or miner is None:
        return "on chain: nothing"
    row = chain.weights(block, payer.uid)
    share = row.get(miner.uid, 0) / (sum(row.values()) or 1)
    try:
        stands = chain.stands_from(payer.last_update)
    except ChainError:
        stands = block  # set so long ago that this chain node has forgotten it
    newer = f"; newer weights, of block {payer.last_update}, are not revealed yet" if stands is None else ""
    return f"on chain: {100 * share:.2f} % of this validator's weights{newer}"


def advice(row: Row) -> str:
    """What to do next."""
    code = row.rejected or row.standing
    if code is not None:
        return ADVICE[code]
    return CONTRIBUTING if row.contributing else NOT_JUDGED


def outcome(row: Row) -> str:
    """How a hotkey stands, with its share of the pay."""
    if row.rejected is not None:
        what = f"rejected, {row.rejected}: {row.detail}"
    elif row.standing is not None:
        what = str(row.standing)
    else:
        what = "contributing" if row.contributing else "not judged"
    return f"{what}; pay {100 * row.weight:.2f} %"


def _reasons(peer: PeerId, row: Row, report: Report, spec: GauntletSpec) -> Iterator[str]:
    """Why the standing is what it is, by the book that the round was judged with."""
    record = report.before.peers.get(peer)
    if row.standing is Standing.NOT_ELIGIBLE:
        yield "it was never evaluated"
    if row.standing is Standing.LOW_SCORE and record is not None:
        needed = least_score(record, spec)
        if record.scores.value <= needed:
            yield f"its LossScore on unassigned data averages {record.scores.value:.4f}, needed is over {needed:.4f}"
        least = least_gap(record, spec)
        if record.gaps.value <= least:
            yield f"its gap averages {record.gaps.value:.3f} (its proof of computation), needed is over {least:.3f}"
    if row.standing is Standing.NOT_SELECTED:
        scores = {p: peer_score(report.before.peers.get(p)) for p, other in report.rows.items() if other.contributing}
        yield f"its PeerScore was {peer_score(record):.2f}, the last of {len(scores)} places went for " + (
            f"{min(scores.values()):.2f}" if scores else "nothing"
        )


def _changes(row: Row, before: PeerRecord | None, after: PeerRecord | None) -> Iterator[str]:
    """What the round did to its numbers."""
    if row.twins:
        others = ", ".join(hotkey(peer) for peer in row.twins)
        yield f"sent (nearly) the same as {others}: whose own pages do not show the work has copied, a fault"
    if row.evaluation is not None:
        score = row.evaluation.score
        losses = f"LossScore {score.unassigned:.4f} on unassigned data, {score.assigned:.4f} on its own"
        yield f"evaluated in this round: {losses}, gap {row.evaluation.gap:+.3f}"
    if after is None:
        yield "it has no record yet"
        return
    then = before or PeerRecord(first_seen=after.first_seen)
    old, new = (_numbers(record, peer_score(record)) for record in (then, after))
    changed = [f"{name} {old[name]} -> {new[name]}" for name in new if old[name] != new[name]]
    same = [f"{name} {new[name]}" for name in new if old[name] == new[name]]
    if changed:
        yield "changed: " + ", ".join(changed)
    if same:
        yield "unchanged: " + ", ".join(same)
    seen = (
        "never" if after.last_evaluated is None else f"{after.evaluations} times, last in round {after.last_evaluated}"
    )
    yield f"evaluated {seen}; contributed {after.contributed} times, {after.faults} faults, known since round " + str(
        after.first_seen
    )


def _numbers(record: PeerRecord, score: float) -> dict[str, str]:
    return {
        "PeerScore": f"{score:.2f}",
        "rating": f"{record.rating.mu:.2f}",
        "proof": "unknown" if record.proof is None else f"{record.proof:.2f}",
        "penalty": f"{record.penalty:.2f}",
    }


def _newest(archive: Archive, validator: PeerId, round: int) -> Report | None:
    """The validator's newest readable report up to `round`, of the last rounds."""
    for number in range(round, max(-1, round - LOOK_BACK_ROUNDS), -1):
        try:
            return archive.report(validator, number)[0]
        except (ObjectMissing, InvalidMessage):
            continue
        except MurmurError:
            return None  # a bucket that does not answer is not asked again
    return None
