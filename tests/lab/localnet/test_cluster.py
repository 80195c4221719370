"""What the demo of a cluster says of itself, by the members' events."""

import json
from pathlib import Path
from typing import Any

from murmur.lab.localnet.cluster import play, results
from murmur.node.telemetry.events import read_events

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


def test_real_members_play_from_a_fresh_home_to_their_stop(tmp_path: Path) -> None:
    result = play(tmp_path / "run", members=2, kills=0, rounds=2, seed=0, quiet=True)
    assert (result["rounds"], result["identical"]) == (2, True)
    for name in ("member-1", "member-2"):
        events = [event["event"] for event in read_events(tmp_path / "run/nodes" / name / "events.jsonl")]
        assert (events[0], events[-1]) == ("started", "stopped")
