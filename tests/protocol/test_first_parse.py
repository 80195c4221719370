"""A shape's first parse, by many threads at once: msgspec alone would crash the process nearly each time."""

import subprocess
import sys


def test_threads_that_parse_a_shape_first_and_together_crash_nothing() -> None:
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-m", "tests.protocol.first_parse"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
