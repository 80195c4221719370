"""Text to train on that every installation has: made into shards once, and kept."""

import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from training.build import build

TEXT_BYTES = 6_000_000
_FORM = "turns"
"""Another one where shards come out of the same text in another form."""


def cache_folder() -> Path:
    """Where data that can be made again is kept between runs."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "murmur"
    return Path(os.environ.get("MURMUR_CACHE", default)).expanduser()


def text_data(say: Callable[[str], None]) -> Path:
    """Tokenised text: botocore's documentation strings, made once and kept."""
    folder = cache_folder() / "data" / f"botocore-{version('botocore')}-{TEXT_BYTES}-{_FORM}"
    if not (folder / "index.json").exists():
        say("extracting text to train on (once)")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        build("botocore", partial, limit_bytes=TEXT_BYTES)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    return folder
