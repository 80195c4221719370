"""Files on odd machines. Paths that begin with `~`, where the user has no home: containers run as a uid that no file of
users knows, and services without HOME. Paths with letters, where the locale is none of UTF-8. Standard streams that are
closed."""

import atexit
import getpass
import os
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from murmur.protocol.errors import ConfigError

_STAND_IN = "murmur-home-"
"""How the home of a process's libraries, and of its children, begins where their user has none. Nothing of ours belongs
there."""
_UTF8 = "C.UTF-8"


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
    Bittensor for the other when it is imported, and both break off without. And let it write paths as UTF-8, and have
    all standard streams."""
    _open_standard_streams()
    _name_files_in_utf8()
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ["USER"] = f"uid{os.getuid()}"
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = mkdtemp(prefix=_STAND_IN)
        atexit.register(rmtree, os.environ["HOME"], ignore_errors=True)


def _open_standard_streams() -> None:
    """Open what a supervisor, or `>&-`, has left closed. Else the next file would get the number of a standard stream,
    and a library's warnings would be written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process lasts
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _name_files_in_utf8() -> None:
    """Begin this program anew in a locale of UTF-8, unless its paths are in UTF-8 already. In another one the letters
    of a path would be other bytes for this process than for its libraries, its files of settings, and a service that
    has no locale: other folders."""
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("LC_ALL") == _UTF8:
        return
    os.environ["LC_ALL"] = _UTF8  # not PYTHONUTF8: Python 3.11 would still read the links in site-packages as before
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
