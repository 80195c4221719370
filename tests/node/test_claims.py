"""Which of several claims a node follows that comes back to a chain node which has pruned what was agreed on."""

from collections.abc import Callable

import pytest

from gauntlet.agreement import STATEMENT_ROUNDS
from node import catchup, records
from protocol import keys
from protocol.errors import StorageError
from protocol.types import Digest
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, with_parts
from tests.node.lies import Forger, WrongTheta, depth, forge, liar, rounds_more
from tests.node.test_checkpoints import NoCheckpoints

Networks = Callable[..., FakeNetwork]


def test_dust_whose_buckets_stall_keeps_nobody_from_what_most_claim(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times to ask are as in a run with rounds of fifteen minutes."""
    for name, seconds in (("ASK_SECONDS", 0.12), ("LINK_SECONDS", 0.004), ("QUIET_SECONDS", 0.008)):
        monkeypatch.setattr(records, name, seconds)
    monkeypatch.setattr(catchup, "ASK_SECONDS", 0.04)
    stakes = {"first": 1000, "second": 1000, "third": 1000, "dust-1": 1, "dust-2": 1}
    network = networks(miners=2, keep_blocks=45, validators=stakes)
    network.start("miner-1", "miner-2", "first", "second", "third")
    for name in ("dust-1", "dust-2"):
        network.start(name, role=with_parts(liar()))
    network.run_until(4, "first", "second")
    network.kill("first")
    rounds_more(network, 6)

    def slow(call: Call) -> None:
        if call.reader == "first" and call.bucket.startswith("dust") and "/statement/" in call.key:
            until = network.time.now + 0.13
            network.hold(lambda: network.time.now >= until)
            raise StorageError("out of time")

    network.store.before = slow
    network.start("first")
    now = rounds_more(network, STATEMENT_ROUNDS)
    assert network["first"].events("caught_up")
    assert network["first"].round >= now - 1


def test_dust_that_names_the_true_link_with_another_theta_costs_no_round(networks: Networks) -> None:
    """second and third approved a round, and were killed before they applied it."""
    wrong = type("Wrong", (WrongTheta,), {})
    network = networks(miners=2, keep_blocks=45, validators={"first": 30, "second": 35, "third": 35, "dust": 1})
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("dust", role=with_parts(wrong))
    network.run_until(4, "first", "second", "third")
    network.run_to_block(network.clock.attest_by(4) - 1)
    network.kill("second", "third")
    network.run_until(5, "first")
    wrong.of = network
    rounds_more(network, 2)
    network.start("second", "third")
    now = rounds_more(network, 2 * STATEMENT_ROUNDS)
    assert not network["first"].events("caught_up")
    assert not {now - 3, now - 2} & set(network["first"].voids())


def test_who_is_late_does_not_speak_at_once_where_a_liar_contradicts_those_that_went_on(
    networks: Networks, forger: type[Forger]
) -> None:
    """Twelve rounds were agreed without it. One of the two that agreed is away for a while."""
    stakes = {"stale": 70, "first": 40, "second": 40, "liar": 50}
    network = networks(miners=2, keep_blocks=45, validators=stakes)
    network.start("miner-1", "miner-2", "first", "second", "stale")
    network.start("liar", role=with_parts(forger, NoCheckpoints))
    network.run_until(4, "first", "second", "stale")
    network.kill("stale")
    rounds_more(network, 12)
    newest = network["first"].round
    network.run_to_block(network.clock.attest_by(newest) - 1)
    network.kill("first")
    forged = forger.claim = forge(network, "first")
    network.run_until(newest + 1, "second")
    before = depth(network, "second")
    rounds_more(network, 1)
    network.start("stale")
    for passed in range(3 * STATEMENT_ROUNDS):
        if passed == 2:
            forger.claim = Digest(b"x" * 32), Digest(b"y" * 32)
        if passed == 4:
            network.start("first")
        now = rounds_more(network, 1)
        assert depth(network, "second") >= before
    told = {event["theta"] for name in ("first", "second", "stale") for event in network[name].events("caught_up")}
    assert forged[0].hex() not in told
    assert not {now - 3, now - 2} & set(network["second"].voids())


@pytest.mark.parametrize("invented", [True, False])
def test_who_cannot_read_the_claim_of_most_for_a_moment_follows_no_liar(
    networks: Networks, forger: type[Forger], invented: bool
) -> None:
    """The liar and the one that was away have more than half of what was said last. It states a record of its own on
    top of what the other held, or what that one held."""
    network = networks(miners=2, keep_blocks=45, validators={"stale": 20, "first": 24, "second": 23, "liar": 33})
    network.start("miner-1", "miner-2", "first", "second", "stale")
    network.start("liar", role=with_parts(forger, NoCheckpoints))
    network.run_until(4, "first", "second", "stale")
    network.kill("stale")
    forger.claim = forge(network, "stale") if invented else network["stale"].node.held.claim
    rounds_more(network, 7)
    before, shown = depth(network, "first"), keys.statement(network.run.id, forger.claim[1])

    def cut(call: Call) -> None:
        own = call.bucket == "stale" or (call.bucket == "liar" and ("/statement/" not in call.key or call.key == shown))
        if call.reader == "stale" and not own:
            raise StorageError("no connection")

    network.store.before = cut
    network.start("stale")
    rounds_more(network, 1)
    network.store.before = lambda call: None
    for _ in range(2 * STATEMENT_ROUNDS):
        rounds_more(network, 1)
        assert depth(network, "first") >= before
    told = {event["theta"] for name in ("first", "second", "stale") for event in network[name].events("caught_up")}
    assert not invented or forger.claim[0].hex() not in told
    assert depth(network, "stale") == depth(network, "first")
