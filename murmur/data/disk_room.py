"""Disk space for fetched shards: the least recently needed are removed first."""

from collections.abc import Collection
from pathlib import Path


def make_room(folder: Path, max_bytes: int, *, needed: Collection[Path], coming_bytes: int) -> None:
    """Remove shards of `folder`, least recently needed first, until `coming_bytes` more fit into `max_bytes`, or only
    those `needed` are left.

    A file's modification time (set by `use`) is when the shard was last needed. A process killed here has only removed
    fewer. A shard that a process has mapped stays readable to it.
    """
    held = {path: path.stat() for path in folder.glob("*.npy")}
    taken = sum(facts.st_size for facts in held.values())
    spare = sorted((facts.st_mtime_ns, path) for path, facts in held.items() if path not in needed)
    for _, path in spare:
        if taken + coming_bytes <= max_bytes:
            return
        path.unlink(missing_ok=True)
        taken -= held[path].st_size


def use(paths: Collection[Path]) -> None:
    """Mark those of the shards that exist as needed now."""
    for path in paths:
        if path.exists():
            path.touch()
