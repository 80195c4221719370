"""Paths that begin with `~`, on machines where the user has no home: containers run as a uid that no file of users
knows, and services without HOME."""

import atexit
import getpass
import os
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from murmur.protocol.errors import ConfigError

_STAND_IN = "murmur-home-"
"""How the home of a process's libraries, and of its children, begins where their user has none. Nothing of ours belongs
there."""


def expanded(path: Path | str) -> Path:
    """Return the path with `~` replaced. Raises ConfigError where nothing says what it stands for."""
    found = Path(path)
    try:
        if not str(found).startswith("~") or not Path.home().name.startswith(_STAND_IN):
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
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ["USER"] = f"uid{os.getuid()}"
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = mkdtemp(prefix=_STAND_IN)
        atexit.register(rmtree, os.environ["HOME"], ignore_errors=True)
