"""The phases of a round overlap, in the order that "save, then publish" allows; whatever fails early costs nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from murmur.data.shards import Shards
from murmur.lab.localnet.faults import Oversized
from murmur.node.node import Node
from murmur.node.telemetry import events
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, StorageError
from murmur.protocol.types import hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator
from storage import exchange, upload
from storage.exchange import cached
from tests.fakes.bucket import Call, FakeBucket, Faults
from tests.network import FakeNetwork, Killed, saved_state, waiting
from tests.rounds.test_crashes import dead, die
from tests.rounds.test_rounds import SilentInRoundOne

Networks = Callable[..., FakeNetwork]


@pytest.fixture(autouse=True)
def _every_phase_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SHORTEST_SECONDS", 0.0)


@pytest.fixture
def parted(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> Networks:
    """Networks whose payloads have several parts."""

    def make(**options: Any) -> FakeNetwork:
        network = networks(**options)
        part = network.spec.object_bytes // 4
        monkeypatch.setattr(upload, "PART_BYTES", part)
        monkeypatch.setattr(exchange, "_PUBLISH_WAIT_SECONDS", 0.01)
        network.store.min_part_bytes = part
        return network

    return make


def object_of(network: FakeNetwork, name: str, round: int) -> bytes | None:
    found = network.store.buckets[name].get(keys.payload(network.run.id, round))
    return None if found is None else found.data


def calls_of(network: FakeNetwork, name: str, round: int) -> list[str]:
    """What was asked of a bucket about the payload of a round."""
    key = keys.payload(network.run.id, round)
    return [verb for bucket, verb, asked in list(network.store.log) if (bucket, asked) == (name, key)]


def unfinished(network: FakeNetwork, name: str, round: int) -> int:
    key = keys.payload(network.run.id, round)
    return sum(parts.key == key for parts in network.store.unfinished.get(name, []))


def phases(network: FakeNetwork, name: str, round: int) -> dict[str, tuple[float, float]]:
    """Beginning of the first and end of the last phase of each name."""
    (event,) = (event for event in network[name].events("phases") if event["round"] == round)
    found: dict[str, tuple[float, float]] = {}
    for phase in event["phases"]:
        began, _ = found.get(phase["phase"], (phase["began"], 0.0))
        found[phase["phase"]] = began, phase["began"] + phase["seconds"]
    return found


def test_sections_travel_while_the_object_is_saved_the_envelope_after_it_and_own_state_when_all_is_said(
    parted: Networks,
) -> None:
    network = parted()
    payload = keys.payload(network.run.id, 1)
    travelling = saved = False
    order: list[str] = []

    def slow(call: Call) -> None:
        nonlocal travelling
        if (call.bucket, call.reader, call.key) == ("miner-1", "miner-1", payload):
            order.append(call.verb)
            if call.verb == "part 2":
                travelling = True
                network.hold(lambda: saved)

    class Watched(Miner):
        def __init__(self, node: Node, shards: Shards) -> None:
            super().__init__(node, shards)
            own_state, save = node.state.replica.own_state, node.state.save

            def watched_state() -> Any:
                order.append("swap")
                return own_state()

            def watched_save(**changes: Any) -> None:
                nonlocal saved
                sealed = changes.get("sealed")
                if sealed is not None and sealed.round == 1:
                    network.hold(lambda: travelling)
                save(**changes)
                if sealed is not None and sealed.round == 1:
                    order.append("saved")
                    saved = True

            vars(node.state.replica)["own_state"] = watched_state
            vars(node.state)["save"] = watched_save

        def seal(self, round: int, update: Any) -> Any:
            if round == 1:
                order.clear()
            return super().seal(round, update)

    network.store.before = slow
    network.start("validator", "miner-2")
    network.start("miner-1", role=Watched)
    network.run_until(2)

    watched = [order.index(step) for step in ("begin", "part 2", "saved", "part 1", "complete", "swap")]
    assert watched == sorted(watched)
    assert "put" not in order
    assert hotkey(network["miner-1"].peer) in network["validator"].contributing(1)
    network.assert_agreement()
    told = phases(network, "miner-1", 1)
    rounding = 0.002
    assert told["upload"][0] <= told["save"][0] <= told["save"][1] <= told["upload"][1] + rounding
    assert told["upload"][1] <= told["swap"][0] + rounding


def test_small_payloads_go_up_in_one_piece(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    mine = [verb for verb in calls_of(network, "miner-1", 0) if verb not in ("get", "head")]
    assert mine == ["put"]


@pytest.mark.parametrize(
    ("verb", "fault"),
    [("begin", AccessDenied), ("begin", StorageError), ("part 2", StorageError), ("complete", StorageError)],
)
def test_an_early_upload_that_fails_is_made_up_for_by_a_plain_one(
    parted: Networks, verb: str, fault: type[StorageError]
) -> None:
    network = parted(miners=1)

    def broken(call: Call) -> None:
        if call.bucket == "miner-1" and call.verb == verb:
            raise fault("upload: the server answered with status 500")

    network.store.before = broken
    network.start()
    network.run_until(1)
    assert "put" in calls_of(network, "miner-1", 0)
    assert network["validator"].contributing(0) == [hotkey(network["miner-1"].peer)]
    assert [event["round"] for event in network["miner-1"].events("published")][:2] in ([0], [0, 1])
    assert unfinished(network, "miner-1", 0) == 0


def test_an_upload_whose_answer_is_lost_at_the_deadline_costs_nothing(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = networks(miners=1)
    put = FakeBucket.put

    def unanswered(self: FakeBucket, key: str, data: Any, *, timeout_seconds: float) -> None:
        put(self, key, data, timeout_seconds=timeout_seconds)
        if key == keys.payload(network.run.id, 1):
            raise StorageError("put: out of time")

    monkeypatch.setattr(FakeBucket, "put", unanswered)
    monkeypatch.setattr(exchange, "_PUBLISH_WAIT_SECONDS", 1e6)  # no time for another try
    network.start()
    network.run_until(2)
    assert network["validator"].contributing(1) == [hotkey(network["miner-1"].peer)]
    assert network["miner-1"].events("interrupted") == []


def test_what_travelled_early_is_not_completed_when_other_bytes_are_to_be_published(parted: Networks) -> None:
    network = parted(miners=2)
    network.start("validator", "miner-2")
    network.start("miner-1", role=Oversized)
    network.run_until(1)
    found = object_of(network, "miner-1", 0)
    assert found is not None
    assert len(found) == network.spec.object_bytes + 1024
    assert "complete" not in calls_of(network, "miner-1", 0)
    assert unfinished(network, "miner-1", 0) == 0


def dies_at(network: FakeNetwork, name: str, verb: str, round: int) -> None:
    """The node is dead when this call about its payload of the round would be served."""
    payload = keys.payload(network.run.id, round)

    def deadly(call: Call) -> None:
        member = network[name]
        if (call.reader, call.verb, call.key) == (name, verb, payload):
            member.die()

    network.store.before = deadly


@pytest.mark.parametrize("verb", ["begin", "part 2", "part 4", "part 1", "complete"])
def test_a_miner_killed_at_any_call_of_its_upload_publishes_the_saved_bytes(parted: Networks, verb: str) -> None:
    network = parted(miners=1)
    dies_at(network, "miner-1", verb, 1)
    network.start()
    dead(network, "miner-1")
    saved, store = saved_state(network, "miner-1")
    assert saved.sealed is not None
    assert saved.sealed.round == 1
    sealed = store.read(saved.sealed.object)
    store.close()
    assert object_of(network, "miner-1", 1) is None
    assert unfinished(network, "miner-1", 1) == (verb != "begin")

    network.store.before = lambda call: None
    network.start("miner-1")
    network.run_until(2)
    assert object_of(network, "miner-1", 1) == sealed
    assert unfinished(network, "miner-1", 1) == 0
    assert network["validator"].contributing(1) == [hotkey(network["miner-1"].peer)]
    network.assert_agreement()


def test_a_miner_killed_between_the_completion_and_the_commitment_commits_to_the_saved_bytes(parted: Networks) -> None:
    network = parted(miners=1)

    class Dies(Miner):
        def commit(self, round: int, sealed: Any) -> None:
            if round == 1:
                die(self.node)
            super().commit(round, sealed)

    network.start("validator")
    network.start("miner-1", role=Dies)
    dead(network, "miner-1")
    saved, store = saved_state(network, "miner-1")
    assert saved.sealed is not None
    sealed = store.read(saved.sealed.object)
    store.close()
    network.start("miner-1")
    network.run_until(2)
    assert object_of(network, "miner-1", 1) == sealed
    assert network["validator"].contributing(1) == [hotkey(network["miner-1"].peer)]
    network.assert_agreement()


def test_a_miner_killed_while_it_saves_seals_anew_and_what_travelled_is_never_seen(parted: Networks) -> None:
    network = parted(miners=1)
    payload = keys.payload(network.run.id, 1)
    travelled = False
    first_key: list[bytes] = []

    def seen(call: Call) -> None:
        nonlocal travelled
        travelled = travelled or (call.verb, call.key) == ("part 2", payload)

    def dies(node: Node, shards: Shards) -> Miner:
        save = node.state.save

        def deadly(**changes: Any) -> None:
            sealed = changes.get("sealed")
            if sealed is not None and sealed.round == 1:
                network.hold(lambda: travelled)
                first_key.append(sealed.key)
                raise Killed
            save(**changes)

        node.state.save = deadly  # type: ignore[method-assign]
        return Miner(node, shards)

    network.store.before = seen
    network.start("validator")
    network.start("miner-1", role=dies)
    dead(network, "miner-1")
    saved, store = saved_state(network, "miner-1")
    assert saved.sealed is not None
    assert saved.sealed.round == 0
    store.close()
    assert object_of(network, "miner-1", 1) is None
    assert unfinished(network, "miner-1", 1) == 1

    network.start("miner-1")
    network.run_until(2)
    assert unfinished(network, "miner-1", 1) == 0
    sealed = network["miner-1"].node.state.saved.sealed
    assert sealed is not None
    if sealed.round == 1:
        assert sealed.key != first_key[0]
    assert network["validator"].contributing(1) == [hotkey(network["miner-1"].peer)]
    network.assert_agreement()


def test_likely_contributors_are_fetched_before_the_selection_and_only_once(networks: Networks) -> None:
    network = networks(miners=3)
    run = network.run.id
    asked: list[tuple[str, str]] = []

    def watch(call: Call) -> None:
        if call.reader == "miner-1" and call.verb == "get":
            asked.append((call.bucket, call.key))

    network.store.before = watch
    network.start("validator")
    network.start("miner-1", "miner-2", "miner-3", role=waiting)
    network.run_until(1)
    network.run_to_block(network.clock.commit_deadline(1) + 1)
    cache = network["miner-1"].node.state.cache
    others = [cached(cache, network[name].peer, keys.payload(run, 1)) for name in ("miner-2", "miner-3")]
    network.wait_for(lambda: all(path.exists() for path in others))
    network.run_until(2)

    of_payloads = [call for call in asked if call[1] == keys.payload(run, 1) or "/mirror/00000001/" in call[1]]
    assert sorted(of_payloads) == [("miner-2", keys.payload(run, 1)), ("miner-3", keys.payload(run, 1))]
    assert sorted(network["miner-1"].contributing(1)) == sorted(
        hotkey(network[f"miner-{number}"].peer) for number in (1, 2, 3)
    )
    assert not any(path.exists() for path in others)
    network.assert_agreement()
    told = phases(network, "miner-1", 1)
    assert told["prefetch"][0] <= told["wait"][1] <= told["download"][1]


def test_whoever_may_fill_a_place_is_fetched_before_the_selection_too(networks: Networks) -> None:
    """Nobody was selected before round 0. Of three others two have a place beside us, by the lowest uids."""
    network = networks(miners=4, contributors=3)
    run = network.run.id
    asked: list[str] = []

    def watch(call: Call) -> None:
        if call.reader == "miner-1" and call.verb == "get" and call.key == keys.payload(run, 0):
            asked.append(call.bucket)

    network.store.before = watch
    network.start("miner-1", role=waiting)
    network.start("validator", "miner-2", "miner-3", "miner-4")
    network.run_to_block(network.clock.commit_deadline(0) + 1)
    cache = network["miner-1"].node.state.cache
    others = [cached(cache, network[name].peer, keys.payload(run, 0)) for name in ("miner-2", "miner-3")]
    network.wait_for(lambda: all(path.exists() for path in others))
    assert sorted(asked) == ["miner-2", "miner-3"]
    network.run_until(1)
    network.assert_agreement()


def test_a_void_round_ends_its_prefetch(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("miner-1", "miner-2")
    network.start("validator", role=SilentInRoundOne)
    network.run_until(2)
    assert network["miner-1"].voids() == [1]
    assert "prefetch" in phases(network, "miner-1", 1)
    network.run_until(3)
    assert len(network["miner-1"].contributing(2)) == 2
    network.assert_agreement()


def test_a_validator_applies_what_it_gathered_without_fetching_it_again(networks: Networks) -> None:
    network = networks(miners=2)
    asked: list[tuple[str, str]] = []

    def watch(call: Call) -> None:
        if call.reader == "validator" and call.verb == "get" and call.key == keys.payload(network.run.id, 0):
            asked.append((call.bucket, call.key))

    network.store.before = watch
    network.start()
    network.run_until(1)
    assert sorted(bucket for bucket, _ in asked) == ["miner-1", "miner-2"]


def test_a_bucket_that_stalls_a_prefetch_does_not_delay_the_round(networks: Networks) -> None:
    network = networks(miners=3)
    run = network.run.id
    network.start()
    network.run_until(1)
    cache = network["miner-1"].node.state.cache
    good = cached(cache, network["miner-3"].peer, keys.payload(run, 1))
    network.run_to_block(network.clock.commit_deadline(1))
    network.store.faults["miner-2"] = Faults(stalls=True)
    network.run_to_block(network.clock.commit_deadline(1) + 1)
    network.wait_for(good.exists)
    network.run_until(2)
    assert hotkey(network["miner-3"].peer) in network["miner-1"].contributing(1)
    network.assert_agreement()


def test_every_applied_round_has_one_timeline(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    for name, role in (("miner-1", Miner), ("validator", Validator)):
        assert isinstance(network[name].program, role)
        assert [event["round"] for event in network[name].events("phases")] == list(network[name].thetas())
        for event in network[name].events("phases"):
            began = [phase["began"] for phase in event["phases"]]
            assert began == sorted(began)
            assert all(phase["seconds"] >= 0 for phase in event["phases"])
    both = {"wait", "download", "apply"}
    mined = {"compute", "compress", "seal", "swap", "save", "upload", "commit", "reveal", "prefetch"}
    judged = {"gather", "check", "mirror", "post", "evaluate"}
    assert phases(network, "miner-1", 1).keys() == both | mined
    assert phases(network, "validator", 1).keys() == both | judged
