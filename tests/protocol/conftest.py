"""The toy run (tests/specs.py)."""

import pytest

from protocol.spec import Run, RunSpec
from tests.specs import toy_spec


@pytest.fixture(scope="session")
def spec() -> RunSpec:
    return toy_spec()


@pytest.fixture
def run(spec: RunSpec) -> Run:
    return Run(spec)
