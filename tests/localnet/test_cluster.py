"""What the demo of a cluster says of itself, by the members' events."""

import json
from pathlib import Path
from typing import Any

from localnet.cluster import results

STEP_TOKENS = 100


def write(folder: Path, name: str, *events: dict[str, Any]) -> None:
    home = folder / "nodes" / name
    home.mkdir(parents=True)
    (home / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def trained(round: int, steps: int, loss: float = 4.0) -> dict[str, Any]:
    return {"event": "trained", "round": round, "tokens": steps * STEP_TOKENS, "loss": loss}


def test_steps_are_repeated_where_one_process_trains_a_round_again_and_as_many_as_it_made(tmp_path: Path) -> None:
    joined = {"event": "joined", "round": 0}
    write(tmp_path, "member-1", joined, trained(0, 20), trained(1, 20, 3.0), trained(1, 7, 3.0))
    write(tmp_path, "member-2", joined, trained(0, 20), joined, trained(0, 20), trained(1, 20, 2.0))
    found = results(tmp_path, ["member-1", "member-2"], 2, 1, STEP_TOKENS)
    assert (found["repeated_steps"], found["kills"]) == (7, 1)
    assert (found["loss_first"], round(found["loss_last"], 3)) == (4.0, round(8 / 3, 3))
