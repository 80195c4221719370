"""For the whole suite: which tests belong to `make test` and which to `make check`; Hypothesis tries the same cases
every time and has no deadline, so that a failure on one machine is a failure on all and a busy machine fails nothing;
files in memory, so that nobody waits for a disk; and a modelled time for tests that are about time."""

import gc
import os
import sys

# Before torch and numpy are imported, here and in every process that the suite starts: each would use all cores.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Tests ask servers with plain boto3 and urllib too, which would take this user's profile and proxies for their own.
for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from murmur.lab.simulation.clock import Clock, Life
from sparseloco import kernels
from tests import random_cases

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=random_cases.share(100))
settings.load_profile("suite")

# Where this is set, every process that the suite starts would compile the whole project again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

MEMORY, MEMORY_BYTES = "/dev/shm", 4 << 30
"""A file system in memory, and the least room there for the suite to use it: it takes some 100 MB."""
GARBAGE_OBJECTS = 20_000
"""New objects after which Python looks for cycles; its own 700 cost a tenth of the suite."""


@pytest.fixture
def life() -> Iterator[Life]:
    """A process in modelled time, in which the test itself waits too: what is waited for costs nothing, and it lasts
    exactly as long as was asked for."""
    clock = Clock(0)
    life = clock.life("node")
    yield life
    life.kill()
    clock.run(clock.now)
    clock.close()


@pytest.fixture
def share() -> Callable[[int], int]:
    """For tests that draw their cases themselves: how many of so many random ones are tried."""
    return random_cases.share


CHECKED_FIXTURES = {
    # stores
    "s3_folder",
    "rclone_endpoint",
    "swift_endpoint",
    # a browser
    "tab",
    # networks of real nodes over fakes
    "networks",
    "played",
    "watched",
}
"""What uses one of them belongs to `make check`."""
CHECKED_PARAMETERS = {"server", "seaweedfs", "rclone", "swift", "devnet"}
"""Values of a fixture's parameter that stand for a server."""
CHECKED = (
    # the devnet
    "tests/lab/devnet/",
    "tests/chain/test_adapter_on_devnet.py",
    "tests/chain/test_operator.py",
    # servers, processes and ranks of their own
    "tests/chain/test_adapter.py::test_a_chain_opened_before_a_fork",
    "tests/cli/test_cluster.py",
    "tests/cli/test_cluster_doctor.py",
    "tests/cli/test_cluster_requests.py",
    "tests/cli/test_cluster_stores.py",
    "tests/docker_files/test_start.py",
    "tests/lab/localnet/test_chaos.py",
    "tests/lab/localnet/test_cluster_leaving.py",
    "tests/lab/localnet/test_doctor.py",
    "tests/lab/localnet/test_network.py",
    "tests/lab/localnet/test_open_ports.py",
    "tests/lab/localnet/test_parts.py",
    "tests/lab/localnet/test_processes.py",
    "tests/lab/localnet/test_stop.py",
    "tests/lab/localnet/test_watch.py",
    "tests/neurons/test_start.py",
    "tests/node/test_beside_training.py",
    "tests/node/test_redo_log.py::test_killed_at_any_write",
    "tests/node/test_store.py::test_killed_at_any_step",
    "tests/owner/test_amend.py",
    "tests/storage/test_seaweed.py",
    "tests/training/test_meeting.py::test_a_stranger",
    "tests/training/test_memory.py::test_the_host_takes",
    "tests/training/test_parallel.py",
    "tests/training/test_voids.py",
    # simulations
    "tests/cli/test_simulate.py::test_a_node_that_decides",
    "tests/cli/test_simulate.py::test_miners_that_show",
    "tests/cli/test_simulate.py::test_no_lie_of_a_third",
    "tests/cli/test_simulate.py::test_one_seed_is_one_history",
    "tests/cli/test_simulate.py::test_twenty_rounds",
    "tests/lab/simulation/test_cluster",
    "tests/lab/simulation/test_give_back.py",
    "tests/lab/simulation/test_matrix.py",
    "tests/lab/simulation/test_planted.py",
    # what an edit of a page breaks, and what is handed out
    "tests/test_cluster_commands.py",
    "tests/test_commands.py",
    "tests/test_documents.py",
    "tests/test_prose.py",
    "tests/test_release.py",
    "tests/test_start_a_run.py",
    "tests/test_tour.py",
    # the benchmarks' own
    "tests/benchmarks/",
)
"""Folders, files and tests that start something by themselves, or need not pass before each commit."""


def checked(item: pytest.Item) -> bool:
    """Whether a test belongs to `make check` alone. One of many of its kind may stay, by the marker `quick`."""
    if item.get_closest_marker("quick"):
        return False
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return (
        item.nodeid.startswith(CHECKED)
        or not CHECKED_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or bool(parameters and not CHECKED_PARAMETERS.isdisjoint(item.callspec.id.split("-")))
        or parameters.get("isa", BEST_ISA) != BEST_ISA
    )


def best_isa() -> str:
    try:
        return kernels.supported()[-1]
    except kernels.Unavailable:
        return "none"


BEST_ISA = best_isa()
"""Of the native codec here; what is slower gives the same bits, and is checked by `make check`."""

LONGEST_FIRST = (
    "tests/storage/test_faults.py",
    "tests/node/test_liars.py",
    "tests/lab/simulation/test_cluster",
    "tests/owner/test_amend.py",
    "tests/cli/test_cluster",
    "tests/neurons/test_start.py",
    "tests/storage/test_seaweed.py",
    "tests/node/test_tip.py",
    "tests/training/test_memory.py",
    "tests/lab/",
    "tests/training/test_parallel.py",
    "tests/sparseloco/",
    "tests/rounds/",
    "tests/training/",
    "tests/node/",
    "tests/cli/",
    "tests/storage/",
    "tests/gauntlet/",
)
"""Files and folders that take most, longest first. Begun last, they would run alone at the end, beside idle ones."""


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary folders into memory: nodes wait for the disk after every write, and no test pulls the plug. Slow
    tests use the disk, for what they need of it (extended attributes). Of several processes (`-n`) each takes whole
    files, so that a module's fixtures are made once."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist, config.option.loadscopereorder = "loadfile", False
    others = config.option.markexpr.replace("not slow", "")
    if "slow" in others or others == config.option.markexpr or not os.path.isdir(MEMORY):
        return
    system = os.statvfs(MEMORY)
    runs_programs = not system.f_flag & os.ST_NOEXEC
    if runs_programs and system.f_bavail * system.f_frsize >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path)), len(items))

    for item in items:
        if checked(item):
            item.add_marker("check")
        elif "share" in item.fixturenames or is_hypothesis_test(item.function):
            item.add_marker("random")
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What is imported by now stays: it need not be looked through for cycles again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
