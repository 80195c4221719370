"""The commands of docs/cluster.md, in their order, as somebody types them: on one machine, with SeaweedFS and a tiny
model for the bucket and the model that they name."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.cluster.bootstrap import open_shared
from murmur.cluster.group_keys import Group, Token, parse_token
from murmur.cluster.ledger import Ledger
from murmur.lab.localnet.store import read_ready
from murmur.lab.localnet.training_text import text_data
from murmur.protocol.types import PeerId
from storage.realtime import REAL
from tests.storage.conftest import served
from tests.test_commands import Command, commands
from tests.test_documents import ROOT

DOCUMENT = ROOT / "docs/cluster.md"
ELSEWHERE = {
    "murmur cluster demo --members 4 --kill 2": "tests/cli/test_cluster.py",
    "murmur cluster demo --spec murmur/configs/clusters/intellect-demo.toml": "tests/cli/test_cluster.py",
    "murmur plan --spec 150m --members 4": "tests/plan/test_cluster_plan.py",
}
LOCALLY = {
    "create": ["--local"],  # a store without https
    "doctor": ["--home", "home", "--device", "cpu"],
    "member": ["--home", "home", "--device", "cpu"],
}
"""What a machine without GPU and internet has to add."""
SECONDS = 240.0


def typed() -> list[Command]:
    return [command for command in commands(DOCUMENT) if command.said not in ELSEWHERE]


def test_what_is_run_elsewhere_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert all(words in text for words in ELSEWHERE)
    said = " ".join(command.said for command in typed())
    for action in ("create", "invite", "doctor", "status", "drain", "amend", "close", "rotate"):
        assert f"murmur cluster {action}" in said


class Machine:
    """Where the commands are typed, with what stands for the names in them."""

    def __init__(self, folder: Path, values: dict[str, str], secret: str) -> None:
        self.folder, self.values = folder, values
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MURMUR_BUCKET__SECRET_KEY": secret,
        }
        self.member: subprocess.Popen[str] | None = None

    def words(self, command: Command) -> list[str]:
        _, *words = (self.values.get(word, word) for word in command.words)
        if words[0] == "torchrun":
            at = words.index("neurons/member.py")
            return [sys.executable, str(ROOT / words[at]), *words[at + 1 :], *LOCALLY["member"]]
        return [sys.executable, "-m", "murmur", *words, *LOCALLY.get(words[1], [])]

    def type(self, command: Command) -> str:
        done = subprocess.run(
            self.words(command), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def look_at_page(self, command: Command) -> None:
        """Open the page as the command serves it, and end it."""
        words = [*self.words(command), "--port", "0"]
        page = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            assert page.stdout is not None
            url = page.stdout.readline().split()[4]
            with urllib.request.urlopen(f"{url}api/rounds", timeout=SECONDS) as answer:
                told = json.load(answer)
            assert (told["run"], told["cluster"]["closed"]) == ("my-run", False)
        finally:
            page.terminate()
            page.wait(SECONDS)

    def start_member(self, command: Command) -> None:
        self.member = subprocess.Popen(
            self.words(command), cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def member_ends(self) -> str:
        assert self.member is not None
        _, told = self.member.communicate(timeout=SECONDS)
        assert self.member.returncode == 0, told
        assert "Traceback" not in told
        return told

    @property
    def token(self) -> Token:
        return parse_token((self.folder / "my-run.token").read_text())

    def until(self, rounds: int) -> int:
        """Wait for so many records more; how many there are."""
        token = self.token
        ledger = Ledger(open_shared(token), token.run_id, Group(token.secret), PeerId(bytes(32)), REAL)
        wanted, end = ledger.rounds() + rounds, time.monotonic() + SECONDS
        while ledger.rounds() < wanted:
            assert time.monotonic() < end
            time.sleep(0.5)
        return wanted


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    store = tmp_path / "store"
    with served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "shared"], store / "ready.json"):
        ready = read_ready(store / "ready.json")
        user = ready.users["shared"]
        values = {
            "DATA": str(text_data(lambda line: None)),
            "150m": "tiny",
            "https://HOST": ready.endpoint,
            "NAME": user.bucket,
            "KEY": user.write_access_key,
            "NEW_KEY": user.write_access_key,
        }
        machine = Machine(tmp_path, values, user.write_secret_key)
        try:
            yield machine
        finally:
            if machine.member is not None and machine.member.poll() is None:
                machine.member.kill()
                machine.member.communicate()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_commands_of_a_cluster_run_in_their_order(machine: Machine) -> None:
    """A drained member ends with 0, and takes part again when it is started again; a closed run's member ends with 0,
    and who comes later learns that there is nothing to train."""
    starts = next(command for command in typed() if command.words[1] == "torchrun")
    for command in typed():
        action = re.sub(r"^(?:murmur cluster|export) ?", "", command.said).split(" ")[0]
        if command.words[0] == "export":
            continue  # in the environment of all commands here
        if command == starts:
            machine.start_member(command)
            machine.until(2)
            continue
        if command.words[1] == "dashboard":
            machine.look_at_page(command)
            continue
        if action == "rotate":  # as if the key were another one
            path, good = machine.folder / "my-run.token", machine.token
            path.write_text(good.model_copy(update={"access_key": "revoked"}).encode())
        told = machine.type(command)
        if action == "invite":
            (machine.folder / "token").write_text(told)
        elif action == "status":
            assert "lab-a" in told
        elif action == "drain":
            assert "drained: round" in machine.member_ends()
            machine.start_member(starts)
            machine.until(1)
        elif action == "close":
            assert "the run is closed: round" in machine.member_ends()
            machine.start_member(starts)
            assert "There is nothing to train" in machine.member_ends()
        elif action == "rotate":
            assert machine.token == good
