"""Copies: what the screen lets through is what plain set overlaps find."""

from random import Random

import pytest

from gauntlet.sketch import Sketch, find_copies
from protocol.spec import GauntletSpec
from protocol.types import Digest
from tests.gauntlet.world import peer_id

SPEC = GauntletSpec(copy_overlap=0.6, copy_rounds=2)


def sketches(random: Random, round: int) -> list[Sketch]:
    """Peers that share more or fewer of one pool's values, some of them all of them."""
    pool = [random.getrandbits(32) for _ in range(200)]
    found = []
    for number in range(8):
        shared = random.choice([0, 60, 115, 119, 120, 121, 125, 200])
        values = {*random.sample(pool, shared), *(random.getrandbits(32) for _ in range(200 - shared))}
        payload = Digest(bytes([round, shared and 1 + number % 3 if shared == 200 else 100 + number]) * 16)
        found.append(Sketch(peer_id(number), round, payload, frozenset(values)))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_same_copies_are_found_as_by_comparing_every_pair(seed: int) -> None:
    random = Random(seed)
    past = sketches(random, 4)
    today = {sketch.peer: sketch for sketch in sketches(random, 5)}
    repeated = past[seed % 8]
    mine = today[peer_id(0)]
    today[peer_id(0)] = Sketch(mine.peer, 5, repeated.payload, repeated.values)

    copies = find_copies(today, past, (), SPEC)
    reposted = {
        peer
        for peer, sketch in today.items()
        if any(sketch.payload == old.payload or sketch.overlap(old) > SPEC.copy_overlap for old in past)
    }
    left = [sketch for peer, sketch in today.items() if peer not in reposted]
    pairs = [(one, two) for one in left for two in left if one.peer < two.peer]
    near = [(one, two) for one, two in pairs if one.payload == two.payload or one.overlap(two) > SPEC.copy_overlap]
    assert copies.reposted == reposted
    assert set(copies.details) == reposted | {sketch.peer for pair in near for sketch in pair}


def test_a_sketch_of_nothing_is_near_to_nothing() -> None:
    empty = {peer_id(n): Sketch(peer_id(n), 5, Digest(bytes([n]) * 32), frozenset()) for n in range(2)}
    assert not find_copies(empty, [], (), SPEC).details
