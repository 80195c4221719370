"""What the demo of a cluster says of itself, by the members' events."""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from murmur.cluster.other_members import OtherMembers

from murmur.lab.localnet.cluster import play, results
from murmur.node.telemetry.events import read_events
from murmur.protocol.cluster import Claim
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, PeerId
from storage.realtime import REAL

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


def test_a_member_that_is_asked_to_stop_while_it_trains_does_not_wait_for_a_store_that_is_gone() -> None:
    asked, answered = threading.Event(), threading.Event()

    def claims(round: int) -> dict[PeerId, Claim]:
        asked.set()
        answered.wait(20)
        raise StorageError("no answer")

    saved = SimpleNamespace(link=Digest(bytes(32)))
    member: Any = SimpleNamespace(
        me=PeerId(bytes(32)),
        time=REAL,
        state=SimpleNamespace(saved=saved),
        presence=SimpleNamespace(confirmed_alive=set),
        ledger=SimpleNamespace(claims=claims),
    )

    def train() -> None:
        with OtherMembers(member, 0).watched():
            assert asked.wait(10)
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train()
    answered.set()
    assert time.monotonic() < began + 10


def test_real_members_play_from_a_fresh_home_to_their_stop(tmp_path: Path) -> None:
    result = play(tmp_path / "run", members=2, kills=0, rounds=2, seed=0, quiet=True)
    assert (result["rounds"], result["identical"]) == (2, True)
    for name in ("member-1", "member-2"):
        events = [event["event"] for event in read_events(tmp_path / "run/nodes" / name / "events.jsonl")]
        assert (events[0], events[-1]) == ("started", "stopped")
