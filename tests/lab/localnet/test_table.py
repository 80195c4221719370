"""What a person sees: every row whole, nothing read as markup, plain text where no terminal is."""

import io
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from murmur.lab.devnet.launch import Devnet
from murmur.lab.localnet.chaos_injector import Injected, Injector
from murmur.lab.localnet.infrastructure import SERVERS
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.network import Network
from murmur.lab.localnet.report import PHASES, build_report
from murmur.lab.localnet.table import Table
from murmur.protocol.errors import ChainError, ConfigError
from tests.lab.localnet.schema import assert_report
from tests.lab.localnet.synthetic import Synthetic

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    from murmur.lab.localnet import report

    monkeypatch.setattr(report, "_weights", lambda network: {})


def screen(monkeypatch: pytest.MonkeyPatch, width: int | None) -> io.StringIO:
    """A terminal of that many columns; None: a file."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    if width is None:
        return io.StringIO()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


@pytest.mark.parametrize("answers", [True, False])
def test_the_end_waits_for_no_epoch_but_has_its_blocks_made_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    run, steps = Synthetic(tmp_path), list[str]()

    def end_epoch(devnet: object) -> None:
        assert run.stopped == [SERVERS], "nodes would live through an epoch at once"
        if not answers:
            raise ChainError("no answer")
        steps.append("epoch")

    monkeypatch.setattr("murmur.lab.localnet.network.end_epoch", end_epoch)
    monkeypatch.setattr(Network, "paid", lambda self: {"weights_pending": 0 if steps else 2})
    monkeypatch.setattr("murmur.lab.localnet.table.REVEAL_SECONDS", 3600.0)
    stream = screen(monkeypatch, None)
    table = Table(stream)
    table.await_reveals(run.network)
    assert "2 sets of weights are sealed" in stream.getvalue()
    assert ("the chain makes no blocks" in stream.getvalue()) == (not answers)
    steps.append("nothing is sealed now")
    told = stream.getvalue()
    table.await_reveals(run.network)
    assert stream.getvalue() == told
    assert run.stopped == [SERVERS]


@pytest.mark.parametrize(
    ("heads", "asked"),
    [
        ((83, 84, 85, 86), 4),  # X of round 1 is block 86
        ((90,), 1),
        ((80, ChainError("no answer")), 2),
        ((ChainError("no answer"),), 1),
    ],
    ids=["soon", "over", "dies", "dead"],
)
def test_the_end_waits_until_the_last_rounds_votes_can_be_read_from_outside(
    heads: tuple[int | ChainError, ...], asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = Synthetic(tmp_path, rounds=2), list(heads)

    def info() -> dict[str, int]:
        head = left.pop(0)
        if isinstance(head, ChainError):
            raise head
        return {"finalized": head}

    assert run.network.spec.rounds_clock.vote_deadline(1) == 86
    run.network.devnet = cast(Devnet, SimpleNamespace(admin=lambda: SimpleNamespace(info=info)))
    monkeypatch.setattr("murmur.lab.localnet.table.POLL_SECONDS", 0.001)
    Table(screen(monkeypatch, None)).await_votes(run.network)
    assert len(heads) - len(left) == asked


def test_a_chain_that_makes_no_blocks_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Synthetic(tmp_path, rounds=2)
    run.network.plan = replace(run.network.plan, block_seconds=0.01)
    still = SimpleNamespace(admin=lambda: SimpleNamespace(info=lambda: {"finalized": 80}))
    run.network.devnet = cast(Devnet, still)
    began = time.monotonic()
    Table(screen(monkeypatch, None)).await_votes(run.network)
    assert 0.1 <= time.monotonic() - began < 30.0


def followed(run: Synthetic, stream: io.StringIO) -> str:
    table = Table(stream)
    table.follow(run.network, stall_rounds=3.0)
    table.close(build_report(run.network, 61.2), run.folder)
    return stream.getvalue()


def test_in_a_file_every_round_is_one_plain_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Synthetic(tmp_path)
    run.round(0, val_loss=5.5)
    run.round(1, val_loss=5.25)
    text = followed(run, screen(monkeypatch, None))
    assert "\x1b" not in text
    header, first, second, *rest = text.splitlines()
    assert header.split() == ["round", "loss", *PHASES, "contributing", "|", "not"]
    assert first == "    0   5.500   1.50 s   0.50 s   0.02 s   0.10 s   miner-1, miner-2 | garbage-1 MALFORMED"
    assert second.split()[:2] == ["1", "5.250"]
    assert [header.index(phase) + len(phase) for phase in PHASES] == [m.end() for m in re.finditer(" s(?= )", first)]
    end = "\n".join(rest)
    assert "held-out loss 5.50 -> 5.25 nats a token" in end
    assert "all replicas identical, 0 of 2 rounds void, 61 s in all" in end
    assert str(tmp_path / "report.json") in end
    assert re.search(r"garbage-1 +garbage +0 of 2 +0\.000", end)
    assert re.search(r"miner-1 +2 of 2 +0\.000", end)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_on_a_terminal_no_name_is_torn_and_nothing_is_lost(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Synthetic(tmp_path, rounds=1)
    run.round(0)
    text = ESCAPES.sub("", followed(run, screen(monkeypatch, width)))
    lines = [line.rstrip() for line in text.splitlines() if not re.match("[\u2800-\u28ff]", line)]  # but the spinner
    row = next(number for number, line in enumerate(lines) if line.startswith("    0 "))
    if width == 160:
        assert lines[row].endswith("miner-1, miner-2 | garbage-1 MALFORMED")
    else:
        below = [line.strip() for line in lines[row + 1 : row + 3]]
        assert " ".join(below).startswith("miner-1, miner-2 | garbage-1 MALFORMED")
        assert all(len(line) <= width for line in lines[row + 1 : row + 3])


def test_names_and_reasons_are_never_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Synthetic(tmp_path, rounds=1)
    run.round(0)
    hostile = "[red]:bomb:[/nothing] [link=http://x]"
    run.emit("validator-1", "checked", 0, active=3, rejected={hostile: hostile}, seconds={})
    stream = screen(monkeypatch, 400)
    table = Table(stream)
    table.say(f"{hostile} died")
    table.follow(run.network, stall_rounds=3.0)
    shown = ESCAPES.sub("", stream.getvalue())
    assert f"{hostile} died" in shown
    assert f"| {hostile} {hostile}" in shown
    assert "\x1b]8;" not in stream.getvalue()


def test_a_void_round_and_different_replicas_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Synthetic(tmp_path, rounds=1)
    for name in ("miner-1", "miner-2", "validator-1"):
        run.applied(name, 0, void=True, theta=f"{len(name):02x}" * 32)
    run.emit("validator-1", "held_out", 0, val_loss=5.0)
    text = followed(run, screen(monkeypatch, None))
    assert re.search(r"^    0 .*   void$", text, re.MULTILINE)
    assert "REPLICAS DIFFER, 1 of 1 rounds void" in text


def test_a_round_is_shown_only_when_every_honest_node_stands_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Synthetic(tmp_path, rounds=1)
    table = Table(screen(monkeypatch, None))
    for name in ("miner-1", "validator-1"):
        run.applied(name, 0)
    # At the start of round 0: the round still lies before it.
    run.emit("miner-2", "caught_up", 0, origin="genesis", applied=0, theta="00" * 32)
    assert not table._show_finished(run.network, {})
    run.emit("miner-2", "caught_up", 1, origin="genesis", applied=1, theta="01" * 32)
    assert table._show_finished(run.network, {})


def test_the_loss_of_a_round_is_waited_for_unless_the_validator_was_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Synthetic(tmp_path, rounds=2)
    stream = screen(monkeypatch, None)
    table = Table(stream)
    for name in ("miner-1", "miner-2", "validator-1"):
        run.applied(name, 0)
    assert table._show_finished(run.network, {})
    for name in ("miner-1", "miner-2", "validator-1"):
        run.applied(name, 1)
    run.emit("validator-1", "checked", 1, active=2, rejected={}, seconds={})
    assert not table._show_finished(run.network, {})
    run.emit("validator-1", "held_out", 1, val_loss=4.5)
    assert table._show_finished(run.network, {})
    assert [line.split()[:2] for line in stream.getvalue().splitlines()[1:]] == [["0", "-"], ["1", "4.500"]]


def test_a_round_that_nobody_applied_is_passed_over_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Synthetic(tmp_path, rounds=2)
    run.round(1)
    text = followed(run, screen(monkeypatch, None))
    assert "round 0: every node skipped it by catch-up" in text
    assert re.search(r"^    1 ", text, re.MULTILINE)


def test_a_stuck_network_and_a_dead_process_are_told_with_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Synthetic(tmp_path, rounds=1)
    table = Table(screen(monkeypatch, None))
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "logs"))):
        table.follow(run.network, stall_rounds=-1e9)
    dead = run.network.processes.start("devnet", ["-c", "print('the disk is full')"])
    dead.process.wait()
    with pytest.raises(ConfigError, match="devnet ended for good:\n  the disk is full"):
        table.follow(run.network, stall_rounds=3.0)


def test_chaos_is_told_as_it_happens_and_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Synthetic(tmp_path, rounds=2)
    run.round(0)
    for name in ("miner-1", "miner-2", "validator-1"):
        run.applied(name, 1, void=True)
    told = iter([["validator-1 killed"], ["store frozen for 2.5 s"]])
    monkeypatch.setattr(Network, "disturb", lambda self: next(told, []))
    killed, frozen = (
        Injected("kill", "validator-1", 0.0, 0.5, 0.75, 2.0),
        Injected("freeze", "store", 2.5, 0.6, 1.2, 2.0),
    )
    run.network.chaos = Injector((), 1.0, run.network.processes, cast(Links, None), {}, lambda: None, [killed, frozen])
    run.network.plan = replace(run.network.plan, chaos=7)
    stream = screen(monkeypatch, None)
    table = Table(stream)
    table.follow(run.network, stall_rounds=3.0)
    report = build_report(run.network, 1.0)
    assert_report(report)
    table.close(report, run.folder)
    text = stream.getvalue()
    assert re.search(r"^ +[0-9.]+ s  chaos: validator-1 killed$", text, re.MULTILINE)
    assert "round   0  validator-1 killed, never back" in text
    assert "round   0  store frozen for 2.5 s, back after 0 rounds" in text
    assert "chaos did no lasting harm: 1 rounds void, 0 of them unexplained, 0 processes ended for good" in text
