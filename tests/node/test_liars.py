"""Validators that name what is not so, while those with most of the stake are away or have lost everything: where the
run stands is read from the chain, so a lie of less than most of the stake moves nobody."""

from collections.abc import Callable

import pytest

from gauntlet.agreement import SEAT_ROUNDS
from murmur.node.node import VAIN_ROUNDS
from murmur.node.sync import catchup, selection_chain
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, StorageError
from murmur.protocol.messages import first_link
from murmur.protocol.types import Digest, StateRef
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, with_parts
from tests.node.lies import (
    Forger,
    agrees_again,
    depth,
    forge,
    liar,
    now,
    refs_of,
    returns,
    rounds_more,
    vote_of,
    votes_of,
    wipe,
)
from tests.node.test_checkpoints import NoCheckpoints

Networks = Callable[..., FakeNetwork]
HONEST = ("first", "second", "third")


def begin(network: FakeNetwork, forger: type[Forger], *names: str) -> None:
    """Start the miners, these validators, and a liar that says the truth until `forger.state` is set."""
    network.start("miner-1", "miner-2", *names)
    network.start("liar", role=with_parts(forger, NoCheckpoints))


def named_by(network: FakeNetwork, *names: str) -> set[StateRef]:
    """All that these ever named."""
    return {state_ref for name in names for state_ref in refs_of(network, name)}


@pytest.mark.parametrize("stakes", [pytest.param((140,), marks=pytest.mark.slow), (110, 110, 110)])
def test_liars_with_more_stake_than_the_only_honest_one_that_speaks_keep_nobody_out(
    networks: Networks, stakes: tuple[int, ...]
) -> None:
    liars = {f"liar-{number}": stake for number, stake in enumerate(stakes)}
    away = 100 * len(stakes)
    network = networks(miners=2, validators={"first": away, "second": away, "third": 100} | liars)
    network.start("miner-1", "miner-2", "first", "second", "third")
    for name in liars:
        network.start(name, role=with_parts(liar()))
    network.run_until(4, "third")
    wipe(network, "first", "second")
    network.run_until(network["third"].round + 1, "third")
    back = network["third"].round
    network.start("first", "second")
    network.run_until(back + 5, "first", "second", "third")
    for name in ("first", "second"):
        assert network[name].events("caught_up")[0]["round"] <= back + 1
    assert not {void for void in network["third"].voids() if void > back + 1}
    assert network["first"].thetas()[back + 4] == network["third"].thetas()[back + 4]


def test_who_can_read_a_liars_bucket_only_names_nothing(networks: Networks, forger: type[Forger]) -> None:
    """It has lost everything, and the liar has invented a selection that everybody could follow."""
    network = networks(miners=2, validators={"first": 140, "second": 110, "third": 100, "liar": 100})
    begin(network, forger, *HONEST)
    network.run_until(5)
    wipe(network, "first")
    forger.state_ref = forge(network, "second")
    named = refs_of(network, "first")
    shown = keys.selection(network.run.id, forger.state_ref.link), keys.payload(network.run.id, 5)

    def cut(call: Call) -> None:
        own = call.bucket == "owner" or (call.bucket == "liar" and call.key in shown)
        if call.reader == "first" and not own:
            raise StorageError("no connection")

    network.store.before = cut
    network.start("first")
    rounds_more(network, VAIN_ROUNDS + 3)
    assert vote_of(network, "first").round >= now(network) - 1
    assert refs_of(network, "first") == named
    network.store.before = lambda call: None
    agrees_again(network, *HONEST, "miner-1")
    assert forger.state_ref not in named_by(network, *HONEST)


@pytest.mark.parametrize(
    ("stake", "archive"),
    [pytest.param(60, True, marks=pytest.mark.slow), pytest.param(100, False, marks=pytest.mark.slow), (140, True)],
)
def test_nobody_leaves_what_it_holds_for_what_a_liar_has_invented_on_top_of_it(
    networks: Networks, forger: type[Forger], stake: int, archive: bool
) -> None:
    """Two of three were away for longer than their chain nodes keep; the third names what they hold, with more stake
    than the liar or as much."""
    stakes = {"first": 100, "second": 100, "third": 100, "liar": stake}
    network = networks(miners=2, keep_blocks=45, archive=archive, validators=stakes)
    begin(network, forger, *HONEST)
    network.run_until(4)
    network.kill("first", "second")
    rounds_more(network, 1)
    forger.state_ref = forge(network, "third", round=now(network))
    rounds_more(network, 2)
    network.start("first", "second")
    rounds_more(network, VAIN_ROUNDS + 1)
    network.world.archive_answers = True
    agrees_again(network, *HONEST, "miner-1")
    assert forger.state_ref not in named_by(network, *HONEST)


@pytest.mark.parametrize("lie", ["genesis", pytest.param("old", marks=pytest.mark.slow)])
def test_validators_that_fell_silent_in_different_rounds_go_on_from_one_state(
    networks: Networks, forger: type[Forger], lie: str
) -> None:
    """Each is killed three rounds after the one before, and all are away until chain nodes have pruned that; the liar
    has most of what is said. Without an archive nobody names anything but what it held itself."""
    network = networks(miners=2, keep_blocks=45, validators=dict.fromkeys(HONEST, 100) | {"liar": 140})
    begin(network, forger, *HONEST)
    network.wait_for(lambda: network["third"].program is not None)
    start = network["third"].node.state.ref
    network.run_until(4, "third")
    old = network["third"].node.state.ref
    for number, name in enumerate(HONEST):
        network.run_until(6 + 2 * number, "third")
        network.kill(name)
    forger.state_ref = start if lie == "genesis" else old
    rounds_more(network, SEAT_ROUNDS)
    held = {name: network[name].node.state.ref for name in HONEST}
    assert len(set(held.values())) == len(HONEST)
    network.start(*HONEST)
    back = rounds_more(network, VAIN_ROUNDS + 2) - VAIN_ROUNDS - 2
    for name in HONEST:
        assert {vote.state_ref for vote in votes_of(network, name) if vote.round >= back} <= {None, held[name]}
    network.world.archive_answers = True
    agrees_again(network, *HONEST, "miner-1")
    went = {event["theta"] for name in HONEST for event in returns(network, name)}
    assert went == {held["third"][0].hex()}


@pytest.mark.parametrize(("together", "archive"), [pytest.param(True, False, marks=pytest.mark.slow), (False, True)])
def test_the_cheapest_lie_takes_nobody_back_to_the_start(
    networks: Networks, forger: type[Forger], together: bool, archive: bool
) -> None:
    """theta_0 can be followed by everybody, and nobody else speaks; one that comes back holds nothing else. It may have
    to start again while it waits."""
    stakes = dict.fromkeys(HONEST, 100) | {"liar": 140}
    network = networks(miners=2, keep_blocks=45, archive=archive, validators=stakes)
    begin(network, forger, *HONEST)
    network.wait_for(lambda: network["third"].program is not None)
    start = network["third"].node.state.ref
    assert start[1] == first_link(network.run.id)
    network.run_until(4, "third")
    network.kill("second")
    if not together:
        network.run_until(6, "third")
    network.kill("third")
    wipe(network, "first")
    said = len(votes_of(network, "first"))
    forger.state_ref = start
    network.run_to_block(network.world.final + 70)
    for _ in range(2):
        network.start("first")
        rounds_more(network, VAIN_ROUNDS)
        network.kill("first")
    assert start not in {vote.state_ref for vote in votes_of(network, "first")[said:]}
    network.start(*HONEST)
    rounds_more(network, 2)
    network.world.archive_answers = True
    agrees_again(network, *HONEST, "miner-1")
    assert start not in {vote.state_ref for name in HONEST for vote in votes_of(network, name) if vote.round > 3}


def test_who_is_alone_is_not_drawn_back_by_a_liar_that_names_an_old_pair(
    networks: Networks, forger: type[Forger]
) -> None:
    """Nor does it draw anybody on: half of what was said lately is none."""
    network = networks(miners=2, validators={"first": 100, "second": 100, "liar": 100})
    begin(network, forger, "first", "second")
    network.run_until(3, "first")
    forger.state_ref = network["first"].node.state.ref
    network.run_until(7, "first", "second")
    network.kill("second")
    held = network["first"].node.state.saved.link
    end = rounds_more(network, 2 * SEAT_ROUNDS)
    assert {*range(end - 4, end - 1)} <= set(network["first"].voids())
    assert network["first"].node.state.saved.link == held


@pytest.mark.parametrize(
    "lie",
    [pytest.param("old", marks=pytest.mark.slow), "invented", pytest.param("wrong theta", marks=pytest.mark.slow)],
)
def test_who_is_away_for_a_while_costs_the_others_no_agreed_round(
    networks: Networks, forger: type[Forger], lie: str
) -> None:
    """It left between its vote on a round and its first vote after it; then a third of the stake lies: it repeats that
    vote, or names a selection of its own on top of it, or the others' link with another theta."""
    network = networks(miners=2, validators={"first": 101, "second": 100, "liar": 100})
    begin(network, forger, "first", "second")
    network.run_until(4)
    network.run_blocks(lambda: vote_of(network, "second").round == 4)
    network.kill("second")
    network.run_until(5, "first")
    before, held = depth(network, "first"), network["first"].node.state.ref
    old, invented = vote_of(network, "second").state_ref, forge(network, "first")
    assert old != held
    forger.state_ref = {"old": old, "invented": invented, "wrong theta": StateRef(Digest(b"w" * 32), held.link)}[lie]
    for _ in range(SEAT_ROUNDS + 2):
        rounds_more(network, 1)
        assert depth(network, "first") >= before
    network.start("second")
    agrees_again(network, "first", "second", "miner-1")
    assert not returns(network, "first")


@pytest.mark.parametrize("archive", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_liar_that_agrees_with_one_and_then_repeats_the_others_vote_parts_nobody(
    networks: Networks, forger: type[Forger], archive: bool
) -> None:
    """It helps `first` to agree on rounds while `second` is away, and has a third of the stake. Then `first` is away,
    the chain node of `second` has pruned those rounds, and the liar names what that one still holds. Without an archive
    the two go on from there after a while, in a round that settles it for everybody who can read it; with one they do
    not."""
    stakes = {"first": 100, "second": 100, "liar": 99}
    network = networks(miners=2, keep_blocks=45, archive=archive, validators=stakes)
    begin(network, forger, "first", "second")
    network.run_until(3)
    network.kill("second")
    old = network["second"].node.state.ref
    network.run_until(6, "first")
    assert not set(network["first"].voids())
    network.kill("first")
    held = network["first"].node.state.ref
    forger.state_ref = old
    network.run_to_block(network.world.final + 70)
    network.start("second")
    back = rounds_more(network, VAIN_ROUNDS + 3) - VAIN_ROUNDS - 3
    refs = [vote.state_ref for vote in votes_of(network, "second") if vote.round >= back]
    assert refs[0] == (held if archive else None)
    assert (old in refs) != archive
    network.world.archive_answers = True
    network.start("first")
    agrees_again(network, "first", "second", "miner-1")


@pytest.mark.parametrize("archive", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_liar_that_repeats_what_one_that_left_said_last_keeps_nobody_out(
    networks: Networks, forger: type[Forger], archive: bool
) -> None:
    """Together they have more than half of the stake that was voted with lately, so that no round settles anything for
    a long while. Who joins then has to read it all, from an archive where its chain node has pruned it."""
    stakes = {"first": 120, "second": 115, "away": 100, "liar": 165}
    network = networks(miners=2, keep_blocks=45, archive=archive, validators=stakes)
    network.start("miner-1", "first", "second", "away")
    network.start("liar", role=with_parts(forger))
    network.run_until(3, "first", "second", "away")
    network.run_blocks(lambda: vote_of(network, "away").round == 3)
    network.kill("away")
    forger.state_ref = vote_of(network, "away").state_ref
    end = rounds_more(network, SEAT_ROUNDS + 6)
    assert not {end - 3, end - 2} & set(network["first"].voids())
    before = depth(network, "first")
    network.start("miner-2")
    rounds_more(network, 3)
    assert network["miner-2"].node.at_tip == archive
    network.world.archive_answers = True
    network.start("away")
    agrees_again(network, "first", "second", "away", "miner-1", "miner-2")
    assert depth(network, "first") > before
    assert not returns(network, "first")


def fail_once(network: FakeNetwork, name: str, after: int) -> list[int]:
    """The chain fails this node for a moment in a round after that one; which, once it has."""
    node, failed = network[name].node, list[int]()
    decision = node._agreed_in

    def once(round: int) -> object:
        if round > after and not failed:
            failed.append(round)
            raise ChainError("connection lost")
        return decision(round)

    node._agreed_in = once  # type: ignore[method-assign, assignment]
    return failed


def test_a_chain_that_fails_for_a_moment_moves_nobody(networks: Networks, forger: type[Forger]) -> None:
    network = networks(miners=2, validators={"first": 50, "second": 200, "liar": 60, "other": 55})
    begin(network, forger, "first", "second")
    network.start("other", role=with_parts(liar()))
    network.run_until(3)
    network.kill("second")
    network.run_until(network["first"].round + 1, "first")
    forger.state_ref = forge(network, "first")
    claim, at = network["first"].node.state.ref, network["first"].round
    failed = fail_once(network, "first", at)
    network.run_until(at + 3, "first")
    assert failed
    assert network["first"].node.state.ref == claim
    assert network["first"].node.at_tip


@pytest.mark.parametrize(
    ("until", "archive"),
    [pytest.param(1, False, marks=pytest.mark.slow), (3, False), pytest.param(3, True, marks=pytest.mark.slow)],
)
def test_validators_that_were_away_together_go_on_beside_a_liar(networks: Networks, until: int, archive: bool) -> None:
    """Their chain nodes have pruned the rounds since, and nobody but the liar voted. What they held they had not said
    yet, and in the first round nobody had said anything but that it is there."""
    stakes = {"first": 100, "second": 100, "liar": 60}
    network = networks(miners=2, keep_blocks=45, archive=archive, validators=stakes)
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(until, "first", "second")
    network.kill("first", "second")
    held = network["first"].node.state.ref
    assert vote_of(network, "first").state_ref != held
    network.run_to_block(network.world.final + 130)
    network.start("first", "second")
    rounds_more(network, 2)
    assert (vote_of(network, "first").state_ref is not None) == archive
    network.world.archive_answers = True
    agrees_again(network, "first", "second", "miner-1")
    assert held in refs_of(network, "first")


@pytest.mark.parametrize("archive", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_whose_validators_were_away_from_its_first_round_begins_once_they_are_back(
    networks: Networks, archive: bool
) -> None:
    """They have said nothing but that they are there, and only a liar has named anything since."""
    stakes = {"first": 100, "second": 100, "liar": 60}
    network = networks(miners=2, keep_blocks=45, archive=archive, validators=stakes)
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_to_block(network.clock.commit_deadline(0) - 3)
    network.kill("first", "second")
    network.run_to_block(network.clock.vote_deadline(3) + 2)
    network.start("first", "second")
    rounds_more(network, 2)
    network.world.archive_answers = True
    agrees_again(network, "first", "second", "miner-1")


def test_buckets_that_stall_take_no_time_from_who_comes_back(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty hotkeys with dust and a liar with a third of the stake. Times to ask are as in a run with rounds of
    fifteen minutes."""
    for name, seconds in (("ASK_SECONDS", 0.12), ("LINK_SECONDS", 0.004), ("QUIET_SECONDS", 0.008)):
        monkeypatch.setattr(selection_chain, name, seconds)
    monkeypatch.setattr(catchup, "ASK_SECONDS", 0.04)
    liars = {f"dust-{number}": 1 for number in range(30)} | {"liar": 950}
    network = networks(miners=2, validators={"first": 1000, "second": 1000} | liars)
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(4, "first", "second")
    wipe(network, "second")
    rounds_more(network, 6)

    def stall(call: Call) -> None:
        if call.reader == "second" and call.bucket in liars:
            until = network.time.now + 0.13
            network.hold(lambda: network.time.now >= until)
            raise StorageError("out of time")

    network.store.before = stall
    back = now(network)
    network.start("second")
    agrees_again(network, "first", "second", rounds=6)
    assert network["second"].events("caught_up")[0]["round"] <= back + 1


@pytest.mark.parametrize(
    ("wiped", "archive", "selects"),
    [
        pytest.param((), True, True, marks=pytest.mark.slow),
        pytest.param(("first",), True, True, marks=pytest.mark.slow),
        (("first", "second"), False, True),
        pytest.param(("first",), True, False, marks=pytest.mark.slow),
    ],
)
def test_a_lone_liar_that_goes_on_from_an_invented_theta_keeps_out_nobody_that_restarts(
    networks: Networks, forger: type[Forger], wiped: tuple[str, ...], archive: bool, selects: bool
) -> None:
    """While the others are away it is the only one that counts. It selects honest miners on top of a theta that nobody
    has, or names nobody there. Those that come back see that in time, and restart later, when no chain node has its
    votes any more: what the run went through is still told by what they had published."""
    network = networks(miners=2, keep_blocks=45, archive=archive, validators={"first": 100, "second": 100, "liar": 99})
    begin(network, forger, "first", "second")
    network.run_until(6)
    network.kill("first", "second")
    forger.state_ref = StateRef(Digest(b"nobody has this theta".ljust(32)), network["first"].node.state.ref.link)
    forger.selects = selects
    rounds_more(network, SEAT_ROUNDS + 1)
    network.run_blocks(lambda: (network["liar"].node.state.saved.tip.link != forger.state_ref.link) == selects)
    network.start("first", "second")
    rounds_more(network, 2)
    network.kill("first", "second")
    wipe(network, *wiped)
    network.run_to_block(network.world.final + 50)
    network.start("first", "second")
    rounds_more(network, VAIN_ROUNDS + 2)
    network.world.archive_answers = True
    agrees_again(network, "first", "second", "miner-1", rounds=VAIN_ROUNDS + 4 if wiped and not archive else 4)
