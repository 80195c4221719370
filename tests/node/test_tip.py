"""Where the run stands, for nodes that were away, lost something, or hold what nobody else does: everybody goes on from
one state, in a round that settles it for all."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gauntlet.agreement import SEAT_ROUNDS
from murmur.node.node import VAIN_ROUNDS
from murmur.protocol import keys
from murmur.protocol.errors import StorageError
from murmur.protocol.messages import encode_slot, first_link
from murmur.protocol.types import Commitment, Digest, Vote
from murmur.rounds.votes import Votes
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, saved_state, waiting, with_parts
from tests.node.lies import (
    agrees_again,
    depth,
    liar,
    now,
    refs_of,
    returns,
    rounds_more,
    spoil,
    vote_of,
    votes_of,
    wipe,
)

Networks = Callable[..., FakeNetwork]
HONEST = ("first", "second", "third")
THREE = dict.fromkeys(HONEST, 100)


# --- a majority comes back -----------------------------------------------------------------------------------------


def test_a_majority_that_returns_takes_up_what_a_minority_went_on_with_alone(networks: Networks) -> None:
    network = networks(miners=2, validators=THREE)
    network.start()
    network.run_until(3)
    network.kill("first", "second")
    at = network["third"].round
    rounds_more(network, SEAT_ROUNDS + 4)
    alone = network["third"].node.state.ref
    assert depth(network, "third") > at
    assert len(network["third"].voids()) >= SEAT_ROUNDS - 1
    network.start("first", "second")
    agrees_again(network, *HONEST, "miner-1")
    assert not returns(network, "third")
    assert alone[1] in {step.previous for step in network["first"].node.agreement.selections.values()}


class Hermit(Votes):
    """While it has a uid, names that one alone; says the truth before."""

    ghost: int | None = None

    def send(self, round: int, vote: Vote) -> int | None:
        if self.ghost is not None:
            vote = replace(vote, bitmap=1 << self.ghost if vote.bitmap else 0)
        return super().send(round, vote)


def test_a_majority_that_returns_goes_back_before_what_a_liar_agreed_on_alone_and_gives_to_nobody(
    networks: Networks,
) -> None:
    """A liar with a third of the stake is alone for so long that it decides, and names a hotkey whose bytes nobody has
    ever seen. All that others can have is older; they say so in one round, and miners that live through it follow."""
    network = networks(miners=3, validators={"first": 100, "second": 100, "liar": 99})
    hermit: type[Hermit] = type("OneHermit", (Hermit,), {})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(hermit))
    network.run_until(3)
    network.kill("first", "second")
    held = network["first"].node.state.ref
    ghost = network["miner-3"]
    hermit.ghost = next(peer.uid for peer in network.world.pending_peers if peer.id == ghost.peer)
    for _ in range(SEAT_ROUNDS + 4):
        promise = Commitment(now(network) + 1, Digest(b"p" * 32))
        network.run_to_block(network.clock.start(promise.round) + 1)
        network.world.publish(ghost.peer, encode_slot(network.store.pointer(ghost.name), promise))
        network.run_to_block(network.clock.vote_deadline(promise.round) + 1)
    assert network["miner-1"].node.state.ref == held
    assert not network["miner-1"].node.at_tip
    network.start("first", "second")
    back = rounds_more(network, VAIN_ROUNDS + 2) - VAIN_ROUNDS - 2
    said = [vote for name in ("first", "second") for vote in votes_of(network, name) if vote.round > back]
    assert {vote.state_ref for vote in said if vote.round <= back + VAIN_ROUNDS} <= {None}
    assert held in {vote.state_ref for vote in said}
    agrees_again(network, "first", "second", "miner-1", "miner-2")
    assert held in {vote.state_ref for vote in votes_of(network, "second") if vote.round > back}


def test_a_pair_that_a_minority_names_moves_nobody_where_it_has_most_of_what_is_spoken(networks: Networks) -> None:
    """It makes those rounds void for who is there, no more."""
    network = networks(miners=2, validators=THREE | {"liar": 140})
    network.start("miner-1", "miner-2", *HONEST)
    network.start("liar", role=with_parts(liar()))
    network.run_until(3)
    network.kill("first", "second")
    network.run_until(network["third"].round + 1, "third")
    held, at = network["third"].node.state.ref, network["third"].round
    end = rounds_more(network, SEAT_ROUNDS + 3)
    assert set(range(at, end - 1)) <= set(network["third"].voids())
    for name in ("third", "miner-1"):
        assert network[name].node.state.ref == held
        assert not returns(network, name)
    network.start("first", "second")
    agrees_again(network, *HONEST, "miner-1")
    assert not network["third"].events("not_followed")


# --- bytes that nobody has -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [pytest.param("first", marks=pytest.mark.slow), "miner-2"])
def test_bytes_that_nobody_gives_any_more_take_everybody_back_by_one_round(networks: Networks, kept: str) -> None:
    """One node has applied them, and is away when the others give up; a third of the stake lies. When that one is back
    it leaves what only it holds."""
    network = networks(miners=2, validators=THREE | {"liar": 90})
    network.start(*HONEST)
    network.start("miner-1", "miner-2", role=waiting)
    network.start("liar", role=with_parts(liar()))
    network.run_until(2)
    network.run_blocks(lambda: all(vote_of(network, name).round == 2 for name in HONEST))
    held = network["first"].node.state.ref

    def cut(call: Call) -> None:
        if call.reader != kept and "/00000002" in call.key and "report" not in call.key:
            raise StorageError("gone")

    network.store.before = cut
    for name in {*HONEST, "miner-1", "miner-2"} - {kept}:
        network[name].node.before_apply = lambda _, name=name: network[name].node.state.clear_cache()  # type: ignore[misc]
    network.run_until(3, kept)
    network.kill(kept)
    for bucket in network.store.buckets.values():
        for key in [key for key in bucket if "00000002" in key and "report" not in key]:
            del bucket[key]
    rounds_more(network, VAIN_ROUNDS + 4)
    rest = [name for name in (*HONEST, "miner-1", "miner-2") if name != kept]
    for name in rest:
        assert 2 not in network[name].thetas()
    agrees_again(network, *rest)
    assert 2 in network[kept].thetas()
    network.start(kept)
    rounds_more(network, 1)
    at = {event["theta"] for event in network[rest[0]].events("applied")}
    assert returns(network, kept)[-1]["theta"] in at
    agrees_again(network, *rest)
    assert network[kept].thetas()[now(network) - 1] == network[rest[0]].thetas()[now(network) - 1]
    voters = [name for name in HONEST if name != kept]
    for name in voters:
        assert [vote.state_ref for vote in votes_of(network, name) if 3 < vote.round < 3 + VAIN_ROUNDS] == [None] * 3
    again = [{vote.round for vote in votes_of(network, name) if vote.state_ref == held} - {2} for name in voters]
    assert all(rounds == again[0] for rounds in again)


# --- what one node has lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["miner-2", pytest.param("third", marks=pytest.mark.slow), pytest.param("first", marks=pytest.mark.slow)]
)
def test_who_holds_another_theta_at_the_runs_link_makes_its_state_again(networks: Networks, name: str) -> None:
    network = networks(miners=2, validators={"first": 150, "second": 100, "third": 60})
    network.start()
    network.run_until(5)
    spoil(network, name)
    wrong = saved_state(network, name)
    wrong[1].close()
    network.start(name)
    agrees_again(network, *network.members)
    back = returns(network, name)[-1]
    assert not back["origin"].startswith("our own state")
    others = set(network.members) - {name}
    assert not [event for other in others for event in returns(network, other)]
    said = {vote.round for vote in votes_of(network, name) if vote.state_ref == (wrong[0].theta, wrong[0].link)}
    assert len(said) <= 1, "its memory was wrong for one round at most"


def test_who_holds_another_theta_sees_it_by_rounds_in_which_nobody_contributes(networks: Networks) -> None:
    network = networks(miners=2, validators=THREE)
    network.start()
    network.run_until(5)
    network.kill("miner-1", "miner-2")
    rounds_more(network, 1)
    spoil(network, "third")
    network.start("third")
    end = rounds_more(network, 3)
    assert {end - 2, end - 1} <= set(network["first"].voids())
    assert network["third"].node.at_tip
    assert network["third"].node.state.ref == network["first"].node.state.ref


@pytest.mark.parametrize("names", [pytest.param(("first", "second"), marks=pytest.mark.slow), HONEST])
def test_validators_that_all_lost_their_disks_go_on_from_what_their_buckets_keep(
    networks: Networks, names: Sequence[str]
) -> None:
    network = networks(miners=2, validators=THREE)
    network.start()
    network.run_until(5)
    wipe(network, *names)
    newest = now(network)
    network.start(*names)
    agrees_again(network, *HONEST, "miner-1")
    assert not {void for name in ("miner-1", "miner-2") for void in network[name].voids() if void > newest + 1}


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_sole_validator_that_lost_its_disk_and_all_payloads_begins_anew_only_in_a_run_without_checkpoints(
    networks: Networks, rounds: int
) -> None:
    """And so have its miners; all that is left is which selections were agreed."""
    network = networks(miners=2)
    network.start()
    network.run_until(rounds)
    network.run_to_block(network.clock.start(rounds) + 1)
    wipe(network, *network.members)
    for name, bucket in network.store.buckets.items():
        kept = {key: found for key, found in bucket.items() if name == "owner" or "/selection/" in key}
        network.store.buckets[name] = kept
    said = len(votes_of(network, "validator"))
    network.start()
    rounds_more(network, VAIN_ROUNDS + 3)
    fresh = votes_of(network, "validator")[said:]
    young = rounds <= network.spec.checkpoint_rounds
    assert {vote.state_ref for vote in fresh[:VAIN_ROUNDS]} == {None}
    assert any(vote.previous == first_link(network.run.id) for vote in fresh) == young
    if young:
        agrees_again(network, "validator", "miner-1")


def test_who_lost_everything_and_can_have_the_first_round_only_draws_nobody_back(networks: Networks) -> None:
    """What was sent in later rounds is out of reach, and the other validator that holds it is away for a while."""
    network = networks(miners=2, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(5, "first", "second")
    network.kill("second", "miner-1", "miner-2")
    held, before = network["second"].node.state.ref, refs_of(network, "first")
    wipe(network, "first")
    buckets = {name: bucket for name, bucket in network.store.buckets.items() if name != "owner"}
    for name, bucket in buckets.items():
        kept = {keys.payload(network.run.id, 0), keys.reveal(network.run.id, 0)}
        network.store.buckets[name] = {key: found for key, found in bucket.items() if key in kept or "select" in key}
    network.start("first")
    rounds_more(network, VAIN_ROUNDS + 3)
    assert network["first"].node.state.saved.link != held[1]
    assert not network["first"].node.at_tip
    assert refs_of(network, "first") <= before
    for name, bucket in buckets.items():
        network.store.buckets[name] = bucket | network.store.buckets[name]
    network.start("second", "miner-1", "miner-2")
    agrees_again(network, "second", "first", "miner-1")
    assert not [event for event in returns(network, "second") if event["applied"]]
    assert depth(network, "second") > 5


# --- read for a while by nobody ------------------------------------------------------------------------------------


def test_an_honest_validator_that_could_read_nothing_for_a_while_comes_back_beside_one_that_left(
    networks: Networks,
) -> None:
    """The two have more than half of the stake, and named the same last. While the run goes on without it, it lends
    nobody its vote."""
    network = networks(miners=2, validators={"first": 120, "second": 115, "away": 100, "stuck": 165})
    network.start()
    network.run_until(3)

    def cut(call: Call) -> None:
        if call.reader == "stuck" and call.bucket != "stuck":
            raise StorageError("no connection")

    network.store.before = cut
    network.run_blocks(lambda: vote_of(network, "away").round == 3)
    network.kill("away")
    end = rounds_more(network, SEAT_ROUNDS + VAIN_ROUNDS + 2)
    said = {vote.round: vote.state_ref for vote in votes_of(network, "stuck") if vote.round > 3}
    assert set(range(6, end)) <= said.keys()
    assert set(said.values()) == {None}
    before = depth(network, "first")
    network.store.before = lambda call: None
    agrees_again(network, "first", "second", "stuck", "miner-1")
    assert depth(network, "first") > before
    assert not returns(network, "first")
