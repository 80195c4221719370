"""For the whole suite: Hypothesis tries the same cases every time and has no deadline, so that a failure on one machine
is a failure on all and a busy machine fails nothing; files in memory, so that nobody waits for a disk; and a modelled
time for tests that are about time."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from murmur.lab.simulation.clock import Clock, Life

settings.register_profile("suite", derandomize=True, deadline=None)
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


LONGEST_FIRST = (
    "tests/storage/test_faults.py",
    "tests/lab/localnet/test_network.py",
    "tests/owner/test_amend.py",
    "tests/node/test_liars.py",
    "tests/training/test_parallel.py",
    "tests/node/test_tip.py",
    "tests/training/test_memory.py",
    "tests/lab/simulation/",
    "tests/rounds/test_audit.py",
    "tests/rounds/test_votes.py",
    "tests/lab/arena/test_attacks.py",
    "tests/sparseloco/test_native.py",
    "tests/lab/localnet/",
    "tests/rounds/",
    "tests/training/",
    "tests/node/",
    "tests/storage/",
)
"""Files and folders that take most, longest first. Begun last, they would run alone at the end, beside idle ones."""


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary folders into memory: nodes wait for the disk after every write, and no test pulls the plug. Slow
    tests use the disk, for what they need of it (extended attributes)."""
    if config.option.markexpr != "not slow" or not os.path.isdir(MEMORY):
        return
    system = os.statvfs(MEMORY)
    runs_programs = not system.f_flag & os.ST_NOEXEC
    if runs_programs and system.f_bavail * system.f_frsize >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path)), len(items))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What is imported by now stays: it need not be looked through for cycles again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
