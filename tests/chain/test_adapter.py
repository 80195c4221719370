"""The adapter against transports that misbehave: the cases that no healthy chain shows. The rest is test_contract."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bittensor.result import ChainError as Refusal
from bittensor.result import ExtrinsicResult, RpcConnectionError

from murmur.chain import submission
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.connection import Connection
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError
from murmur.protocol.types import Uid
from tests.chain.stubs import WALLET, Stub
from tests.forked import exit_code

CAP = 20.0
"""Seconds by which something has ended, on a busy machine too, that is not held up for longer than that or for ever."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These chains make no blocks: a submission is given up after a few of its call time-outs."""
    monkeypatch.setattr(submission, "_STILL_SECONDS", 0.0)
    monkeypatch.setattr(submission, "_POLL_SECONDS", 0.02)


@contextmanager
def silent_server() -> Iterator[str]:
    """A TCP server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    accepted.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"ws://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in accepted:
            connection.close()


def test_a_server_that_accepts_and_says_nothing_costs_one_time_out_and_no_more() -> None:
    with silent_server() as url:
        chain = open_chain(url, 1, None, call_timeout_seconds=0.4)
        for call in (chain.genesis, chain.finalized, lambda: chain.peers(3), lambda: chain.weights(3, Uid(0))):
            start = time.monotonic()
            with pytest.raises(ChainError, match="did not answer"):
                call()
            assert time.monotonic() - start < CAP
        start = time.monotonic()
        with pytest.raises(ChainError, match="not final within"):
            chain.wait(5, timeout_seconds=1.0)
        assert time.monotonic() - start < CAP


def test_a_port_where_nobody_listens_is_a_chain_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(ChainError, match="connection"):
        open_chain(f"ws://127.0.0.1:{port}", 1, None, call_timeout_seconds=2 * CAP).finalized()
    assert time.monotonic() - start < CAP


def test_an_unknown_network_is_a_config_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="finney"):
        open_chain("finey", 1, None).genesis()


def test_a_chain_without_a_wallet_refuses_to_write() -> None:
    chain = open_chain("ws://127.0.0.1:1", 1, None)
    with pytest.raises(ConfigError, match="without a wallet"):
        chain.publish((b"x",))
    with pytest.raises(ConfigError, match="without a wallet"):
        chain.set_weights({Uid(0): 1.0})


def chain_over(*stubs: Any, timeout: float = 0.4) -> SubtensorChain:
    """The adapter on these transports, one after the other as sessions are dropped (the last one for good)."""
    waiting = list(stubs)
    return open_chain(
        "ws://stub.invalid",
        1,
        WALLET,
        call_timeout_seconds=timeout,
        substrate_factory=lambda: waiting.pop(0) if len(waiting) > 1 else waiting[0],
    )


def over(stub: Any) -> Connection:
    return Connection("ws://stub.invalid", 0.4, lambda: stub)


def test_a_call_that_blocks_the_transports_whole_thread_does_not_hang_the_node() -> None:
    release = threading.Event()

    class Blocking(Stub):
        async def finalized_block_number(self) -> int:
            release.wait(4 * CAP)  # not asynchronous: the event loop itself stands still
            return 1

    chain = chain_over(Blocking(), Stub())
    start = time.monotonic()
    with pytest.raises(ChainError, match="did not answer"):
        chain.finalized()
    assert time.monotonic() - start < CAP
    assert chain.finalized().block == 9, "a fresh session answers while the old one still hangs"
    release.set()


def test_the_next_call_after_a_lost_connection_opens_a_new_session() -> None:
    class Broken(Stub):
        async def finalized_block_number(self) -> int:
            raise RpcConnectionError("gone")

    chain = chain_over(Broken(), Stub())
    with pytest.raises(ChainError, match="connection"):
        chain.finalized()
    assert chain.finalized().block == 9


def test_finality_never_goes_back_when_a_lagging_endpoint_answers() -> None:
    class Lagging(Stub):
        heights = iter([9, 5, 5])

        async def finalized_block_number(self) -> int:
            return next(self.heights)

    chain = chain_over(Lagging())
    assert chain.finalized().block == 9
    assert chain.finalized().block == 9


def test_a_subscription_that_goes_silent_or_breaks_only_delays_a_wait() -> None:
    class Silent(Stub):
        height = 9
        opened = 0

        async def finalized_block_number(self) -> int:
            self.height += 1
            return self.height

        async def blocks(self, *, finalized: bool = False) -> AsyncIterator[dict[str, Any]]:
            assert finalized
            self.opened += 1
            if self.opened == 1:
                raise RpcConnectionError("gone")
            await asyncio.sleep(4 * CAP)
            yield {}

    stub = Silent()
    start = time.monotonic()
    assert chain_over(stub, timeout=0.3).wait(13, timeout_seconds=2 * CAP).block == 13
    assert time.monotonic() - start < CAP
    assert stub.opened >= 2


def test_an_endpoint_that_turns_into_another_chain_is_refused() -> None:
    class Dropping(Stub):
        heights = iter([9])

        async def finalized_block_number(self) -> int:
            for height in self.heights:
                return height
            raise RpcConnectionError("gone")

    class Other(Stub):
        async def block_hash(self, block: int | None = None) -> str:
            return "0x" + "77" * 32

    chain = chain_over(Dropping(), Other())
    genesis = chain.genesis()
    assert chain.finalized().block == 9
    with pytest.raises(ChainError, match="connection"):
        chain.finalized()
    with pytest.raises(ChainError, match="another chain"):
        chain.finalized()
    assert chain.genesis() == genesis


def test_a_pruned_height_says_so_and_says_what_to_do() -> None:
    class Pruned(Stub):
        async def query(self, *_: Any, **__: Any) -> Any:
            raise Refusal("State discarded for 0x00. This indicates the block is too old")

    with pytest.raises(ChainError, match=r"block 3 is below the pruning horizon.*archive") as caught:
        over(Pruned()).call(lambda session: session.substrate.query("Timestamp", "Now"), block=3)
    assert caught.value.code == STATE_PRUNED


@pytest.mark.parametrize("fault", [RpcConnectionError("gone"), OSError("gone"), ValueError("odd"), Refusal("refused")])
def test_no_other_failure_passes_for_a_pruned_height(fault: Exception) -> None:
    class Failing(Stub):
        async def query(self, *_: Any, **__: Any) -> Any:
            raise fault

    with pytest.raises(ChainError) as caught:
        over(Failing()).call(lambda session: session.substrate.query("Timestamp", "Now"), block=3)
    assert caught.value.code != STATE_PRUNED


class Obeying(Stub):
    """Takes weights, of a subnet of two."""

    async def submit(self, call: Any, keypair: Any, **options: Any) -> ExtrinsicResult:
        self.storage["SubtensorModule", "LastUpdate"] = [9]
        return await super().submit(call, keypair, **options)


def test_a_runtime_that_has_none_of_the_limits_gets_the_row_all_the_same() -> None:
    stub = Obeying()
    assert chain_over(stub).set_weights({Uid(1): 0.5}) == 9
    (call,) = stub.calls
    assert call[:2] == ("SubtensorModule", "set_weights")
    assert call[2] == {"netuid": 1, "dests": [0, 1], "weights": [0, 65535], "version_key": 0}


def test_weights_that_are_included_but_cannot_be_read_back_are_an_error() -> None:
    with pytest.raises(ChainError, match="did not move"):
        chain_over(Stub()).set_weights({Uid(0): 1.0})


@pytest.mark.parametrize("weights", [{}, {Uid(0): 0.0}, {Uid(0): -1.0}, {Uid(0): float("nan")}, {Uid(0): float("inf")}])
def test_weights_without_meaning_never_reach_the_chain(weights: dict[Uid, float]) -> None:
    stub = Stub()
    with pytest.raises(ValueError, match="weights must be"):
        chain_over(stub).set_weights(weights)
    assert stub.calls == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SettingWeightsTooFast", "SettingWeightsTooFast"),
        ("RateLimitExceeded", "SettingWeightsTooFast"),
        ("SpaceLimitExceeded", "SpaceLimitExceeded"),
        ("AccountNotAllowedCommit", "AccountNotAllowedCommit"),
    ],
)
def test_a_refusal_has_the_pallets_name_whoever_refused(name: str, expected: str) -> None:
    class Refusing(Stub):
        async def submit(self, call: Any, keypair: Any, **options: Any) -> ExtrinsicResult:
            return ExtrinsicResult(success=False, message="no", error=Refusal("no", name))

    stub = Refusing()
    stub.storage["Commitments", "CommitmentOf"] = None
    with pytest.raises(ChainError) as caught:
        chain_over(stub).publish((b"x",))
    assert caught.value.code == expected
    meaning = {"SpaceLimitExceeded": "used up its bytes", "AccountNotAllowedCommit": "register it"}.get(expected, "no")
    assert meaning in str(caught.value)


def test_an_endpoint_that_has_enough_of_us_is_no_verdict_of_the_chain() -> None:
    class Tired(Stub):
        async def query(self, *_: Any, **__: Any) -> Any:
            raise Refusal("rate limit exceeded, please slow down")

    with pytest.raises(ChainError, match="rate limit") as caught:
        over(Tired()).call(lambda session: session.substrate.query("Timestamp", "Now"))
    assert caught.value.code is None, "it is asked again"


class Forgetful(Stub):
    """Loses the connection in mid-submission, after the block that may or may not include it."""

    def __init__(self, included: bool) -> None:
        super().__init__()
        self.included = included
        self.height = 9
        self.storage["Commitments", "CommitmentOf"] = None

    async def block_number(self) -> int:
        self.height += 1
        return self.height

    async def submit(self, call: Any, keypair: Any, **options: Any) -> ExtrinsicResult:
        self.calls.append(call)
        if self.included or len(self.calls) > 1:
            ((field,),) = call[2]["info"]["fields"]
            ((variant, data),) = field.items()
            shown = {"fields": [{variant: "0x" + data.hex()}]}
            self.storage["Commitments", "CommitmentOf"] = {"deposit": 0, "block": self.height, "info": shown}
        if len(self.calls) == 1:
            raise RpcConnectionError("gone in mid-submission")
        return ExtrinsicResult(success=True, block_hash="0x00", extrinsic_id=f"{self.height}-0001")


def test_a_submission_that_was_included_before_the_connection_was_lost_is_not_sent_again() -> None:
    stub = Forgetful(included=True)
    published = chain_over(stub, timeout=CAP).publish((b"x",))
    assert published == stub.storage["Commitments", "CommitmentOf"]["block"]
    assert len(stub.calls) == 1


def test_a_submission_that_was_lost_is_sent_again_after_the_chain_was_read_back() -> None:
    stub = Forgetful(included=False)
    assert chain_over(stub, timeout=CAP).publish((b"x",)) == stub.height
    assert len(stub.calls) == 2


def test_a_chain_opened_before_a_fork_works_after_it() -> None:
    assert exit_code(_open_and_fork) == 0


def _open_and_fork() -> None:
    chain = chain_over(Stub(), timeout=CAP)
    child = os.fork()
    if child == 0:
        os._exit(0 if chain.finalized().block == 9 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert chain.finalized().block == 9


def test_closing_a_chain_wakes_a_call_that_waits_and_the_next_call_reconnects() -> None:
    class Waiting(Stub):
        async def finalized_block_number(self) -> int:
            threading.Thread(target=chain.close).start()
            await asyncio.sleep(4 * CAP)
            return 1

    chain = chain_over(Waiting(), Stub(), timeout=2 * CAP)
    start = time.monotonic()
    with pytest.raises(ChainError):
        chain.finalized()
    assert time.monotonic() - start < CAP
    assert chain.finalized().block == 9


ODD: list[Any] = [None, "nonsense", [], {}, {"hotkeys": [1]}, -1, 2.5, [[1]], "0x12", b"\xff", True]
READS: dict[str, Callable[[SubtensorChain], object]] = {
    "genesis": lambda chain: chain.genesis(),
    "finalized": lambda chain: chain.finalized(),
    "header": lambda chain: chain.header(5),
    "peers": lambda chain: chain.peers(5),
    "weights": lambda chain: chain.weights(5, Uid(0)),
    "publish": lambda chain: chain.publish((b"x",)),
    "set_weights": lambda chain: chain.set_weights({Uid(0): 1.0}),
    "head": lambda chain: chain.head(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_answer_of_another_shape_than_the_runtimes_is_a_chain_error_and_nothing_else(
    read: Callable[[SubtensorChain], object], odd: Any
) -> None:
    class Odd(Stub):
        async def finalized_block_number(self) -> Any:
            return odd

        async def block_number(self) -> Any:
            return odd

        async def block_hash(self, block: int | None = None) -> Any:
            return odd

        async def runtime_call(self, *args: Any, **options: Any) -> Any:
            return odd

        async def query(self, *args: Any, **options: Any) -> Any:
            return odd

        async def query_batch(self, *args: Any, **options: Any) -> Any:
            return odd

    stubs: list[Stub] = [Odd()]
    for answer in ("finalized_block_number", "block_number", "block_hash", "runtime_call", "query", "query_batch"):
        stub = Stub()
        setattr(stub, answer, getattr(Odd(), answer))
        stubs.append(stub)
        if hasattr(Stub, answer):
            other = Odd()
            setattr(other, answer, getattr(Stub(), answer))
            stubs.append(other)
    for stub in stubs:
        try:
            read(chain_over(stub, timeout=0.05))
        except ChainError:
            continue


def test_a_false_finalised_head_that_the_node_cannot_show_is_not_believed() -> None:
    class Boasting(Stub):
        heights = iter([9, 10**9, 10])

        async def finalized_block_number(self) -> int:
            return next(self.heights)

        async def block_hash(self, block: int | None = None) -> Any:
            return None if block is not None and block > 10 else await super().block_hash(block)

    chain = chain_over(Boasting())
    assert [chain.finalized().block for _ in range(3)] == [9, 9, 10]


def test_a_false_head_that_was_shown_is_given_up_once_an_honest_node_has_said_otherwise_often_enough() -> None:
    class Healed(Stub):
        lies = 1

        async def finalized_block_number(self) -> int:
            self.lies -= 1
            return 10**9 if self.lies >= 0 else 9

    chain = chain_over(Healed(), timeout=CAP)
    assert chain.finalized().block == 10**9
    assert [chain.finalized().block for _ in range(20)][-1] == 9
    with pytest.raises(ChainError, match="not final yet"):
        chain.header(10**9)
