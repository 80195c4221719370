"""What lies behind claims, as pure functions of the words and of the ways back from them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from node.behind import common_ground, lies_behind

from gauntlet.agreement import Claim
from protocol.types import Digest


def claim(number: int) -> Claim:
    return Digest(number.to_bytes(32, "little")), Digest(bytes(32))


parents = st.lists(st.integers(0, 30), max_size=24).map(lambda drawn: [at % (n + 1) for n, at in enumerate(drawn)])
"""A tree of states: state n + 1 was made from state parents[n], which is an earlier one; state 0 is theta_0."""
stakes = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 9)), max_size=8)


def way(tree: Sequence[int], state: int) -> list[int]:
    return [state, *way(tree, tree[state - 1])] if state else [0]


@given(parents, stakes)
def test_common_ground_is_the_newest_state_that_more_than_half_has_gone_through(
    tree: list[int], said: list[tuple[int, int]]
) -> None:
    words = [(min(state, len(tree)), stake) for state, stake in said]
    total = sum(stake for _, stake in words)
    through = [
        state
        for state in range(len(tree) + 1)
        if 2 * sum(stake for at, stake in words if state in way(tree, at)) > total
    ]
    newest = [state for state in through if all(other in way(tree, state) for other in through)]
    ways = {claim(state): [claim(at) for at in way(tree, state)] for state in range(len(tree) + 1)}
    found = common_ground([(claim(at), stake) for at, stake in words], ways.__getitem__)
    assert found == (claim(newest[0]) if newest else None)
    assert len(newest) <= 1


@given(parents, stakes, st.integers(0, 24))
def test_most_words_lie_behind_what_most_of_them_lead_to(tree: list[int], said: list[tuple[int, int]], at: int) -> None:
    words, here = [(min(state, len(tree)), stake) for state, stake in said], way(tree, min(at, len(tree)))
    behind = 2 * sum(stake for state, stake in words if state in here) > sum(stake for _, stake in words)
    found = lies_behind([(claim(state), stake) for state, stake in words], map(claim, here))
    assert found == (behind or not sum(stake for _, stake in words))


def test_dust_costs_no_walk() -> None:
    """Whoever has more, or could change what is found, is walked; the rest may stall as it likes."""
    ways = {claim(1): [claim(1), claim(0)], claim(2): [claim(2), claim(1), claim(0)]}
    words = [*((claim(10 + dust), 1) for dust in range(60)), (claim(2), 400), (claim(1), 300)]
    assert common_ground(words, ways.__getitem__) == claim(2)
    words = [*((claim(10 + dust), 1) for dust in range(60)), (claim(2), 300), (claim(1), 400)]
    assert common_ground(words, ways.__getitem__) == claim(1)
