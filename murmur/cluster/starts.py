"""Back-off of a home whose member dies again and again before it has claimed anything: it would trouble the others."""

from contextlib import suppress
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.protocol.ports import Time

FREE_STARTS = 2
LONGEST_SECONDS = 120.0


class Starts:
    """Counts a home's starts since its last claim, in this file, and knows its last process."""

    def __init__(self, path: Path, time: Time) -> None:
        self._path, self._process, self._time = path, path.with_name("process"), time

    def wait(self, beat_seconds: float) -> None:
        """Count a start, and wait: nothing at the first two, then a beat, and each time twice as long."""
        count = self._count()
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write(self._path, str(count + 1).encode())
        if count < FREE_STARTS:
            return
        seconds = min(LONGEST_SECONDS, beat_seconds * 2.0 ** min(count - FREE_STARTS, 20))
        logger.warning(
            "the last {count} starts of this member ended before it had claimed anything, so this one waits for "
            "{seconds:.0f} s: the other members would wait for it each time. See why it ended, above",
            count=count,
            seconds=seconds,
        )
        self._time.sleep(seconds)

    def clear(self) -> None:
        """Forget them: we have claimed."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def is_last(self, process: str) -> bool:
        """Whether this is the home's last process, of before our start."""
        with suppress(OSError, UnicodeDecodeError):
            return self._process.read_text() == process
        return False

    def note(self, process: str) -> None:
        """Remember our process."""
        with suppress(OSError):
            self._process.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write(self._process, process.encode())

    def _count(self) -> int:
        with suppress(OSError, ValueError):
            return int(self._path.read_text())
        return 0
