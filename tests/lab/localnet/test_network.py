"""Whole networks of real processes, as `murmur localnet` builds them."""

import json
import os
import random
import re
import shutil
import signal
import time
import tomllib
import urllib.request
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from murmur.chain.keys import open_wallet
from murmur.cli.main import main
from murmur.lab.devnet import launch
from murmur.lab.localnet.fault_kinds import FAULTS
from murmur.lab.localnet.members import address
from murmur.lab.localnet.network import open_network
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.report import build_report
from murmur.lab.localnet.stations import Peers, flow
from murmur.lab.localnet.store import read_ready
from murmur.lab.localnet.subnet import open_subnet
from murmur.lab.localnet.table import Table
from murmur.lab.localnet.trace import trace
from murmur.node.telemetry.events import read_events
from murmur.protocol.types import Reason
from storage.s3 import open_pointer
from tests.chain.admin import upgrade_runtime
from tests.lab.localnet.harness import Run, assert_nothing_runs, localnet, secrets_of, told
from tests.lab.localnet.schema import assert_report
from tests.specs import toy_spec
from tests.storage.conftest import served

KEPT_BLOCKS = 512
"""States that a chain keeps that forgets: those of an epoch, at whose end sealed weights are looked for where they were
set."""


def asked(*votes: str) -> tuple[int, str]:
    """(exit status, what it printed) of murmur, without another process that imports torch."""
    with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
        return main(votes), printed.getvalue()


def assert_metrics(run: Run) -> None:
    """Every node answers a scrape where the run's folder says."""
    listed = json.loads((run.folder / "metrics.json").read_text())
    nodes = {path.name for path in (run.folder / "nodes").iterdir()}
    assert {entry["labels"]["node"] for entry in listed} == nodes
    for entry in listed:
        (target,) = entry["targets"]
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=30) as answer:
            assert b"murmur_round" in answer.read(), entry


def by_name(report: dict[str, Any]) -> dict[str, str]:
    return {hotkey: peer["name"] for hotkey, peer in report["peers"].items()}


def assert_sound(run: Run, rounds: int) -> dict[str, Any]:
    """The run has ended well: status 0, every round played, all replicas identical, nothing left running."""
    assert run.finish() == 0, run.screen
    assert_nothing_runs(run.folder)
    report = run.report
    assert_report(report)
    assert [row["round"] for row in report["rounds"]] == list(range(rounds))
    summary = report["summary"]
    assert summary["replicas_identical"]
    assert summary["weights_set"] == summary["weights_standing"] > 0, summary
    return report


def assert_traced(folder: Path, row: dict[str, Any]) -> str:
    """The round's ten stations have the values of the run's report. Returns their text."""
    text = "\n".join(trace(folder, row["round"]))
    assert re.findall(r"^( ?\d+)  ([a-z ]+)$", text, re.MULTILINE) == [
        (f"{number:>2}", name) for number, name in enumerate(flow(toy_spec(), Peers(1, 1, 1, 1, 1)), start=1)
    ]
    agreed = set(row["theta"].values())
    assert [after[:8] for after in agreed] == re.findall(r"theta digest \w{8} -> (\w{8}), repeated here", text)
    ours, all_nodes = re.findall(r"(\d+) of (\d+) nodes have the same", text)[0]
    assert ours == all_nodes
    assert f"-> {row['val_loss']:.3f} nats a token; validator-1 measured {row['val_loss']:.3f}" in text
    return text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_node_has_a_link_of_its_own(tmp_path: Path) -> None:
    up, down = 0.2, 0.8
    votes = ["--rounds", "3", "--miners", "3", "--up", str(up), "--down", str(down)]
    with localnet(tmp_path / "run", *votes) as run:
        report = assert_sound(run, rounds=3)
    clock = json.loads((run.folder / "spec.json").read_text())["clock"]
    assert (clock["upload_mbps"], clock["download_mbps"]) == (up, down)
    for row in report["rounds"]:
        megabits = 8e-6 * row["payload_bytes"]
        assert row["seconds"]["upload"] >= megabits / up
        assert len(row["contributing"]) == 3
        fetched = row["phases"]["miner"]["download"] + row["phases"]["miner"].get("prefetch", 0.0)
        assert fetched >= 2 * megabits / down  # of both others, by one's own downlink
    assert all(0 < row["utilization"] < 1 for row in report["rounds"][1:])
    assert 0 < report["summary"]["utilization"] < 1


@pytest.mark.timeout(1800)
def test_killed_nodes_come_back_to_identical_replicas_and_no_secret_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with localnet(folder, "--rounds", "4", "--miners", "2", "--ranks", "1,2") as run:
        run.wait_for_round(0)
        assert_metrics(run)
        run.kill("validator-1")
        run.wait_for_round(1)
        run.kill("miner-1")
        report = assert_sound(run, rounds=4)
    assert "miner-1 died and was started again" in run.screen
    assert "validator-1 died and was started again" in run.screen
    assert "\x1b" not in run.screen
    assert re.search(r"^all replicas identical, \d of 4 rounds void", run.screen, re.MULTILINE)

    peers = {peer["name"]: peer for peer in report["peers"].values()}
    assert set(peers) == {"miner-1", "miner-2"}
    first, last = report["rounds"][0], report["rounds"][-1]
    assert set(first["theta"]) == {"miner-1", "miner-2", "validator-1"}
    assert {by_name(report)[hotkey] for hotkey in first["contributing"]} == {"miner-1", "miner-2"}
    assert "miner-2" in last["theta"]
    assert report["summary"]["void_rounds"] <= 2  # while the only validator was dead
    assert report["summary"]["loss_last"] < report["summary"]["loss_first"]
    status, account = asked("explain", "miner-2", "--run", str(folder))
    assert status == 0, account
    assert account.startswith("miner-2 (5")
    assert "; learning, " in account
    assert asked("export", str(folder), str(tmp_path / "model"), "--round", "4")[0] == 0
    status, proof = asked("export", "--verify", str(tmp_path / "model"), str(folder))
    assert (status, last["theta"]["miner-2"] in proof) == (0, True), proof
    assert all(value > 0 for value in first["seconds"].values())
    traced = assert_traced(folder, first)
    assert "it follows miner-1" in traced
    assert "the payload is the same, byte for byte" in traced
    assert traced.count("(no rating yet)") == traced.count("rating none yet -> ") == 2
    later = next(row for row in report["rounds"][1:] if not row["void"] and row["val_loss"] is not None)
    assert "not public after round 0" in assert_traced(folder, later)

    secrets = secrets_of(folder)
    assert {"miner-1's sealing key", "miner-1's write key", "validator-1's read key"} <= set(secrets)
    files = list(told(folder))
    assert {"miner-1.log", "events.jsonl", "report.json", "run.screen"} <= {path.name for path in files}
    for path in files:
        data = path.read_bytes()
        assert not [what for what, secret in secrets.items() if secret in data], path


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_upgrade_of_the_runtime_costs_no_commitment_and_no_weights(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with localnet(folder, "--rounds", "6", "--miners", "2") as run:
        run.wait_for_round(0)
        network = tomllib.loads((folder / "nodes" / "miner-1" / "node.toml").read_text())["network"]
        wallet = open_wallet("owner", "default", str(folder / "wallets"))
        chain = open_subnet(network, wallet)
        for round in (1, 3):  # at different moments of a round
            run.wait_for_round(round)
            time.sleep((round - 1) * run.round_seconds / 4)
            upgrade_runtime(chain, wallet)
        chain.close()
        report = assert_sound(run, rounds=6)
    assert report["summary"]["void_rounds"] == 0
    assert [len(row["contributing"]) for row in report["rounds"]] == [2] * 6


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("which", ["torchrun", "0", "1"])
def test_killing_any_process_of_a_miner_costs_at_most_one_round(which: str, tmp_path: Path) -> None:
    with localnet(tmp_path / "run", "--rounds", "6", "--miners", "2", "--ranks", "2,1") as run:
        run.wait_for_round(1)
        launcher = run.pid("miner-1")
        processes = {"torchrun": launcher} | run.ranks("miner-1")
        os.kill(processes[which], signal.SIGKILL)
        ended_within(processes.values(), seconds=300.0)
        report = assert_sound(run, rounds=6)
    assert "miner-1 died and was started again" in run.screen
    names = by_name(report)
    applied = [row["round"] for row in report["rounds"] if "miner-1" in row["theta"]]
    assert applied[-1] == 5
    missed = [
        row["round"]
        for row in report["rounds"]
        if any(names[hotkey] == "miner-1" and reason == "MISSING" for hotkey, reason in row["rejected"].items())
    ]
    assert len(missed) <= 1


VICTIMS = [("miner-1", "torchrun"), ("miner-1", "0"), ("miner-1", "1"), ("miner-2", ""), ("validator-1", "")]


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_after_kill_9_at_any_moment_of_any_process_a_node_reaches_the_networks_digest(tmp_path: Path) -> None:
    draw = random.Random(9)
    victims = [*draw.sample(VICTIMS, len(VICTIMS)), *draw.sample(VICTIMS, len(VICTIMS))]
    rounds = 3 * len(victims)
    with localnet(tmp_path / "run", "--rounds", str(rounds), "--miners", "2", "--ranks", "2,1") as run:
        run.wait_for_round(0)
        for name, which in victims:
            time.sleep(draw.uniform(0, run.round_seconds))
            killed = time.time()
            pid = run.pid(name)
            os.kill(run.ranks(name).get(which, pid), signal.SIGKILL)
            # It applies a round again, like everybody else.
            run.wait_until(partial(came_back, run, name, killed), 900.0, f"return of {name}")
        report = assert_sound(run, rounds)
    assert set(report["rounds"][-1]["theta"]) == {"miner-1", "miner-2", "validator-1"}


def came_back(run: Run, name: str, killed: float) -> bool:
    """Whether a node has applied a round since it was killed; the others must have applied the same."""
    thetas = {peer: applied(run, peer) for peer in ("miner-1", "miner-2", "validator-1")}
    since = [round for round, (when, _) in thetas[name].items() if when > killed]
    for round in since:
        assert len({seen[round][1] for seen in thetas.values() if round in seen}) == 1, (name, round)
    return bool(since)


def applied(run: Run, name: str) -> dict[int, tuple[float, str]]:
    """By round: when a node has applied it, Unix seconds, and its theta digest then."""
    found = {}
    for event in read_events(run.folder / "nodes" / name / "events.jsonl"):
        if event["event"] == "applied":
            found[event["round"]] = event["time"], event["theta"]
    return found


def ended_within(pids: Iterable[int], seconds: float) -> None:
    """All of them are gone soon: neither ranks nor their launcher outlive the one that was killed."""
    until = time.monotonic() + seconds
    while left := [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and read_cmdline(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.2)


def read_cmdline(pid: int) -> bytes:
    """Empty for a process that has ended and was not collected yet."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_killing_one_of_two_validators_that_has_said_its_vote_costs_at_most_one_round(tmp_path: Path) -> None:
    """Each of them is half of the stake: alone neither decides anything. What the one that dies has said stays."""
    with localnet(tmp_path / "run", "--rounds", "5", "--miners", "2", "--validators", "2") as run:
        run.wait_for_round(1)
        voted = next(name for name in ("validator-1", "validator-2") if "word_posted" in events(run, name, 1))
        run.kill(voted)
        report = assert_sound(run, rounds=5)
    assert report["summary"]["void_rounds"] <= 1
    assert set(report["rounds"][-1]["theta"]) == {"miner-1", "miner-2", "validator-1", "validator-2"}


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_a_network_whose_store_and_chain_are_killed_goes_on_with_what_they_held(tmp_path: Path) -> None:
    with localnet(tmp_path / "run", "--rounds", "5", "--miners", "2") as run:
        for index, name in enumerate(("store", "devnet")):
            run.wait_for_round(index)
            run.kill(name)
        report = assert_sound(run, rounds=5)
    for name in ("store", "devnet"):
        assert f"{name} died and was started again" in run.screen
    assert set(report["rounds"][-1]["theta"]) == {"miner-1", "miner-2", "validator-1"}
    assert report["rounds"][-1]["contributing"]


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("whom", ["weed", "store"])
def test_killing_the_store_in_mid_round_costs_at_most_one_round(whom: str, tmp_path: Path) -> None:
    with localnet(tmp_path / "run", "--rounds", "5", "--miners", "3") as run:
        run.wait_for_round(0)
        time.sleep(run.round_seconds / 2)
        supervisor = run.pid("store")
        os.kill(run.children(supervisor)[0] if whom == "weed" else supervisor, signal.SIGKILL)
        report = assert_sound(run, rounds=5)
    assert "store died and was started again" in run.screen
    assert report["summary"]["void_rounds"] <= 1
    assert len(report["rounds"][-1]["contributing"]) == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_network_runs_on_a_store_that_runs_already(tmp_path: Path) -> None:
    names = ["owner", "validator-1", "miner-1"]
    ready = tmp_path / "store" / "ready.json"
    with served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(ready.parent), *names], ready):
        with localnet(tmp_path / "run", "--rounds", "2", "--miners", "1", "--store", str(ready)) as run:
            report = assert_sound(run, rounds=2)
            assert "store " not in (run.folder / "logs" / "pids").read_text()
        reader = open_pointer(read_ready(ready).pointer("miner-1"), local=True)
        assert reader.list("", max_keys=10, timeout_seconds=20.0)
    assert report["summary"]["honest_contributions"] > 0


def test_a_store_that_lacks_members_is_told_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text('{"endpoint": "http://127.0.0.1:1", "users": {}}')
    with localnet(tmp_path / "run", "--miners", "1", "--store", str(tmp_path / "ready.json")) as run:
        assert run.finish(150) == 2
    assert [line.split(": ")[-2] for line in run.screen.splitlines() if "ready.json" in line] == [
        "no entry for owner",
        "no entry for validator-1",
        "no entry for miner-1",
    ]
    assert not list(run.folder.iterdir())


def events(run: Run, name: str, round: int) -> set[str]:
    found = read_events(run.folder / "nodes" / name / "events.jsonl")
    return {event["event"] for event in found if event["round"] == round}


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_any_round_of_a_run_can_be_audited_while_it_runs_and_after_its_end(tmp_path: Path) -> None:
    folder, rounds = tmp_path / "run", 16  # payloads of the first ones are deleted by the end
    with localnet(folder, "--rounds", str(rounds), "--miners", "2", "--fault", "garbage") as run:
        run.wait_for_round(1)
        assert asked("explain", "miner-1", "--run", str(folder))[0] == 0
        assert asked("audit", "--round", "0", "--run", str(folder))[0] == 0
        assert_sound(run, rounds)
    for round in range(rounds):
        status, text = asked("audit", "--round", str(round), "--run", str(folder))
        assert status == 0, text
        assert "unchecked  checks" not in text
        assert "validator-1: agrees, 5 hotkeys" in text
    assert "MALFORMED" in asked("explain", "garbage-1", "--run", str(folder))[1]
    assert asked("status", "--run", str(folder), "miner-1")[0] == 0
    moved = folder.rename(tmp_path / "elsewhere")
    assert asked("audit", "--round", "last", "--run", str(moved))[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_a_miner_that_joins_after_its_chain_has_forgotten_the_start_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("murmur.lab.localnet.subnet.start", partial(launch.start, keep_blocks=KEPT_BLOCKS))
    with (tmp_path / "screen").open("w") as screen:
        table = Table(screen)
        network = open_network(Plan(tmp_path / "run", miners=2, newcomers=1), table.say)
        try:
            spec, clock = network.spec, network.spec.clock
            # Long enough, too, for a checkpoint that is nearer than theta_0.
            away = max(spec.checkpoint_rounds + 2, 2 + KEPT_BLOCKS // clock.round_blocks)
            network.plan = replace(network.plan, rounds=away)
            table.follow(network, 3.0)
            assert clock.start_block + clock.round_blocks < network.devnet.admin().info()["oldest"]
            newcomer = network.join()
            network.plan = replace(network.plan, rounds=away + 4)
            table.follow(network, 3.0)
            report = build_report(network, 1.0)
        finally:
            network.close()
    assert_report(report)
    caught = [event for event in network.events(newcomer) if event["event"] == "caught_up"]
    assert caught
    assert caught[0]["origin"].startswith("the checkpoint")
    assert newcomer.name in report["rounds"][-1]["theta"]
    assert report["peers"][address(newcomer)]["contributed"] > 0
    assert report["summary"]["replicas_identical"]
    assert_nothing_runs(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", list(FAULTS))
def test_a_fault_gets_its_reason_and_never_more(kind: str, tmp_path: Path) -> None:
    reason = FAULTS[kind].split(": ")[1]
    by_check = reason in Reason.__members__
    rounds = 6 if by_check else 12
    folder = tmp_path / "run"
    with localnet(folder, "--rounds", str(rounds), "--miners", "3", "--fault", kind) as run:
        report = assert_sound(run, rounds)
    faulty = next(hotkey for hotkey, peer in report["peers"].items() if peer["fault"] == kind)
    rows = [row for row in report["rounds"] if not row["void"]]
    first = 1 if kind == "copycat" else 0  # in the first round there is nothing to copy yet
    if by_check:
        assert [row["rejected"].get(faulty) for row in rows[first:]] == [reason] * (len(rows) - first)
        assert not any(faulty in row["contributing"] for row in rows[first:])
    else:
        assert rows[-1]["standing"].get(faulty) in ("LOW_SCORE", "NOT_ELIGIBLE")
        assert faulty not in rows[-1]["contributing"]
    assert not [name for row in rows for name in row["rejected"] if name != faulty]
    shutil.rmtree(folder)
