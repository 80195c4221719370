"""Progress: what the sketches of payloads show is what their whole tensors show, and nobody has it for nothing."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_high

import pytest
import torch
from torch import Tensor

from gauntlet.progress import BEFORE, MEASURED_VALUES, progress, shown
from gauntlet.remembered import Remembered, guides, looked_at
from gauntlet.sketch import Sample, Sketch
from murmur.lab.arena import forge
from murmur.protocol.layout import Layout
from murmur.protocol.spec import PROGRESS_ROUNDS
from murmur.protocol.types import PeerId
from sparseloco.update import Update
from tests.gauntlet.world import digest, peer_id, submission

LAYOUT = Layout.of({"bias": (70,), "in": (256, 256), "out": (200, 130)}, 64)
SAMPLE = Sample(LAYOUT, digest("block D"), MEASURED_VALUES)
PEERS = [peer_id(number) for number in range(7)]

Dense = Mapping[str, Tensor]
Sent = Mapping[PeerId, Update]


class World:
    """Workers whose updates have a common direction, another one in every round, and noise of their own."""

    def __init__(self, seed: int = 0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.way = self.noise()

    def noise(self) -> dict[str, Tensor]:
        return {t.name: torch.randn(t.shape, generator=self.random) for t in LAYOUT}

    def turn(self) -> None:
        """The run goes on: much of the direction stays."""
        self.way = mixed((0.7, self.way), (0.7, self.noise()))

    def worked(self, share: float, norm: float = 1.0) -> Update:
        """What somebody learns that sees the direction so well."""
        return forge.with_norm(mixed((share, self.way), (1.0, self.noise())), norm, LAYOUT)

    def rounds(self, count: int, shares: Mapping[PeerId, float]) -> list[dict[PeerId, Update]]:
        found = []
        for _ in range(count):
            found.append({peer: self.worked(share) for peer, share in shares.items()})
            self.turn()
        return found


def mixed(*parts: tuple[float, Dense]) -> dict[str, Tensor]:
    return {tensor.name: torch.stack([w * values[tensor.name] for w, values in parts]).sum(0) for tensor in LAYOUT}


def sketches(round: int, sent: Sent, sample: Sample = SAMPLE) -> list[Sketch]:
    return [Sketch(p, round, update.digest, sample.excerpt(update.records)) for p, update in sent.items()]


def measured(rounds: Sequence[Sent], sample: Sample = SAMPLE, first: int = 0) -> dict[PeerId, float]:
    *past, now = (sketches(number, sent, sample) for number, sent in enumerate(rounds, first))
    there = [one for sent in past[-PROGRESS_ROUNDS:] for one in sent]
    return progress(sample, now, there, [one.name for one in there])


def flat(update: Update) -> Tensor:
    return torch.cat([update.dense(tensor.name).flatten().double() for tensor in LAYOUT])


def plainly(rounds: Sequence[Sent]) -> dict[PeerId, float]:
    """The same on whole tensors, by projections instead of inner products."""
    *before, judged, now = rounds
    rows = {peer: flat(update) for peer, update in judged.items()}
    usual = sorted(float(row.norm()) for row in rows.values())[(len(rows) - 1) // 2]

    def cut(row: Tensor, norm: float) -> Tensor:
        return row * min(1.0, norm / float(row.norm()))

    steps = []
    for sent in before[-BEFORE:]:
        each = [flat(update) for update in sent.values()]
        norm = sorted(float(row.norm()) for row in each)[(len(each) - 1) // 2]
        steps.append(sum(cut(row, norm) for row in each))
    nothing = torch.zeros(len(flat(now[PEERS[0]])), 0).double()
    basis = torch.linalg.svd(torch.stack(steps, 1), full_matrices=False)[0] if steps else nothing

    def outside(row: Tensor) -> Tensor:
        return row - basis @ (basis.T @ row)

    found = {}
    for peer, row in rows.items():
        mine = outside(cut(row, usual))
        others = [outside(flat(u)) @ mine / float(flat(u).norm()) for other, u in now.items() if other != peer]
        found[peer] = median_high(float(one) for one in others) / usual
    return found


@pytest.mark.parametrize("count", [2, 3, 7])
def test_what_sketches_show_is_what_whole_tensors_show(count: int) -> None:
    rounds = World(count).rounds(count, dict.fromkeys(PEERS, 0.3))
    rounds[-2][PEERS[2]] = forge.scaled(rounds[-2][PEERS[2]], 1.7)
    rounds[-2][PEERS[3]] = forge.scaled(rounds[-2][PEERS[3]], 0.4)
    found, plain = measured(rounds), plainly(rounds)
    assert SAMPLE.num_values == sum(r.down * r.across * r.k for tensor in LAYOUT for r in tensor.regions)
    assert found.keys() == set(PEERS)
    assert found == pytest.approx(plain, rel=1e-9, abs=1e-12)


def test_some_of_the_chunks_show_about_what_all_of_them_do() -> None:
    rounds = World().rounds(7, dict.fromkeys(PEERS, 0.5))
    part = Sample(LAYOUT, digest("block D"), SAMPLE.num_values // 2)
    assert part.num_elements < 0.6 * SAMPLE.num_elements
    whole, found = measured(rounds), measured(rounds, part)
    assert [found[peer] for peer in PEERS] == pytest.approx([whole[peer] for peer in PEERS], rel=0.35)


def test_who_sees_more_of_the_way_has_more_progress_and_multiplied_it_has_no_more() -> None:
    shares = dict.fromkeys(PEERS, 0.3) | {PEERS[0]: 0.15, PEERS[1]: 0.6}
    rounds = World().rounds(7, shares)
    found = measured(rounds)
    usual = median(found[peer] for peer in PEERS[2:])
    assert 0.2 * usual < found[PEERS[0]] < 0.8 * usual
    assert found[PEERS[1]] > 1.3 * usual
    rounds[-2][PEERS[2]] = forge.scaled(rounds[-2][PEERS[2]], 4.0)
    rounds[-2][PEERS[3]] = forge.scaled(rounds[-2][PEERS[3]], 0.5)
    again = measured(rounds)
    assert again[PEERS[2]] == pytest.approx(found[PEERS[2]], rel=0.02)
    assert again[PEERS[3]] == pytest.approx(0.5 * found[PEERS[3]], rel=0.02)


def test_what_everybody_knows_is_nobodys_work() -> None:
    """The last step, all of the last four, and those with some noise."""
    world = World()
    rounds = world.rounds(7, dict.fromkeys(PEERS, 0.3))
    steps = [mixed(*((1.0, forge.dense(update)) for update in sent.values())) for sent in rounds[1:5]]
    free = (steps[-1], mixed(*((1.0, step) for step in steps)), mixed((1.0, steps[-1]), (1.0, world.noise())))
    usual = median(measured(rounds).values())
    for values in free:
        # Whole, as no payload can hold it: of its largest values alone a part lies outside of the span.
        wide = Layout.of({tensor.name: tensor.shape for tensor in LAYOUT}, 4096)
        assert forge.packed(values, wide).norms.whole > 0
        rounds[5][PEERS[0]] = forge.with_norm(values, 1.0, LAYOUT)
        assert measured(rounds)[PEERS[0]] < 0.45 * usual


def test_a_direction_that_a_few_keep_to_earns_them_nothing() -> None:
    """Three of seven with three fifths of a direction of their own in every update."""
    world, own = World(), World(9).way
    rounds = world.rounds(7, dict.fromkeys(PEERS, 0.3))
    honest = measured(rounds)
    for sent in rounds:
        for peer in PEERS[:3]:
            sent[peer] = forge.with_norm(mixed((1.0, forge.dense(sent[peer])), (0.02, own)), 1.0, LAYOUT)
    leagued = measured(rounds)
    together = [flat(rounds[5][peer]) @ flat(rounds[6][other]) for peer in PEERS[:3] for other in PEERS[:3]]
    apart = [flat(rounds[5][peer]) @ flat(rounds[6][other]) for peer in PEERS[3:] for other in PEERS[3:]]
    assert min(together) > 2 * max(apart), "their own direction is by far what they have most in common"
    for peer in PEERS[:3]:
        assert leagued[peer] < 1.1 * honest[peer]


def test_nothing_is_measured_where_payloads_are_lost_or_nobody_else_sends() -> None:
    rounds = World().rounds(7, dict.fromkeys(PEERS, 0.3))
    past = [sketches(number, sent) for number, sent in enumerate(rounds)]

    def found(*numbers: int, now: Iterable[Sketch] = past[6]) -> dict[PeerId, float]:
        return progress(SAMPLE, list(now), [one for number in numbers for one in past[number]], ())

    assert found(1, 2, 3, 4, 5).keys() == set(PEERS)
    assert found(2, 3, 4, 5) == found(1, 2, 4, 5) == found(1, 2, 3, 4) == found() == {}
    assert found(1, 2, 3, 4, 5, now=[]) == {}
    assert found(1, 2, 3, 4, 5, now=past[6][:1]).keys() == set(PEERS[1:])
    # The first rounds of a run have none before them.
    assert measured(rounds[:2]).keys() == measured(rounds[:4]).keys() == set(PEERS)
    assert measured(rounds[:4], first=3) == {}


def test_an_update_of_zeros_moves_nothing_and_is_no_yardstick() -> None:
    rounds = World().rounds(3, dict.fromkeys(PEERS, 0.3))
    nothing = forge.packed({t.name: torch.zeros(t.shape) for t in LAYOUT}, LAYOUT)
    whole = measured(rounds)
    for sent in rounds[1:]:
        sent[PEERS[0]] = nothing
    found = measured(rounds)
    assert found.keys() == set(PEERS[1:])
    assert median(found.values()) == pytest.approx(median(whole.values()), rel=0.3)


def test_from_a_part_of_the_payloads_that_were_named_nothing_is_measured() -> None:
    rounds = World().rounds(7, dict.fromkeys(PEERS, 0.3))
    past = [one for number, sent in enumerate(rounds[1:6], 1) for one in sketches(number, sent)]
    names, now = [one.name for one in past], sketches(6, rounds[6])
    assert progress(SAMPLE, now, past, names).keys() == set(PEERS)
    for lost in ((3, PEERS[1]), (5, PEERS[2])):
        assert progress(SAMPLE, now, [one for one in past if (one.round, one.peer) != lost], names) == {}


def test_a_minority_cannot_make_the_work_of_the_others_nothing() -> None:
    """Two of five send the last payloads of the others backwards: half of what each of those is held against."""
    few = PEERS[:5]
    rounds = World().rounds(7, dict.fromkeys(few, 0.3))
    honest = measured(rounds)
    for peer in few[:2]:
        back = mixed(*((-1.0, forge.dense(rounds[5][other])) for other in few[2:]))
        rounds[6][peer] = forge.with_norm(back, 1.0, LAYOUT)
    found = measured(rounds)
    for peer in few[2:]:
        assert found[peer] > 0.5 * honest[peer]


def test_who_is_absent_now_is_measured_all_the_same() -> None:
    """Two that take turns are each absent whenever what they sent shows."""
    rounds = World().rounds(9, dict.fromkeys(PEERS, 0.3))
    for number, sent in enumerate(rounds):
        sent.pop(PEERS[number % 2])
    passed = {peer: submission(0, update, 8) for peer, update in rounds[8].items()}
    leading = guides(passed, PEERS, ())
    names = [Remembered(n, peer, update.digest) for n, sent in enumerate(rounds[:8]) for peer, update in sent.items()]
    named = looked_at(names, 8, PEERS, leading)
    past = [one for number, sent in enumerate(rounds[:8]) for one in sketches(number, sent) if one.name in named]
    found = progress(SAMPLE, shown(SAMPLE, leading, passed), past, named)
    assert found.keys() == rounds[7].keys() == set(PEERS) - {PEERS[1]}


def test_guides_are_the_trusted_contributors_that_sent_something_of_their_own() -> None:
    assert guides(reversed(PEERS[:4]), PEERS[1:], [PEERS[2]]) == sorted([PEERS[1], PEERS[3]])
    updates = World().rounds(1, dict.fromkeys(PEERS, 0.3))[0]
    passed = {peer: submission(place, updates[peer], 6) for place, peer in enumerate(PEERS[:2])}
    assert [one.payload for one in shown(SAMPLE, PEERS[1:], passed)] == [updates[PEERS[1]].digest]


def test_a_crowd_of_others_than_guides_moves_nothing() -> None:
    """Twice as many hotkeys that go nowhere, with large norms: trusted, but not among the contributors."""
    rounds = World().rounds(7, dict.fromkeys(PEERS, 0.3))
    crowd = [peer_id(100 + number) for number in range(14)]
    world = World(5)
    noisy = [sent | {peer: world.worked(0.0, 9.0) for peer in crowd} for sent in rounds]

    def found(sent: Sequence[Sent]) -> dict[PeerId, float]:
        names = [Remembered(n, peer, update.digest) for n, each in enumerate(sent[:6]) for peer, update in each.items()]
        named = looked_at(names, 6, list(sent[0]), PEERS)
        past = [one for n, each in enumerate(sent[:6]) for one in sketches(n, each) if one.name in named]
        return progress(SAMPLE, [one for one in sketches(6, sent[6]) if one.peer in PEERS], past, named)

    alone, among = found(rounds), found(noisy)
    assert {peer: among[peer] for peer in PEERS} == alone
    assert all(abs(among[peer]) < 0.5 * median(alone.values()) for peer in crowd)


def test_the_payloads_that_are_looked_at() -> None:
    """Of the round before those of all that are trusted, of those before it the guides'."""
    names = [Remembered(round, peer, digest(f"{round} {peer.hex()}")) for round in range(9) for peer in PEERS[:3]]
    assert looked_at(names, 8, PEERS[:2], [PEERS[1], PEERS[4]]) == tuple(
        name
        for name in names
        if (name.peer == PEERS[1] and 3 <= name.round < 8) or (name.peer == PEERS[0] and name.round == 7)
    )
