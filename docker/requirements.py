"""What pyproject.toml depends on, a line for each: for a layer of the image that needs no sources.

    python requirements.py [EXTRA]

With an extra what that adds, other extras of the project included.
"""

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extra: str | None) -> list[str]:
    """Of the `[project]` table. KeyError for an extra that it does not have."""
    optional: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    wanted: list[str] = project["dependencies"] if extra is None else optional[extra]  # type: ignore[assignment]
    found = []
    for line in wanted:
        own = re.fullmatch(rf"{re.escape(str(project['name']))}\[([a-z,]+)\]", line)
        extras = own[1].split(",") if own is not None else []
        found += [line] if own is None else [one for extra in extras for one in requirements(project, extra)]
    return found


if __name__ == "__main__":
    table = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    sys.stdout.write("".join(f"{line}\n" for line in requirements(table, *(sys.argv[1:] or [None]))))
