"""report.json from the nodes' events: what happened, also where nodes were down, torn, or of two minds."""

from pathlib import Path
from typing import Any

import pytest

from murmur.lab.localnet import report as reporting
from murmur.lab.localnet.report import build_report
from murmur.protocol.errors import ChainError
from murmur.protocol.types import Header, Peer, PeerId, Reason, Standing, Uid
from tests.lab.localnet.schema import REASONS, ROUND, assert_report
from tests.lab.localnet.synthetic import THETA, Synthetic


class Weights:
    """A chain on which validators with these peer ids have set these weights."""

    def __init__(self, peers: list[tuple[PeerId, bool]], rows: dict[int, dict[int, int]]) -> None:
        self._peers = [Peer(peer, Uid(uid), 1, validates, None) for uid, (peer, validates) in enumerate(peers)]
        self._rows = rows

    def finalized(self) -> Header:
        return Header(7, None, 0)  # type: ignore[arg-type]

    def peers(self, block: int) -> list[Peer]:
        return self._peers

    def weights(self, block: int, uid: Uid) -> dict[int, int]:
        return self._rows.get(uid, {})

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ChainError("the chain does not answer")

    monkeypatch.setattr(reporting, "open_chain", refuse)


def test_the_schema_knows_every_reason() -> None:
    assert list(Reason) == REASONS
    assert list(Standing) == ROUND["properties"]["standing"]["additionalProperties"]["enum"]


def test_a_run_in_which_all_went_well(tmp_path: Path) -> None:
    run = Synthetic(tmp_path, rounds=2)
    run.round(0, val_loss=5.5)
    run.round(1, val_loss=5.0)
    report = build_report(run.network, 12.345)
    assert_report(report)
    spec = run.network.spec
    assert report["rounds"][1] == {
        "round": 1,
        "val_loss": 5.0,
        "active": 3,
        "contributing": [run.hotkey("miner-1"), run.hotkey("miner-2")],
        "void": False,
        "rejected": {run.hotkey("garbage-1"): "MALFORMED"},
        "standing": {},
        # The garbage miner's replica is nobody's business.
        "theta": dict.fromkeys(("miner-1", "miner-2", "validator-1"), THETA[1]),
        "seconds": {"compute": 1.5, "upload": 0.5, "download": 0.02, "apply": 0.1},
        "phases": {},
        "utilization": None,
        "payload_bytes": spec.object_bytes,
    }
    assert report["peers"] == {
        run.hotkey("miner-1"): {"name": "miner-1", "fault": None, "contributed": 2, "weight": 0.0},
        run.hotkey("miner-2"): {"name": "miner-2", "fault": None, "contributed": 2, "weight": 0.0},
        run.hotkey("garbage-1"): {"name": "garbage-1", "fault": "garbage", "contributed": 0, "weight": 0.0},
    }
    assert report["summary"] == {
        "loss_first": 5.5,
        "loss_last": 5.0,
        "replicas_identical": True,
        "faulty_contributions": 0,
        "honest_contributions": 4,
        "void_rounds": 0,
        "utilization": None,
        "weights_set": 0,
        "weights_standing": 0,
        "weights_refused": 0,
        "weights_pending": 0,
        "payload_ratio": 4 * spec.layout.num_parameters / spec.object_bytes,
        "wall_seconds": 12.3,
    }


def test_a_network_that_has_decided_nothing_still_has_a_report(tmp_path: Path) -> None:
    report = build_report(Synthetic(tmp_path).network, 1.0)
    assert_report(report)
    assert report["rounds"] == []
    assert report["summary"]["loss_first"] is None


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    run = Synthetic(tmp_path)
    run.round(0)
    run.write("miner-1", '{"time":1.0,"node":"miner-1","event":"applied","round":1,"the')
    run.write("miner-1", "\n")
    for name in ("miner-2", "validator-1"):
        run.applied(name, 1)
    run.write("miner-2", '{"time":1.0,"node":"mi')
    report = build_report(run.network, 1.0)
    assert_report(report)
    assert [set(row["theta"]) for row in report["rounds"]] == [
        {"miner-1", "miner-2", "validator-1"},
        {"miner-2", "validator-1"},
    ]
    assert report["rounds"][1]["val_loss"] is None
    assert report["rounds"][1]["seconds"] == {
        "compute": None, "upload": None, "download": 0.02, "apply": 0.1
    }  # fmt: skip


def test_a_node_that_caught_up_tells_the_theta_that_it_found(tmp_path: Path) -> None:
    run = Synthetic(tmp_path, rounds=3)
    for round in range(3):
        run.applied("validator-1", round)
        run.applied("miner-1", round)
    run.emit("miner-2", "caught_up", 2, origin="genesis", applied=2, theta=THETA[1])
    report = build_report(run.network, 1.0)
    assert [set(row["theta"]) for row in report["rounds"]] == [
        {"miner-1", "validator-1"},
        {"miner-1", "miner-2", "validator-1"},
        {"miner-1", "validator-1"},
    ]
    assert report["summary"]["replicas_identical"]
    run.emit("miner-2", "caught_up", 3, origin="genesis", applied=2, theta=THETA[0])
    assert not build_report(run.network, 1.0)["summary"]["replicas_identical"]


def test_one_replica_that_differs_in_one_round_is_told(tmp_path: Path) -> None:
    run = Synthetic(tmp_path)
    run.round(0)
    run.round(1)
    run.applied("miner-2", 0, theta="ff" * 32)  # a repeated round's last event counts
    report = build_report(run.network, 1.0)
    assert not report["summary"]["replicas_identical"]
    assert report["rounds"][0]["theta"]["miner-2"] == "ff" * 32


def test_void_rounds_and_faulty_contributions_are_counted(tmp_path: Path) -> None:
    run = Synthetic(tmp_path)
    for name in ("miner-1", "miner-2", "validator-1"):
        run.applied(name, 0, void=True, theta=THETA[0])
        contributing = [run.hotkey("garbage-1"), run.hotkey("miner-1")]
        run.emit(name, "applied", 1, void=False, contributing=contributing, theta=THETA[1], seconds={})
    summary = build_report(run.network, 1.0)["summary"]
    assert (summary["void_rounds"], summary["faulty_contributions"], summary["honest_contributions"]) == (1, 1, 1)


def test_when_the_first_validator_was_down_the_second_one_tells(tmp_path: Path) -> None:
    run = Synthetic(tmp_path, validators=2)
    run.round(0, val_loss=5.0)
    for name in ("validator-2", "miner-1"):
        run.applied(name, 1)
    run.judged("validator-2", 1, val_loss=4.0, miner_2="LATE")
    row = build_report(run.network, 1.0)["rounds"][1]
    assert (row["val_loss"], row["rejected"]) == (4.0, {run.hotkey("miner-2"): "LATE"})


def test_weights_are_the_mean_share_over_the_validators_that_have_set_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Synthetic(tmp_path, validators=3)
    members = run.network.members.values()
    chain = Weights(
        [(member.peer, member.role == "validator") for member in members],
        {0: {3: 10, 4: 30}, 1: {3: 65535}, 3: {5: 1}},  # the third validator has set none; a miner's do not count
    )
    monkeypatch.setattr(reporting, "open_chain", lambda *_, **__: chain)
    peers = build_report(run.network, 1.0)["peers"]
    assert {peer["name"]: peer["weight"] for peer in peers.values()} == {
        "miner-1": pytest.approx(0.625),
        "miner-2": pytest.approx(0.375),
        "garbage-1": 0.0,
    }


def test_shares_of_the_time_and_phases_are_the_honest_miners_medians(tmp_path: Path) -> None:
    run = Synthetic(tmp_path, rounds=3)
    for round, computed in enumerate((4.0, 5.0, 6.0)):
        for name in run.network.members:
            seconds = 60.0 if name.startswith("garbage") else computed + name.endswith("2")
            phases = [{"phase": "wait", "began": 0.0, "seconds": 1.0}, {"phase": "wait", "began": 2.0, "seconds": 0.5}]
            if "miner" in name or "garbage" in name:
                run.emit(name, "trained", round, loss=4.0, tokens=100, seconds={"compute": seconds})
                phases.append({"phase": "compute", "began": 1.0, "seconds": seconds})
            run.applied(name, round, time=100.0 + 20 * round)
            run.emit(name, "phases", round, phases=phases)
    run.write("miner-1", "\n")
    report = build_report(run.network, 1.0)
    assert_report(report)
    assert [row["utilization"] for row in report["rounds"]] == [None, 5.5 / 20, 6.5 / 20]
    assert report["summary"]["utilization"] == 6.0 / 20
    assert report["rounds"][1]["phases"] == {"miner": {"wait": 1.5, "compute": 5.5}, "validator": {"wait": 1.5}}
