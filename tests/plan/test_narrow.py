"""The plan on a narrow terminal: every word, in lines that it holds. A pipe's are as wide as ever."""

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

PLANS = {
    "a run": ("--spec", "150m", "--gpus", "1", "--gpu-memory", "24", "--gpu-tflops", "60"),
    "refused": ("--spec", "8b", "--gpus", "1"),
    "a cluster": ("--spec", "150m", "--members", "4"),
    "fine-tuning": ("--spec", "8b", "--sft", "covenant-72b"),
}


def piped(words: tuple[str, ...]) -> str:
    command, environment = [sys.executable, "-m", "murmur", "plan", *words], {"COLUMNS": "40"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    return done.stdout


def shown(words: tuple[str, ...], columns: int) -> str:
    """What a terminal of this width shows."""
    terminal, its_end = pty.openpty()
    command, environment = [sys.executable, "-m", "murmur", "plan", *words], {"COLUMNS": str(columns)}
    process = subprocess.Popen(command, stdout=its_end, env=environment)
    os.close(its_end)
    said = bytearray()
    with suppress(OSError):  # EIO: nobody writes any more
        while data := os.read(terminal, 4096):
            said += data
    process.wait(60)
    os.close(terminal)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("words", PLANS.values(), ids=PLANS)
def test_a_narrow_terminal_gets_every_word(words: tuple[str, ...]) -> None:
    wide = piped(words)
    assert max(map(len, wide.splitlines())) <= 110
    for columns in (40, 80):
        narrow = shown(words, columns)
        assert max(map(len, narrow.splitlines())) <= columns
        assert narrow.split() == wide.split()
    assert shown(words, 200) == wide
