"""Hypothesis runs the same cases every time, so that a failure on one machine is a failure on all."""

import pytest
from hypothesis import settings

from protocol.spec import Run, RunSpec
from tests.specs import toy_spec

settings.register_profile("protocol", derandomize=True, deadline=None)
settings.load_profile("protocol")


@pytest.fixture(scope="session")
def spec() -> RunSpec:
    return toy_spec()


@pytest.fixture
def run(spec: RunSpec) -> Run:
    return Run(spec)
