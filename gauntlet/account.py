"""A hotkey's account of a round in words: its result, the reason, how certain that is, its changes and advice.

It comes from one validator's report alone: the validator's own claims, which an audit checks.
"""

from collections.abc import Iterator
from statistics import median

from gauntlet.average import error
from gauntlet.book import PeerRecord, in_doubt, least_gap, least_score
from gauntlet.repetition import (
    LARGEST_GRADIENT,
    LARGEST_MOVE,
    TYPICAL_GRADIENT,
    TYPICAL_MOVE,
    Repetition,
)
from gauntlet.report import Report, ReportRow
from gauntlet.selection import peer_score
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import PeerId, Reason, Standing, hotkey

SETTLED = 10
"""From this many evaluations on a number is called settled: a miner that trains on the wrong pages contributes for up
to this many rounds before it is pushed out."""
ALLOWANCE_DEVIATIONS = 1.5
"""`proof_allowance` in standard deviations of one gap (docs/decisions/0009-ranked-gap.md)."""

ADVICE: dict[Reason | Standing, str] = {
    Reason.MISSING: "check that the miner runs, that the chain takes its posts, and that its bucket answers with the "
    "read key published on chain; the upload has to be whole before the commitment is posted",
    Reason.LATE: "the commitment has to be on chain by the commit deadline: see in the miner's log what held it up",
    Reason.WRONG_SIZE: "update the miner, and let nothing else write into its bucket",
    Reason.UNSIGNED: "another hotkey has signed the payload: run the released miner with this hotkey's wallet",
    Reason.WRONG_RUN: "check --owner or --spec, and update the miner",
    Reason.UNREVEALED: "the key has to be readable from outside between the commit and the reveal deadline: "
    "check the bucket's speed, and that nothing stops the miner after its commitment",
    Reason.BAD_KEY: "run one miner only for each hotkey and bucket",
    Reason.OUT_OF_SYNC: "restart the miner, it catches up; if this comes back, remove its state folder",
    Reason.MALFORMED: "update the miner; where it is unchanged code, report a bug with its log",
    Reason.NORM: "train with the run's inner settings unchanged, and look for a loss that diverges",
    Reason.COPY: "send work of one's own, from the assigned pages: one miner for each hotkey",
    Standing.NOT_ELIGIBLE: "go on: it is evaluated when the draw comes to it, the likelier the longer it waits",
    Standing.LOW_SCORE: "its work helps too little: train all inner steps, on the assigned pages, from the run's theta",
    Standing.NOT_SELECTED: "its work is good enough, others rank higher here, and the chain's incentive says who "
    "goes first: train every step and miss no round",
}
"""Advice to a miner, by its outcome."""

CONTRIBUTING = "go on like this"
UNPROVEN = "wait and see: no validator has measured its work yet, it has a place because hardly anybody was measured"
LEARNING = "wait and see: {evaluations} of about {settled} evaluations that it takes to tell work from luck"
DOUBTED = "its gap is nearer to what is needed than it errs: go on training every inner step, on the assigned pages"
WEAK = "it contributes, but its proof of computation is below that of honest work: train every inner step, on the "
WEAK += "assigned pages only"
OFTEN_ENOUGH = 0.9
"""A miner with a lower presence is advised about it; one missed round leaves a higher presence."""
AWAY = "it contributes, but was not there in several of the last rounds, and its pay falls with their share: keep it "
AWAY += "running, and see in its log what it missed them for"
UNREPEATED = "wait: no step of it was repeated yet, and pay begins with the first that is as shown"
UNSHOWN = (
    "its steps were not what its payload shows, so its pay is 0: run the released miner unchanged, on the assigned "
    "pages. Each repetition that passes brings a quarter of the rest back"
)
SLOW = "it is paid for the steps that it declares: a faster machine, or a better link, makes more of them in a round"
NOT_JUDGED = "a miner that runs: see in its log, or by murmur status, why nothing of it was on chain at the commit "
NOT_JUDGED += "deadline. A validator's hotkey, or the owner's, has nothing to do"


def outcome(row: ReportRow, record: PeerRecord | None, spec: GauntletSpec) -> str:
    """Return a hotkey's outcome, its share of the pay, and how certain that is."""
    if row.rejected is not None:
        what = f"rejected, {row.rejected}: {row.detail}"
    elif row.standing is not None:
        what = str(row.standing)
    elif row.contributing:
        what = "contributing"
    else:
        return "not judged"
    return f"{what}; pay {100 * row.weight:.2f} %; {sureness(record, spec)}"


def sureness(record: PeerRecord | None, spec: GauntletSpec) -> str:
    """Return how many evaluations support a hotkey's numbers."""
    if record is None or not record.evaluations:
        return "not evaluated yet"
    times = f"{record.evaluations} evaluation{'s' * (record.evaluations != 1)}"
    if record.evaluations < SETTLED:
        return f"learning, {times}"
    return f"in doubt after {times}" if in_doubt(record, spec) else f"settled, {times}"


def gap_error(record: PeerRecord, spec: GauntletSpec) -> float:
    """Return the standard error of the averaged gap, in shares of comparisons."""
    return spec.proof_allowance / ALLOWANCE_DEVIATIONS * error(record.evaluations, spec.proof_decay)


def advice(row: ReportRow, record: PeerRecord | None, spec: GauntletSpec) -> str:
    """Return the advice to a hotkey. `record`: after the round."""
    code = row.rejected or row.standing
    if code is not None:
        return ADVICE[code]
    if not row.contributing:
        return NOT_JUDGED
    if record is None or not record.evaluations:
        return UNPROVEN
    if record.evaluations < SETTLED:
        return LEARNING.format(evaluations=record.evaluations, settled=SETTLED)
    if in_doubt(record, spec):
        return DOUBTED
    if record.gaps.value + 2 * gap_error(record, spec) < record.units.value:
        return WEAK
    if spec.trace_values and (told := _work_advice(row, record)) is not None:
        return told
    return AWAY if record.presence < OFTEN_ENOUGH else CONTRIBUTING


def _work_advice(row: ReportRow, record: PeerRecord) -> str | None:
    """Return the advice where work is verified, None where its work is as it should be."""
    if not record.repeated:
        return UNREPEATED
    if not record.work and record.unproven:
        return UNSHOWN
    slow = row.repetition is not None and row.repetition.declared < row.repetition.steps
    return SLOW if slow or not record.work else None


def account(peer: PeerId, report: Report, earlier: Report | None, spec: GauntletSpec) -> Iterator[str]:
    """Yield outcome, reasons, changes and advice, a line each. `earlier`: the validator's report before."""
    row, judged_by, now = report.rows[peer], report.before.peers.get(peer), report.after.peers.get(peer)
    told = outcome(row, now, spec)
    yield told
    yield from (f"because {why}" for why in reasons(peer, report, spec))
    if earlier is not None and peer in earlier.rows:
        then = outcome(earlier.rows[peer], earlier.after.peers.get(peer), spec)
        if then != told:
            yield f"in round {earlier.round} it was: {then}"
    yield from _changes(row, judged_by, now, spec)
    yield f"next: {advice(row, now, spec)}"


def reasons(peer: PeerId, report: Report, spec: GauntletSpec) -> Iterator[str]:
    """Yield the reasons of the standing, by the book with which the round was judged; none for a hotkey that
    contributes or was rejected."""
    row, record = report.rows[peer], report.before.peers.get(peer)
    if row.standing is Standing.NOT_ELIGIBLE:
        yield "it was never evaluated"
    if row.standing is Standing.LOW_SCORE and record is not None:
        yield from shortfalls(record, spec)
    if row.standing is Standing.NOT_SELECTED:
        scores = [peer_score(report.before.peers.get(p)) for p, other in report.rows.items() if other.contributing]
        last = f"{min(scores):.2f}" if scores else "nothing"
        yield f"its PeerScore was {peer_score(record):.2f}, the last of the first {len(scores)} had {last}"


def shortfalls(record: PeerRecord, spec: GauntletSpec) -> Iterator[str]:
    """Yield the reasons why an evaluated hotkey is not eligible, each with the number needed."""
    needed, least = least_score(record, spec), least_gap(record, spec)
    if record.scores.value <= needed:
        yield f"its LossScore on unassigned data averages {record.scores.value:.4f}, needed is over {needed:.4f}"
    if record.gaps.value <= least:
        errs = gap_error(record, spec)
        yield (
            f"its gap averages {record.gaps.value:.3f} ± {errs:.3f} (its proof of computation), needed is over "
            f"{least:.3f}"
        )


def briefly(peer: PeerId, report: Report, spec: GauntletSpec) -> str:
    """Return why a hotkey does not contribute, with the deciding number and its limit."""
    row, record = report.rows[peer], report.before.peers.get(peer)
    if row.rejected is not None:
        return row.detail
    if row.standing is Standing.NOT_ELIGIBLE or record is None:
        return "never evaluated"
    if row.standing is Standing.NOT_SELECTED:
        scores = [peer_score(report.before.peers.get(p)) for p, other in report.rows.items() if other.contributing]
        return f"PeerScore {peer_score(record):.2f} of {min(scores, default=0.0):.2f}"
    needed, least = least_score(record, spec), least_gap(record, spec)
    if record.gaps.value <= least:
        return f"gap {record.gaps.value:.2f} of {least:.2f}"
    return f"LossScore {record.scores.value:.4f} of {needed:.4f}"


def _changes(row: ReportRow, before: PeerRecord | None, after: PeerRecord | None, spec: GauntletSpec) -> Iterator[str]:
    """Yield how the round changed the hotkey's numbers."""
    if row.twins:
        others = ", ".join(hotkey(peer) for peer in row.twins)
        yield f"sent (nearly) the same as {others}: whose own pages do not show the work has copied, a fault"
    if row.evaluation is not None:
        score = row.evaluation.score
        losses = f"LossScore {score.unassigned:.4f} on unassigned data, {score.assigned:.4f} on its own"
        yield f"evaluated in this round: {losses}, gap {row.evaluation.gap:+.3f}"
    if row.repetition is not None:
        yield repeated(row.repetition)
    if after is None:
        yield "it has no record yet"
        return
    then = before or PeerRecord(first_seen=after.first_seen)
    old, new = (_numbers(record, spec) for record in (then, after))
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


def repeated(found: Repetition) -> str:
    """Return what a validator found when it repeated steps, with the numbers and their limits."""
    told = f"of round {found.round} it declares {found.declared} of {found.steps} steps"
    if not found.moves:
        return told
    moves = f"moves differ by {median(found.moves):.2f} (at most {max(found.moves):.2f})"
    gradients = f"gradients by {median(found.gradients):.2f} ({max(found.gradients):.2f})"
    verdict = "as shown" if found.passed else "not what it shows"
    verdict += "" if found.confirmed else " (looked at once only)"
    limits = f"allowed {TYPICAL_MOVE} ({LARGEST_MOVE}) and {TYPICAL_GRADIENT} ({LARGEST_GRADIENT})"
    return f"{told}; they were repeated and are {verdict}: {moves}, {gradients}; {limits}"


def _numbers(record: PeerRecord, spec: GauntletSpec) -> dict[str, str]:
    """Return the numbers of the book; measured ones with one standard error."""
    proof = "unknown"
    if record.proof is not None:
        proof = f"{record.proof:.2f} ± {gap_error(record, spec) / record.units.value:.2f}"
    work = {"work": f"{record.work:.2f} (repeated {record.repeated} times, {record.unproven} not as shown)"}
    return {
        "PeerScore": f"{peer_score(record):.2f}",
        "rating": f"{record.rating.mu:.2f} ± {record.rating.sigma:.2f}",
        "proof": proof,
        **(work if spec.trace_values else {}),
        "presence": f"{record.presence:.2f}",
        "penalty": f"{record.penalty:.2f}",
    }
