"""For the whole suite: Hypothesis tries the same cases every time and has no deadline, so that a failure on one machine
is a failure on all and a busy machine fails nothing; and a modelled time for tests that are about time."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from simulation.clock import Clock, Life

settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


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
