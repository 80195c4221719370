"""The toy run (tests/specs.py)."""

import pytest

from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec
from tests.specs import toy_spec


@pytest.fixture(scope="session")
def spec() -> RunSpec:
    return toy_spec()


@pytest.fixture
def run(spec: RunSpec) -> Run:
    return Run(spec)
