"""Audits of real rounds: nothing is found where everybody is honest, and every lie of a validator is named."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gauntlet.book import ScoreBook
from gauntlet.finding import Finding, Topic, Verdict
from gauntlet.rating import Rating
from gauntlet.report import Paid
from gauntlet.selection import Ranking
from murmur.data.shards import Shards
from murmur.lab.localnet.faults import BadKey, Garbage, Late, Silent, Unrevealed, WrongKey
from murmur.node.observe.audit_inputs import Audited, audit_round, auditable
from murmur.node.observe.reader import reading
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError
from murmur.protocol.messages import canonical_json, encode_document, parse_document, parse_json
from murmur.protocol.types import LossScore, PeerId, Reason, Rejection, Standing, hotkey
from murmur.rounds.collect import Collector
from murmur.rounds.pay import Pay
from murmur.rounds.score import Scores
from murmur.rounds.validator import Validator
from murmur.rounds.votes import Votes
from tests.fakes.bucket import _Object
from tests.fakes.chain import FakeChain, fake_verify
from tests.network import FakeNetwork, Killed, with_parts

Networks = Callable[..., FakeNetwork]
CPU = torch.device("cpu")


def audits(network: FakeNetwork, round: int, folder: Path, *validators: str) -> dict[str, Audited]:
    """What a stranger finds of the named validators (default: all), by name."""
    ports = reading(FakeChain(network.world, PeerId(bytes(32))), fake_verify, network.store.open)
    names = {member.peer: name for name, member in network.members.items()}
    wanted = [network[name].peer for name in validators] or [None]
    shards = Shards.open(network.data)
    found = (audit for one in wanted for audit in audit_round(network.run, ports, shards, round, folder, CPU, one))
    return {names[audited.validator]: audited for audited in found}


def of(verdict: Verdict, findings: Iterable[Finding]) -> list[tuple[Topic, PeerId | None]]:
    return [(finding.topic, finding.peer) for finding in findings if finding.verdict is verdict]


def whole_rounds(network: FakeNetwork, count: int) -> None:
    """Run until so many rounds are over: votes count until the vote deadline, however early they decide."""
    network.run_until(count)
    network.run_to_block(network.clock.vote_deadline(count - 1))


def stored(network: FakeNetwork, validator: str, round: int) -> dict[str, Any]:
    """The body of a report."""
    data = network.store.buckets[validator][keys.report(network.run.id, round)].data
    return parse_document(data, "report", network.run.id, round, network[validator].peer, fake_verify)


def restate(network: FakeNetwork, validator: str, round: int, body: Mapping[str, Any]) -> None:
    """The validator signs another report of the round."""
    data = encode_document("report", network.run.id, round, dict(body), network[validator].signer)
    network.store.buckets[validator][keys.report(network.run.id, round)] = _Object(data, 0.0)


def test_honest_validators_of_a_network_with_faults_differ_in_nothing(networks: Networks, tmp_path: Path) -> None:
    faults = {
        "miner-4": Garbage,
        "miner-5": WrongKey,
        "miner-6": BadKey,
        "miner-7": Unrevealed,
        "miner-8": Late,
        "miner-9": Silent,
    }
    network = networks(miners=9, validators={"one": 100, "two": 99}, evaluations=2)
    network.start("one", "two", "miner-1", "miner-2", "miner-3")
    for name, fault in faults.items():
        network.start(name, role=fault)
    whole_rounds(network, 5)
    network.close()
    before = network.store.buckets["one"].keys() | network.store.buckets["two"].keys()
    unrevealed = (Topic.CHECKS, network["miner-7"].peer)
    for round in range(5):
        found = audits(network, round, tmp_path)
        assert found.keys() == {"one", "two"}
        for audited in found.values():
            assert audited.report is not None
            reasons = {p: row.rejected for p, row in audited.report.rows.items() if row.rejected is not None}
            assert set(reasons.values()) == {
                Reason.MALFORMED,
                Reason.UNSIGNED,
                Reason.BAD_KEY,
                Reason.UNREVEALED,
                Reason.LATE,
                Reason.MISSING,
            }
            assert of(Verdict.OBSERVED, audited.findings) == [unrevealed]
            assert len(audited.findings) == 1, audited.findings
    assert before == network.store.buckets["one"].keys() | network.store.buckets["two"].keys()
    assert not list(tmp_path.glob("audit-*"))


def test_rounds_of_which_something_is_gone_are_checked_as_far_as_it_goes(networks: Networks, tmp_path: Path) -> None:
    network = networks(miners=3, contributors=2, reserve=0)
    network.start()
    whole_rounds(network, 4)
    network.close()
    gone = network["miner-1"]
    network.store.buckets["miner-1"].clear()
    for key in [key for key in network.store.buckets["validator"] if gone.peer.hex() in key]:
        del network.store.buckets["validator"][key]
    for round in range(4):
        (audited,) = audits(network, round, tmp_path).values()
        assert not of(Verdict.DIFFERS, audited.findings)
        lost = of(Verdict.UNCHECKED, audited.findings)
        assert (Topic.CHECKS, gone.peer) in lost
        assert (Topic.SCORES, None) in lost
        # What follows from the published scores needs no payload.
        assert not {Topic.RANKING, Topic.BOOK, Topic.WEIGHTS, Topic.VOTE} & {topic for topic, _ in lost}
    ports = reading(FakeChain(network.world, PeerId(bytes(32))), fake_verify, network.store.open)
    (without_data,) = audit_round(network.run, ports, None, 1, tmp_path, CPU, None)
    assert (Topic.SCORES, None) in of(Verdict.UNCHECKED, without_data.findings)
    # Every source of theta_0 is gone as well: the model cannot be rebuilt, the rest is still judged.
    for bucket in network.store.buckets.values():
        for key in [key for key in bucket if key.startswith("blob/")]:
            del bucket[key]
    (audited,) = audits(network, 2, tmp_path).values()
    assert not of(Verdict.DIFFERS, audited.findings)
    assert (Topic.CHECKS, network["miner-2"].peer) in of(Verdict.UNCHECKED, audited.findings)


def test_a_chain_node_that_has_pruned_a_round_is_told_with_the_rounds_that_it_has(
    networks: Networks, tmp_path: Path
) -> None:
    network = networks(miners=2, keep_blocks=80)
    network.start()
    whole_rounds(network, 5)
    network.close()
    ports = reading(FakeChain(network.world, PeerId(bytes(32))), fake_verify, network.store.open)
    first, last = auditable(network.run, ports)
    assert 0 < first < last
    with pytest.raises(ConfigError, match=f"pruned.* has rounds {first} to {last}"):
        audits(network, first - 1, tmp_path)
    with pytest.raises(ConfigError, match=f"the last round whose selection is final is {last}"):
        audits(network, last + 1, tmp_path)
    (audited,) = audits(network, first, tmp_path).values()
    assert audited.findings == ()


class DiesAfterTheFold(Pay):
    def pay(self, round: int, book: ScoreBook, ranking: Ranking) -> Paid:
        if round == 2:
            raise Killed
        return super().pay(round, book, ranking)


def test_a_validator_that_died_between_fold_and_report_states_nothing_false_later(
    networks: Networks, tmp_path: Path
) -> None:
    network = networks(miners=3)
    network.start("miner-1", "miner-2", "miner-3")
    network.start("validator", role=with_parts(DiesAfterTheFold))
    network.until_dead("validator")
    network.start("validator")
    whole_rounds(network, 5)
    network.close()
    for round in range(5):
        (audited,) = audits(network, round, tmp_path).values()
        assert not audited.differs, audited.findings
        told = [(finding.topic, finding.verdict) for finding in audited.findings]
        if round < 2:
            assert told == []
        elif round == 2:
            assert (audited.report, told) == (None, [(Topic.REPORT, Verdict.UNCHECKED)])
    assert network["validator"].round >= 5


# --- lies ----------------------------------------------------------------------------------------------------


class Friendly:
    """Lies in one place for a friend, and is consistent about it from there on."""

    friend: PeerId


class RaisesAScore(Friendly, Scores):
    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        found = dict(super().evaluate(*arguments, **named))
        if self.friend in found:
            score = found[self.friend].score
            found[self.friend] = replace(
                found[self.friend], score=LossScore(score.assigned, score.unassigned + 0.05), gap=0.45
            )
        return found


class FoldsOtherwise(Friendly, Scores):
    def fold(self, *arguments: Any, **named: Any) -> None:
        super().fold(*arguments, **named)
        record = self.book.peers[self.friend]
        raised = replace(record, rating=Rating(record.rating.mu + 1.0, record.rating.sigma))
        self.book = replace(self.book, peers={**self.book.peers, self.friend: raised})


class RanksOtherwise(Friendly, Scores):
    """The worst come first, and it pays them so."""

    def rank(self, *arguments: Any, **named: Any) -> Ranking:
        ranking = super().rank(*arguments, **named)
        order, count = ranking.order[::-1], len(ranking.contributing)
        standing = dict.fromkeys(order[count:], Standing.NOT_SELECTED)
        return Ranking(order, order[:count], order[count : count + len(ranking.reserve)], standing)


class PaysOtherwise(Friendly, Pay):
    """On chain; the report says what would be right."""

    def pay(self, round: int, book: ScoreBook, ranking: Ranking) -> Paid:
        paid = super().pay(round, book, ranking)
        uids = {peer.id: peer.uid for peer in self.node.ports.chain.peers(self.node.head())}
        return replace(paid, set_in=self.node.ports.chain.set_weights({uids[self.friend]: 1.0}))


class SaysOtherPay(Friendly, Pay):
    def pay(self, round: int, book: ScoreBook, ranking: Ranking) -> Paid:
        paid = super().pay(round, book, ranking)
        return replace(paid, shares={**paid.shares, self.friend: 0.9})


class CopiesWeights(Friendly, Pay):
    """Sets what another validator's row on chain says, and reports that it set nothing."""

    def pay(self, round: int, book: ScoreBook, ranking: Ranking) -> Paid:
        chain, paid = self.node.ports.chain, super().pay(round, book, ranking)
        rows = [chain.weights(paid.block, peer.uid) for peer in chain.peers(paid.block) if peer.id != self.node.me]
        theirs = next((row for row in rows if row), None)
        if theirs is not None:
            chain.set_weights({uid: weight / 65_535 for uid, weight in theirs.items()})
        return replace(paid, set_in=None)


class CopiesScores(Friendly, Scores):
    """States what another validator finds, which looks at other sequences."""

    other = PeerId(bytes(32))

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        mine, self.node.me = self.node.me, self.other
        try:
            return super().evaluate(*arguments, **named)
        finally:
            self.node.me = mine


class EvaluatesOthers(Friendly, Scores):
    """Gives the friend's place away, so that a bad score is not seen."""

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        found = dict(super().evaluate(*arguments, **named))
        found.pop(self.friend, None)
        return found


class Rejects(Friendly, Scores):
    reason: Reason

    def check(self, *arguments: Any, **named: Any) -> Any:
        checked = super().check(*arguments, **named)
        passed = {peer: submission for peer, submission in checked.passed.items() if peer != self.friend}
        rejected = {**checked.rejected, self.friend: Rejection(self.friend, self.reason, "so they say")}
        return replace(checked, passed=passed, rejected=dict(sorted(rejected.items())))


class RejectsAsCopy(Rejects):
    reason = Reason.COPY


class RejectsAsLate(Rejects):
    reason = Reason.LATE


class RejectsAsUnrevealed(Rejects):
    reason = Reason.UNREVEALED


class IgnoresAKey(Friendly, Collector):
    def collect(self, *arguments: Any, **named: Any) -> Any:
        found = super().collect(*arguments, **named)
        return [replace(item, reveal=None) if item.peer.id == self.friend else item for item in found]


class SaysNothing(Friendly, Scores):
    """Pays, and publishes no report."""

    def report(self, *arguments: Any, **named: Any) -> None:
        pass


class ForgetsItsBook(Friendly, Scores):
    def check(self, round: int, gathered: Any) -> Any:
        if round == LIE:
            self.book = ScoreBook()
        return super().check(round, gathered)


class NamesOthers(Votes):
    """Everybody that passes but its best, eligible or not."""

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        others = tuple(peer for peer in checked.passed if peer != ranking.order[0])
        super().cast(round, replace(ranking, order=others), at_commit, checked)


LIE = 3
"""The round that is audited; most lies are told in every round."""

LIES: Mapping[type[Friendly], set[Topic]] = {
    RaisesAScore: {Topic.SCORES},
    FoldsOtherwise: {Topic.BOOK},
    # References are drawn among the contributors, and contributors are paid: those follow from the ranking.
    RanksOtherwise: {Topic.RANKING, Topic.WEIGHTS, Topic.SCORES},
    PaysOtherwise: {Topic.WEIGHTS},
    SaysOtherPay: {Topic.WEIGHTS},
    CopiesWeights: {Topic.WEIGHTS},
    CopiesScores: {Topic.SCORES, Topic.SAMPLE},
    EvaluatesOthers: {Topic.SAMPLE},
    RejectsAsCopy: {Topic.CHECKS},
    RejectsAsLate: {Topic.CHECKS},
    RejectsAsUnrevealed: {Topic.CHECKS},
    ForgetsItsBook: {Topic.BOOK},
}


def friends_of(kind: type[Friendly], friend: PeerId) -> type[Validator]:
    kind.friend = friend
    return with_parts(kind)


def test_every_lie_of_a_validator_is_named_and_only_what_follows_from_it(networks: Networks, tmp_path: Path) -> None:
    names = {kind: kind.__name__.lower() for kind in (*LIES, IgnoresAKey, SaysNothing)}
    stakes = {"honest": 10**9} | dict.fromkeys(names.values(), 1)
    network = networks(miners=4, validators=stakes, contributors=2, reserve=2)
    friend, CopiesScores.other = network["miner-4"].peer, network["honest"].peer
    network.start("honest", "miner-1", "miner-2", "miner-3", "miner-4")
    for kind, name in names.items():
        network.start(name, role=friends_of(kind, friend))
    whole_rounds(network, LIE + 2)
    network.close()
    found = audits(network, LIE, tmp_path)
    assert found["honest"].findings == ()
    for kind, topics in LIES.items():
        told = of(Verdict.DIFFERS, found[names[kind]].findings)
        assert told, kind
        assert {topic for topic, _ in told} <= topics, (kind, found[names[kind]].findings)
        if kind not in (RanksOtherwise, PaysOtherwise, CopiesWeights, CopiesScores, ForgetsItsBook):
            assert {peer for _, peer in told} == {friend}, kind
    ranked = of(Verdict.DIFFERS, found[names[RanksOtherwise]].findings)
    assert len([peer for topic, peer in ranked if topic is Topic.RANKING]) >= 2
    # The one lie that nobody can prove: it is told as what only the validator saw.
    assert [(f.verdict, f.peer) for f in found[names[IgnoresAKey]].findings] == [(Verdict.OBSERVED, friend)]
    silent = found[names[SaysNothing]]
    assert (silent.report, [f.verdict for f in silent.findings]) == (None, [Verdict.UNCHECKED] * 2)
    assert [f.topic for f in silent.findings] == [Topic.REPORT, Topic.WEIGHTS]


def test_a_vote_on_chain_that_names_others_than_may_contribute_is_told(networks: Networks, tmp_path: Path) -> None:
    network = networks(miners=5, evaluations=3, opening_rounds=0)
    network.start(*(f"miner-{number}" for number in range(1, 6)))
    network.start("validator", role=with_parts(NamesOthers))
    whole_rounds(network, 2)
    network.close()
    (audited,) = audits(network, 1, tmp_path).values()
    assert audited.report is not None
    rows = audited.report.rows.items()
    barred = {peer for peer, row in rows if row.standing is Standing.NOT_ELIGIBLE}
    assert len(barred) == 2
    assert set(of(Verdict.DIFFERS, audited.findings)) == {(Topic.VOTE, peer) for peer in barred}
    # Not to name somebody is nobody's lie: it may have come too late for it.
    ((topic, left_out),) = of(Verdict.OBSERVED, audited.findings)
    assert topic is Topic.VOTE
    assert left_out in {peer for peer, row in rows if row.contributing}


def test_what_a_report_states_otherwise_than_it_was_is_named(networks: Networks, tmp_path: Path) -> None:
    network = networks(miners=4, contributors=2, reserve=2)
    network.start()
    whole_rounds(network, 4)
    network.close()
    honest = stored(network, "validator", 2)
    (clean,) = audits(network, 2, tmp_path).values()
    assert clean.findings == ()
    victim, other = network["miner-4"].peer, network["miner-3"].peer
    name = hotkey(victim)

    def altered(change: Callable[[dict[str, Any]], object]) -> list[tuple[Topic, PeerId | None]]:
        body = parse_json(canonical_json(honest))
        change(body)
        restate(network, "validator", 2, body)
        (audited,) = audits(network, 2, tmp_path).values()
        assert audited.differs
        return of(Verdict.DIFFERS, audited.findings)

    def leave_out(body: dict[str, Any]) -> None:
        for table in ("peers", "reveals", "payloads"):
            del body[table][name]
        for book in ("before", "after"):
            del body[book]["peers"][victim.hex()]

    assert (Topic.HOTKEYS, victim) in altered(leave_out)
    assert altered(lambda body: body["peers"][name].update(uid=77)) == [(Topic.HOTKEYS, victim)]
    assert altered(lambda body: body["peers"][name].update(proof=3.5)) == [(Topic.REPORT, victim)]
    assert altered(lambda body: body["peers"][name].update(fine=True)) == [(Topic.REPORT, None)]
    assert (Topic.BOOK, victim) in altered(lambda body: body["before"]["peers"][victim.hex()].update(penalty=0.5))
    assert (Topic.BOOK, victim) in altered(lambda body: body["after"]["peers"][victim.hex()].update(faults=1))
    assert (Topic.BOOK, None) in altered(lambda body: body["after"].update(unit=[0.4, 0.5]))
    assert (Topic.BOOK, None) in altered(lambda body: body["history"].pop())
    assert altered(lambda body: body["payloads"].update({name: "00" * 32})) == [(Topic.CHECKS, victim)]
    swapped = altered(lambda body: body["reveals"].update({name: body["reveals"][hotkey(other)]}))
    assert (Topic.CHECKS, victim) in swapped
    assert altered(lambda body: body["paid"].update(block=1)) == [(Topic.WEIGHTS, None)]
    assert altered(lambda body: body.update(gone=3)) == [(Topic.BOOK, None)]
    assert altered(lambda body: body.update(extra=1)) == [(Topic.REPORT, None)]
    assert altered(lambda body: body.update(peers=[])) == [(Topic.REPORT, None)]
    network.store.buckets["validator"][keys.report(network.run.id, 2)] = _Object(b"no document", 0.0)
    (audited,) = audits(network, 2, tmp_path).values()
    assert (of(Verdict.DIFFERS, audited.findings), audited.report) == ([(Topic.REPORT, None)], None)
    del network.store.buckets["validator"][keys.report(network.run.id, 2)]
    (audited,) = audits(network, 2, tmp_path).values()
    assert (audited.differs, audited.report) == (False, None)
    # The round after has nothing to compare its book, and the weights set since, with, and says so.
    (audited,) = audits(network, 3, tmp_path).values()
    assert [(f.topic, f.verdict) for f in audited.findings] == [
        (Topic.BOOK, Verdict.UNCHECKED),
        (Topic.WEIGHTS, Verdict.UNCHECKED),
    ]
