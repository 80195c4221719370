"""Exports of a network that was played, by the console command: every round's state, and the proof by the chain."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from murmur.cli import network
from murmur.cli.evaluate import checkpoints
from murmur.cli.main import main
from murmur.export import follow, states
from murmur.export.folder import partial_beside
from murmur.export.origin import Origin
from murmur.export.rows import read_rows
from murmur.export.verify import read_export
from murmur.node.chain import follower, retrying_chain
from murmur.node.config.settings import NetworkConfig
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.observe.reader import reading
from murmur.node.sync import backoff
from murmur.page.evaluations import in_home
from murmur.protocol import keys
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError, StorageError
from murmur.protocol.types import Peer, PeerId, hotkey
from tests.export.conftest import Made, quiet
from tests.fakes.chain import FakeChain, fake_verify
from tests.network import FakeNetwork
from tests.small_run import OWNER

Murmur = Callable[..., tuple[int, str]]
ROUNDS = 5


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> FakeNetwork:
    """Rounds of one validator and two miners. Tests that change anything of it put it back."""
    with pytest.MonkeyPatch.context() as patch:
        for module, pause in (
            (backoff, "PAUSE_SECONDS"),
            (follower, "STALL_SECONDS"),
            (retrying_chain, "PAUSE_SECONDS"),
        ):
            patch.setattr(module, pause, 0.02)
        found = FakeNetwork(tmp_path_factory.mktemp("network"), data_folder, miners=2)
        found.busy_seconds = 30.0
        try:
            found.start()
            found.run_until(ROUNDS)
            found.run_to_block(found.clock.vote_deadline(ROUNDS - 1))
        finally:
            found.close()
    return found


@pytest.fixture
def murmur(
    played: FakeNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Murmur:
    """murmur(*votes) -> (exit status, what it printed), over the played network."""
    ports = reading(FakeChain(played.world, PeerId(bytes(32))), fake_verify, played.store.open)
    config = NetworkConfig(netuid=1, owner=hotkey(OWNER.peer), data=played.data, device="cpu")
    there = OpenedNetwork(config, tmp_path, ports, played.run, ())
    monkeypatch.setattr(network, "open_network", lambda program, options: there)

    def call(*words: object) -> tuple[int, str]:
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out if status != 2 else printed.err

    return call


@pytest.fixture
def run(tmp_path: Path) -> str:
    """What stands for the network in the command's votes."""
    (tmp_path / "run").mkdir()
    return str(tmp_path / "run")


def thetas(played: FakeNetwork) -> dict[int, str]:
    """Digest of theta at the start of every round, as the validator has noted it."""
    return {round + 1: theta for round, theta in played["validator"].thetas().items()}


def test_every_rounds_state_can_be_exported_and_is_the_one_that_nodes_had(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path
) -> None:
    known = thetas(played)
    for round in range(ROUNDS + 1):
        folder = tmp_path / str(round)
        status, text = murmur("export", run, folder, "--fp32", "--round", round)
        assert status == 0
        origin = read_export(folder, quiet).origin
        assert (origin.round, origin.run) == (round, played.run.id.hex())
        assert round == 0 or origin.theta == known[round]
        assert origin.theta in text
        assert not list(tmp_path.glob("*.partial"))
    assert len({json.loads((tmp_path / str(r) / "murmur.json").read_bytes())["theta"] for r in range(ROUNDS)}) == ROUNDS


def test_without_a_round_it_is_the_newest_decided_one(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path
) -> None:
    assert murmur("export", run, tmp_path / "out")[0] == 0
    origin = read_export(tmp_path / "out", quiet).origin
    assert (origin.round, origin.dtype) == (ROUNDS, "bfloat16")
    assert origin.theta == thetas(played)[ROUNDS]
    assert "no validator had named this state" in (tmp_path / "out" / "README.md").read_text()
    status, text = murmur("export", "--verify", tmp_path / "out", run)
    assert status == 0
    assert "nothing names it yet, it follows from what was agreed before" in text


def test_an_fp32_export_is_proved_by_the_chain_alone(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    murmur("export", run, tmp_path / "out", "--fp32", "--round", 3)
    for name, bucket in played.store.buckets.items():
        monkeypatch.setitem(
            played.store.buckets, name, {key: kept for key, kept in bucket.items() if "/selection/" in key}
        )
    status, text = murmur("export", "--verify", tmp_path / "out", run)
    assert status == 0
    assert f"hash to the theta digest {thetas(played)[3]}: validators name it on chain" in text
    assert f"of the owner {played.spec.owner}" in text
    assert murmur("export", "--verify", tmp_path / "out", "--theta", thetas(played)[3])[0] == 0
    assert murmur("export", "--verify", tmp_path / "out", "--theta", thetas(played)[2])[0] == 1
    data = bytearray((tmp_path / "out" / "model.safetensors").read_bytes())
    data[-5] ^= 4
    (tmp_path / "out" / "model.safetensors").write_bytes(data)
    status, text = murmur("export", "--verify", tmp_path / "out", run)
    assert status == 1
    assert "is not proved: the tensors hash to" in text


def test_a_bf16_export_is_proved_by_the_theta_that_is_rebuilt(murmur: Murmur, run: str, tmp_path: Path) -> None:
    murmur("export", run, tmp_path / "half", "--round", 4)
    murmur("export", run, tmp_path / "whole", "--round", 4, "--fp32")
    status, text = murmur("export", "--verify", tmp_path / "half", run)
    assert status == 0
    assert "the tensors are that theta, as bfloat16" in text
    assert "validators name it on chain" in text
    assert murmur("export", "--verify", tmp_path / "half", tmp_path / "whole")[0] == 0
    status, text = murmur("export", "--verify", tmp_path / "half", "--theta", "00" * 32)
    assert status == 1
    # What agrees with itself, and is another theta rounded under this state's name.
    murmur("export", run, tmp_path / "older", "--round", 2)
    older = json.loads((tmp_path / "older" / "murmur.json").read_bytes())
    right = json.loads((tmp_path / "half" / "murmur.json").read_bytes())
    forged = older | {name: right[name] for name in ("round", "link", "theta")}
    (tmp_path / "older" / "murmur.json").write_bytes(json.dumps(forged, indent=2).encode() + b"\n")
    status, text = murmur("export", "--verify", tmp_path / "older", run)
    assert status == 1
    assert "the run's theta as bfloat16" in text
    assert not list(tmp_path.glob("*.verify-*"))


def test_a_proof_whose_objects_cannot_be_read_decides_nothing(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    murmur("export", run, tmp_path / "half", "--round", 4)
    for name in played.store.buckets:
        monkeypatch.setitem(played.store.buckets, name, {})
    status, text = murmur("export", "--verify", tmp_path / "half", run)
    assert (status, "nothing is decided: " in text) == (2, True)


def test_an_export_of_another_run_is_not_proved(murmur: Murmur, run: str, made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out")
    status, text = murmur("export", "--verify", tmp_path / "out", run)
    assert status == 1
    assert ", and this is run" in text


def test_a_state_of_another_round_is_not_proved(murmur: Murmur, run: str, tmp_path: Path) -> None:
    murmur("export", run, tmp_path / "out", "--fp32", "--round", 3)
    origin = json.loads((tmp_path / "out" / "murmur.json").read_bytes())
    for wrong in ({"round": 2}, {"round": ROUNDS}, {"link": "00" * 32}):
        forged = json.dumps(origin | wrong, indent=2).encode() + b"\n"
        (tmp_path / "out" / "murmur.json").write_bytes(forged)
        assert murmur("export", "--verify", tmp_path / "out", run)[0] == 1


def test_what_a_source_invents_is_passed_over(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator's checkpoints are garbage: theta_0 and all payloads since give the state."""
    theta_0 = keys.blob(bytes.fromhex(played.spec.genesis_checkpoint))  # type: ignore[arg-type]
    bucket = dict(played.store.buckets["validator"])
    for key, kept in bucket.items():
        if key.startswith("blob/") and key != theta_0:
            bucket[key] = type(kept)(b"x" * len(kept.data), kept.modified)
    monkeypatch.setitem(played.store.buckets, "validator", bucket)
    assert murmur("export", run, tmp_path / "out", "--fp32", "--round", 4)[0] == 0
    assert read_export(tmp_path / "out", quiet).origin.theta == thetas(played)[4]


def test_payloads_that_are_gone_are_said_to_be(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bucket in played.store.buckets.items():
        left = {key: kept for key, kept in bucket.items() if "/payload/" not in key and "/mirror" not in key}
        monkeypatch.setitem(played.store.buckets, name, left)
    assert main(["export", run, str(tmp_path / "out"), "--round", "1"]) == 1
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_where_the_chain_has_forgotten_what_was_said_nothing_is_taken_for_the_runs_state(
    murmur: Murmur,
    run: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = FakeChain.peers

    def peers(chain: FakeChain, block: int) -> tuple[Peer, ...]:
        if block < chain.finalized().block:
            raise ChainError(f"block {block} is pruned", STATE_PRUNED)
        return real(chain, block)

    monkeypatch.setattr(FakeChain, "peers", peers)
    assert main(["export", run, str(tmp_path / "out")]) == 1
    assert "is pruned" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_done_is_refused_with_the_reason(murmur: Murmur, run: str, made: Made, tmp_path: Path) -> None:
    made(tmp_path / "there")
    for words, told in (
        ((run, tmp_path / "there"), "exists already"),
        ((run, tmp_path / "out", "--round", 99), f"states from round 0 to {ROUNDS}"),
        ((run, tmp_path / "out", "--round", -1), "states from round 0"),
        ((run,), "name the run and the folder"),
        (("--verify", tmp_path / "none", run), "is not an export: there is no such folder"),
        (("--verify", tmp_path / "there"), "is of a local network: give its run folder too"),
        (("nobody", tmp_path / "out"), "the hotkey of a run's owner"),
        ((run, tmp_path / "out", "--netuid", "3"), "leave out the other flags"),
    ):
        status, text = murmur("export", *words)
        assert (status, told in text) == (2, True), text
        assert not (tmp_path / "out").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from murmur.export.folder import partial_beside
with partial_beside(Path(sys.argv[1])) as partial:
    (partial / "model.safetensors").write_bytes(b"half")
    (partial / "work").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_no_half_export_and_the_next_one_goes_on(
    murmur: Murmur, run: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False, env=os.environ, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial" / "model.safetensors").exists()
    assert murmur("export", run, tmp_path / "out", "--fp32")[0] == 0
    read_export(tmp_path / "out", quiet)
    assert not (tmp_path / "out.partial").exists()


def test_two_exports_to_one_folder_do_not_mix(tmp_path: Path) -> None:
    with partial_beside(tmp_path / "out") as partial:
        (partial / "file").write_text("first")
        with pytest.raises(ConfigError, match="another process writes"), partial_beside(tmp_path / "out"):
            pass
        assert (partial / "file").read_text() == "first"
    assert (tmp_path / "out" / "file").read_text() == "first"


# --- checkpoints evaluated ---------------------------------------------------------------------------------------


def losses(played: FakeNetwork) -> dict[int, float]:
    """Held-out loss of the state at the start of every round, as the validator has measured it."""
    return {event["round"] + 1: event["val_loss"] for event in played["validator"].events("held_out")}


def rows(played: FakeNetwork, home: Path) -> list[dict[str, object]]:
    return read_rows(in_home(home, played.run.id))


def test_checkpoints_are_evaluated_once_and_have_the_validators_loss(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path
) -> None:
    (tmp_path / "run" / "nodes").mkdir()
    status, text = murmur("evaluate", run, "--device", "cpu")
    assert status == 0
    expected = losses(played)
    assert [line.split(":")[0] for line in text.splitlines()[:-1]] == [
        f"state at the start of round {round}" for round in (2, 4, ROUNDS)
    ]
    found = rows(played, tmp_path)
    assert [row["round"] for row in found] == [2, 4, ROUNDS]
    for row in found:
        assert row["loss"] == pytest.approx(expected[row["round"]], abs=1e-6)  # type: ignore[index]
        assert row["theta"] == thetas(played)[row["round"]]  # type: ignore[index]
    assert murmur("evaluate", run)[1].count("\n") == 1
    # A line that a killed process has not ended is no row, and hurts none.
    path = in_home(tmp_path, played.run.id)
    path.write_bytes(path.read_bytes().splitlines(True)[0] + b'{"round": 4, "lo')
    assert murmur("evaluate", run)[0] == 0
    assert [row["round"] for row in rows(played, tmp_path)] == [2, 4, ROUNDS]
    assert sorted(path.name for path in path.parent.iterdir()) == [path.name]


def test_tasks_are_asked_of_an_export_of_each_checkpoint(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "nodes").mkdir()
    assert murmur("evaluate", run)[0] == 0
    asked = []

    def evaluate(folder: Path, origin: Origin, tasks: dict[str, int], **options: object) -> dict[str, object]:
        asked.append(read_export(folder, quiet).origin.round)
        assert (tasks, options["limit"]) == ({"toy": 2}, 3)
        metrics = {"acc,none": 0.5, "acc_stderr,none": 0.1}
        return {"results": {"toy": {"shots": 2, "metrics": metrics}}}

    monkeypatch.setattr(checkpoints, "require", quiet)
    monkeypatch.setattr(follow, "evaluate", evaluate)
    status, text = murmur("evaluate", run, "--tasks", "toy:2", "--limit", 3)
    assert (status, asked) == (0, [ROUNDS, 4, 2])
    assert "toy acc 0.5000" in text
    assert [row["tasks"] for row in rows(played, tmp_path)] == [{"toy": {"acc,none": 0.5}}] * 3


def test_a_run_that_is_followed_has_its_checkpoints_evaluated_until_one_interrupts(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "nodes").mkdir()
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.time, "sleep", sleep)
    assert murmur("evaluate", run, "--follow")[0] == 130
    assert [row["round"] for row in rows(played, tmp_path)] == [2, 4]
    assert murmur("evaluate", tmp_path / "nothing", "--follow")[0] == 2


def test_checkpoints_that_nobody_has_any_more_are_passed_over(
    played: FakeNetwork, murmur: Murmur, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "nodes").mkdir()
    real = states.States.rebuild

    def rebuild(self: states.States, named: states.Named, folder: Path) -> states.Rebuilt:
        if named.round < 5:
            raise StorageError("deleted")
        return real(self, named, folder)

    monkeypatch.setattr(states.States, "rebuild", rebuild)
    assert murmur("evaluate", run)[0] == 0
    assert [row["round"] for row in rows(played, tmp_path)] == [ROUNDS]
