"""What an operator may have wrong, planted one by one before the real programs on a real chain and store: each ends
with status 2, says which setting it is, and begins once that is put right."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from murmur.chain import operator
from murmur.chain.keys import create_wallet
from murmur.lab.localnet.infrastructure import infrastructure, prepare, stop
from murmur.lab.localnet.members import LocalNode, configured
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.spec import drafted, open_owner, seal
from murmur.lab.localnet.store import StoreReady
from murmur.lab.localnet.subnet import TAO, await_permits, open_subnet
from murmur.lab.localnet.training_text import text_data

ROOT = Path(__file__).parents[3]
SECONDS = 240.0
"""For a program to end or to begin, on a busy machine."""
BEGUN = re.compile(r"murmuration \S+, (miner|validator) of run localnet")
PHASES = {name: [1.0] for name in ("advance", "compute", "upload", "commit", "reveal", "check", "evaluate")}
SKEWED = """
import os, time
if ahead := float(os.environ.get("TEST_SECONDS_AHEAD", "0")):
    wall = time.time
    time.time = lambda: wall() + ahead
"""


@dataclass
class World:
    """A chain and a store, and members of which nobody runs."""

    plan: Plan
    store: StoreReady
    members: dict[str, LocalNode]
    url: str
    wallets: Mapping[str, Any]
    figures: list[str] = field(default_factory=list)

    def start(self, role: str, who: str, changes: Mapping[str, str], wrap: list[str]) -> "subprocess.Popen[str]":
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
        paths = os.pathsep.join([str(self.plan.folder / "skew"), str(ROOT)])
        return subprocess.Popen(
            [*wrap, sys.executable, str(ROOT / "neurons" / f"{role}.py"), "--config", str(self.members[who].config)],
            env={**ours, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def refused(self, role: str, who: str, changes: Mapping[str, str], wrap: list[str]) -> tuple[int, str]:
        began = time.monotonic()
        process = self.start(role, who, changes, wrap)
        try:
            _, said = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        self.figures.append(f"{time.monotonic() - began:6.1f} s  {role:<9}  {' '.join(sorted(changes)) or wrap[:1]}")
        return process.returncode, said

    def begins(self, role: str, who: str, changes: Mapping[str, str], wrap: list[str]) -> None:
        """It passes all checks, says so, and ends when it is asked to."""
        process = self.start(role, who, changes, wrap)
        lines = []
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if BEGUN.search(line):
                    break
            assert BEGUN.search(lines[-1]), "".join(lines)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("doctor")
        patch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(folder / "runtime-cache"))
        plan = Plan(folder, miners=2)
        (folder / "skew").mkdir()
        (folder / "skew" / "sitecustomize.py").write_text(SKEWED)
        names = plan.names()
        processes = prepare(plan)
        try:
            ground = infrastructure(plan, processes, lambda line: None)
            wallets, devnet, store = ground.wallets, ground.devnet, ground.store
            data = text_data(lambda line: None)
            members = {
                name: configured(plan, name, role, fault, wallets[name], devnet.url, store, data)
                for name, (role, fault) in names.items()
                if role != "owner"
            }
            await_permits(devnet, wallets, names, lambda line: None, 0.25)
            owner = open_owner(plan, devnet.url, store)
            seal(plan, drafted(plan, owner, data), PHASES, owner, data)
            world = World(plan, store, members, devnet.url, wallets)
            yield world
            (folder / "figures").write_text("\n".join(world.figures) + "\n")
            print("\n" + "\n".join(world.figures))
        finally:
            stop(processes)


@dataclass(frozen=True)
class Fault:
    """`changes` to a node's environment, given the world and its member; what is `said`; how it is `mended`,
    where that is another thing than to take the changes back."""

    changes: Callable[[World, str], dict[str, str]]
    said: str
    wrap: Callable[[Path], list[str]] = lambda folder: []
    mended: Callable[[World], dict[str, str]] | None = None


def keys_of(world: World, who: str, *, write: tuple[str, str] | None, read: tuple[str, str] | None) -> dict[str, str]:
    names = ("ACCESS_KEY", "SECRET_KEY")
    found = {f"MURMUR_BUCKET__{name}": key for name, key in zip(names, write or (), strict=False)}
    return found | {f"MURMUR_BUCKET__READ_{name}": key for name, key in zip(names, read or (), strict=False)}


def writable(world: World, who: str) -> dict[str, str]:
    known = json.loads((world.plan.folder / "store" / "identities.json").read_text())["identities"]
    [admin] = next(one["credentials"] for one in known if one["name"] == "admin")
    return keys_of(world, who, write=None, read=(admin["accessKey"], admin["secretKey"]))


def swapped(world: World, who: str) -> dict[str, str]:
    user = world.store.users[who]
    read, write = (user.read_access_key, user.read_secret_key), (user.write_access_key, user.write_secret_key)
    return keys_of(world, who, write=read, read=write)


def empty(world: World, who: str) -> dict[str, str]:
    folder = world.plan.folder / "empty"
    folder.mkdir(exist_ok=True)
    return {"MURMUR_DATA": str(folder)}


def garbage(world: World, who: str) -> dict[str, str]:
    """The owner that is named has published no run."""
    return {"MURMUR_OWNER": str(world.wallets["validator-1"].hotkey.ss58_address)}


def small_disk(folder: Path) -> list[str]:
    """A disk of its own, of 256 kB, that is there for this process alone."""
    script = f'mount -t tmpfs -o size=256k tmpfs {folder} && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", script, "sh"]


FAULTS = {
    "dead chain": Fault(lambda world, who: {"MURMUR_NETWORK": "ws://127.0.0.1:9"}, "--network (MURMUR_NETWORK)"),
    "wrong netuid": Fault(lambda world, who: {"MURMUR_NETUID": "77"}, "--netuid (MURMUR_NETUID)"),
    "wrong hotkey": Fault(lambda world, who: {"MURMUR_WALLET__HOTKEY": "other"}, "MURMUR_WALLET__HOTKEY"),
    "wrong bucket": Fault(lambda world, who: {"MURMUR_BUCKET__NAME": "nobodys"}, "MURMUR_BUCKET__NAME"),
    "wrong write secret": Fault(
        lambda world, who: {"MURMUR_BUCKET__SECRET_KEY": "0" * 40}, "MURMUR_BUCKET__SECRET_KEY is not the secret"
    ),
    "wrong read secret": Fault(
        lambda world, who: {"MURMUR_BUCKET__READ_SECRET_KEY": "0" * 40},
        "MURMUR_BUCKET__READ_SECRET_KEY is not the secret",
    ),
    "writable published key": Fault(writable, "MURMUR_BUCKET__READ_SECRET_KEY, which is public, may also"),
    "swapped keys": Fault(swapped, "exchange the tokens"),
    "skewed clock": Fault(lambda world, who: {"TEST_SECONDS_AHEAD": "1200"}, "clock is 20 minutes ahead"),
    "full disk": Fault(lambda world, who: {}, "MURMUR_HOME", small_disk),
    "wrong spec": Fault(garbage, "MURMUR_OWNER"),
    "empty data folder": Fault(
        empty, "MURMUR_DATA", mended=lambda world: {"MURMUR_DATA": str(text_data(lambda line: None))}
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", ["miner", "validator"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_ends_the_program_and_is_named_and_mended(name: str, role: str, world: World) -> None:
    fault, who = FAULTS[name], f"{role}-1"
    home = world.members[who].home
    wrap = fault.wrap(home)
    if wrap and subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("no disk of its own can be mounted here")
    if wrap:  # its configuration is on that disk's place
        config = world.plan.folder / f"{who}.toml"
        config.write_bytes(world.members[who].config.read_bytes())
        world.members[who].config = config
    status, said = world.refused(role, who, fault.changes(world, who), wrap)
    flat = re.sub(r"\s+", " ", said)
    assert status == 2, said
    assert fault.said in flat, said
    assert "Traceback" not in said
    assert not (home / "events.jsonl").exists(), "it went on all the same"
    if fault.mended is not None or wrap:
        world.begins(role, who, fault.mended(world) if fault.mended else {}, [])
        (home / "events.jsonl").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_who_is_not_registered_or_has_no_permit_is_told_what_to_do(world: World) -> None:
    stranger = create_wallet("stranger", "default", str(world.plan.folder / "wallets"))
    changes = {"MURMUR_WALLET__NAME": "stranger"}
    status, said = world.refused("miner", "miner-2", changes, [])
    assert status == 2, said
    assert "btcli subnet register" in said
    chain = open_subnet(world.url, world.wallets["owner"])
    operator.transfer(chain, world.wallets["owner"], stranger.coldkeypub.ss58_address, 100 * TAO)
    operator.register(chain, stranger)
    chain.close()
    world.begins("miner", "miner-2", changes, [])
    status, said = world.refused("validator", "miner-2", {}, [])
    assert status == 2, said
    assert "has no validator permit" in said
    assert "btcli stake add" in said
    for role in ("miner", "validator"):  # nothing that was planted before has left a mark
        world.begins(role, f"{role}-1", {}, [])


def test_the_skewed_clock_is_one(tmp_path: Path) -> None:
    """Of the test above: Python takes up what it stands in for a wrong clock with."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(SKEWED))
    found = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TEST_SECONDS_AHEAD": "1200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 1100 < float(found.stdout) - time.time() < 1300
