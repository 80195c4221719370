"""The commit that a benchmark's numbers belong to."""

import subprocess


def commit() -> str:
    """Short hash of this tree's HEAD; empty outside of git."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()
