"""Stores that lie to each reader in another way, and a store that is put back from a backup: they hold a run up, and
bend nothing. What counts is what members hold themselves, not what their events say."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

import pytest

from murmur.lab.simulation.cluster import BUCKET, INNER_SECONDS, SECRET, Group, MemberMachine
from murmur.lab.simulation.store import Objects, Store, StoreBucket
from murmur.protocol.cluster import GROUP, Record
from murmur.protocol.errors import ObjectMissing
from murmur.protocol.spec import Exchange
from murmur.protocol.types import Digest
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records

HONEST_SHARE = 0.6
"""Of all objects, readers and times."""
KINDS = ("old", "another's", "missing", "flipped", "left out")
"""An older version, another object's bytes, 404, flipped bytes, and an object that is there and not listed."""
STALE, WON = "stale checkpoints", "won"
"""An older document of checkpoints, and a loser that is told that it has created an object."""
SHORTEST, LONGEST = 5.0, 1500.0
"""Seconds for which a reader sees an object in one way."""
BOUND = 6
"""Rounds in which all are back once the store is honest."""
LYING_SECONDS = 10 * INNER_SECONDS


class Kept(Objects):
    """A bucket's objects, with every version that ever stood."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, list[Any]] = defaultdict(list)

    def __setitem__(self, key: str, value: Any) -> None:
        self.versions[key].append(value)
        super().__setitem__(key, value)


class Liar:
    """A store that lies while `lying`: how a reader sees an object, and for how long, is drawn again and again."""

    def __init__(self, watched: Watched, seed: int) -> None:
        self.seed, self.lying, self.told = seed, False, Counter[str]()
        self._clock, store = watched.cluster.clock, watched.cluster.store
        self._random = Random(f"lies {seed}")
        self._drawn: dict[tuple[str, str], tuple[str, float]] = {}
        self._draws: dict[tuple[str, str], Random] = {}
        self.objects = Kept()
        for key, value in store.buckets[BUCKET].items():
            self.objects[key] = value
        store.buckets[BUCKET] = self.objects
        liar = self

        def bucket(name: str, *, read_only: bool = False, **named: Any) -> StoreBucket:
            return LyingBucket(liar, store, name, read_only=read_only, **named)

        store.bucket = bucket  # type: ignore[method-assign, assignment]

    def lie(self, reader: str, key: str) -> str:
        """Which lie this reader is told of this object now; none: an empty text."""
        if not self.lying:
            return ""
        kind, until = self._drawn.get((reader, key), ("", -1.0))
        if self._clock.now >= until:
            draw = self._draws.setdefault((reader, key), Random(f"{self.seed} {reader} {key}"))
            kinds = ("old",) if "/checkpoints/" in key else KINDS
            kind = "" if draw.random() < HONEST_SHARE else draw.choice(kinds)
            until = self._clock.now + exp(draw.uniform(log(SHORTEST), log(LONGEST)))
            self._drawn[reader, key] = kind, until
        return kind

    def tell(self, kind: str) -> None:
        self.told[kind] += 1

    def older(self, key: str) -> Any:
        """A version before the last one; of an object that is gone, any."""
        versions = self.objects.versions.get(key, [])
        found = versions[:-1] if key in self.objects else versions
        return self._random.choice(found) if found else None

    def other(self, key: str) -> Any:
        """Another object of the same sort, or of any."""
        sort = "/".join(key.split("/")[:2])
        near = [one for one in self.objects.ordered if one.startswith(sort) and one != key]
        names = near if near and self._random.random() < 0.7 else self.objects.ordered
        return self.objects[self._random.choice(names)]


class LyingBucket(StoreBucket):
    """One reader's credential for the liar's bucket."""

    def __init__(self, liar: Liar, store: Store, name: str, **named: Any) -> None:
        super().__init__(store, name, **named)
        self._liar = liar

    def _find(self, key: str) -> Any:
        liar, lie = self._liar, self._liar.lie(self._reader, key)
        if lie == "old" and (older := liar.older(key)) is not None:
            liar.tell(STALE if "/checkpoints/" in key else lie)
            return older
        found = super()._find(key)
        if lie == "another's":
            liar.tell(lie)
            return liar.other(key)
        if lie == "missing":
            liar.tell(lie)
            raise ObjectMissing("get: there is no such object or bucket")
        if lie == "flipped":
            liar.tell(lie)
            return flipped(found, liar._random)
        return found

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        ours = super().create(key, data, timeout_seconds=timeout_seconds)
        if not ours and self._liar.lying and self._liar._random.random() < 0.5:
            self._liar.tell(WON)
            return True
        return ours

    def versions(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> dict[str, str]:
        found = super().versions(prefix, max_keys=max_keys, timeout_seconds=timeout_seconds)
        shown = {key: etag for key, etag in found.items() if self._liar.lie(self._reader, key) != "left out"}
        if len(shown) < len(found):
            self._liar.tell("left out")
        return shown


def flipped(found: Any, draw: Random) -> Any:
    data = bytearray(found.data)
    for _ in range(3 if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return replace(found, data=bytes(data))


class Held:
    """What members held at the start of each round, by their own replica."""

    def __init__(self, watched: Watched) -> None:
        self.thetas: dict[int, set[Digest]] = defaultdict(set)
        self.where: dict[str, tuple[int, Digest]] = {}
        watched.hook = self._look

    def _look(self, machine: MemberMachine, event: str, round: int) -> None:
        if event not in ("applied", "caught_up", "joined"):
            return
        assert machine.program is not None
        state = machine.program.state
        assert state.replica.digest() == state.saved.theta
        self.thetas[state.saved.round].add(state.saved.theta)
        self.where[machine.name] = state.saved.round, state.saved.theta

    def assert_one(self, records: Mapping[int, Record], after: int = -1) -> None:
        """One theta a round, and no other than its record names."""
        for round, thetas in self.thetas.items():
            assert round <= after or len(thetas) == 1, f"{len(thetas)} thetas at the start of round {round}"
        for round, record in records.items():
            assert round <= after or self.thetas[round] <= {record.theta}


def ended(watched: Watched) -> list[str]:
    return [fields["fault"] for _, event, _, fields in watched.events if event == "ended"]


def disturb(watched: Watched, seconds: float, seed: int) -> None:
    """Kill a member from time to time; once, its home is gone as well."""
    cluster, draw, end = watched.cluster, Random(f"kills {seed}"), watched.cluster.clock.now + seconds
    number = 0
    while cluster.clock.now < end:
        cluster.clock.run(min(end, cluster.clock.now + draw.uniform(300, 1500)))
        machine = draw.choice(cluster.machines)
        cluster.kill(machine)
        number += 1
        if number == 3:
            cluster.wipe(machine)
        cluster.start_later(machine)


def kept_records(watched: Watched) -> dict[int, Record]:
    """The records that are in the bucket, whichever are lost."""
    run, objects = watched.cluster.run, watched.cluster.store.buckets[BUCKET]
    found = {int(key.rsplit("/")[-1]): one.data for key, one in objects.items() if "/record/" in key}
    return {round: Record.parse(data, run, round, GROUP, Group(SECRET).verify) for round, data in found.items()}


@dataclass
class Lied:
    """A run of four members and a store that lies for ten rounds' time, while members die; then it is honest."""

    watched: Watched
    liar: Liar
    held: Held
    honest_from: int
    """The first round without a record when the lies ended."""


def play_lies(folder: Path, seed: int, exchange: Exchange) -> Lied:
    watched = Watched(folder, members=4, seed=seed, exchange=exchange)
    cluster, liar, held = watched.cluster, Liar(watched, seed), Held(watched)
    cluster.begin()
    watched.play(has_records(watched, 5))
    watched.witness.fault("store lies", None, LYING_SECONDS)
    liar.lying = True
    disturb(watched, LYING_SECONDS, seed)
    liar.lying = False
    during = len(watched.records())
    watched.play(has_records(watched, during + BOUND), hours=3)
    cluster.close()
    return Lied(watched, liar, held, during)


def assert_all_are_back(lied: Lied) -> None:
    """Everybody is in the last record, and nobody has given up for anything but the store."""
    records, last = lied.watched.records(), lied.honest_from + BOUND - 1
    for machine in lied.watched.cluster.machines:
        assert machine.id in records[last].claims
        assert lied.held.where[machine.name][0] >= last
    assert [why for why in ended(lied.watched) if "store" not in why and "bucket" not in why] == []
    assert {*KINDS, STALE} <= set(lied.liar.told) <= {*KINDS, STALE, WON}  # not every run has a race for a record
    assert min(lied.liar.told[kind] for kind in KINDS) > 20


@pytest.mark.parametrize("seed", [1, 2])
def test_a_store_that_tells_everybody_other_lies_bends_nothing_and_is_forgiven(tmp_path: Path, seed: int) -> None:
    lied = play_lies(tmp_path, seed, "sparse")
    assert_all_are_back(lied)
    lied.held.assert_one(kept_records(lied.watched))
    assert_one_history(lied.watched)


def test_lies_may_fork_a_mean_and_one_theta_is_left(tmp_path: Path) -> None:
    """In the int8 exchange a store can show a member another part of a mean than the one that is applied already. No
    record names two thetas, and who holds the other one comes back."""
    lied = play_lies(tmp_path, 3, "int8")
    assert_all_are_back(lied)
    records = kept_records(lied.watched)
    lied.held.assert_one(records, after=lied.honest_from + 1)
    for round, record in records.items():
        assert record.theta in lied.held.thetas[round]


@pytest.mark.parametrize("exchange", ["sparse", "int8"])
def test_a_bucket_that_is_put_back_takes_back_no_round_that_members_have(tmp_path: Path, exchange: Exchange) -> None:
    """They go on from where they are, and who comes new afterwards joins them there."""
    watched = Watched(tmp_path, seed=3, exchange=exchange)
    cluster, held, new = watched.cluster, Held(watched), watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 4))
    objects = cluster.store.buckets[BUCKET]
    backup = dict(objects)
    watched.play(has_records(watched, 8))
    before = kept_records(watched)
    watched.witness.fault("store loses", None, 3600.0)
    for key in set(objects) - set(backup):
        objects.pop(key)
    for key, value in backup.items():
        objects[key] = value
    assert max(kept_records(watched)) == 3
    watched.play(lambda: max(kept_records(watched)) >= 10, hours=2)
    cluster.kill(new)
    cluster.wipe(new)
    cluster.start(new)
    watched.play(lambda: new.id in kept_records(watched)[max(kept_records(watched))].claims, hours=3)
    cluster.close()
    after = kept_records(watched)
    assert max(after) <= 10 + BOUND
    assert set(after) >= {*range(4), *range(8, max(after) + 1)}
    assert all(after[round] == before[round] for round in before if round in after)
    assert after[8].previous == before[7].link(cluster.run, 7)
    held.assert_one(before | after)
    assert watched.witness.result.broken == []
    assert ended(watched) == []
