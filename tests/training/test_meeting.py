"""Where ranks meet: on loopback, whoever started them; a platform's variables are believed only together."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.lab.localnet.ports import free_ports
from murmur.protocol.errors import ConfigError
from murmur.training.meeting import forget_platform, is_open, launched
from tests.ports import beyond_loopback

ROOT = Path(__file__).parents[2]
OURS = ["-m", "murmur", "torchrun", "--nproc_per_node", "2", "--module"]
TORCHS = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--module"]
WHOLE = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("launcher", [OURS, TORCHS], ids=["ours", "torch's"])
def test_a_stranger_at_the_launchers_store_calls_nobody(launcher: list[str], tmp_path: Path) -> None:
    command = [sys.executable, *launcher, "tests.training.meets", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "took").read_text()) == ["honest", {}]
    ports = json.loads((tmp_path / "ports").read_text())
    assert len(ports) >= 3  # the launcher's store, the ranks' own, gloo's
    assert (beyond_loopback(ports) == []) == (launcher is OURS)
    assert ("listens on every interface" in done.stderr) == (launcher is TORCHS)


@pytest.mark.parametrize("missing", sorted(WHOLE))
def test_a_platforms_variables_without_one_of_torchruns_start_one_process(missing: str) -> None:
    assert launched({name: value for name, value in WHOLE.items() if name != missing}) is None


@pytest.mark.parametrize("missing", sorted(WHOLE))
def test_libraries_see_none_of_a_platforms_variables(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate believes LOCAL_RANK alone, and then asks for the others."""
    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)
    forget_platform()
    assert os.environ["LOCAL_RANK"] == "1"
    monkeypatch.delenv(missing)
    forget_platform()
    assert not os.environ.keys() & WHOLE.keys()


def test_all_of_torchruns_variables_together_are_a_rank() -> None:
    place = launched(WHOLE)
    assert place is not None
    assert (place.rank, place.size, place.of_torchrun) == (1, 4, False)
    assert launched(WHOLE | {"WORLD_SIZE": "1", "RANK": "0"}) is None


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"WORLD_SIZE": "four"}, "four"),
        ({"RANK": "4"}, "RANK=4"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0"),
        ({"LOCAL_WORLD_SIZE": "2"}, "--nnodes"),
    ],
)
def test_variables_that_cannot_be_are_named(other: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        launched(WHOLE | other)


WAITS = """
import sys, torch
from functools import partial
from murmur.node.program.process import log_to_stderr, run_program
from murmur.training import meeting, parallel
meeting._TELL_SECONDS = 0.2
log_to_stderr("INFO")
sys.exit(run_program(lambda: parallel.run(lambda ranks: None, None, torch.device("cpu"))))
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_that_nobody_else_joins_say_for_whom_they_wait_and_can_be_stopped(rank: str) -> None:
    environment = WHOLE | {"RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": str(free_ports(1)[0])}
    command = [sys.executable, "-c", WAITS]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert f"waits for rank{'s 1' if rank == '0' else ' 0'}" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_a_port_that_is_taken_ends_the_first_rank_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_open(port)
        environment = WHOLE | {"RANK": "0", "MASTER_PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "-c", WAITS], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
        )
    assert done.returncode == 2
    assert f"MASTER_PORT {port}" in done.stderr
    assert "Traceback" not in done.stderr


STAYS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda signum, frame: None)
if os.environ["RANK"] == "0":
    raise SystemExit({status})
time.sleep(600)
"""


@pytest.mark.parametrize("status", [0, 75])
def test_a_rank_that_hangs_once_the_first_has_ended_is_killed_and_the_status_is_the_firsts(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one inside an operation of GPUs that the first has left."""
    monkeypatch.setattr("murmur.training.launch._END_SECONDS", 0.5)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    (tmp_path / "stays.py").write_text(STAYS.format(status=status))
    try:
        assert main(["torchrun", "--nproc_per_node", "2", str(tmp_path / "stays.py")]) == status
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ranks_that_are_asked_to_end_while_they_start_are_no_failure(signum: int, tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nos.write(1, b'up\\n')\ntime.sleep(600)"
    )
    command = [sys.executable, "-m", "murmur", "torchrun", "--nproc_per_node", "2", str(tmp_path / "starts.py")]
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, hung_up)
    assert launcher.stdout is not None
    assert [launcher.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    launcher.send_signal(signum)
    assert launcher.wait(60) == 0
    launcher.stdout.close()
