"""Every fault that can be planted is named by one check, with a fix; and a node begins with none of them."""

import json
import os
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from loguru import logger

from murmur.data.shards import Shards
from murmur.lab.simulation.store import Faults
from murmur.node.doctor import chain, machine, start
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Finding, Reaction, Status
from murmur.node.doctor.start import ANSWERED, CHECKS, NODE, ready
from murmur.node.telemetry.event_tail import read_event_tail
from murmur.node.telemetry.events import EVENTS, Events, read_events
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.errors import ChainError, ConfigError, DiskFull, StorageError, UpdateNeeded
from murmur.protocol.types import Subnet
from tests.fakes.chain import FakeSigner
from tests.node.doctor_world import OWN, ChainOfOne, World


def dead_chain(world: World) -> None:
    world.chain.world.down = True


def wrong_netuid(world: World) -> None:
    world.chain.hidden = True


def wrong_hotkey(world: World) -> None:
    world.wallet_fault = ConfigError("no hotkey 'other' in wallet 'mine'")


def unregistered(world: World) -> None:
    world.chain.world.register(FakeSigner("another").peer, uid=1)
    world.chain.world.step()


def no_permit(world: World) -> None:
    world.chain.world.set_stake(OWN.peer, 10**9, False)
    world.chain.world.step()


def no_weights(world: World) -> None:
    world.chain.refuses = ChainError("a stake of 1 rao is below the 2 that weights need", "NotEnoughStakeToSetWeights")


def wrong_write_key(world: World) -> None:
    world.store.faults["miner"] = Faults(denied=True)


def wrong_bucket(world: World) -> None:
    """As far as a store tells: what is published leads elsewhere."""
    world.store.faults["miner"] = Faults(answers={"published": bytes(32)})


def writable(world: World) -> None:
    world.writable = True


def skewed_to_the_store(world: World) -> None:
    world.time.ahead = -600.0


def skewed_to_the_chain(world: World) -> None:
    world.date, world.time.ahead = None, -600.0


def dead_endpoint(world: World) -> None:
    world.store.faults["miner"] = Faults(down=True)


def other_chains_spec(world: World) -> None:
    world.spec["chain"] = "00" * 32


def other_subnets_spec(world: World) -> None:
    world.spec["netuid"] = 9


def no_spec(world: World) -> None:
    (world.folder / "nothing.toml").write_text("name = [")
    world.options["spec"] = world.folder / "nothing.toml"


def empty_data(world: World) -> None:
    (world.folder / "empty").mkdir()
    world.options["data"] = world.folder / "empty"


def no_gpu(world: World) -> None:
    world.options["device"] = "cuda"


def impossible_terms(world: World) -> None:
    world.chain.world._rate_limit = 10**6


def home_is_a_file(world: World) -> None:
    (world.folder / "file").touch()
    world.options["home"] = world.folder / "file"


PLANTED: Mapping[Callable[[World], None], tuple[str, str, str]] = {
    dead_chain: ("miner", "chain", "MURMUR_NETWORK"),
    wrong_netuid: ("miner", "subnet", "MURMUR_NETUID"),
    wrong_hotkey: ("miner", "wallet", "--wallet.hotkey"),
    unregistered: ("miner", "hotkey", "btcli subnet register --netuid 1 -w mine -H default"),
    no_permit: ("validator", "permit", "btcli stake add --netuid 1"),
    no_weights: ("validator", "weights", "btcli stake add --netuid 1"),
    wrong_write_key: ("miner", "bucket", "MURMUR_BUCKET__NAME"),
    wrong_bucket: ("miner", "bucket", "MURMUR_BUCKET__ENDPOINT"),
    writable: ("miner", "bucket", "MURMUR_BUCKET__READ_SECRET_KEY"),
    skewed_to_the_store: ("miner", "clock", "NTP"),
    skewed_to_the_chain: ("miner", "clock", "NTP"),
    dead_endpoint: ("miner", "bucket", "MURMUR_BUCKET__ENDPOINT"),
    other_chains_spec: ("miner", "spec", "--network"),
    other_subnets_spec: ("miner", "spec", "--netuid"),
    no_spec: ("miner", "spec", "MURMUR_SPEC"),
    empty_data: ("miner", "data", "MURMUR_DATA"),
    no_gpu: ("miner", "device", "--device"),
    impossible_terms: ("miner", "run", "start again"),
    home_is_a_file: ("miner", "home", "MURMUR_HOME"),
}


def faults(found: Mapping[str, Finding]) -> list[str]:
    return [name for name, finding in found.items() if finding.status is Status.FAULT]


@pytest.mark.parametrize("role", ["miner", "validator"])
def test_a_machine_with_everything_passes_every_check(world: World, role: str) -> None:
    found = world.found(role)
    assert {finding.status for finding in found.values()} == {Status.OK}
    assert list(found) == [check.name for check in CHECKS if role in check.roles]
    assert not [finding for finding in found.values() if finding.fix]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_with_its_fix_and_no_node_begins(world: World, plant: Callable[[World], None]) -> None:
    role, check, fix = PLANTED[plant]
    plant(world)
    found = world.found(role)
    assert faults(found) == [check]
    assert fix in found[check].fix
    assert found[check].detail
    with pytest.raises(ConfigError) as told:
        ready(world.config(), role, world.time)  # type: ignore[arg-type]
    assert f"{check}: " in str(told.value)
    assert fix in str(told.value)
    assert world.time.pauses == 0
    assert not any(peer.slot for peer in world.chain.world.pending_peers)


def test_the_subnets_owner_needs_no_permit(world: World) -> None:
    no_permit(world)
    world.chain.world.owner = OWN.peer
    assert faults(world.found("validator")) == []


def test_what_hangs_on_a_fault_is_not_tried_and_all_else_is(world: World) -> None:
    dead_chain(world)
    empty_data(world)
    found = world.found()
    assert faults(found) == ["chain"]
    assert found["subnet"].status is found["data"].status is Status.SKIP
    assert "chain" in found["subnet"].detail
    assert found["bucket"].status is Status.OK


def test_two_faults_are_told_at_once(world: World) -> None:
    wrong_netuid(world)
    writable(world)
    with pytest.raises(ConfigError, match=r"(?s)2 of 16 checks failed.*subnet: .*MURMUR_NETUID.*bucket: .*READ_SECRET"):
        ready(world.config(), "miner", world.time)


def test_a_full_disk_is_found_before_it_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free=1000))
    found = world.found()
    assert faults(found) == ["disk"]
    assert "--home" in found["disk"].fix
    assert found["disk"].reaction is Reaction.END
    # What is there already needs no more room.
    state = next((world.folder / "home").glob("*"), world.folder / "home" / "none")
    assert not state.exists()
    node = ExaminedNode(world.config(), "miner", keeps=True, time=world.time)
    list(node.examine(CHECKS))
    large = node.store.folder / "large"
    large.write_bytes(bytes(50_000_000))
    node.close()
    assert faults(world.found()) == []
    # A node that ran here may be started again: others may have filled the disk for a moment.
    large.unlink()
    with pytest.raises(DiskFull, match="1 of 16 checks failed"):
        ready(world.config(), "miner", world.time)
    writable(world)
    with pytest.raises(ConfigError, match="2 of 16 checks failed") as fault:
        ready(world.config(), "miner", world.time)
    assert not isinstance(fault.value, DiskFull)


def test_the_data_set_that_is_fetched_needs_room_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = world.found("miner")["disk"]
    assert "data set" not in found.detail
    tokens = Shards.open(world.data).train.num_tokens
    world.options["data"] = None
    assert f"{2 * tokens / 1e3:.0f} kB of the data set" in world.found("miner")["disk"].detail
    assert "data set" not in world.found("validator")["disk"].detail
    world.options["data_gigabytes"] = 1e-5
    assert "10 kB of the data set" in world.found("miner")["disk"].detail
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free=1000))
    assert "MURMUR_DATA_GIGABYTES" in world.found("miner")["disk"].fix


def test_a_home_that_takes_no_file_is_a_full_disk_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine.os, "fsync", full)
    found = world.found()
    assert faults(found) == ["home"]
    assert "No space left" in found["home"].detail
    with pytest.raises(DiskFull, match="1 of 16 checks failed"):
        ready(world.config(), "miner", world.time)
    assert not list((world.folder / "home").glob(".trial*"))


def test_a_chain_that_stands_still_is_not_this_machines_clock(world: World) -> None:
    world.time.ahead = world.date = 900.0
    found = world.found()
    assert found["clock"].status is Status.OK
    assert "15 minutes old" in found["clock"].detail
    assert "--network" in found["clock"].fix


def test_little_money_is_advice_and_starts(world: World) -> None:
    world.chain.world.balances[OWN.peer] = 10
    found = world.found()
    assert found["balance"].status is Status.OK
    assert "btcli wallet transfer" in found["balance"].fix
    told: list[str] = []
    sink = logger.add(lambda line: told.append(str(line)), format="{message}", level="WARNING")
    ready(world.config(), "miner", world.time).close()
    logger.remove(sink)
    assert any("TAO free" in line for line in told)


def test_state_that_is_gone_is_advice_and_an_archive_is_named_as_who_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "of 5 blocks ago is kept by the chain node itself" in world.found()["history"].detail
    world.chain.world._keep = 10
    world.chain.world.step(40)
    monkeypatch.setattr(chain, "FAR_BACK_BLOCKS", 20)
    found = world.found()["history"]
    assert found.status is Status.OK
    assert "wait for others" in found.detail
    assert "MURMUR_ARCHIVES" in found.fix
    ready(world.config(), "miner", world.time).close()
    world.chain.archive = "wss://archive.example"
    found = world.found()["history"]
    assert "of 20 blocks ago is kept by an archive alone, wss://archive.example" in found.detail
    assert not found.fix


def test_a_release_that_is_too_old_is_told_so(world: World) -> None:
    world.spec |= {"min_protocol": 99, "max_protocol": 99}
    assert world.found()["run"].reaction is Reaction.UPDATE
    with pytest.raises(UpdateNeeded):
        ready(world.config(), "miner", world.time)


def test_a_running_nodes_state_is_no_fault_to_a_look_and_one_to_a_second_node(world: World) -> None:
    running = ready(world.config(), "miner", world.time)
    try:
        assert "in use" in world.found()["state"].detail
        with pytest.raises(ConfigError, match="another process uses"):
            ready(world.config(), "miner", world.time)
    finally:
        running.close()
    assert faults(world.found()) == []


def test_a_look_leaves_nothing_behind(world: World) -> None:
    world.found()
    assert list((world.folder / "home").iterdir()) == []
    assert world.store.buckets["miner"] == {}


@pytest.mark.parametrize("plant", [dead_chain, dead_endpoint], ids=lambda plant: plant.__name__)
def test_a_server_that_has_answered_before_is_waited_for(world: World, plant: Callable[[World], None]) -> None:
    ready(world.config(), "miner", world.time).close()
    plant(world)

    def mend() -> None:
        world.chain.world.down = False
        world.store.faults.clear()

    world.time.after_pause = mend
    ready(world.config(), "miner", world.time).close()
    assert world.time.pauses == 1


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections and says nothing, as a server that is stopped or much too busy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_hangs_at_a_first_start_is_waited_for_and_that_is_said(world: World, silent_port: int) -> None:
    world.options["network"] = f"ws://127.0.0.1:{silent_port}"
    world.chain.hangs = world.time.pass_by

    def mend() -> None:
        world.chain.hangs = None

    world.time.after_pause = mend
    told: list[str] = []
    sink = logger.add(lambda line: told.append(str(line)), format="{message}", level="WARNING")
    ready(world.config(), "miner", world.time).close()
    logger.remove(sink)
    assert world.time.pauses == 1
    assert any("It has not answered yet and may be busy: waiting up to 110 s more" in line for line in told)


def test_a_server_that_always_hangs_ends_a_node_that_it_never_answered(world: World, silent_port: int) -> None:
    world.options["network"] = f"ws://127.0.0.1:{silent_port}"
    world.chain.hangs = world.time.pass_by
    began = world.time.now()
    with pytest.raises(ConfigError, match="MURMUR_NETWORK"):
        ready(world.config(), "miner", world.time)
    waited = world.time.now() - began
    assert start.HANG_SECONDS < waited < start.HANG_SECONDS + 40


def test_a_server_that_nobody_is_at_ends_it_however_long_that_took(world: World) -> None:
    """The way to a store tries again and again until its time is over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    world.options["network"] = f"ws://127.0.0.1:{free}"
    world.chain.hangs = world.time.pass_by
    with pytest.raises(ConfigError, match="MURMUR_NETWORK"):
        ready(world.config(), "miner", world.time)
    assert world.time.pauses == 0


def test_a_chain_that_stops_answering_among_the_checks_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    subnet, failures = ChainOfOne.subnet, [ChainError("the chain did not answer within 60 s")]

    def failing(self: ChainOfOne, block: int) -> Subnet:
        if failures:
            raise failures.pop()
        return subnet(self, block)

    monkeypatch.setattr(ChainOfOne, "subnet", failing)
    ready(world.config(), "miner", world.time).close()
    assert world.time.pauses == 1


def test_another_address_than_the_one_that_answered_is_a_wrong_one(world: World) -> None:
    ready(world.config(), "miner", world.time).close()
    dead_chain(world)
    world.options["network"] = "ws://127.0.0.1:3"
    with pytest.raises(ConfigError, match="MURMUR_NETWORK"):
        ready(world.config(), "miner", world.time)


def test_no_secret_is_remembered_or_told(world: World) -> None:
    ready(world.config(), "miner", world.time).close()
    kept = json.loads((world.folder / "home" / ANSWERED).read_text())
    assert set(kept) == {"network", "endpoint", "public_url"}
    writable(world)
    with pytest.raises(ConfigError) as told:
        ready(world.config(), "miner", world.time)
    for text in (*kept.values(), str(told.value)):
        assert "own-secret" not in text
        assert "not-a-secret" not in text


def test_an_owners_bucket_that_is_down_is_waited_for_at_a_first_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody here can mend it."""
    find_run, failures = start.run.runs.find_run, [StorageError("the bucket does not answer")] * 2

    def find(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return find_run(*arguments)

    monkeypatch.setattr(start.run.runs, "find_run", find)
    ready(world.config(), "miner", world.time).close()
    assert world.time.pauses == 2


def test_every_check_has_a_fix_and_needs_only_what_comes_before(world: World) -> None:
    seen: set[str] = set()
    for check in CHECKS:
        assert check.fix
        assert set(check.needs) <= seen
        seen.add(check.name)
    assert len(seen) == len(CHECKS)


def test_a_case_knows_where_it_is_before_the_run_is_known(world: World) -> None:
    assert ExaminedNode(world.config(), "miner", keeps=False).local
    world.options["network"] = "finney"
    assert not ExaminedNode(world.config(), "miner", keeps=False).local


# --- what a node says itself ----------------------------------------------------------------------------------


def said_by_the_node(world: World) -> Finding:
    node = ExaminedNode(world.config(), "miner", keeps=False, time=world.time)
    try:
        return next(finding for finding in node.examine([*CHECKS, NODE]) if finding.name == "node")
    finally:
        node.close()


def events_of(world: World) -> Events:
    return Events(world.folder / "home" / EVENTS, "mine/default", world.time)


def troubles_of(world: World) -> list[dict[str, Any]]:
    return [event for event in read_events(world.folder / "home" / EVENTS) if event["event"] == "trouble"]


def test_doctor_shows_what_a_node_that_runs_says_itself(world: World) -> None:
    world.found()
    assert said_by_the_node(world).detail == "no node runs here now"
    events, trouble = events_of(world), Trouble("bucket_denied", "put: (403)")
    events.emit("started", 4, run="00", hotkey="5")
    assert said_by_the_node(world).detail == "the node here says nothing is wrong in round 4"
    events.emit("trouble", 5, **trouble.fields())
    found = said_by_the_node(world)
    assert found.status is Status.FAULT
    assert found.detail == f"{trouble.of.says} (put: (403))"
    assert found.fix == f"by you: {trouble.of.do}"
    events.emit("mended", 6, about="bucket", cause="bucket_denied")
    assert said_by_the_node(world).status is Status.OK


def test_doctor_takes_no_stop_on_request_for_a_fault_and_names_what_stopped_a_node(world: World) -> None:
    world.found()
    events = events_of(world)
    events.emit("started", 4, run="00", hotkey="5")
    events.emit("trouble", 5, **Trouble("chain_silent").fields())
    events.emit("stopped", 5, fault=None)
    assert said_by_the_node(world).detail == "the node here was stopped on request"
    events.emit("trouble", 0, **Trouble("cannot_start", "key: fix it").fields())
    assert said_by_the_node(world).status is Status.OK, "why it cannot start the other checks find out anew"
    events.emit("started", 4, run="00", hotkey="5")
    events.emit("stopped", 5, fault="no space")
    assert said_by_the_node(world).detail.startswith("the node has stopped (no space)")


def test_a_node_that_cannot_start_says_why_in_its_events(world: World) -> None:
    unregistered(world)
    with pytest.raises(ConfigError):
        ready(world.config(), "miner", world.time)
    (told,) = troubles_of(world)
    assert told["cause"] == "cannot_start"
    assert told["detail"].startswith("hotkey: ")
    assert "Fix: " in told["detail"]
    assert "not-a-secret" not in told["detail"]
    (wrong,) = read_event_tail(world.folder / "home").wrong(world.time.wall())
    assert wrong.startswith("the node cannot start (hotkey: ")


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_node_that_waits_for_a_server_says_so_once_a_minute_and_keeps_no_file_open(world: World) -> None:
    ready(world.config(), "miner", world.time).close()
    dead_chain(world)
    began = world.time.now()

    def mend() -> None:
        world.chain.world.down = world.time.now() < began + 80.0

    world.time.after_pause = mend
    ready(world.config(), "miner", world.time).close()
    assert world.time.pauses > 10
    assert [event["cause"] for event in troubles_of(world)] == ["waits"] * 2
    written = (world.folder / "home" / EVENTS).stat().st_ino
    opened = [os.fstat(fd).st_ino for fd in range(256) if is_open(fd)]
    assert written not in opened


def test_a_second_node_in_a_home_says_nothing_in_the_events_of_the_first(world: World) -> None:
    running = ready(world.config(), "miner", world.time)
    try:
        with pytest.raises(ConfigError, match="another process uses"):
            ready(world.config(), "miner", world.time)
        assert not (world.folder / "home" / EVENTS).exists() or troubles_of(world) == []
    finally:
        running.close()
