"""Audit a validator's round from public objects: compare the statements of its signed report with our own results from
the chain, the payloads and the model (docs/protocol.md section 9; docs/audit.md for people).

Every step is judged by the report's own statements of the steps before it: checks from the bytes, ranking from the book
before, the sample from the ranking, scores from the model, the book after from the scores, pay from the book after. So
a lie shows in its own step, and everything after the published scores is exact. Some facts only the validator could
see, such as a key that was not readable in time; they are reported separately. Pure: the caller has fetched everything.
"""

from collections.abc import Collection, Iterator, Mapping
from math import isnan

from gauntlet.agreement import named, vote_by
from gauntlet.book import ScoreBook, fold
from gauntlet.commitment import who_committed
from gauntlet.difference import body_of, first_difference, same
from gauntlet.facts import ChainWeights, Facts, ValidatorFacts
from gauntlet.finding import Finding, Topic, Verdict
from gauntlet.observed import PATIENCE_ROUNDS, Unobserved, is_unreadable, pass_over
from gauntlet.remembered import Remembered, compared
from gauntlet.repetition import MOST_ROUNDS
from gauntlet.replay import OBSERVED_BYTES, Replay
from gauntlet.report import Report, ReportRow
from gauntlet.weights import differing, is_due, lasting, weights
from murmur.protocol.messages import canonical_json, parse_json
from murmur.protocol.types import PeerId, Reason, Uid, hotkey

SCORE_TOLERANCE = 0.001
GAP_TOLERANCE = 0.02
"""Tolerances of a stated LossScore, in nats a token, and of a gap, in shares of comparisons. The same device gives the
same bits. Another one rounds differently, and bf16 coarsely: at most 0.0005 and 0.008 were measured (docs/audit.md)."""
STATED_ROUNDS = MOST_ROUNDS + PATIENCE_ROUNDS
"""Rounds after its own within which a repetition is stated: those it may take, and those that may be passed over."""
_OF_OTHERS = {Reason.NORM, Reason.COPY}
"""Reasons that depend on other peers' payloads."""
_READ_LATER = {*OBSERVED_BYTES, Reason.UNREVEALED}
"""Rejections that another node's copy could have cured after the validator looked."""
_USUAL = ("unit", "usual_score", "score_variance")
"""The fields of a book that describe honest peers."""


def audit(facts: Facts, claim: ValidatorFacts) -> list[Finding]:
    """Return everything in a report that does not simply agree, in the order of the round; [] if everything was checked
    and agrees."""
    again = Replay(facts, claim)
    steps = (
        _hotkeys,
        _checks,
        _ranks,
        _vote,
        _sample,
        _scores,
        _work,
        _before,
        _observed,
        _after,
        _unstated,
        _pay,
        _numbers,
    )
    return [finding for step in steps for finding in step(again)]


def _hotkeys(again: Replay) -> Iterator[Finding]:
    """Check that the report lists exactly the hotkeys that were registered at the commit deadline, with their uids."""
    for peer in sorted(again.registered.keys() - again.report.rows.keys()):
        yield _differs(Topic.HOTKEYS, f"uid {again.registered[peer].uid} is left out of the report", peer)
    for peer in sorted(again.report.rows.keys() - again.registered.keys()):
        yield _differs(Topic.HOTKEYS, "is in the report, but was not registered at the commit deadline", peer)
    for peer, row in again.rows.items():
        if row.uid != again.registered[peer].uid:
            yield _differs(Topic.HOTKEYS, f"uid {row.uid} stated, {again.registered[peer].uid} on chain", peer)
        judged = peer in again.facts.judged
        outcome = row.rejected is not None or row.standing is not None or row.contributing
        if not judged and (outcome or row.evaluation is not None or row.payload is not None):
            yield _differs(Topic.HOTKEYS, "is judged, but is no miner of this round", peer)


def _checks(again: Replay) -> Iterator[Finding]:
    """Check that every rejection, and every pass, follows from the chain and the committed bytes."""
    ours = again.checked.rejected
    payloads = {kept.peer: kept.payload for kept in again.checked.remember}
    for peer, row in again.rows.items():
        if peer not in again.facts.judged:
            continue
        if peer not in again.examined:
            yield _unexamined(again, peer, row)
            if row.rejected in OBSERVED_BYTES and row.payload is not None:
                yield _differs(Topic.CHECKS, "its bytes are said not to be had, yet are remembered", peer)
            continue
        found = ours[peer].reason if peer in ours else None
        if found != row.rejected:
            text = f"{row.rejected or 'passed'} stated, {found or 'passes'} by the public bytes"
            if peer in ours:
                text += f": {ours[peer].detail}"
            doubtful = {found, row.rejected} & _OF_OTHERS and not again.whole
            if doubtful:
                yield _unchecked(Topic.CHECKS, f"{text}; some payloads to compare with are gone", peer)
            else:
                yield _differs(Topic.CHECKS, text, peer)
        elif found is Reason.UNREVEALED:
            text = "UNREVEALED: no key was readable by the reveal deadline"
            yield Finding(Topic.CHECKS, Verdict.OBSERVED, text, peer)
        elif row.payload != payloads.get(peer):
            yield _differs(Topic.CHECKS, "another payload is remembered than the committed one", peer)
        elif again.stated.twins.get(peer) != again.checked.twins.get(peer):
            text = "other hotkeys are said to have sent the same than have by the public bytes"
            yield _differs(Topic.CHECKS, text, peer) if again.whole else _unchecked(Topic.CHECKS, text, peer)
    lost = len(again.judge.compared().names) - len(again.claim.sketches)
    if lost:
        yield _unchecked(Topic.CHECKS, f"{lost} payloads of earlier rounds are gone: copies of them go unseen")


def _unexamined(again: Replay, peer: PeerId, row: ReportRow) -> Finding:
    if row.rejected is Reason.LATE:
        return _differs(Topic.CHECKS, "LATE stated, but its commitment stood on chain at the commit deadline", peer)
    if row.unseen:
        return Finding(Topic.CHECKS, Verdict.OBSERVED, "not looked at: there was no time, or no room for it", peer)
    if row.rejected in OBSERVED_BYTES:
        text = f"{row.rejected}: its committed object could not be read as it should be"
        return Finding(Topic.CHECKS, Verdict.OBSERVED, text, peer)
    why = again.facts.stateless or "its committed object is not to be had any more"
    return _unchecked(Topic.CHECKS, f"{row.rejected or 'passed'} stated; {why}", peer)


def _ranks(again: Replay) -> Iterator[Finding]:
    """Check that the contributors, and the standing of the others that passed, follow from the book before."""
    for peer in again.passed:
        row = again.rows[peer]
        stated = "contributing" if row.contributing else str(row.standing or "no outcome")
        found = str(again.ranking.standing.get(peer, "contributing"))
        if stated != found:
            yield _differs(Topic.RANKING, f"{stated} stated, {found} by the book before the round", peer)


def _vote(again: Replay) -> Iterator[Finding]:
    """Check that the validator's vote on chain names our theta, and only peers that may contribute by its own book."""
    facts, vote = again.facts, vote_by(again.facts.log, again.claim.validator)
    if vote is None or vote.state_ref is None:
        return
    if vote.state_ref != (facts.theta, facts.previous):
        text = "its vote on chain starts from another state than the run's"
        # Its state may have been the tip before the others' votes moved that. But not with another theta.
        held = facts.decision.state_ref is None or vote.state_ref.link != facts.previous
        held |= again.report.unobserved is Unobserved.APART
        yield Finding(Topic.VOTE, Verdict.OBSERVED, text) if held else _differs(Topic.VOTE, text)
        return
    uids = {peer.uid: peer.id for peer in facts.log.commit}
    on_chain, may = {uids[uid] for uid in named(vote) if uid in uids}, set(again.ranking.order)
    committed = who_committed(facts.log.commit, facts.round, facts.run.clock.commit_deadline(facts.round))
    for peer in sorted(on_chain - may):
        row = again.rows.get(peer)
        if peer in committed and row is not None and (row.unseen or row.rejected in _READ_LATER):
            text = "is named on chain: others must have given the validator what it could not read in time"
            yield Finding(Topic.VOTE, Verdict.OBSERVED, text, peer)
        else:
            yield _differs(Topic.VOTE, "is named on chain, but may not contribute", peer)
    for peer in sorted(may - on_chain):
        text = "may contribute, but is not named on chain: the validator was late, or restarted"
        yield Finding(Topic.VOTE, Verdict.OBSERVED, text, peer)


def _sample(again: Replay) -> Iterator[Finding]:
    """Check that exactly the drawn peers with references were evaluated; none in a round that was passed over."""
    expected = (
        {peer for peer, others in again.drawn.references.items() if others}
        if again.report.unobserved is None
        else set()
    )
    for peer in sorted(again.evaluated.keys() - expected):
        yield _differs(Topic.SAMPLE, "was evaluated, but not drawn (or has nobody to compare with)", peer)
    for peer in sorted(expected - again.evaluated.keys()):
        # This is correct if no reference has a finite loss: only the model shows that.
        if peer in again.ours:
            yield _differs(Topic.SAMPLE, "was drawn, but not evaluated", peer)
        elif again.unscored:
            yield _unchecked(Topic.SAMPLE, f"was drawn, but not evaluated; {again.unscored}", peer)
    for peer in sorted(again.evaluated.keys() & expected):
        if again.evaluated[peer].references > len(again.drawn.references[peer]):
            yield _differs(Topic.SAMPLE, "has more references than were drawn", peer)


def _scores(again: Replay) -> Iterator[Finding]:
    """Check that stated scores and gaps are within the tolerance of ours."""
    if again.evaluated and again.unscored:
        yield _unchecked(Topic.SCORES, f"scores were not evaluated again: {again.unscored}")
    for peer in sorted(again.evaluated.keys() & set(again.drawn.picked)):
        if again.unscored:
            continue
        if peer not in again.ours:
            yield _differs(Topic.SCORES, "has scores, but no reference with a finite loss", peer)
            continue
        stated, found = again.evaluated[peer], again.ours[peer]
        for name, theirs, ours, allowed in (
            ("assigned LossScore", stated.score.assigned, found.score.assigned, SCORE_TOLERANCE),
            ("unassigned LossScore", stated.score.unassigned, found.score.unassigned, SCORE_TOLERANCE),
            ("gap", stated.gap, found.gap, GAP_TOLERANCE),
        ):
            if isnan(theirs) != isnan(ours) or abs(theirs - ours) > allowed:
                text = f"{name} {theirs:.6g} stated, {ours:.6g} by the model ({allowed} apart would do)"
                yield _differs(Topic.SCORES, text, peer)
        if stated.references != found.references:
            text = f"{stated.references} references stated, {found.references} have finite losses"
            yield _differs(Topic.SCORES, text, peer)


def _work(again: Replay) -> Iterator[Finding]:
    """Check that the repeated steps are those that were drawn in their round, and are stated once. What they show, only
    another execution of them can tell."""
    run, report, claim = again.facts.run, again.report, again.claim
    for peer, one in ((peer, row.repetition) for peer, row in again.rows.items()):
        if one is None:
            continue
        drawn = claim.drawn.get(one.round)
        if not report.round - STATED_ROUNDS <= one.round < report.round:
            yield _differs(Topic.WORK, f"steps of round {one.round} were repeated: too old, or not made yet", peer)
        elif one.steps != run.spec_at(one.round).inner.steps:
            text = f"{one.steps} steps stated for round {one.round}, which had {run.spec_at(one.round).inner.steps}"
            yield _differs(Topic.WORK, text, peer)
        elif (peer, one.round) in claim.stated:
            yield _differs(Topic.WORK, f"the repeated steps of round {one.round} are stated a second time", peer)
        elif drawn is None:
            text = f"whose steps were drawn in round {one.round} is not known here"
            yield _unchecked(Topic.WORK, text, peer)
        elif peer not in drawn:
            yield _differs(Topic.WORK, f"steps of round {one.round} were repeated, but not drawn", peer)


def _before(again: Replay) -> Iterator[Finding]:
    """Check that the book before the round is the one after the report before."""
    report, earlier = again.report, again.claim.earlier
    if again.claim.skipped is not None:
        text = f"goes on from the book of round {report.before.round}, but round {again.claim.skipped} was reported"
        yield _differs(Topic.BOOK, text)
    if report.before.round < 0:
        empty = ScoreBook(unobserved=report.before.unobserved)
        if report.before != empty or not _passed_over(0.0, report, -1) or report.history or report.gone:
            yield _differs(Topic.BOOK, "a book of no round before is not empty")
        return
    if earlier is None:
        text = f"the report of round {report.before.round} is not to be had: the book before is taken as stated"
        yield _unchecked(Topic.BOOK, text)
        return
    for name in _USUAL:
        if getattr(report.before, name) != getattr(earlier.after, name):
            yield _differs(Topic.BOOK, f"{name} before the round is not what round {earlier.round} left")
    for peer in sorted(report.rows.keys()):
        then, now = earlier.after.peers.get(peer), report.before.peers.get(peer)
        if peer in earlier.rows and then != now:
            text = f"its record before the round is not what round {earlier.round} left"
            yield _differs(Topic.BOOK, f"{text}{first_difference(body_of(now), body_of(then))}", peer)
        elif peer not in earlier.rows and now is not None:
            text = f"was not registered in round {earlier.round}: its record before is taken as stated"
            yield _unchecked(Topic.BOOK, text, peer)
    if not _passed_over(earlier.after.unobserved, report, earlier.round):
        yield _differs(Topic.BOOK, f"more or less patience is left than round {earlier.round} and those since left")
    if _rated(report.before) + report.gone != _rated(earlier.after) + earlier.gone:
        yield _differs(Topic.BOOK, "another number of hotkeys was ever evaluated than the round before left")
    rules = again.facts.run.spec_at(earlier.round).gauntlet
    known = {*earlier.history, *_payloads(earlier)}
    kept = set(compared(known, earlier.round + 1, rules.copy_rounds))
    # For a hotkey that is not registered any more the report does not show the record.
    open_ones = {past for past in known if past.peer not in earlier.rows}
    if not kept <= set(report.history) <= kept | open_ones:
        yield _differs(Topic.BOOK, f"the payloads remembered are not those that round {earlier.round} left")


def _passed_over(unobserved: float, report: Report, since: int) -> bool:
    """Whether the book before may be of round `since`, followed only by rounds that were passed over."""
    rounds = report.before.unobserved - unobserved
    return rounds.is_integer() and 0 <= rounds < report.round - since


_ITS_OWN = {
    Unobserved.LATE: "it came too late to read what the peers left",
    Unobserved.APART: "it could not follow a round before",
}


def _observed(again: Replay) -> Iterator[Finding]:
    """Check that the round was passed over exactly if its own findings say so, or for a reason that only the validator
    saw."""
    report, last = again.report, again.facts.run.clock.commit_deadline(again.facts.round)
    committed = who_committed(again.facts.judged.values(), again.facts.round, last)
    outcomes = {p: row.rejected for p, row in again.rows.items() if row.rejected or row.standing or row.contributing}
    unreadable = is_unreadable(report.before, committed, outcomes, again.spec.gauntlet)
    if report.unobserved in _ITS_OWN:
        text = f"says that {_ITS_OWN[report.unobserved]}: nothing was folded and paid"
        yield Finding(Topic.BOOK, Verdict.OBSERVED, text)
    elif unreadable != (report.unobserved is Unobserved.UNREADABLE):
        found = "too few were readable to fold the round" if unreadable else "enough were readable to fold the round"
        yield _differs(Topic.BOOK, f"{found}, by its own findings")
    elif unreadable:
        text = "says that too few peers in good standing were readable, or at its theta: nothing was folded and paid"
        yield Finding(Topic.BOOK, Verdict.OBSERVED, text)


def _after(again: Replay) -> Iterator[Finding]:
    """Check that the book after is the fold of the book before and the stated outcome."""
    contributing = again.facts.decision.selection.contributing if again.facts.decision.selection else ()
    last = again.facts.run.clock.commit_deadline(again.facts.round)
    committed = who_committed(again.facts.judged.values(), again.facts.round, last) & again.rows.keys()
    outcome = again.judge.outcome(
        again.stated,
        committed,
        again.evaluated,
        [peer for peer, _ in contributing],
        {peer: row.repetition for peer, row in again.rows.items() if row.repetition is not None},
    )
    if len(again.evaluated) > again.spec.gauntlet.evaluations:
        return  # reported already; and folding hundreds of evaluations takes minutes
    before, stated, why = again.report.before, again.report.after, again.report.unobserved
    expected = fold(before, outcome, again.spec.gauntlet) if why is None else pass_over(before, why)
    for name in _USUAL:
        theirs, ours = getattr(stated, name), getattr(expected, name)
        if not same([theirs.value, theirs.weight], [ours.value, ours.weight]):
            yield _differs(Topic.BOOK, f"{name} {theirs.value:.6g} stated, {ours.value:.6g} by the fold")
    if stated.unobserved != expected.unobserved:
        yield _differs(Topic.BOOK, f"patience {stated.unobserved:.6g} stated, {expected.unobserved:.6g} follows")
    for peer in sorted(expected.peers.keys() | stated.peers.keys()):
        theirs, ours = stated.peers.get(peer), expected.peers.get(peer)
        if not same(body_of(theirs), body_of(ours)):
            yield _differs(
                Topic.BOOK, f"its record does not follow{first_difference(body_of(theirs), body_of(ours))}", peer
            )


def _pay(again: Replay) -> Iterator[Finding]:
    """Check that the shares follow from the book after, and took effect on chain."""
    paid, facts = again.report.paid, again.facts
    if not facts.run.clock.reveal_deadline(facts.round) <= paid.block <= min(facts.height, paid.set_in or facts.height):
        yield _differs(Topic.WEIGHTS, f"paid by block {paid.block}, set in {paid.set_in}: that cannot be")
        return
    if again.claim.paid is None:
        yield _unchecked(Topic.WEIGHTS, f"the chain's node does not have the uids of block {paid.block}")
        return
    uids = lasting(facts.log.commit, again.claim.paid)
    shares = {}
    if again.report.unobserved is None:
        shares = weights(again.report.after, again.ranking, uids, again.spec.owner_id, again.spec.gauntlet)
    for peer, row in again.rows.items():
        found = shares.get(uids[peer], 0.0) if peer in uids else 0.0
        if not same(row.weight, found):
            yield _differs(Topic.WEIGHTS, f"weight {row.weight:.6g} stated, {found:.6g} by the book", peer)
    if paid.set_in is None:
        me = next((peer for peer in again.claim.paid if peer.id == again.claim.validator), None)
        if shares and me is not None and is_due(facts.run, facts.round, me.last_update, paid.block):
            yield Finding(Topic.WEIGHTS, Verdict.OBSERVED, "the chain is said to have taken no weights")
    elif isinstance(again.claim.row, str):
        yield _unchecked(Topic.WEIGHTS, f"the weights of block {paid.set_in}: {again.claim.row}")
    else:
        yield from _on_chain(again, shares, paid.set_in, again.claim.row)


def _unstated(again: Replay) -> Iterator[Finding]:
    """Check that its last report states every set of weights that the chain took by the block of this pay. Weights that
    a validator sets while its reports deny it follow from no evaluation."""
    facts, last = again.facts, again.claim.last
    me = next((peer for peer in again.claim.paid or () if peer.id == again.claim.validator), None)
    if me is None:
        return
    if last is not None and last.paid.block < me.last_update != last.paid.set_in:
        text = f"weights were set in block {me.last_update}, and its report of round {last.round} does not say so"
        yield _differs(Topic.WEIGHTS, text)
    elif last is None and facts.round and me.last_update > facts.run.clock.reveal_deadline(facts.round - 1):
        text = f"weights were set in block {me.last_update}, and its report of the round before is not to be had"
        yield _unchecked(Topic.WEIGHTS, text)


def _on_chain(again: Replay, shares: Mapping[Uid, float], set_in: int, row: ChainWeights) -> Iterator[Finding]:
    names = {peer.uid: peer.id for peer in again.claim.paid or ()}
    wrong = differing(shares, row.now)
    if wrong and row.now == row.before and row.block > set_in:
        text = f"the weights of block {set_in} were not revealed in block {row.block}: the chain shows those of before"
        yield _unchecked(Topic.WEIGHTS, text)
        return
    for uid in wrong:
        share = row.now.get(uid, 0) / (sum(row.now.values()) or 1)
        text = f"uid {uid} was set {share:.6g} on chain, {shares.get(uid, 0.0):.6g} is its share"
        yield _differs(Topic.WEIGHTS, text, names.get(uid))


def _numbers(again: Replay) -> Iterator[Finding]:
    """Check that the numbers shown to people follow from the book after."""
    expected = parse_json(canonical_json(again.report.named(again.spec.gauntlet)))
    for peer in again.rows:
        theirs, ours = again.claim.shown.get(hotkey(peer)), expected[hotkey(peer)]
        if not same(theirs, ours):
            text = f"shown numbers do not follow from its record{first_difference(theirs, ours)}"
            yield _differs(Topic.REPORT, text, peer)


def _differs(topic: Topic, text: str, peer: PeerId | None = None) -> Finding:
    return Finding(topic, Verdict.DIFFERS, text, peer)


def _unchecked(topic: Topic, text: str, peer: PeerId | None = None) -> Finding:
    return Finding(topic, Verdict.UNCHECKED, text, peer)


def _rated(book: ScoreBook) -> int:
    return sum(record.evaluations > 0 for record in book.peers.values())


def _payloads(report: Report) -> Collection[Remembered]:
    return [Remembered(report.round, p, row.payload) for p, row in report.rows.items() if row.payload is not None]
