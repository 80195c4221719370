"""One history a test: whose turn it is follows from sealed payloads, and so from their keys."""

from collections.abc import Iterator

import pytest

from murmur.cli.simulate import drawn_keys


@pytest.fixture(autouse=True)
def _drawn_keys() -> Iterator[None]:
    with drawn_keys(1):
        yield
