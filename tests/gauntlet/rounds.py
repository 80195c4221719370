"""Rounds of an honest validator as pure functions play them: what it reports, and the facts that everybody can see."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from gauntlet.agreement import Log, Post, abstention, outcome, vote_for
from gauntlet.book import RoundOutcome, ScoreBook, fold
from gauntlet.checks import Expected, Gathered, fast_checks
from gauntlet.facts import ChainWeights, Facts, State, ValidatorFacts
from gauntlet.loss import bounded, evaluate
from gauntlet.remembered import Remembered, compared
from gauntlet.report import Paid, Report, round_report
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import standing
from gauntlet.weights import weights
from murmur.protocol.messages import canonical_json, first_link, parse_json
from murmur.protocol.run import Run
from murmur.protocol.types import Page, Peer, Slot, StateRef, Uid
from sparseloco.outer import OuterState, Scales
from sparseloco.update import Update
from tests.gauntlet.world import (
    COMMIT_HASH,
    FUNCTIONS,
    OWNER,
    POINTER,
    THETA,
    Miner,
    digest,
    make_spec,
    peer_id,
    proof_of,
    sketches,
)

SPEC = make_spec(contributors=3, reserve=1, evaluations=4, references=2, sample_sequences=8, proof_allowance=1.0)
RUN = Run(SPEC)
VALIDATOR = peer_id(100)
STATE_REF = StateRef(THETA, first_link(RUN.id))
PAGE_HASH, SAMPLE_HASH = digest("page block"), digest("first block after V")


def losses(update: Update | None, scales: Scales, pages: tuple[Page, ...]) -> list[float]:
    """A model whose losses nobody can tell from real ones: functions of update and sequence, lower with an update."""
    seed = b"" if update is None else update.digest
    each = [int.from_bytes(sha256(seed + page.first.to_bytes(8, "little")).digest()[:4], "little") for page in pages]
    base = [int.from_bytes(sha256(page.first.to_bytes(8, "little")).digest()[:4], "little") for page in pages]
    fall = 0.0 if update is None else 0.05
    return [4.0 + one / 2**32 - fall * (0.5 + other / 2**32) for one, other in zip(base, each, strict=True)]


@dataclass(frozen=True)
class Played:
    """A round: its facts, and the claim of the validator that played it."""

    facts: Facts
    claim: ValidatorFacts
    book: ScoreBook
    remembered: Mapping[Remembered, bytes]

    @property
    def body(self) -> dict[str, Any]:
        """The report as published."""
        return parse_json(canonical_json(self.claim.report.to_body(SPEC.gauntlet)))


def miner(number: int, round: int) -> Miner:
    return Miner(number, round=round)


def play(
    round: int,
    book: ScoreBook,
    earlier: Report | None,
    records: Mapping[Remembered, bytes],
    faults: Sequence[int] = (5, 6, 7),
    gone: Collection[int] = (),
    left_out: Collection[int] = (),
) -> Played:
    """Miners 1 to 7. Of those in `faults` one does not commit, one withholds its key, and one serves nothing; those in
    `gone` are not registered, and for those `left_out` the validator's disk has no room."""
    gathered = []
    for number in sorted({*range(1, 8)} - set(gone)):
        one = miner(number, round)
        plain = one.gathered(one.sealed(run=RUN.id), reveal=None)
        reveal = one.reveal(one.sealed().key, run=RUN.id)
        item = replace(plain, reveal=reveal)
        if number in faults[:1]:
            item = Gathered(one.peer(None))
        elif number in faults[1:2]:
            item = replace(item, reveal=None)
        elif number in faults[2:3]:
            item = replace(item, payload=None)
        gathered.append(item)
    here = Slot(RUN.clock.commit_deadline(0), POINTER, abstention(0))
    others = [Peer(VALIDATOR, Uid(100), 10, True, slot=here), Peer(OWNER, Uid(101), 0, False)]
    peers = (*(item.peer for item in gathered), *others)
    payloads = {item.peer.id: item.payload for item in gathered if item.payload is not None}
    unseen = frozenset(map(peer_id, left_out))
    gathered = [item for item in gathered if item.peer.id not in unseen]
    state = State(proof_of, OuterState.initial(SPEC.layout), losses)
    gauntlet = SPEC.gauntlet
    history = tuple(sketches({past: records[past] for past in compared(book.remembered, round, gauntlet.copy_rounds)}))
    expected = Expected(SPEC, RUN.id, round, THETA, RUN.clock, proof_of, state.outer, COMMIT_HASH)
    checked = fast_checks(expected, gathered, FUNCTIONS, history)
    ranking = standing(book, checked.passed, gauntlet, round, COMMIT_HASH, checked.twins)
    seed = Seed(RUN.id, SAMPLE_HASH, round, VALIDATOR)
    uids = {peer.id: peer.uid for peer in peers}
    said = Post(
        RUN.clock.reveal_deadline(round) + 1, VALIDATOR, vote_for(round, [uids[p] for p in ranking.order], STATE_REF)
    )
    log, block = Log(peers, COMMIT_HASH, (said,)), RUN.clock.vote_deadline(round)
    decision = outcome(RUN, round, log, block).agreed
    assert decision.selection is not None
    agreed_on = frozenset(peer for peer, _ in decision.selection.contributing)
    contributing = set(ranking.contributing)
    picked = pick(book, set(checked.passed), contributing, gauntlet, seed, checked.twins)
    drawn = samples(SPEC, PAGE_HASH, picked, {item.peer.id for item in gathered} | unseen, seed)
    found = evaluate(
        losses,
        checked.passed,
        bounded(checked.passed, state.outer),
        drawn,
        references(picked, set(checked.passed), contributing, gauntlet, seed, checked.twins),
    )
    outcome_of_round = RoundOutcome(round, checked, found, agreed_on, unseen)
    after = fold(book, outcome_of_round, gauntlet)
    shares = weights(after, ranking, uids, SPEC.owner_id, gauntlet)
    paid = Paid(block, block + 1, {peer.id: shares[peer.uid] for peer in peers if peer.uid in shares})
    report = round_report(outcome_of_round, peers, gathered, ranking, book, after, paid)
    top = max(shares.values())
    chain_weights = {uid: int(share / top * 65535 + 0.5) for uid, share in shares.items()}
    facts = Facts(
        RUN,
        round,
        PAGE_HASH,
        SAMPLE_HASH,
        log,
        peers,
        *STATE_REF,
        decision,
        payloads,
        FUNCTIONS,
        block + 50,
        state,
    )
    row = ChainWeights(block + 1, chain_weights, {})
    claim = ValidatorFacts(VALIDATOR, report, {}, earlier, None, history, peers, row, earlier)
    claim = replace(claim, shown=parse_json(canonical_json(report.to_body(gauntlet)))["peers"])
    return Played(facts, claim, after, checked.remember)


def play_rounds(count: int, gone: Mapping[int, Collection[int]] = MappingProxyType({})) -> list[Played]:
    """Rounds from the first on, each with the book that the one before left. gone: by round, who is not registered."""
    played: list[Played] = []
    book = ScoreBook()
    records: dict[Remembered, bytes] = {}
    for round in range(count):
        played.append(play(round, book, played[-1].claim.report if played else None, records, gone=gone.get(round, ())))
        book = played[-1].book
        records |= played[-1].remembered
    return played
