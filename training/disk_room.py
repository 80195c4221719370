"""Room on the disk for shards of others: those that were needed longest ago go first."""

from collections.abc import Collection
from pathlib import Path


def make_room(folder: Path, max_bytes: int, *, needed: Collection[Path], coming_bytes: int) -> None:
    """Remove shards of `folder`, least recently needed first, until `coming_bytes` more fit into `max_bytes`, or only
    those `needed` are left.

    When a shard was needed last is its file's time of change (`use`); killed at any line, it has removed fewer. What a
    process has mapped stays readable to it.
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
    """These shards are needed now, as far as they are there."""
    for path in paths:
        if path.exists():
            path.touch()
