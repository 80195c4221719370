"""How a real member ends: it says so in its last beat, and nobody waits until it is silent."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from murmur.configs import presets
from murmur.lab.localnet.cluster import prepare, program, reader, set_up
from murmur.node.telemetry.events import read_events
from murmur.protocol.cluster import Beat
from murmur.protocol.errors import StorageError

BEAT_SECONDS, SILENT_SECONDS = 0.5, 40.0
LEAVES_SECONDS = 15.0
"""From its end's cause to its last beat, on a busy machine. Its silence would take longer."""
STEPS = 40
LISTEN = "0A"
ROOT = Path(__file__).parents[3]
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"
PROGRAM = """
import os, sys, time
from functools import partial
from murmur.cli.programs import member
from murmur.node.program.process import run_program
from murmur.rounds.contribution import Training

go_on, cause = Training.go_on, sys.argv.pop(1)

def until_the_cause(training, stopped):
    def fails():
        time.sleep(0.3)
        if os.path.exists(cause):
            raise RuntimeError("out of memory")
        return stopped()
    return go_on(training, fails)

Training.go_on = until_the_cause
sys.exit(run_program(partial(member, sys.argv[1:], "member")))
"""
"""A member that is slow enough to be met in the middle of a round. Its training raises an error as soon as a file is
there."""


class Pair:
    """Two real members on a real store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cause = folder, folder / "cause"
        self.processes = prepare(folder)
        self.processes.environment = {**self.processes.environment, "PYTHONPATH": str(ROOT)}
        (folder / "program.py").write_text(PROGRAM)

    def start(self) -> None:
        table = presets.table("tiny")
        table["inner"]["steps"] = STEPS
        table["cluster"] = {"beat_seconds": BEAT_SECONDS, "silent_seconds": SILENT_SECONDS}
        token, spec = set_up(self.folder, self.processes, 0, table, lambda line: None)
        self.ledger = reader(token, spec)
        self._member("stays", self.folder / "never")

    def join(self, *launcher: str) -> None:
        """Start the one that will leave, on its home of the last time, and wait until both train."""
        self.cause.unlink(missing_ok=True)
        self._member("leaves", self.cause, *launcher)
        self.wait_for(self._trains_beside_the_other)

    def _member(self, name: str, cause: Path, *launcher: str) -> None:
        words = program(self.folder, name)[3:]
        self.processes.start(name, [*launcher, str(self.folder / "program.py"), str(cause), *words])

    @property
    def beat(self) -> Beat | None:
        """The last one of the member that leaves."""
        with suppress(StorageError):
            return next((beat for beat in self.ledger.beats().values() if beat.name == "leaves"), None)
        return None

    def pid(self, name: str) -> int:
        return self.processes.children[name].process.pid

    def wait_for(self, happened: Callable[[], bool], seconds: float = 180.0) -> float:
        """Return how long it took."""
        began = time.monotonic()
        while not happened():
            assert time.monotonic() < began + seconds, self.processes.last_lines("leaves")
            time.sleep(0.02)
        return time.monotonic() - began

    def _trains_beside_the_other(self) -> bool:
        """Whether it is in the first half of a round, and the record before names both."""
        beat = self.beat
        if beat is None or beat.round == 0 or beat.phase != "train" or beat.leaving or not 0 < beat.step < STEPS / 2:
            return False
        before = self.ledger.record(beat.round - 1)
        return before is not None and len(before.updates) == 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair") / "run")
    try:
        pair.start()
        yield pair
    finally:
        pair.processes.stop()


def listened_at(process: int) -> set[str]:
    """The local addresses at which the process itself waits for connections."""
    opened = set[str]()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            opened.add(os.readlink(entry))
    found = set[str]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and f"socket:[{fields[9]}]" in opened:
                found.add(fields[1])
    return found


def terminate(pair: Pair) -> None:
    os.kill(pair.pid("leaves"), signal.SIGTERM)


def let_training_fail(pair: Pair) -> None:
    pair.cause.touch()


def assert_leaves(pair: Pair, end: Callable[[Pair], None]) -> None:
    """It says so at once, and the other closes the round before it could know by silence."""
    end(pair)
    says = pair.wait_for(lambda: bool((beat := pair.beat) and beat.leaving), SILENT_SECONDS)
    last = pair.beat
    assert last is not None
    goes_on = says + pair.wait_for(lambda: pair.ledger.record(last.round) is not None)
    assert says < LEAVES_SECONDS
    assert goes_on < SILENT_SECONDS - BEAT_SECONDS
    record = pair.ledger.record(last.round)
    assert record is not None
    assert last.phase == "train"
    assert len(record.updates) == 1


def test_the_search_for_listening_sockets_finds_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"0100007F:{port:04X}" in listened_at(os.getpid())


def test_no_member_listens_on_a_port(pair: Pair) -> None:
    """In the middle of a round, where it has opened whatever it opens."""
    pair.join()
    found = {name: listened_at(pair.pid(name)) for name in ("leaves", "stays")}
    terminate(pair)
    assert pair.processes.children["leaves"].process.wait(20) == 0
    assert found == {"leaves": set(), "stays": set()}


@pytest.mark.parametrize(
    ("end", "status", "fault"), [(terminate, 0, None), (let_training_fail, 1, "out of memory")], ids=["term", "error"]
)
def test_a_member_says_that_it_leaves_and_the_other_does_not_wait_for_its_silence(
    pair: Pair, end: Callable[[Pair], None], status: int, fault: str | None
) -> None:
    pair.join()
    assert_leaves(pair, end)
    assert pair.processes.children["leaves"].process.wait(20) == status
    events = read_events(pair.folder / "nodes/leaves/events.jsonl")
    assert [event["fault"] for event in events if event["event"] == "stopped"][-1:] == [fault]


@pytest.mark.slow
def test_a_member_says_that_it_leaves_when_its_torchrun_is_asked_to_end(pair: Pair) -> None:
    pair.join(*TORCHRUN)
    assert_leaves(pair, terminate)
