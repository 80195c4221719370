"""Whose turn it is: everybody's order is the same, whatever order they know the members in."""

from collections import Counter

from murmur.cluster.decide import turns
from murmur.protocol.types import Digest
from tests.cluster.test_decisions import member


def test_all_draw_the_same_order_and_every_member_comes_first_about_as_often() -> None:
    members = [member(n) for n in range(1, 6)]
    first = Counter[bytes]()
    for n in range(500):
        link = Digest(n.to_bytes(32, "little"))
        order = turns(link, "clear", members)
        assert order == turns(link, "clear", {*reversed(members)})
        assert sorted(order) == members
        first[order[0]] += 1
    assert min(first.values()) > 60
    assert turns(link, "clear", members) != turns(link, "repair", members)
