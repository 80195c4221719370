"""The table of the situations that were played: each is there, and was told within two rounds."""

import re

from tests.stuck.rows import WAVES
from tests.stuck.stage import ROUND_SECONDS
from tests.stuck.table import PLAYED

LATE = {"weights are never revealed": 101.5, "the process hangs": 5.0}
"""Seconds more: until the weights are due; and a process counts as silent only after two rounds."""


def test_every_situation_was_told_within_two_rounds_by_every_surface_of_its_kind() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PLAYED.read_text().splitlines()]
    played = {row[0]: row for row in rows if len(row) == 6 and row[0] not in ("situation", "---")}
    assert {row.name for wave in WAVES.values() for row in wave} <= played.keys()
    assert len(played) > 50
    for name, (_, _, _, told, surfaces, _) in played.items():
        seconds = re.fullmatch(r"([0-9.]+) s", told)
        assert seconds is None or float(seconds[1]) - LATE.get(name, 0.0) <= 2 * ROUND_SECONDS, name
        assert {"status", "doctor"} <= set(surfaces.split(", ")), name
