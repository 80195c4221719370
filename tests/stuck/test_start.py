"""Nodes that can't start: before they play, too, log, status, doctor and page name the same cause and remedy."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from murmur.chain.keys import create_wallet
from tests.stuck.play import record
from tests.stuck.stage import ROOT, Stage, plain, said

pytestmark = [pytest.mark.check, pytest.mark.timeout(900)]
STATUS_FIX = 2


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("start"), validators=1, miners=1)
    try:
        stage.publish(start_in=3000)
        create_wallet("stranger", "default", str(stage.folder / "wallets"))
        yield stage
    finally:
        stage.mend()
        stage.close()


@dataclass(frozen=True)
class Row:
    """A node that can't start. `changes`: settings of miner-1 that differ. `check`: the check that fails. `says`,
    `fix`: words of what it says, and of the remedy."""

    name: str
    check: str
    says: str
    fix: str
    faults: tuple[str, ...] = ()
    changes: dict[str, str] = field(default_factory=dict)
    role: str = "miner"


ROWS = [
    Row("the write key may not write", "bucket", "may not write", "reads and writes this bucket", ("store-readonly",)),
    Row("the write key is unknown", "bucket", "does not know", "copy it again", ("store-unknown-key",)),
    Row("the secret is another key's", "bucket", "is not the secret of", "copy both again", ("store-wrong-secret",)),
    Row("there is no bucket", "bucket", "does not exist", "create the bucket", ("store-no-bucket",)),
    Row("the bucket is full", "bucket", "is full, or over its quota", "raise the quota", ("store-full",)),
    Row("the account is unpaid", "bucket", "suspended or unpaid", "provider", ("store-suspended",)),
    Row("the write key has expired", "bucket", "expired", "", ("store-expired",)),
    Row("the read key was deleted", "bucket", "so peers could not read", "read-only token", ("read-key-revoked",)),
    Row("the store is away", "bucket", "cannot be reached", "MURMUR_BUCKET__ENDPOINT", ("store-gone",)),
    Row("the chain node is away", "chain", "nothing can be agreed or paid", "--network", ("chain-gone",)),
    Row("the chain is another", "spec", "is for the chain", "--network", ("chain-other",)),
    Row("the subnet does not exist", "subnet", "7", "--netuid", changes={"netuid": "7"}),
    Row("the hotkey is not registered", "hotkey", "is not registered", "register it", changes={"name": "stranger"}),
    Row("a validator has no permit", "permit", "has no validator permit", "stake to it", role="validator"),
    Row("the owner names no run", "spec", "names no run", "--owner", changes={"owner": "STRANGER"}),
    Row("the data is another set", "data", "index", "--data", changes={"data": "OTHER"}),
]


def configured(stage: Stage, row: Row) -> Path:
    """Write miner-1's configuration with the row's settings and a home of its own; return the file."""
    home = stage.folder / "nodes" / row.name.replace(" ", "-")
    home.mkdir()
    text = stage.config("miner-1").read_text()
    text = re.sub(r"(?m)^metrics_port = .*$", "", text)
    changes = {"home": str(home)} | row.changes
    for name, value in changes.items():
        value = stage.hotkey("stranger") if value == "STRANGER" else value
        if value == "OTHER":
            (home / "other").mkdir()
            text = f'data = "{home / "other"}"\n{text}'
            continue
        text, count = re.subn(rf"(?m)^{name} = .*$", f'{name} = "{value}"', text, count=1)
        assert count == 1, name
    file = home / "node.toml"
    file.touch(0o600)
    file.write_text(text)
    return file


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_a_node_that_cannot_start_says_why_and_what_to_do_on_every_surface(stage: Stage, row: Row) -> None:
    config = configured(stage, row)
    stage.fault(*(("miner-1", kind) for kind in row.faults))
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "neurons" / f"{row.role}.py"), "--config", str(config)], cwd=stage.path,
            env=stage.environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        doctor = json.loads(said("doctor", "--fast", "--json", "--config", str(config), "--role", row.role))
    finally:
        stage.mend()
    assert done.returncode == STATUS_FIX, done.stderr
    assert "Traceback" not in done.stderr
    faults = {check["name"]: check for check in doctor["checks"] if check["status"] == "fault"}
    assert row.check in faults, faults
    surfaces = {
        "log": done.stderr,
        "status": said("status", "--config", str(config)),
        "doctor": f"{faults[row.check]['detail']} {faults[row.check]['fix']}",
        "page": stage.page(),
    }
    for surface, text in surfaces.items():
        assert plain(row.says) in plain(text), (surface, text)
        assert plain(row.fix) in plain(text), (surface, text)
    for file in config.parent.glob("*.jsonl"):
        file.unlink()  # the page of the next row is about its node alone
    record(f"start: {row.name}", "cannot_start", None, set(surfaces))
