"""Room on a node's disk for strangers' payloads: what its own state may still write is never theirs.

Whoever passes the fast checks with noise gets its payload on a validator's disk, once as it was sent, and once for each
round in which copies of it are looked for. So the room is divided by the number of these copies. May not decide whose
payloads get it.
"""

from collections.abc import Iterable
from pathlib import Path
from shutil import disk_usage
from stat import S_ISDIR

from murmur.protocol.spec import RunSpec
from murmur.training.memory import Role, disk_parts

PAYLOADS = "payloads"
"""A validator's folder of remembered payloads (murmur/node/state/payload_history.py)."""
_CACHE = "cache"


def spare_bytes(spec: RunSpec, role: Role, folder: Path) -> int:
    """Return the bytes of free disk that the state in `folder` will not need: less the most that its parts take, as
    far as they are not there, and less the row and the files that it names, which are written anew before the old ones
    are removed."""
    own = sum(size for part, size in disk_parts(spec, role).items() if part not in (_CACHE, PAYLOADS))
    named = [folder / "files", *folder.glob("state.db*")]
    there = [path for path in folder.iterdir() if path not in named and path.name not in (_CACHE, PAYLOADS)]
    return disk_usage(folder).free - max(0, own - taken_bytes(there)) - taken_bytes(named)


def room_for_downloads(spec: RunSpec, role: Role, cache: Path) -> int:
    """Return the bytes of new files that may be fetched into `cache`, a folder of the state's; 0 if the disk cannot be
    looked at."""
    folder = cache.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if role == "miner":
            return max(0, spare_bytes(spec, role, folder))
        return max(0, min(spare_bytes(spec, role, folder), _share(spec, folder) - taken_bytes([cache])))
    except OSError:
        return 0


def room_for_remembered(spec: RunSpec, folder: Path) -> int:
    """Return the bytes that all the payloads which a validator remembers may take. The share of the next round's
    downloads stays free. Raises OSError."""
    there = taken_bytes([folder / PAYLOADS])
    return max(0, min(spare_bytes(spec, "validator", folder) + there, _copies(spec) * _share(spec, folder)))


def _copies(spec: RunSpec) -> int:
    """Rounds whose payloads a validator remembers at a time: a file is written before the oldest is removed."""
    return spec.gauntlet.copy_rounds + 1


def _share(spec: RunSpec, folder: Path) -> int:
    """Return a validator's room for the payloads of one round, once: as they were sent, or as they are remembered."""
    payloads = taken_bytes([folder / _CACHE, folder / PAYLOADS])
    return (spare_bytes(spec, "validator", folder) + payloads) // (1 + _copies(spec))


def taken_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes of these files, and of all files in these folders. A file with several names counts once; one
    that disappears meanwhile does not count."""
    sizes: dict[tuple[int, int], int] = {}
    for path in paths:
        for each in (path, *path.rglob("*")):
            try:
                found = each.lstat()
            except OSError:
                continue
            if not S_ISDIR(found.st_mode):
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())
