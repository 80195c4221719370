"""Paths that begin with `~`, on machines where the user has no home: containers run as a uid that no file of users
knows, and services without HOME."""

import atexit
import getpass
import os
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from murmur.protocol.errors import ConfigError

_stand_in: str | None = None
"""The home of this process's libraries, where its user has none. Nothing of ours belongs there."""


def expanded(path: Path | str) -> Path:
    """Return the path with `~` replaced. Raises ConfigError where nothing says what it stands for."""
    found = Path(path)
    try:
        if _stand_in is None or not str(found).startswith("~"):
            return found.expanduser()
    except RuntimeError:
        pass
    raise ConfigError(
        f"{path} begins with ~, and this user (uid {os.getuid()}) has no home folder: set HOME, or give full paths "
        "(--home, MURMUR_HOME; for wallets --wallet.path, MURMUR_WALLET__PATH)"
    )


def provide_for_libraries() -> None:
    """Give this process a user's name and a home where it has none: torch asks for the one before it compiles,
    Bittensor for the other when it is imported, and both break off without."""
    global _stand_in
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ["USER"] = f"uid{os.getuid()}"
    try:
        Path.home()
    except RuntimeError:
        _stand_in = os.environ["HOME"] = mkdtemp(prefix="murmur-home-")
        atexit.register(rmtree, _stand_in, ignore_errors=True)
