"""kill -9 in the middle of a round: a vote that stands stays, whatever a restart would say."""

from collections.abc import Callable

import pytest

from gauntlet.agreement import named
from murmur.protocol.errors import StorageError
from murmur.protocol.types import StateRef
from tests.fakes.bucket import Call
from tests.network import FakeNetwork
from tests.node.lies import votes_of

Networks = Callable[..., FakeNetwork]


@pytest.mark.parametrize(
    ("lag", "blind"),
    [(0, False), (0, True), (3, True)],
)
def test_a_validator_killed_at_any_call_of_the_chain_in_a_round_says_nothing_else_after_it(
    networks: Networks, lag: int, blind: bool
) -> None:
    """Each round it dies one call later. Without its vote nothing is agreed. After a restart it may be blind: it reads
    nothing of what miners left before the round is over."""
    network = networks(miners=1, finality_lag=lag, validators={"victim": 60, "other": 60})
    is_blind = False

    def cut(call: Call) -> None:
        if is_blind and call.reader == "victim" and call.bucket != "victim":
            raise StorageError("no connection")

    network.store.before = cut
    network.start()
    network.run_until(1)
    victim, calls = network["victim"], 0
    while True:
        round, victim.calls_left = victim.round, calls
        network.run_blocks(lambda round=round: not victim.alive or victim.round > round)  # type: ignore[misc]
        if victim.alive:
            break
        victim.calls_left, is_blind = None, blind
        network.start("victim")
        network.run_to_block(network.clock.vote_deadline(round))
        is_blind = False
        network.run_until(round + 1)
        calls += 1
    assert calls > 20
    refs, names = dict[int, StateRef](), dict[int, set[int]]()
    for vote in votes_of(network, "victim"):
        if vote.state_ref is not None:
            assert refs.setdefault(vote.round, vote.state_ref) == vote.state_ref
            before, names[vote.round] = names.get(vote.round, set()), set(named(vote))
            # What stood in a block that was not final yet could not be read back; it counts all the same.
            assert lag or before <= names[vote.round]
    thetas = network.assert_agreement()
    assert set(range(round)) <= thetas.keys()
    assert set(range(1, round)) <= refs.keys()
    voids = set(network["other"].voids())
    assert voids == set(victim.voids())
    assert len(voids) < calls if blind else not voids
    for agreed in set(range(round)) - voids:
        assert len({tuple(member.contributing(agreed)) for member in network.members.values()}) == 1
