"""Beats of thousands of dead members, and members that start anew again and again, hide no living one."""

from pathlib import Path

import pytest

from murmur.cluster.bootstrap import member_id
from murmur.cluster.documents import Documents
from murmur.cluster.group_keys import Group
from murmur.lab.simulation.cluster import BUCKET, SECRET, MemberMachine
from murmur.lab.simulation.store import Call
from murmur.protocol import keys
from murmur.protocol.cluster import Beat, Standing
from murmur.protocol.messages import NO_ROUND
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records
from tests.lab.simulation.test_cluster_lost import watch

GOOD, LOOPS = 6, 4
STALE = 1500
LIFE_SECONDS = 10.0
ROUNDS = 12


def leave_beats(watched: Watched) -> None:
    """As many members died in the first round."""
    cluster, group = watched.cluster, Group(SECRET)
    bucket = cluster.store.bucket(BUCKET)
    for number in range(STALE):
        name = f"dead-{number}"
        member = member_id(cluster.run, name)
        beat = Beat(
            name=name, process=f"{number:016x}", count=9, round=0, step=3, phase=Standing.TRAINING, passed=100.0
        )
        data = beat.encode(cluster.run, NO_ROUND, group.signer(member))
        bucket.put(keys.beats(cluster.run) + member.hex(), data, timeout_seconds=1)


def loop(watched: Watched, machine: MemberMachine, *, wipes: bool) -> None:
    """Its process is killed soon after each start and starts anew; `wipes`: in a fresh home, as in a container."""
    cluster = watched.cluster

    def turn() -> None:
        cluster.kill(machine)
        if wipes:
            cluster.wipe(machine)
        cluster.start(machine)
        cluster.clock.at(cluster.clock.now + LIFE_SECONDS, turn)

    cluster.clock.at(cluster.clock.now + 100.0, turn)


@pytest.mark.check
def test_1500_stale_beats_and_four_restart_loops_leave_no_good_member_out(tmp_path: Path) -> None:
    watched = Watched(tmp_path, GOOD + LOOPS)
    cluster, reads = watched.cluster, list[str]()
    leave_beats(watched)
    watch(cluster, lambda call: reads.append(call.key) if _reads_a_beat(watched, call) else None)
    for machine in cluster.machines[:GOOD]:
        cluster.start(machine)
    for machine in cluster.machines[GOOD:]:
        watched.witness.fault("loops", machine, 1e9)
        loop(watched, machine, wipes=machine.name.endswith(("7", "8")))
    watched.play(has_records(watched, ROUNDS), hours=6)
    assert_one_history(watched)
    good = {machine.id for machine in cluster.machines[:GOOD]}
    named = [len(good & record.claims.keys()) for record in watched.records()]
    assert sum(named) >= 0.98 * GOOD * len(named)
    assert watched.witness.result.disagreements == 0
    left = [key for key in cluster.store.buckets[BUCKET] if key.startswith(keys.beats(cluster.run))]
    assert GOOD <= len(left) <= GOOD + LOOPS, "the dead are cleared after an hour of rounds, and loops have one place"
    assert len(reads) < 2 * STALE, "what has not changed is not read again"
    cluster.close()


def _reads_a_beat(watched: Watched, call: Call) -> bool:
    """Whether one good member, of all, reads a beat of a dead one."""
    if (call.verb, call.reader) != ("get", "member-1"):
        return False
    living = {keys.beats(watched.cluster.run) + machine.id.hex() for machine in watched.cluster.machines}
    return call.key.startswith(keys.beats(watched.cluster.run)) and call.key not in living


@pytest.mark.parametrize("shown", ['"-"', ""], ids=["one ETag for all", "no ETags"])
def test_beats_are_seen_to_change_where_a_store_lists_no_true_etags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    listed = Documents._versions
    monkeypatch.setattr(Documents, "_versions", lambda self, prefix: dict.fromkeys(listed(self, prefix), shown))
    watched = Watched(tmp_path, members=4)
    watched.cluster.begin()
    watched.play(has_records(watched, 6))
    watched.cluster.close()
    assert [len(record.updates) for record in watched.records()] == [4] * 6
