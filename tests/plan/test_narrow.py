"""The plan on a narrow terminal: every word, in lines that it holds. A pipe's are as wide as ever."""

import subprocess
import sys

import pytest

PLANS = {
    "a run": ("--spec", "150m", "--gpus", "1", "--gpu-memory", "24", "--gpu-tflops", "60"),
    "refused": ("--spec", "8b", "--gpus", "1"),
    "a cluster": ("--spec", "150m", "--members", "4"),
    "fine-tuning": ("--spec", "8b", "--sft", "covenant-72b"),
}


def shown(words: tuple[str, ...], columns: str | None) -> str:
    environment = {} if columns is None else {"COLUMNS": columns}
    done = subprocess.run(
        [sys.executable, "-m", "murmur", "plan", *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("words", PLANS.values(), ids=PLANS)
def test_a_narrow_terminal_gets_every_word(words: tuple[str, ...]) -> None:
    wide = shown(words, None)
    assert max(map(len, wide.splitlines())) <= 110
    for columns in (40, 80):
        narrow = shown(words, str(columns))
        assert max(map(len, narrow.splitlines())) <= columns
        assert narrow.split() == wide.split()
    assert shown(words, "200") == wide
