"""What members of a simulated cluster train on: each on pages of its own, which nobody knows before the round."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from murmur.protocol.assignment import assigned
from murmur.protocol.spec import InnerSpec
from murmur.protocol.types import Page, PeerId
from murmur.rounds.contribution import RoundWork, Training
from tests.lab.simulation.test_cluster import Watched, has_records

ROUNDS = range(1, 4)


def test_every_member_trains_on_pages_drawn_for_it_from_the_link_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[tuple[int, PeerId], tuple[Page, ...]] = {}
    training = RoundWork.training

    def see(work: RoundWork, round: int, pages: Sequence[Page], inner: InnerSpec) -> Training:
        drawn[round, work.signer.peer] = tuple(pages)
        return training(work, round, pages, inner)

    monkeypatch.setattr(RoundWork, "training", see)
    watched = Watched(tmp_path, members=2)
    cluster, spec = watched.cluster, watched.cluster.spec
    cluster.begin()
    watched.play(has_records(watched, ROUNDS.stop))
    cluster.close()
    records = watched.records()
    expected = {
        (round, machine.id): assigned(
            cluster.run,
            records[round - 1].link(cluster.run, round - 1),
            machine.id,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=spec.inner.first_page,
        )
        for round in ROUNDS
        for machine in cluster.machines
    }
    assert {place: pages for place, pages in drawn.items() if place[0] in ROUNDS} == expected
    assert len(set(expected.values())) == len(expected) == 2 * len(ROUNDS)
