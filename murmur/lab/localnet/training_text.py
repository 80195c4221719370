"""Training text that every installation has: made into shards once, and cached."""

import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from murmur.data.build import build
from murmur.homes import expanded

TEXT_BYTES = 6_000_000
_FORM = "whole"
"""Changed whenever the same text gives shards in another form."""


def cache_folder() -> Path:
    """Return the cache of data that can be rebuilt."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "murmur"
    return expanded(os.environ.get("MURMUR_CACHE", default))


def text_data(say: Callable[[str], None]) -> Path:
    """Return the folder of tokenised text: botocore's documentation strings, built once and cached."""
    folder = cache_folder() / "data" / f"botocore-{version('botocore')}-{TEXT_BYTES}-{_FORM}"
    if not (folder / "index.json").exists():
        say("extracting text to train on (once)")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        build("botocore", partial, limit_bytes=TEXT_BYTES)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    return folder
