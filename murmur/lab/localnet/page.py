"""The page of a run on this machine, from its first second on."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from murmur.page.server import Page


def open_page(folder: Path, port: int = 0, host: str = "127.0.0.1") -> "Page | None":
    """Return the run's page, not started yet. None where its two packages are not installed. port: 0 for any free one.
    Raises ConfigError for a port that is taken, or an address that is not this machine's."""
    try:
        from murmur.page.folder import Folder
        from murmur.page.server import Page
    except ModuleNotFoundError:
        return None
    page = Page(Folder(folder), port, host)
    sys.stderr.write(f"the page of this run is at {page.url}\n")
    return page
