"""A command's run folder."""

from datetime import datetime
from pathlib import Path

from murmur.protocol.errors import ConfigError


def new_folder(wanted: Path | None) -> Path:
    """Create the run folder (default runs/<time>), which must be empty, and return it. Raises ConfigError."""
    folder = (wanted or Path("runs") / datetime.now().strftime("%Y-%m-%d-%H%M%S")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose another --folder")
    except OSError as fault:
        raise ConfigError(f"cannot make the run folder {folder}: {fault.strerror}; choose another --folder") from None
    return folder
