"""The validators side by side: what their events, or chain and reports, say of a round; None for what nobody tells."""

from pathlib import Path
from typing import Any

from murmur.page.folder import Folder
from murmur.page.rounds import Rounds
from murmur.page.validators import validators
from tests.page import synthetic
from tests.page.synthetic import key


def by_name(rounds: Rounds, number: int) -> dict[str, dict[str, Any]]:
    return {row["validator"]: row for row in validators(rounds, number)}


def test_a_row_says_what_the_validators_own_events_say(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path, ("miner-1", "miner-2", "garbage-1", "validator-1", "validator-2"))
    for number in range(3):
        written.round(number)
        written.write("validator-1", "word_posted", number, block=70 + number, named=2, abstains=False)
    written.write("validator-1", "weights", 2, block=99, weights={"1": 0.5})
    written.write("validator-2", "word_posted", 1, block=71, named=0, abstains=True)
    folder = Folder(tmp_path)
    folder.read()
    one = by_name(folder.rounds, 2)["validator-1"]
    both = (key("miner-1"), key("miner-2"))
    before = folder.rounds.get(1)
    assert before is not None
    assert (one["vote"], one["named"], one["first"], one["voted_in"]) == ("names", 2, both, 72)
    assert one["theta"] == before.theta["validator-1"]
    assert (one["reported"], one["set_in"], one["not_set"], one["stake"]) == (True, 99, None, None)
    assert (one["last_round"], one["last_time"]) == (2, 1e9 + 2 * synthetic.SECONDS)
    other = by_name(folder.rounds, 2)["validator-2"]
    assert {field for field, value in other.items() if value not in (None, False)} == {
        "validator",
        "last_round",
        "last_time",
    }
    assert by_name(folder.rounds, 1)["validator-2"]["vote"] == "abstains"
    assert validators(folder.rounds, 9) == []


def test_weights_that_do_not_stand_are_said_with_the_reason(tmp_path: Path) -> None:
    written = synthetic.Folder(tmp_path)
    written.round(0)
    written.write("validator-1", "weights_not_taken", 0, code="SettingWeightsTooFast")
    folder = Folder(tmp_path)
    folder.read()
    [row] = validators(folder.rounds, 0)
    assert (row["set_in"], row["not_set"]) == (None, "the chain refused its weights: SettingWeightsTooFast")


def test_from_the_chain_come_the_state_the_names_and_the_stake() -> None:
    rounds = Rounds()
    vote = {"event": "word_posted", "round": 5, "time": 1.0, "block": 8, "named": 1, "abstains": False, "theta": "ab"}
    rounds.take("5Small", vote | {"peers": ["5Peer"], "stake": 0.25})
    rounds.take("5Large", vote | {"peers": ["5Peer"], "stake": 0.75})
    rounds.take("5Gone", {"event": "unread", "round": 5, "time": 1.0, "why": "MISSING"})
    assert [row["validator"] for row in validators(rounds, 5)] == ["5Large", "5Small", "5Gone"]
    assert (
        by_name(rounds, 5)["5Small"] | {"theta": "ab", "peers": ("5Peer",), "stake": 0.25}
        == by_name(rounds, 5)["5Small"]
    )
    assert by_name(rounds, 5)["5Gone"]["unread"] == "MISSING"
