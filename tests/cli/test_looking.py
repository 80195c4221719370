"""`murmur audit` and `murmur explain`: what they print and how they exit, on a network that has just been played."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gauntlet.account import ADVICE
from murmur.cli import network, peer_options
from murmur.cli.audit import command as audit
from murmur.cli.audit import verdicts
from murmur.cli.explain import account
from murmur.cli.explain import command as explain
from murmur.cli.main import main
from murmur.node.config.settings import NetworkConfig
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.observe.reader import reading
from murmur.node.telemetry.events import Events
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.messages import encode_document, parse_document
from murmur.protocol.types import PeerId, Reason, Standing, hotkey
from tests.fakes.bucket import _Object
from tests.fakes.chain import FakeChain, fake_verify
from tests.network import FakeNetwork
from tests.small_run import OWNER

Murmur = Callable[..., tuple[int, str]]


@pytest.fixture
def murmur(
    played: FakeNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Murmur:
    """murmur(*words) -> (exit status, what it printed), over the played network."""
    ports = reading(FakeChain(played.world, PeerId(bytes(32))), fake_verify, played.store.open)
    config = NetworkConfig(netuid=1, owner=hotkey(OWNER.peer), data=played.data, device="cpu")
    names = {member.peer: name for name, member in played.members.items()}
    there = OpenedNetwork(config, tmp_path, ports, played.run, names)
    monkeypatch.setattr(network, "open_network", lambda program, options: there)

    def call(*words: str) -> tuple[int, str]:
        status = main([*words, "--run", str(tmp_path)])
        printed = capsys.readouterr()
        return status, printed.out if status != 2 else printed.err

    return call


def test_an_audit_of_honest_validators_agrees_in_words_and_in_json(played: FakeNetwork, murmur: Murmur) -> None:
    status, text = murmur("audit", "--round", "2")
    assert status == 0
    for name in ("one", "two"):
        assert f"validator {name}: agrees, 7 hotkeys, 3 evaluated" in text
    assert murmur("audit", "--round", "last") == (0, text)
    status, text = murmur("audit", "--round", "2", "--json", "--validator", "two")
    body = json.loads(text)
    assert status == 0
    assert (body["run"], body["round"]) == ("small", 2)
    (found,) = body["validators"]
    assert (found["validator"], found["differs"], found["findings"]) == (hotkey(played["two"].peer), False, [])


def test_an_audit_of_a_liar_names_it_and_exits_with_1(
    played: FakeNetwork, murmur: Murmur, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, run, two = keys.report(played.run.id, 2), played.run.id, played["two"]
    body = parse_document(played.store.buckets["two"][key].data, "report", run, 2, two.peer, fake_verify)
    victim = hotkey(played["miner-1"].peer)
    body["peers"][victim]["weight"] = 0.75
    lie = _Object(encode_document("report", run, 2, body, two.signer), 0.0)
    monkeypatch.setitem(played.store.buckets["two"], key, lie)
    status, text = murmur("audit", "--round", "2")
    assert status == 1
    assert "validator one: agrees" in text
    assert "validator two: 1 difference," in text
    assert "differs    weights   miner-1: weight 0.75 stated" in text


def test_an_audit_that_the_chain_does_not_answer_decides_nothing(
    played: FakeNetwork, murmur: Murmur, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*args: Any) -> Any:
        raise ChainError("no answer")

    monkeypatch.setattr(verdicts, "audit_round", silent)
    status, text = murmur("audit", "--round", "2")
    assert (status, text[:31]) == (2, "nothing is decided: no answer. ")


def test_what_cannot_be_audited_is_the_operators_to_know(played: FakeNetwork, murmur: Murmur) -> None:
    assert murmur("audit", "--round", "9") == (
        2,
        "round 9 cannot be audited: the last round whose selection is final is 2\n",
    )
    status, text = murmur("audit", "--round", "2", "--validator", hotkey(played["miner-1"].peer))
    assert status == 2
    assert "nothing of round 2 could be audited" in text
    status, text = murmur("audit", "--round", "2", "--validator", "5nonsense")
    assert (status, text.splitlines()[0][:11]) == (2, "--validator")


def test_a_miner_is_told_how_it_stands_why_and_what_to_do(played: FakeNetwork, murmur: Murmur) -> None:
    status, text = murmur("explain", "miner-4")
    assert murmur("explain", hotkey(played["miner-4"].peer)) == (status, text)
    lines = [line.strip() for line in text.splitlines()]
    assert status == 0
    assert lines[0].startswith(f"miner-4 ({hotkey(played['miner-4'].peer)}), uid 6, in run small (round ")
    assert f"validator one ({hotkey(played['one'].peer)}) (75 % of the validators' stake), round 2:" in lines
    # Which check random bytes fail first is up to them.
    assert any(
        line.startswith("rejected, MALFORMED: ") and line.endswith("; pay 0.00 %; not evaluated yet") for line in lines
    )
    assert f"next: {ADVICE[Reason.MALFORMED]}" in lines
    assert any(line.startswith("changed: ") and "penalty 0.50 -> 0.75" in line for line in lines)
    assert any(line.startswith("evaluated never; contributed 0 times, 3 faults") for line in lines)

    told = [murmur("explain", name)[1] for name in ("miner-1", "miner-2", "miner-3")]
    # The first line below the first validator's is how the hotkey stands now.
    now = {text.splitlines()[3].strip().split(";")[0]: text for text in told}
    assert now.keys() == {"contributing", "NOT_SELECTED"}
    left_out = now["NOT_SELECTED"]
    assert "because its PeerScore was" in left_out
    assert "evaluated in this round: LossScore" in left_out
    assert f"next: {ADVICE[Standing.NOT_SELECTED]}" in left_out
    evaluated = re.search(r"learning, (\d) evaluations?\n", now["contributing"])
    assert evaluated, "three rounds are no more than a first impression"
    assert f"next: wait and see: {evaluated[1]} of about 10 evaluations" in now["contributing"]
    assert "on chain: 0.00 % of this validator's weights" in text
    # Weights on chain may be those of the round before, whose two contributors had one in common with these.
    shares = [
        line.strip()
        for text in told
        if "\n  contributing;" in text
        for line in text.splitlines()
        if "on chain: " in line
    ]
    assert any(not line.startswith("on chain: 0.00 %") for line in shares)


def said(folder: Path, name: str, peer: PeerId, *troubles: Trouble) -> None:
    """The home of a node in the run folder, with what it has said."""
    home = folder / "nodes" / name
    home.mkdir(parents=True, exist_ok=True)
    events = Events(home / "events.jsonl", name)
    events.emit("started", 2, run="00", hotkey=hotkey(peer))
    for trouble in troubles:
        events.emit("trouble", 2, **trouble.fields())


def test_a_miner_is_told_what_its_own_node_here_says_and_no_others(
    played: FakeNetwork, murmur: Murmur, tmp_path: Path
) -> None:
    _, before = murmur("explain", "miner-1")
    trouble = Trouble("bucket_denied", "put: (403)")
    said(tmp_path, "miner-1", played["miner-1"].peer, trouble, Trouble("disk_low", "1 GB left"))
    said(tmp_path, "miner-2", played["miner-2"].peer, Trouble("not_registered"))
    status, text = murmur("explain", "miner-1")
    assert status == 0
    assert text == f"{before}\nits node here: {trouble}\nits node here: {Trouble('disk_low', '1 GB left')}\n"
    Events(tmp_path / "nodes" / "miner-1" / "events.jsonl", "miner-1").emit("mended", 3, about="bucket", cause="x")
    assert "403" not in murmur("explain", "miner-1")[1]
    assert murmur("explain", "miner-3")[1].count("its node here") == 0


def test_a_hotkey_that_is_registered_and_in_no_report_is_told_why_and_what_its_node_says(
    played: FakeNetwork, murmur: Murmur, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account.Reports, "newest", lambda *_: {})
    said(tmp_path, "miner-1", played["miner-1"].peer, Trouble("bucket_denied"))
    status, text = murmur("explain", "miner-1")
    assert status == 2
    assert "no recent report of the 2 validators that count lists it. After its first round one will" in text
    assert text.endswith(f"its node here: {Trouble('bucket_denied')}\n")


def test_while_no_validator_counts_a_miner_is_told_that_it_is_theirs_to_mend(
    murmur: Murmur, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "mirrors", lambda *_: ())
    status, text = murmur("explain", "miner-1")
    assert status == 2
    assert "no validator counts in this run now, so nobody is judged or paid" in text
    assert "That is the validators' to mend" in text


def test_of_weights_that_the_chain_conceals_a_miner_is_told_that_newer_ones_come(played: FakeNetwork) -> None:
    peers = played.world.state(played.world.final).peers
    miner = next(peer for peer in peers if peer.id == played["miner-1"].peer)
    chain = FakeChain(played.world, PeerId(bytes(32)))
    last = next(peer.last_update for peer in peers if peer.id == played["one"].peer)
    assert "newer" not in account.on_chain(chain, played.world.final, played["one"].peer, miner)
    chain.stands_from = lambda set_in: None  # type: ignore[method-assign]
    told = account.on_chain(chain, played.world.final, played["one"].peer, miner)
    assert told.endswith(f"newer weights, of block {last}, are not revealed yet")
    assert account.on_chain(chain, played.world.final, played["one"].peer, None) == "on chain: nothing"


def test_a_hotkey_that_nobody_knows_is_refused_with_what_to_check(murmur: Murmur) -> None:
    status, text = murmur("explain", hotkey(PeerId(b"x" * 32)))
    assert status == 2
    assert "is not registered on this subnet, so nobody judges it. Register it (btcli subnet register)" in text
    status, text = murmur("explain", "miner-11")
    assert (status, text) == (2, "MINER: there is no 'miner-11' here; did you mean miner-1?\n")
    assert "known are miner-1, miner-2, miner-3, miner-4, one, two" in murmur("explain", "x")[1]


# --- where the network is ------------------------------------------------------------------------------------


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    peer_options.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations with which networks were opened; no chain is asked."""
    from murmur.node.observe import reader
    from murmur.node.program import process

    configs: list[Any] = []
    monkeypatch.setattr(process, "log_to_stderr", lambda level: None)
    monkeypatch.setattr(reader, "open_run", lambda config, home: (configs.append(config), None))
    return configs


def node_file(folder: Path, name: str = "miner-1") -> Path:
    path = folder / "nodes" / name / "node.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        'network = "ws://127.0.0.1:9"\nnetuid = 4\nowner = "somebody"\ndata = "/data"\n'
        '[wallet]\nname = "w"\n[bucket]\nendpoint = "x"\nsecret_key = "s"\n'
    )
    return path


def test_a_nodes_own_file_will_do_and_flags_are_stronger(opened: list[Any], tmp_path: Path) -> None:
    words = ("--config", str(node_file(tmp_path)), "--netuid", "7", "--home", str(tmp_path / "home"))
    network.open_network("murmur audit", options(*words))
    assert (opened[0].netuid, opened[0].owner, opened[0].home) == (7, "somebody", tmp_path / "home")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "murmur audit is not configured yet. Missing"),
        (["--netuid", "x", "--owner", "5"], "netuid"),
        (["--run", "{}/none"], "is not the run folder of a local network"),
        (["--run", "{}", "--netuid", "3"], "leave out the other flags"),
    ],
)
def test_what_is_missing_or_wrong_is_named(words: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        network.open_network("murmur audit", options(*(word.format(tmp_path) for word in words)))


def test_both_commands_say_where_the_network_is_in_the_same_words() -> None:
    for module in (audit, explain):
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        assert {"--run", "--config", "--network", "--netuid", "--owner", "--spec", "--data", "--home"} <= set(
            parser._option_string_actions
        )
