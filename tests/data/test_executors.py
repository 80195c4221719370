"""The same digest whoever runs the tasks: this machine, Slurm, Ray. Both are real, where they are installed."""

import getpass
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.data.build import build
from murmur.data.job import BUILDING
from murmur.data.recipe import executed
from murmur.protocol.errors import ConfigError
from tests.data.test_build import contents, text_folder

SLURM = """
ClusterName=one
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort=26817
SlurmdPort=26818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Slurm with one node, this machine. Debian has it: slurm-wlm and munge."""
    if shutil.which("slurmctld") is None or shutil.which("munged") is None or os.getuid() != 0:
        pytest.skip("needs root, slurm-wlm and munge")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(SLURM.format(host=host, user=getpass.getuser(), folder=folder))
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    started = []
    if not Path("/run/munge/munge.socket.2").exists():
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
    for words in (["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
        started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    until = time.monotonic() + 60
    while b"idle" not in subprocess.run(["sinfo"], capture_output=True, check=False).stdout:
        assert time.monotonic() < until, "Slurm was not ready within a minute"
        time.sleep(0.5)
    yield  # type: ignore[misc]
    for process in started:
        process.terminate()
        process.wait(20)
    patch.undo()


def require_no_jobs() -> None:
    until = time.monotonic() + 20
    while subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout:
        assert time.monotonic() < until
        time.sleep(0.2)


def cut_behind_the_sample(folder: Path) -> None:
    rows = b"".join(
        json.dumps({"text": f"row {number} {os.urandom(50).hex()}"}).encode() + b"\n" for number in range(2000)
    )
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(rows)[:-2000])


RECIPE = """
held_out = 2000
[[sources]]
path = "text"
[executor]
kind = "slurm"
partition = "cpu"
time = "00:10:00"
memory_gb = 1
tasks = 5
workers = 2
"""


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_builds_the_same_data_set_also_when_its_driver_is_killed(tmp_path: Path) -> None:
    build(str(text_folder(tmp_path)), tmp_path / "here", held_out=2000.0)
    (tmp_path / "data.toml").write_text(RECIPE)
    words = ["shards", "build", str(tmp_path / "data.toml"), "--out"]
    driver = subprocess.Popen([sys.executable, "-m", "murmur", *words, str(tmp_path / "out")])
    while not (tmp_path / "out" / BUILDING / "log" / "text" / "executor.pik").exists():
        assert driver.poll() is None
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert main([*words, str(tmp_path / "out")]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "here")
    require_no_jobs()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_task_of_slurm_says_why_it_failed_and_the_others_end(tmp_path: Path) -> None:
    folder = text_folder(tmp_path)
    cut_behind_the_sample(folder)
    with pytest.raises(ConfigError, match=r"cut\.jsonl\.gz cannot be read to its end"):
        build(str(folder), tmp_path / "out", kind="slurm", partition="cpu", memory_gb=1, tasks=5)
    require_no_jobs()
    with pytest.raises(ConfigError, match="invalid partition"):
        build(str(folder / "*.txt"), tmp_path / "never", kind="slurm", partition="gpu", tasks=5)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_ray_builds_the_same_data_set_and_says_why_it_failed(tmp_path: Path) -> None:
    folder = text_folder(tmp_path)
    build(str(folder), tmp_path / "here")
    build(str(folder), tmp_path / "out", kind="ray", tasks=5, workers=2, memory_gb=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "here")
    cut_behind_the_sample(folder)
    with pytest.raises(ConfigError, match=r"cut\.jsonl\.gz cannot be read to its end"):
        build(str(folder), tmp_path / "never", kind="ray", tasks=5, workers=2, memory_gb=1)


def test_what_an_executor_lacks_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    source = str(text_folder(tmp_path))
    with pytest.raises(ConfigError, match="no sbatch here"):
        build(source, tmp_path / "out", kind="slurm", partition="cpu")
    with pytest.raises(ConfigError, match="Slurm needs a partition"):
        executed(kind="slurm")
    with pytest.raises(ConfigError, match="kind"):
        executed(kind="cloud")
    (tmp_path / "sbatch").write_text("")
    (tmp_path / "sbatch").chmod(0o755)
    from murmur.data.place import place_of

    with pytest.raises(ConfigError, match="give a shared one"):
        build(source, place_of("s3://bucket/data"), kind="slurm", partition="cpu")
    assert not (tmp_path / "out").exists()
