"""What miners and validators tell of every round: the same as the chain and the reports say, in one line."""

from collections.abc import Callable, Iterator

import pytest
from loguru import logger

from gauntlet.report import parse_report
from murmur.lab.localnet.faults import Garbage
from murmur.node.telemetry.round_line import line
from murmur.protocol import keys
from murmur.protocol.messages import parse_signed
from murmur.protocol.types import hotkey
from tests.fakes.chain import fake_verify
from tests.network import FakeNetwork

ROUNDS = 4


@pytest.fixture
def info() -> Iterator[list[str]]:
    """What the log says at INFO."""
    told: list[str] = []
    sink = logger.add(lambda message: told.append(message.record["message"]), level="INFO", format="{message}")
    yield told
    logger.remove(sink)


def test_every_round_of_a_node_is_one_line_that_says_whether_it_counted(
    networks: Callable[..., FakeNetwork], info: list[str]
) -> None:
    network = networks(miners=3, validators={"one": 300}, contributors=1, reserve=0)
    network.start("one", "miner-1", "miner-2")
    network.start("miner-3", role=Garbage)
    network.run_until(ROUNDS)
    network.close()
    assert not [told for told in info if "waiting" in told and "the start" not in told][4:], "each says one wait"
    for round in range(ROUNDS - 1):
        data = network.store.buckets["one"][keys.report(network.run.id, round)].data
        text = parse_signed(data, "report", network.run.id, round, network["one"].peer, fake_verify)
        report, _ = parse_report(text, round)
        (judged,) = [e for e in network["one"].events("judged") if e["round"] == round]
        assert (judged["active"], judged["rejected"], judged["selected"]) == (3, {"MALFORMED": 1}, 1)
        assert line(judged) in info
        for name in ("miner-1", "miner-2", "miner-3"):
            (stood,) = [e for e in network[name].events("round_outcome") if e["round"] == round]
            row = report.rows[network[name].peer]
            # Who contributes the chain says: the validator's own order is what it pays by.
            outcome = str(row.rejected or row.standing or "not contributing")
            if hotkey(network[name].peer) in network["one"].contributing(round):
                outcome = "contributing"
            assert (stood["outcome"], stood["pay"]) == (outcome, row.weight)
            assert (stood["selected"], stood["active"]) == (1, 3)
            assert stood["loss"] == next(e["loss"] for e in network[name].events("trained") if e["round"] == round)
            assert stood["margin"] >= 0
            assert line(stood) in info


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {},
            "round 2: contributing; 2 of 4 contributed; loss 4.96; pay 7.8 %, next set about block 540; "
            "learning, 3 evaluations; committed 11 blocks before the deadline",
        ),
        (
            {"outcome": "LOW_SCORE", "why": "gap 0.02 of 0.16", "pay": 0.0},
            "round 2: LOW_SCORE (gap 0.02 of 0.16); 2 of 4 contributed; loss 4.96; pay 0.0 %, next set about block "
            "540; learning, 3 evaluations; committed 11 blocks before the deadline",
        ),
        (
            {"outcome": "absent", "why": "x", "selected": 0, "loss": None, "pay": None, "sure": None, "margin": None},
            "round 2: absent (x); the round is void",
        ),
    ],
)
def test_a_miners_line_says_what_is_known_and_nothing_else(changes: dict[str, object], told: str) -> None:
    event = {
        "event": "round_outcome",
        "round": 2,
        "outcome": "contributing",
        "why": "",
        "selected": 2,
        "active": 4,
        "loss": 4.958,
        "pay": 0.078,
        "sure": "learning, 3 evaluations",
        "next_set": 540,
        "margin": 11,
    }
    assert line(event | changes) == told


def test_a_validators_line_says_whom_it_judged_and_how_its_weights_stand() -> None:
    event = {
        "event": "judged",
        "round": 3,
        "active": 6,
        "evaluated": 4,
        "rejected": {"MALFORMED": 1, "LATE": 2},
        "selected": 3,
        "drawn": 4,
        "verified": 3,
        "unobserved": None,
        "loss": 4.104,
        "set_in": 540,
        "unrevealed": 2,
        "next_set": 640,
    }
    assert line(event) == (
        "round 3: judged 6, 4 evaluated, rejected MALFORMED 1, LATE 2; steps of 3 of 4 drawn miners repeated; 3 "
        "selected; held-out loss 4.10; weights set in block 540, 2 earlier sets not revealed yet, next about block 640"
    )
    assert line(event | {"unobserved": "late", "drawn": 0, "selected": 0, "set_in": None, "unrevealed": 0}) == (
        "round 3: not observed (late): nobody was rated or paid for it; judged 6, 4 evaluated, rejected MALFORMED 1, "
        "LATE 2; void: nothing was agreed; held-out loss 4.10; no weights set, next about block 640"
    )
