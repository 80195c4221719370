"""The audit as a pure function: silent about honest rounds, and about nothing else whatever a report says."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gauntlet.agreement import Post, abstention, named, vote_for
from gauntlet.audit import GAP_TOLERANCE, SCORE_TOLERANCE, audit
from gauntlet.average import Average
from gauntlet.facts import ChainWeights
from gauntlet.finding import Topic, Verdict
from gauntlet.observed import Unobserved
from gauntlet.remembered import Remembered
from gauntlet.report import Report, parse_report
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import canonical_json, parse_json
from murmur.protocol.types import PeerId, Reason, StateRef, Uid, Vote, hotkey
from tests.gauntlet import rounds
from tests.gauntlet.rounds import Played, play_rounds
from tests.gauntlet.world import OWNER, Miner, digest, peer_id
from tests.random_cases import share

ROUND = 2
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.integers(-4000, 4000).map(lambda number: number / 16)
    | st.sampled_from([1e300, -1e300, 1e-3])
    | st.sampled_from(["", "COPY", "LATE", "NOT_SELECTED", "00" * 32, "\x1b[2J"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(["uid", "mu", "x"]), below, max_size=2),
    max_leaves=4,
)


@cache
def played() -> tuple[Played, ...]:
    return tuple(play_rounds(ROUND + 1))


def judge(one: Played, body: dict[str, Any]) -> list[Any]:
    report, _ = parse_report(canonical_json(body), one.facts.round)
    return audit(one.facts, replace(one.claim, report=report, shown=body["peers"]))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a JSON value, tables and lists too."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, inner in below for found in leaves(inner, (*path, name)))]


def at(body: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        body = body[name]
    return body


def test_honest_rounds_differ_in_nothing_and_what_only_the_validator_saw_is_told_apart() -> None:
    for one in played():
        findings = judge(one, one.body)
        assert {(finding.verdict, finding.peer) for finding in findings} == {
            (Verdict.OBSERVED, peer_id(6)),
            (Verdict.OBSERVED, peer_id(7)),
        }
        reasons = {row.rejected for row in one.claim.report.rows.values()} - {None}
        assert reasons == {Reason.MISSING, Reason.UNREVEALED}
        assert sum(row.evaluation is not None for row in one.claim.report.rows.values()) == 4


@settings(max_examples=share(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_one_place_of_a_report_says_otherwise_is_a_difference_and_never_an_exception(data: Any) -> None:
    one = played()[ROUND]
    honest = one.body
    path = data.draw(st.sampled_from(leaves(honest)[1:]))
    value = data.draw(JSON)
    body = deepcopy(honest)
    at(body, path[:-1])[path[-1]] = value
    try:
        body = parse_json(canonical_json(body))
        findings = judge(one, body)
    except InvalidMessage:
        return
    old = at(honest, path)
    told = path[-1] == "detail" or path[0] == "paid" or _near(path[-1], old, value)
    assert told or old == value or any(finding.verdict is Verdict.DIFFERS for finding in findings), (path, old, value)


def _near(name: Any, old: Any, value: Any) -> bool:
    """Whether a measured number stays inside its tolerance."""
    if name not in ("assigned", "unassigned", "gap") or not isinstance(old, float) or not isinstance(value, float):
        return False
    return abs(old - value) <= (GAP_TOLERANCE if name == "gap" else SCORE_TOLERANCE)


AVERAGES = st.tuples(st.sampled_from([-1e6, -1.0, 0.0, 5e-324, 0.1, 1e6]), st.sampled_from([0.0, 5e-324, 0.5, 1.0]))


@settings(max_examples=share(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_book_that_a_report_may_state_breaks_the_audit(data: Any) -> None:
    one = played()[ROUND]
    body = one.body
    for book in ("before", "after"):
        body[book].update({name: list(data.draw(AVERAGES)) for name in ("unit", "usual_score")})
        for record in body[book]["peers"].values():
            for name in ("gaps", "units", "scores", "usual_scores", "assigned_scores"):
                record[name] = list(data.draw(AVERAGES))
            record["mu"] = data.draw(st.sampled_from([-1000.0, 0.0, 1000.0]))
            record["sigma"] = data.draw(st.sampled_from([1e-3, 8.0, 1000.0]))
            record["evaluations"] = data.draw(st.sampled_from([0, 1, 2**32 - 1]))
            record["last_evaluated"] = data.draw(st.sampled_from([None, 0, 2**32 - 1]))
            record["penalty"] = data.draw(st.sampled_from([0.0, 1.0]))
            record["presence"] = data.draw(st.sampled_from([0.0, 5e-324, 1.0]))
    body["gone"] = data.draw(st.sampled_from([0, 2**32 - 1]))
    assert any(finding.verdict is Verdict.DIFFERS for finding in judge(one, parse_json(canonical_json(body))))


def test_without_the_model_or_the_payloads_the_rest_is_still_judged() -> None:
    one = played()[ROUND]
    blind = replace(one.facts, state=None, stateless="no source")
    findings = audit(blind, one.claim)
    assert {finding.verdict for finding in findings} <= {Verdict.UNCHECKED, Verdict.OBSERVED}
    assert (Topic.SCORES, None) in {(f.topic, f.peer) for f in findings if f.verdict is Verdict.UNCHECKED}
    lying = replace(one.claim.report.rows[peer_id(1)], weight=0.9)
    report = replace(one.claim.report, rows={**one.claim.report.rows, peer_id(1): lying})
    told = audit(blind, replace(one.claim, report=report))
    assert (Topic.WEIGHTS, peer_id(1)) in {(f.topic, f.peer) for f in told if f.verdict is Verdict.DIFFERS}


def of_weights(one: Played, **changes: Any) -> list[Verdict]:
    """What is found of the pay when the claim is changed so."""
    found = audit(one.facts, replace(one.claim, **changes))
    return [finding.verdict for finding in found if finding.topic is Topic.WEIGHTS]


def test_weights_that_were_not_revealed_prove_nothing_and_others_than_stated_do() -> None:
    one = played()[ROUND]
    set_in = one.claim.report.paid.set_in
    assert set_in is not None
    assert isinstance(one.claim.row, ChainWeights)
    now, other = one.claim.row.now, {Uid(5): 65535}  # which never commits
    assert of_weights(one, row=ChainWeights(set_in + 99, now, other)) == []
    assert of_weights(one, row=ChainWeights(set_in + 99, other, other)) == [Verdict.UNCHECKED]
    assert of_weights(one, row="not revealed yet") == [Verdict.UNCHECKED]
    assert Verdict.DIFFERS in of_weights(one, row=ChainWeights(set_in + 99, other, now))
    # Where the chain takes weights openly, a set that changed nothing was none.
    assert Verdict.DIFFERS in of_weights(one, row=ChainWeights(set_in, other, other))


def test_a_round_in_which_the_chain_would_take_no_weights_yet_is_not_held_against_anybody() -> None:
    one = played()[ROUND]
    assert one.claim.paid is not None
    paid = replace(one.claim.report.paid, set_in=None)
    unpaid = replace(one.claim.report, paid=paid)

    def found(last_update: int) -> list[Verdict]:
        peers = [replace(p, last_update=last_update) if p.id == rounds.VALIDATOR else p for p in one.claim.paid or ()]
        before = played()[ROUND - 1].claim.report
        last = replace(before, paid=replace(before.paid, set_in=last_update))
        return of_weights(one, report=unpaid, paid=peers, last=last)

    limit = rounds.SPEC.clock.weights_rate_limit
    assert found(paid.block + 1 - limit) == [Verdict.OBSERVED]
    assert found(paid.block + 2 - limit) == []


def test_weights_that_no_report_states_are_named_whoever_they_were_copied_from() -> None:
    """A validator that sets others' weights, and whose reports say that it set none."""
    one = played()[ROUND]
    earlier = played()[ROUND - 1].claim.report
    silent = replace(earlier, paid=replace(earlier.paid, set_in=None))

    def found(last_update: int, last: Report | None) -> list[Verdict]:
        peers = [replace(p, last_update=last_update) if p.id == rounds.VALIDATOR else p for p in one.claim.paid or ()]
        return of_weights(one, paid=peers, last=last)

    stated = earlier.paid.set_in
    assert stated is not None
    assert found(stated, earlier) == found(earlier.paid.block, silent) == []
    assert found(stated, silent) == found(stated + 1, earlier) == [Verdict.DIFFERS]
    # Without that report nobody can say what was stated; weights of older rounds are another report's matter.
    assert found(stated, None) == [Verdict.UNCHECKED]
    assert found(rounds.RUN.clock.reveal_deadline(ROUND - 1), None) == []


def test_scores_copied_from_another_validator_are_not_those_of_the_sequences_that_were_drawn_for_the_copier() -> None:
    """Stated whole, with the book and the pay that follow from them."""
    one = played()[ROUND]
    copied = replace(one.claim, validator=peer_id(99))
    told = [finding for finding in audit(one.facts, copied) if finding.verdict is Verdict.DIFFERS]
    assert {finding.topic for finding in told} >= {Topic.SCORES}
    assert {finding.topic for finding in told} <= {Topic.SCORES, Topic.SAMPLE}


@cache
def long_run() -> tuple[Played, ...]:
    """Miner 3 leaves the subnet for three rounds and comes back."""
    return tuple(play_rounds(11, {round: [3] for round in (5, 6, 7)}))


def test_a_long_run_with_one_who_leaves_and_returns_is_honest() -> None:
    for one in long_run():
        assert not [found for found in judge(one, one.body) if found.verdict is Verdict.DIFFERS], one.facts.round
    kept = long_run()[4].claim.report
    assert {past.round for past in kept.history if past.peer == peer_id(1)} == {2, 3}
    assert peer_id(3) in {past.peer for past in long_run()[5].claim.report.history}, "its payloads are remembered"


def test_a_payload_that_an_honest_book_would_have_forgotten_or_kept_is_a_difference() -> None:
    one = long_run()[10]
    report = one.claim.report
    strange = Remembered(report.round - 3, peer_id(4), report.history[0].payload)
    for history in (report.history[1:], tuple(sorted({*report.history, strange}))):
        told = audit(one.facts, replace(one.claim, report=replace(report, history=history)))
        assert (Topic.BOOK, Verdict.DIFFERS) in {(finding.topic, finding.verdict) for finding in told}


@pytest.mark.parametrize("name", ["unit", "usual_score", "score_variance"])
@pytest.mark.parametrize("book", ["before", "after"])
def test_what_a_book_says_of_the_honest_is_audited(name: str, book: str) -> None:
    one = played()[ROUND]
    body = one.body
    body[book][name] = [123.0, 0.5]
    assert any(finding.verdict is Verdict.DIFFERS for finding in judge(one, body))


@pytest.mark.parametrize("presence", [-0.1, 1.0000001, 1e6])
def test_a_report_that_multiplies_somebodys_pay_is_no_report(presence: float) -> None:
    """A record of before may be one that the audit has to take as stated."""
    body = played()[ROUND].body
    body["before"]["peers"][peer_id(1).hex()]["presence"] = presence
    with pytest.raises(InvalidMessage, match="range"):
        parse_report(canonical_json(body), ROUND)


@pytest.mark.parametrize("new", [False, True])
def test_whom_the_validator_did_not_get_round_to_is_not_booked_and_does_not_accuse_it(new: bool) -> None:
    before = play_rounds(3, dict.fromkeys(range(3), (4,)) if new else {})
    records = {past: record for one in before for past, record in one.remembered.items()}
    one = rounds.play(3, before[-1].book, before[-1].claim.report, records, left_out=(4,))
    assert one.claim.report.rows[peer_id(4)].unseen
    then, now = before[-1].book.peers.get(peer_id(4)), one.book.peers.get(peer_id(4))
    assert (then is None, now is None) == (new, new)
    assert new or (now.presence, now.faults) == (then.presence, then.faults) == (1.0, 0)
    assert Verdict.DIFFERS not in {finding.verdict for finding in audit(one.facts, one.claim)}


def test_an_old_copy_that_is_gone_is_told_and_accuses_nobody() -> None:
    one = played()[ROUND]
    findings = audit(one.facts, replace(one.claim, sketches=()))
    assert not any(finding.verdict is Verdict.DIFFERS for finding in findings)
    assert any("earlier rounds are gone" in finding.text for finding in findings)


# --- the vote on chain ---------------------------------------------------------------------------------------

WINDOW = rounds.RUN.clock.commit_deadline(ROUND) + 1


def of_vote(one: Played, *votes: Vote | None) -> set[tuple[Verdict, Any]]:
    """What is found of the vote when the validator has posted these, one a block."""
    posts = (Post(WINDOW + place, rounds.VALIDATOR, vote) for place, vote in enumerate(votes) if vote is not None)
    facts = replace(one.facts, log=replace(one.facts.log, posts=tuple(posts)))
    return {(found.verdict, found.peer) for found in audit(facts, one.claim) if found.topic is Topic.VOTE}


def naming(*numbers: int, state_ref: StateRef = rounds.STATE_REF) -> Vote:
    """Miners have their number as uid, the validator has 100 and the owner 101."""
    return vote_for(ROUND, [Uid(number) for number in numbers], state_ref)


def named_by(one: Played) -> set[PeerId]:
    """Whom the honest validator of the round named."""
    return {peer_id(uid) for uid in named(one.facts.log.posts[0].vote)}


def test_a_vote_that_names_all_who_may_contribute_by_its_own_book_is_silently_right() -> None:
    one = played()[ROUND]
    assert {finding.topic for finding in judge(one, one.body)} == {Topic.CHECKS}
    assert of_vote(one, naming(1, 2, 3, 4)) == set()


@pytest.mark.parametrize("number", [100, 101, 5])
def test_a_vote_that_names_somebody_who_may_not_contribute_differs(number: int) -> None:
    """The validator itself, the owner, and a miner that did not commit, whom nobody's copy can mend."""
    named = {100: rounds.VALIDATOR, 101: OWNER}.get(number, peer_id(number))
    assert of_vote(played()[ROUND], naming(1, 2, 3, 4, number)) == {(Verdict.DIFFERS, named)}


def test_a_vote_that_names_a_peer_whose_score_is_too_low_differs() -> None:
    one = played()[ROUND]
    worthless = replace(one.claim.report.before.peers[peer_id(2)], gaps=Average(-1.0, 1.0), evaluations=9)
    before = replace(one.claim.report.before, peers={**one.claim.report.before.peers, peer_id(2): worthless})
    lying = replace(one, claim=replace(one.claim, report=replace(one.claim.report, before=before)))
    assert of_vote(lying, naming(1, 2, 3, 4)) == {(Verdict.DIFFERS, peer_id(2))}
    assert of_vote(lying, naming(1, 3, 4)) == set()


def test_a_vote_that_names_whom_the_validator_could_not_read_is_observed() -> None:
    """Others may have given it the bytes or the key after it looked."""
    assert of_vote(played()[ROUND], naming(1, 2, 3, 4, 6, 7)) == {
        (Verdict.OBSERVED, peer_id(6)),
        (Verdict.OBSERVED, peer_id(7)),
    }
    before = play_rounds(ROUND)
    records = {past: record for each in before for past, record in each.remembered.items()}
    one = rounds.play(ROUND, before[-1].book, before[-1].claim.report, records, left_out=(4,))
    assert of_vote(one, naming(1, 2, 3, 4)) == {(Verdict.OBSERVED, peer_id(4))}


def test_a_vote_that_leaves_out_who_may_contribute_is_observed() -> None:
    one = played()[ROUND]
    assert of_vote(one, naming(1, 3)) == {(Verdict.OBSERVED, peer_id(2)), (Verdict.OBSERVED, peer_id(4))}
    # What came later added to it.
    assert of_vote(one, naming(1, 3), naming(2, 4)) == set()


def test_a_vote_for_another_theta_differs_whoever_it_names_and_the_first_pair_binds() -> None:
    one, state_ref = played()[ROUND], (digest("another theta"), rounds.STATE_REF[1])
    assert of_vote(one, naming(1, 2, 3, 4, 100, state_ref=state_ref)) == {(Verdict.DIFFERS, None)}
    assert of_vote(one, naming(1, state_ref=state_ref), naming(1, 2, 3, 4)) == {(Verdict.DIFFERS, None)}
    # What is written over a vote says nothing.
    assert of_vote(one, naming(1, 2, 3, 4), naming(100, state_ref=state_ref)) == set()


def test_where_most_have_moved_the_run_who_stood_where_it_was_before_is_not_accused() -> None:
    one, state_ref = played()[ROUND], (rounds.STATE_REF[0], digest("another link"))
    assert of_vote(one, naming(1, state_ref=state_ref)) == {(Verdict.OBSERVED, None)}


def test_who_says_of_itself_that_it_could_not_follow_may_name_what_it_holds() -> None:
    """After some rounds in vain that is its way back (docs/protocol.md section 8)."""
    one = played()[ROUND]
    apart = replace(one, claim=replace(one.claim, report=replace(one.claim.report, unobserved=Unobserved.APART)))
    assert of_vote(apart, naming(1, state_ref=(digest("an older theta"), rounds.STATE_REF[1]))) == {
        (Verdict.OBSERVED, None)
    }
    late = replace(one, claim=replace(one.claim, report=replace(one.claim.report, unobserved=Unobserved.LATE)))
    assert of_vote(late, naming(1, state_ref=(digest("an older theta"), rounds.STATE_REF[1]))) == {
        (Verdict.DIFFERS, None)
    }


def test_who_abstained_or_said_nothing_is_told_nothing_of_its_vote() -> None:
    one = played()[ROUND]
    assert of_vote(one) == of_vote(one, abstention(ROUND)) == set()
    assert of_vote(one, abstention(ROUND), naming(1, 2, 3, 4, 100)) == {(Verdict.DIFFERS, rounds.VALIDATOR)}


def test_a_strangers_vote_is_not_the_validators() -> None:
    one = played()[ROUND]
    strange = Post(WINDOW, peer_id(99), naming(100, state_ref=(digest("another theta"), digest("a fork"))))
    facts = replace(one.facts, log=replace(one.facts.log, posts=(strange, *one.facts.log.posts)))
    assert not [finding for finding in audit(facts, one.claim) if finding.topic is Topic.VOTE]


# --- twins ---------------------------------------------------------------------------------------------------


def test_twins_are_judged_again_like_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Miner 2 sends what miner 1 sends. In the losses of this test no pages show work, so both have copied."""
    monkeypatch.setattr(rounds, "miner", lambda number, round: Miner(number, round, seed=1000 * round + max(2, number)))
    first, second = play_rounds(3)[-2:]
    for one in (first, second):
        assert {finding.verdict for finding in judge(one, one.body)} <= {Verdict.OBSERVED}
        rows = one.claim.report.rows
        assert (rows[peer_id(1)].twins, rows[peer_id(2)].twins) == ((peer_id(2),), (peer_id(1),))
        assert sum(rows[peer_id(number)].contributing for number in (1, 2)) == 1
    named = second.body["peers"]
    evaluated = [hotkey(peer_id(number)) for number in (1, 2) if second.claim.report.rows[peer_id(number)].evaluation]
    assert evaluated
    before = first.body["peers"]
    for name in evaluated:
        assert named[name]["copied"] is (named[name]["faults"] > before[name]["faults"])
    assert any(named[name]["faults"] for name in evaluated)
    # By its book the validator may name one of them. Whoever names both has two shares taken by one.
    outside = {peer for number in (1, 2) if (peer := peer_id(number)) not in named_by(second)}
    assert of_vote(second, naming(1, 2, 3, 4)) == {(Verdict.DIFFERS, peer) for peer in outside}
    assert len(outside) == 1
    lying = deepcopy(second.body)
    for number in (1, 2):
        del lying["peers"][hotkey(peer_id(number))]["twins"]
    findings = judge(second, parse_json(canonical_json(lying)))
    assert {(f.topic, f.peer) for f in findings if f.verdict is Verdict.DIFFERS} >= {
        (Topic.CHECKS, peer_id(1)),
        (Topic.CHECKS, peer_id(2)),
    }
