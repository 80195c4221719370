"""A page that is served."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from murmur.page.folder import Folder
from murmur.page.server import Page


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Page]]:
    pages: list[Page] = []

    def start(folder: Path) -> Page:
        pages.append(Page(Folder(folder)).begin())
        return pages[-1]

    yield start
    for page in pages:
        page.close()
