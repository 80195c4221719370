"""kill -9 in the middle of a round: a word that stands stays, whatever a restart would say."""

from collections.abc import Callable

import pytest

from gauntlet.agreement import Pair, named
from murmur.protocol.errors import StorageError
from tests.fakes.bucket import Call
from tests.network import FakeNetwork
from tests.node.lies import words_of

Networks = Callable[..., FakeNetwork]


@pytest.mark.parametrize(
    ("lag", "blind"),
    [pytest.param(0, False, marks=pytest.mark.slow), pytest.param(0, True, marks=pytest.mark.slow), (3, True)],
)
def test_a_validator_killed_at_any_call_of_the_chain_in_a_round_says_nothing_else_after_it(
    networks: Networks, lag: int, blind: bool
) -> None:
    """Each round it dies one call later. Without its word nothing is agreed. After a restart it may be blind: it reads
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
        network.run_to_block(network.clock.words_by(round))
        is_blind = False
        network.run_until(round + 1)
        calls += 1
    assert calls > 20
    pairs, names = dict[int, Pair](), dict[int, set[int]]()
    for word in words_of(network, "victim"):
        if word.pair is not None:
            assert pairs.setdefault(word.round, word.pair) == word.pair
            before, names[word.round] = names.get(word.round, set()), set(named(word))
            # What stood in a block that was not final yet could not be read back; it counts all the same.
            assert lag or before <= names[word.round]
    thetas = network.assert_agreement()
    assert set(range(round)) <= thetas.keys()
    assert set(range(1, round)) <= pairs.keys()
    voids = set(network["other"].voids())
    assert voids == set(victim.voids())
    assert len(voids) < calls if blind else not voids
    for agreed in set(range(round)) - voids:
        assert len({tuple(member.contributing(agreed)) for member in network.members.values()}) == 1
