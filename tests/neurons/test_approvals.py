"""A record that names peers of no worth is not approved by validators whose books say so."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rounds.vote import Vote

from gauntlet import agreement
from gauntlet.average import Average
from gauntlet.selection import Ranking
from node import follower
from node.node import Node
from protocol.types import Attestation, PeerId, Record, hotkey
from rounds import vote
from rounds.score import Scores
from rounds.validator import Validator
from tests.network import FakeNetwork, Killed, with_parts
from tests.neurons.test_crashes import dead
from training.shards import Shards

Networks = Callable[..., FakeNetwork]


class KnowsBetter(Scores):
    """Has found one peer's work worthless."""

    worthless: PeerId

    def fold(self, *arguments: Any, **named: Any) -> None:
        super().fold(*arguments, **named)
        record = self.book.peers.get(self.worthless)
        if record is not None:
            bad = replace(record, evaluations=9, scores=Average(-1.0, 0.9), usual_scores=Average(1.0, 0.9))
            self.book = replace(self.book, peers={**self.book.peers, self.worthless: bad})


class RanksAFriend(Scores):
    """Names one peer and nobody else."""

    friend: PeerId

    def rank(self, round: int, checked: Any) -> Ranking:
        return replace(super().rank(round, checked), contributing=(self.friend,), reserve=())


def test_a_friend_of_no_worth_is_not_brought_in_by_a_minority(networks: Networks) -> None:
    network = networks(miners=2, validators={"honest": 101, "liar": 100}, contributors=1)
    network.start("miner-1", "miner-2")
    friend = network["miner-1"].peer

    def honest(node: Node, shards: Shards) -> Validator:
        KnowsBetter.worthless = friend
        return with_parts(KnowsBetter)(node, shards)

    def liar(node: Node, shards: Shards) -> Validator:
        RanksAFriend.friend = friend
        return with_parts(RanksAFriend)(node, shards)

    network.start("honest", role=honest)
    network.start("liar", role=liar)
    rounds = 6
    network.run_until(rounds)
    network.assert_agreement()
    first = {e["round"] for e in network["liar"].events("posted") if e["slot"] == 0 and 1 <= e["round"] < rounds}
    assert first
    for event in network["miner-2"].events("applied"):
        if 1 <= event["round"] < rounds:
            assert not event["void"]
            assert event["contributing"] == [hotkey(network["miner-2"].peer)]


class DiesAfterApproving(Vote):
    """Dead in the first round in which its word is an approval, before it looks again."""

    def look_again(self, round: int, checked: Any) -> None:
        if isinstance(self.posted, Attestation) and self.posted.bitmap:
            raise Killed
        super().look_again(round, checked)


class StandsByNothing(Vote):
    """Can no longer check what a record names."""

    def approves(self, *_: Any) -> bool:
        return False


def test_a_restarted_validator_does_not_take_back_what_it_has_approved(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100})
    network.start("miner-1", "miner-2", "first")
    network.start("second", role=with_parts(DiesAfterApproving))
    dead(network, "second")

    def word() -> object:
        peers = network.world.chain(network["second"].peer).peers(network.world.final)
        (slot,) = (peer.slot for peer in peers if peer.id == network["second"].peer)
        return slot.statement if slot is not None else None

    said = word()
    assert isinstance(said, Attestation)
    assert said.bitmap
    network.start("second", role=with_parts(StandsByNothing))
    network.run_blocks(lambda: network.world.head >= network.run.clock.attest_by(said.round))
    assert word() == said
    network.run_until(said.round + 1)
    assert said.round not in network["second"].voids()
    network.assert_agreement()


class TakesItsTime(Vote):
    """Its approval is in a block only when the second leader has looked for the last time whether one is agreed."""

    def attest(self, round: int) -> None:
        clock, lag = self.node.clock, self.node.run.first.clock.finality_blocks
        self.node.wait_for(clock.slot(round, 1)[1] - lag - 1, "the others")
        super().attest(round)


class PostsTooLate(Vote):
    """A full block: its record is in the one after its slot, which makes it no record, and its approval gone."""

    head: Callable[[], int]

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        if isinstance(statement, Record):
            late = self.node.clock.slot(round, 1)[1]
            while self.head() < late:
                self.node.time.sleep(self.node.run.first.clock.block_seconds / 4)
        return super().post(round, statement)


def test_a_leader_whose_own_record_overwrote_its_approval_approves_again(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its approval is needed, and as far as it can see at its slot's end it still stands."""
    validators = {"first": 100, "second": 100, "third": 100, "doubter": 100}
    network = networks(miners=2, validators=validators, finality_lag=2)
    order = [network[name].peer for name in validators]
    for module in (agreement, follower, vote):
        monkeypatch.setattr(module, "leader_order", lambda *_: order)
    network.start("miner-1", "miner-2", "first")
    PostsTooLate.head = staticmethod(lambda: network.world.head)
    network.start("second", role=with_parts(PostsTooLate))
    network.start("third", role=with_parts(TakesItsTime))
    network.start("doubter", role=with_parts(StandsByNothing))
    network.run_until(3)
    assert [event["round"] for event in network["second"].events("posted")][:2] == [0, 1], "it overwrote nothing"
    assert network["miner-1"].voids() == []
    network.assert_agreement()


def test_a_record_whose_bytes_never_come_leaves_the_others_their_time() -> None:
    class Clock:
        seconds = 100.0

        def now(self) -> float:
            return self.seconds

    class Looks(Vote):
        """Every look takes all the time that it is given, and only slot 2's is worth it."""

        def __init__(self) -> None:
            record = SimpleNamespace(contributing=())
            self.node = SimpleNamespace(  # type: ignore[assignment]
                me=b"me",
                time=Clock(),
                held=SimpleNamespace(claim=None),
                seconds_to_post=lambda by: by - self.node.time.now(),
                proposals=lambda round, claim: {slot: (b"%d" % slot, record) for slot in range(3)},
            )
            self.copies = SimpleNamespace(name=lambda round, pairs: None)  # type: ignore[assignment]
            self.approved: set[int] = set()
            self.given: list[float] = []

        def approves(self, round: int, selection: Any, author: PeerId, checked: Any, until: float) -> bool:
            clock: Any = self.node.time
            self.given.append(until - clock.seconds)
            clock.seconds = until
            return author == b"2"

    looks = Looks()
    assert looks.look(0, checked=None, by=190)  # type: ignore[arg-type]
    assert looks.given == pytest.approx([20.0, 20.0, 20.0])  # two thirds of 90 s among three
    assert looks.approved == {2}
