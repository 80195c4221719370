"""One vote each: whom most name is in, whatever the others say, withhold, take back or find; what goes wrong costs one
peer its place or one validator its vote, never the round."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gauntlet.agreement import SEAT_ROUNDS, abstention
from gauntlet.average import Average
from gauntlet.selection import Ranking
from murmur.data.shards import Shards
from murmur.lab.localnet.faults import Garbage
from murmur.node.node import Node
from murmur.protocol import keys
from murmur.protocol.errors import ChainError
from murmur.protocol.types import Digest, PeerId, Vote, hotkey
from murmur.rounds.collect import Collector
from murmur.rounds.miner import Miner
from murmur.rounds.score import Scores
from murmur.rounds.validator import Validator
from murmur.rounds.votes import Votes
from tests.fakes.bucket import Faults
from tests.network import FakeNetwork, Killed, with_parts
from tests.rounds.test_crashes import dead
from tests.rounds.test_rounds import names

Networks = Callable[..., FakeNetwork]

SEATED = range(SEAT_ROUNDS)
"""Rounds in which a validator counts that has announced itself and never comes: nothing is settled before the vote
deadline then, unless all who may contribute are named."""


def show_only(network: FakeNetwork, miner: str, reader: str) -> None:
    """The miner's server gives one validator what is there, and the others other bytes."""
    others = [name for name, member in network.members.items() if member.role is Validator and name != reader]
    network.store.faults[miner] = Faults(answers=dict.fromkeys(others, bytes(network.spec.object_bytes)))


def named(network: FakeNetwork, name: str, round: int) -> list[int]:
    """How many peers each of the validator's votes for the round names."""
    return [event["named"] for event in network[name].events("word_posted") if event["round"] == round]


def statement(network: FakeNetwork, name: str, block: int) -> object:
    """What the hotkey's slot says as of a block."""
    peers = network.world.chain(network[name].peer).peers(block)
    (slot,) = (peer.slot for peer in peers if peer.id == network[name].peer)
    return slot.statement if slot is not None else None


# --- bytes that not everybody has ----------------------------------------------------------------------------


class CopiesNothing(Votes):
    """Gives nobody what it holds."""

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        pass


class Mute(Miner):
    """Commits, and shows nobody its key."""

    def reveal(self, round: int, sealed: Any) -> None:
        self.node.wait_for(self.node.clock.commit_deadline(round) + 1, "nothing")


class NamesEverybody(Votes):
    """Whoever has committed; and gives everything that it has."""

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        self.copies.hold(round, at_commit, [item for item in self.seen.values() if item.payload is not None])

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        super().cast(round, replace(ranking, order=tuple(sorted(checked.committed))), at_commit, checked)


def test_a_peer_that_serves_one_validator_is_named_by_the_others_from_that_ones_mirror(networks: Networks) -> None:
    validators = {"first": 100, "second": 100, "third": 100, "absent": 100}
    network = networks(miners=3, validators=validators)
    show_only(network, "miner-1", "first")
    network.start("first", "second", "third", "miner-1", "miner-2", "miner-3")
    network.run_until(SEAT_ROUNDS)
    for round in SEATED:
        assert sorted(network["miner-2"].contributing(round)) == names(network, "miner-1", "miner-2", "miner-3")
        assert named(network, "first", round) == [3]
        for name in ("second", "third"):
            assert named(network, name, round) == [2, 3]
    network.assert_agreement()


def test_a_peer_that_serves_one_validator_costs_no_round_in_which_nobody_waits_for_it(networks: Networks) -> None:
    """All have voted before the others could have it."""
    network = networks(miners=3, validators={"first": 100, "second": 100, "third": 100})
    show_only(network, "miner-1", "first")
    network.start()
    network.run_until(4)
    for round in range(4):
        assert sorted(network["miner-2"].contributing(round)) == names(network, "miner-2", "miner-3")
    network.assert_agreement()


@pytest.mark.parametrize("absent", [pytest.param(0, marks=pytest.mark.slow), 100])
def test_a_peer_that_a_minority_has_read_loses_its_place_and_no_round(networks: Networks, absent: int) -> None:
    validators = {"first": 100, "second": 100, "third": 100, "absent": absent}
    network = networks(miners=3, validators=validators)
    show_only(network, "miner-1", "first")
    network.start("second", "third", "miner-1", "miner-2", "miner-3")
    network.start("first", role=with_parts(CopiesNothing))
    network.run_until(SEAT_ROUNDS)
    for round in SEATED:
        assert named(network, "first", round) == [3]
        assert sorted(network["miner-2"].contributing(round)) == names(network, "miner-2", "miner-3")
    network.assert_agreement()


def test_a_validator_that_names_garbage_brings_in_nobody(networks: Networks) -> None:
    """Nor where the others can have the garbage from it alone."""
    validators = {"first": 100, "second": 100, "evil": 100, "absent": 100}
    network = networks(miners=3, validators=validators)
    show_only(network, "miner-3", "evil")
    network.start("first", "second", "miner-1", "miner-2")
    network.start("miner-3", role=Garbage)
    network.start("evil", role=with_parts(NamesEverybody))
    network.run_until(SEAT_ROUNDS)
    for round in SEATED:
        assert named(network, "evil", round) == [3]
        assert sorted(network["miner-1"].contributing(round)) == names(network, "miner-1", "miner-2")
        read = ("evil", "get", keys.mirror(network.run.id, round, network["miner-3"].peer))
        assert read in list(network.store.log), "nobody has looked at it"
        for name in ("first", "second"):
            assert named(network, name, round) == [2]
    network.assert_agreement()


def test_a_peer_whose_bytes_never_come_keeps_no_other_from_being_added(networks: Networks) -> None:
    validators = {"first": 100, "second": 100, "third": 100, "evil": 50, "absent": 50}
    network = networks(miners=4, validators=validators)
    show_only(network, "miner-1", "first")
    network.start("first", "second", "third", "miner-1", "miner-2", "miner-3")
    network.start("miner-4", role=Mute)
    network.start("evil", role=with_parts(NamesEverybody))
    network.store.faults["evil"] = Faults(stalls=True)
    rounds = SEAT_ROUNDS
    network.run_until(rounds, "first", "second", "third", "miner-1", "miner-2", "miner-3")
    for round in range(rounds):
        assert sorted(network["miner-2"].contributing(round)) == names(network, "miner-1", "miner-2", "miner-3")
        for name in ("second", "third"):
            assert named(network, name, round) == [2, 3]
    network.assert_agreement()


# --- books that differ -----------------------------------------------------------------------------------------


class KnowsBetter(Scores):
    """Has found the work of some peers worthless."""

    worthless: frozenset[PeerId]

    def fold(self, *arguments: Any, **named: Any) -> None:
        super().fold(*arguments, **named)
        for peer in self.worthless & self.book.peers.keys():
            record = self.book.peers[peer]
            bad = replace(record, evaluations=9, scores=Average(-1.0, 0.9), usual_scores=Average(1.0, 0.9))
            self.book = replace(self.book, peers={**self.book.peers, peer: bad})


def finding_worthless(network: FakeNetwork, *miners: str) -> Callable[[Node, Shards], Validator]:
    """A validator whose book says so of these."""
    found = frozenset(network[name].peer for name in miners)
    return with_parts(type("Knows", (KnowsBetter,), {"worthless": found}))


class NamesAFriend(Votes):
    """One peer and nobody else."""

    friend: PeerId

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        super().cast(round, replace(ranking, order=(self.friend,)), at_commit, checked)


def test_books_that_differ_cost_only_the_peers_that_most_find_worthless_their_places(networks: Networks) -> None:
    """Each of three miners has shown one validator its work, and the others what makes theirs find it worthless."""
    network = networks(miners=6, validators={"first": 100, "second": 100, "third": 100}, evaluations=6)
    faces = {"first": "miner-4", "second": "miner-5", "third": "miner-6"}
    network.start(*(f"miner-{number}" for number in range(1, 7)))
    for name in faces:
        network.start(name, role=finding_worthless(network, *(face for one, face in faces.items() if one != name)))
    rounds = 6
    network.run_until(rounds)
    for round in range(1, rounds):
        assert [named(network, name, round) for name in faces] == [[4], [4], [4]]
        assert sorted(network["miner-1"].contributing(round)) == names(network, "miner-1", "miner-2", "miner-3")
    assert network["miner-1"].voids() == []
    network.assert_agreement()


def test_a_friend_of_no_worth_is_not_brought_in_by_a_minority(networks: Networks) -> None:
    network = networks(miners=2, validators={"honest": 101, "liar": 100}, contributors=1)
    network.start("miner-1", "miner-2")
    NamesAFriend.friend = network["miner-1"].peer
    network.start("honest", role=finding_worthless(network, "miner-1"))
    network.start("liar", role=with_parts(NamesAFriend))
    rounds = 6
    network.run_until(rounds)
    for round in range(1, rounds):
        assert named(network, "liar", round) == [1]
        assert network["miner-2"].contributing(round) == [hotkey(network["miner-2"].peer)]
    network.assert_agreement()


# --- votes that come late, or not at all -------------------------------------------------------------------------


def refuse(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, name: str, rounds: range) -> None:
    """The chain takes nothing more of this hotkey in these rounds: the quota of the epoch is spent."""
    publish = network.world.publish

    def refusing(peer: PeerId, fields: tuple[bytes, ...]) -> int:
        if peer == network[name].peer and network.clock.round_at(network.world.head) in rounds:
            raise ChainError("the quota of this epoch is spent", code="SpaceLimitExceeded")
        return publish(peer, fields)

    monkeypatch.setattr(network.world, "publish", refusing)


def test_a_vote_that_the_chain_refuses_is_missed_by_nobody(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100, "third": 100})
    refuse(network, monkeypatch, "third", range(1, 4))
    network.start()
    network.run_until(5)
    assert [event["round"] for event in network["third"].events("word_posted")] == [0, 4]
    assert network["third"].voids() == []
    assert network["third"].events("interrupted") == []
    assert [event["round"] for event in network["third"].events("weights")] == list(range(5))
    network.assert_agreement()


def test_a_vote_that_the_chain_refuses_the_only_validator_costs_the_update_and_nothing_else(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=2)
    refuse(network, monkeypatch, "validator", range(1, 3))
    network.start()
    network.run_until(5)
    validator = network["validator"]
    assert validator.voids() == network["miner-1"].voids() == [1, 2]
    for event in ("reported", "weights", "held_out"):
        assert [told["round"] for told in validator.events(event)] == list(range(5)), event
    assert validator.events("interrupted") == []
    network.assert_agreement()


class TakesItsTime(Scores):
    """Its checks last until so many blocks before the vote deadline are final."""

    blocks_left: ClassVar[int]

    def check(self, round: int, gathered: Any) -> Any:
        self.node.wait_for(self.node.clock.vote_deadline(round) - self.blocks_left, "nothing")
        return super().check(round, gathered)


LAG = 2


@pytest.mark.parametrize(("blocks_left", "in_time"), [(LAG + 2, True), (LAG + 1, False)])
def test_a_late_validator_still_says_its_vote_as_long_as_it_counts(
    networks: Networks, blocks_left: int, in_time: bool
) -> None:
    network = networks(miners=2, validators={"first": 100, "late": 100}, finality_lag=LAG)
    TakesItsTime.blocks_left = blocks_left
    network.start("first", "miner-1", "miner-2")
    network.start("late", role=with_parts(TakesItsTime))
    rounds = 3
    network.run_until(rounds)
    said = {event["round"]: event["block"] for event in network["late"].events("word_posted")}
    if in_time:
        assert said == {round: network.clock.vote_deadline(round) - 1 for round in range(rounds)}
    assert bool(said) == in_time
    assert network["miner-1"].voids() == ([] if in_time else list(range(rounds)))
    assert [event["round"] for event in network["late"].events("reported")] == list(range(rounds))
    network.assert_agreement()


class ComesAfterV(Collector):
    """Reads nobody's key in time."""

    def collect(self, round: int, *rest: Any) -> Any:
        self.node.wait_for(self.node.clock.reveal_deadline(round) + 1, "nothing")
        return super().collect(round, *rest)


def test_a_validator_that_comes_after_v_names_whom_another_has_read_in_time(networks: Networks) -> None:
    """Both are needed for a majority. Nobody is named by both at first, so nothing is decided before it adds them."""
    network = networks(miners=2, validators={"first": 100, "late": 100})
    network.start("first", "miner-1", "miner-2")
    network.start("late", role=with_parts(ComesAfterV))
    network.run_until(3)
    for round in range(3):
        assert named(network, "late", round) == [0, 2]
        assert sorted(network["miner-1"].contributing(round)) == names(network, "miner-1", "miner-2")
    network.assert_agreement()


# --- what was said stays -----------------------------------------------------------------------------------------


class TakesBack(Votes):
    """Says what is true, and writes something else over it at the last moment."""

    instead: ClassVar[Callable[[Vote], Vote | None]]

    def send(self, round: int, vote: Vote) -> int | None:
        block = super().send(round, vote)
        node = self.node
        node.wait_for(node.clock.vote_deadline(round) - 1, "the last moment")
        node.post(type(self).instead(vote))
        return block


INSTEAD: dict[str, Callable[[Vote], Vote | None]] = {
    "nobody": lambda vote: replace(vote, bitmap=0),
    "another theta": lambda vote: replace(vote, theta=Digest(bytes([7] * 32))),
    "another link": lambda vote: replace(vote, previous=Digest(bytes([7] * 32))),
    "an abstention": lambda vote: abstention(vote.round),
    "the round before": lambda vote: replace(vote, round=max(0, vote.round - 1)),
    "nothing": lambda vote: None,
}


LIKE_ANOTHER_THETA = ("another link", "the round before")
"""They end like it: as votes for a state that nobody else names, or for no round."""


@pytest.mark.parametrize(
    "instead",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_ANOTHER_THETA)) for name in INSTEAD],
)
def test_what_is_taken_back_shortly_before_x_counts(networks: Networks, instead: str) -> None:
    """A vote that is needed, in rounds that stay open until the vote deadline: a miner without a key might still be
    named."""
    network = networks(miners=3, validators={"honest": 100, "liar": 100, "absent": 50})
    network.start("honest", "miner-1", "miner-2")
    network.start("miner-3", role=Mute)
    TakesBack.instead = staticmethod(INSTEAD[instead])
    network.start("liar", role=with_parts(TakesBack))
    network.run_until(SEAT_ROUNDS)
    for round in SEATED:
        (applied,) = [event for event in network["miner-1"].events("applied") if event["round"] == round]
        last = network.clock.vote_deadline(round)
        assert (applied["decided"], applied["void"]) == (last, False)
        assert sorted(applied["contributing"]) == names(network, "miner-1", "miner-2")
        stands = statement(network, "liar", last)
        if instead != "the round before" or round:
            assert not isinstance(stands, Vote) or stands != statement(network, "liar", last - 1)
    network.assert_agreement()


class DiesAfterItsVote(Votes):
    """In round 1."""

    def post(self, round: int, *vote: Any) -> None:
        super().post(round, *vote)
        if round == 1:
            raise Killed


class NamesNobody(Votes):
    """Finds nobody any more whom it could name."""

    def cast(self, round: int, ranking: Ranking, at_commit: Any, checked: Any) -> None:
        super().cast(round, replace(ranking, order=()), at_commit, checked)


class Abstains(Votes):
    """Believes to be elsewhere."""

    def cast(self, round: int, *_: Any) -> None:
        self.post(round, None)


@pytest.mark.parametrize("then", [NamesNobody, Abstains])
def test_a_restarted_validator_does_not_take_back_whom_it_has_named(networks: Networks, then: type[Votes]) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100, "absent": 50})
    network.start("miner-1", "miner-2", "first")
    network.start("second", role=with_parts(DiesAfterItsVote))
    dead(network, "second")
    said = statement(network, "second", network.world.final)
    assert isinstance(said, Vote)
    assert said.round == 1
    assert said.bitmap
    network.start("second", role=with_parts(then))
    network.run_to_block(network.clock.vote_deadline(1))
    assert statement(network, "second", network.world.final) == said
    network.run_until(2)
    assert 1 not in network["second"].voids()
    network.assert_agreement()


class SeesMoreLater(Collector):
    """In its first life it can read one miner less."""

    hidden: PeerId

    def collect(self, round: int, at_commit: Any, book: Any) -> Any:
        found = super().collect(round, at_commit, book)
        return [replace(item, payload=None, reveal=None) if item.peer.id == self.hidden else item for item in found]


def test_a_restarted_validator_adds_whom_it_can_read_now(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100, "absent": 50})
    SeesMoreLater.hidden = network["miner-1"].peer
    network.start("miner-1", "miner-2", "first")
    network.start("second", role=with_parts(DiesAfterItsVote, SeesMoreLater))
    dead(network, "second")
    said = statement(network, "second", network.world.final)
    assert isinstance(said, Vote)
    assert said.round == 1
    network.start("second")
    network.run_until(2)
    assert named(network, "second", 1) == [1, 2]
    assert sorted(network["miner-1"].contributing(1)) == names(network, "miner-1", "miner-2")
    network.assert_agreement()
