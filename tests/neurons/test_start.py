"""A node's start over a real chain interface and a real S3 server: with any one thing wrong it ends with status 2 and
what to mend, before anything is on chain; and `murmur doctor` says the same."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from murmur.chain import operator
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.keys import create_wallet
from murmur.cli.main import main
from murmur.data.shards import Shards
from murmur.lab.devnet import launch
from murmur.lab.devnet.genesis import Genesis
from murmur.lab.localnet.store import StoreReady, StoreUser, read_ready
from murmur.node.config.settings import load
from murmur.node.doctor.start import ready
from murmur.plan import measure, training_speed
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import PeerId, peer_id
from storage.s3 import RangedBucket, open_bucket
from tests.small_run import data_set
from tests.specs import to_toml, toy_table
from tests.storage.conftest import served
from tests.storage.permissive import permissive
from tests.storage.public import public

ROOT = Path(__file__).parents[2]
NETUID = 1
DEAD = "127.0.0.1:9"
ID, SECRET, NAME = "MURMUR_BUCKET__ACCESS_KEY", "MURMUR_BUCKET__SECRET_KEY", "MURMUR_BUCKET__NAME"
READ_ID, READ_SECRET = "MURMUR_BUCKET__READ_ACCESS_KEY", "MURMUR_BUCKET__READ_SECRET_KEY"

Table = dict[str, Any]


@dataclass(frozen=True)
class World:
    """A chain with two registered hotkeys and one that is not, a store with two buckets, and a run on them."""

    folder: Path
    chain: SubtensorChain
    hotkey: PeerId
    store: StoreReady
    table: Table
    """What an operator writes, with nothing wrong."""

    def pointer_on_chain(self) -> object:
        peers = self.chain.peers(self.chain.finalized().block)
        (me,) = [peer for peer in peers if peer.id == self.hotkey]
        return None if me.slot is None else me.slot.pointer

    @property
    def user(self) -> StoreUser:
        return self.store.users["miner"]

    @property
    def other(self) -> StoreUser:
        return self.store.users["another"]

    def write(self, change: Callable[["World", Table], None] | None = None) -> Path:
        """The node's file, with one change."""
        table = deepcopy(self.table)
        if change is not None:
            change(self, table)
        path = self.folder / "node.toml"
        path.write_text(to_toml(table))
        return path

    def begin(self, change: Callable[["World", Table], None] | None = None, role: str = "miner") -> None:
        """What the programs do before anything else, in this process."""
        config = load("a node", "", ["--config", str(self.write(change))], {})
        ready(config, role).close()  # type: ignore[arg-type]

    def start(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """As an operator starts it, until it ends."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
        return subprocess.run(
            [sys.executable, "-m", program, *words, "--config", str(self.folder / "node.toml")],
            env={**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=170,
            check=False,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    wallets = {name: create_wallet(name, "default", str(folder / "wallets")) for name in ("owner", "miner", "stranger")}
    genesis = Genesis.fast(
        wallets["owner"].coldkeypub.ss58_address,
        wallets["owner"].hotkey.ss58_address,
        balances={wallet.coldkeypub.ss58_address: 100 * 10**9 for wallet in wallets.values()},
        netuid=NETUID,
    )
    data_set(folder / "data")
    shards = Shards.open(folder / "data")
    (folder / "empty").mkdir()
    store, credentials = folder / "store", folder / "store" / "ready.json"
    with ExitStack() as stack:
        devnet = launch.start(folder / "chain", genesis, block_seconds=0.1)
        stack.callback(devnet.stop)
        chain = open_chain(devnet.url, NETUID, wallets["miner"])
        stack.callback(chain.close)
        operator.register(chain, wallets["miner"])
        spec = toy_table(
            {
                "chain": devnet.genesis.removeprefix("0x"),
                "netuid": NETUID,
                "gauntlet.weight_rounds": 3,
                "data": {"index": shards.digest.hex(), "num_tokens": shards.train.num_tokens, "page_sequences": 8},
                "data.held_out_sequences": 2,
            }
        )
        (folder / "spec.toml").write_text(to_toml(spec))
        (folder / "another.toml").write_text(to_toml(spec | {"chain": "ab" * 32}))
        stack.enter_context(
            served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "miner", "another"], credentials)
        )
        found = read_ready(credentials)
        user = found.users["miner"]
        table: Table = {
            "network": devnet.url,
            "netuid": NETUID,
            "spec": str(folder / "spec.toml"),
            "data": str(folder / "data"),
            "home": str(folder / "home"),
            "device": "cpu",
            "wallet": {"name": "miner", "path": str(folder / "wallets")},
            "bucket": {
                "endpoint": found.endpoint,
                "name": user.bucket,
                "access_key": user.write_access_key,
                "secret_key": user.write_secret_key,
                "read_access_key": user.read_access_key,
                "read_secret_key": user.read_secret_key,
            },
        }
        yield World(folder, chain, peer_id(wallets["miner"].hotkey.ss58_address), found, table)


def dead_chain(world: World, table: Table) -> None:
    table["network"] = f"ws://{DEAD}"


def wrong_netuid(world: World, table: Table) -> None:
    table["netuid"] = 7


def wrong_hotkey(world: World, table: Table) -> None:
    table["wallet"]["hotkey"] = "nobody"


def unregistered(world: World, table: Table) -> None:
    table["wallet"]["name"] = "stranger"


def no_permit(world: World, table: Table) -> None:
    """What a miner may do without."""


def wrong_bucket(world: World, table: Table) -> None:
    table["bucket"]["name"] = "nobodys"


def anothers_bucket(world: World, table: Table) -> None:
    table["bucket"]["name"] = world.other.bucket


def wrong_write_secret(world: World, table: Table) -> None:
    table["bucket"]["secret_key"] = "a" * 40


def wrong_read_secret(world: World, table: Table) -> None:
    table["bucket"]["read_secret_key"] = "a" * 40


def unknown_read_key(world: World, table: Table) -> None:
    table["bucket"]["read_access_key"] = "a" * 20


def another_buckets_read_key(world: World, table: Table) -> None:
    table["bucket"] |= {
        "read_access_key": world.other.read_access_key,
        "read_secret_key": world.other.read_secret_key,
    }


def swapped_keys(world: World, table: Table) -> None:
    own = table["bucket"]
    table["bucket"] = own | {
        "access_key": own["read_access_key"],
        "secret_key": own["read_secret_key"],
        "read_access_key": own["access_key"],
        "read_secret_key": own["secret_key"],
    }


def dead_endpoint(world: World, table: Table) -> None:
    table["bucket"]["endpoint"] = f"http://{DEAD}"


def wrong_spec(world: World, table: Table) -> None:
    table["spec"] = str(world.folder / "another.toml")


def empty_data(world: World, table: Table) -> None:
    table["data"] = str(world.folder / "empty")


PLANTED: dict[Callable[[World, Table], None], tuple[str, str, str]] = {
    dead_chain: ("miner", "chain: ", "MURMUR_NETWORK"),
    wrong_netuid: ("miner", "subnet: there is no subnet 7", "MURMUR_NETUID"),
    wrong_hotkey: ("miner", "wallet: no hotkey 'nobody'", "--wallet.hotkey"),
    unregistered: ("miner", "hotkey: ", "btcli subnet register --netuid 1 -w stranger -H default"),
    no_permit: ("validator", "permit: ", "btcli stake add --netuid 1"),
    wrong_bucket: ("miner", "bucket: ", NAME),
    anothers_bucket: ("miner", "bucket: ", NAME),
    wrong_write_secret: ("miner", f"bucket: {SECRET} is not the secret of {ID}", SECRET),
    wrong_read_secret: ("miner", f"bucket: {READ_SECRET} is not the secret of {READ_ID}", READ_SECRET),
    unknown_read_key: ("miner", f"bucket: the server does not know {READ_ID}", READ_ID),
    another_buckets_read_key: ("miner", "bucket: ", READ_ID),
    swapped_keys: ("miner", "bucket: ", "exchange the tokens"),
    dead_endpoint: ("miner", "bucket: ", "MURMUR_BUCKET__ENDPOINT"),
    wrong_spec: ("miner", "spec: ", "--network"),
    empty_data: ("miner", "data: ", "MURMUR_DATA"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_with_one_thing_wrong_no_node_begins_and_its_fix_is_named(
    world: World, plant: Callable[[World, Table], None]
) -> None:
    role, what, fix = PLANTED[plant]
    with pytest.raises(ConfigError) as caught:
        world.begin(plant, role)
    told = str(caught.value)
    assert "1 of " in told, "nothing else is wrong"
    assert what in told
    assert fix in told
    for secret in (world.user.write_secret_key, world.user.read_secret_key):
        assert secret not in told
    assert world.pointer_on_chain() is None


def test_a_published_key_that_may_write_is_refused(world: World) -> None:
    def writable(world: World, table: Table) -> None:
        table["bucket"]["endpoint"] = endpoint

    with permissive() as endpoint, pytest.raises(ConfigError, match=f"(?s)may also write.*{READ_ID}"):
        world.begin(writable)


def test_a_public_bucket_that_everybody_may_change_is_refused(world: World) -> None:
    def open_to_all(world: World, table: Table) -> None:
        table["bucket"] = {"endpoint": endpoint, "name": "x-x", "access_key": "a", "secret_key": "b"}
        table["bucket"]["public_url"] = endpoint

    with permissive() as endpoint, pytest.raises(ConfigError, match="MURMUR_BUCKET__PUBLIC_URL anyone may write"):
        world.begin(open_to_all)


def test_equal_keys_are_refused_by_the_configuration(world: World) -> None:
    def equal(world: World, table: Table) -> None:
        table["bucket"]["read_secret_key"] = table["bucket"]["secret_key"]

    with pytest.raises(ConfigError, match=f"{SECRET} and {READ_SECRET} are the same"):
        world.begin(equal)


def own_bucket(world: World) -> RangedBucket:
    own = world.user
    return open_bucket(world.store.endpoint, own.bucket, own.write_access_key, own.write_secret_key, local=True)


@pytest.mark.parametrize("is_public", [False, True])
def test_with_everything_right_a_node_begins_and_nothing_is_left_in_its_bucket(world: World, is_public: bool) -> None:
    with public(own_bucket(world)) as server:

        def published(world: World, table: Table) -> None:
            if is_public:
                for name in ("read_access_key", "read_secret_key"):
                    del table["bucket"][name]
                table["bucket"]["public_url"] = server.endpoint

        world.begin(published)
    assert any(method == "PUT" for method, _, _ in server.requests) == is_public
    assert own_bucket(world).list("", max_keys=10, timeout_seconds=10) == ()


@pytest.mark.parametrize(("program", "plant"), [("miner", dead_chain), ("validator", swapped_keys)])
def test_the_programs_end_with_status_2(world: World, program: str, plant: Callable[[World, Table], None]) -> None:
    world.write(plant)
    done = world.start(f"neurons.{program}")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("cannot start")
    assert PLANTED[plant][2] in done.stderr
    assert "Traceback" not in done.stderr
    assert world.pointer_on_chain() is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small samples."""
    for name in [name for name in os.environ if name.startswith(("MURMUR_", "BT_"))]:
        monkeypatch.delenv(name)
    for name, value in (("SAMPLE_BYTES", 8 << 20), ("SLOW_BYTES", 4 << 20), ("PIECE_BYTES", 1 << 20)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(training_speed, "TRIAL_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
def test_the_doctor_tries_everything_and_says_it_in_json(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.write()
    status = main(["doctor", "--json", "--config", str(world.folder / "node.toml")])
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["checks"]
    assert all(set(check) == {"name", "status", "detail", "fix"} for check in found["checks"])
    by_name = {check["name"]: check for check in found["checks"]}
    # Whether this machine keeps up with half a second a block is not the question here.
    faults = {name for name, check in by_name.items() if check["status"] == "fault"}
    assert faults <= {"pace"}
    assert status == (1 if faults else 0)
    assert {check["status"] for name, check in by_name.items() if name != "pace"} == {"ok"}
    assert {"parts", "versions", "strangers", "links", "pace"} <= set(by_name)
    assert "off the store's" in by_name["clock"]["detail"]
    assert own_bucket(world).list("", max_keys=10, timeout_seconds=10) == ()


@pytest.mark.usefixtures("quick")
def test_the_doctor_says_that_its_configuration_is_not_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert (check["name"], check["status"]) == ("configuration", "fault")
    assert "--wallet.name" in check["detail"]
    assert main(["doctor"]) == 2


@pytest.mark.usefixtures("quick")
def test_the_doctor_shows_a_fault_and_its_fix_to_people(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world.write(wrong_write_secret)
    assert main(["doctor", "--fast", "--config", str(world.folder / "node.toml")]) == 1
    shown = capsys.readouterr().out
    assert "FAULT" in shown
    assert "fix: " in shown
    assert shown.rstrip().endswith("1 of 17 checks failed: bucket")
    assert max(map(len, shown.splitlines())) <= 80
    assert "a" * 40 not in shown
