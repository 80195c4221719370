"""A node's chain against one that fails: what is still worth asking is asked again, nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from murmur.node.chain.retrying_chain import PAUSE_SECONDS, RetryingChain
from murmur.protocol.clock import Clock
from murmur.protocol.errors import STATE_PRUNED, ChainError
from storage.realtime import RealTime
from tests.fakes.chain import FakeChain, FakeSigner, FakeWorld

CLOCK = Clock(start_block=6, round_blocks=60, commit=10, reveal=16, words=50)
BLOCK_SECONDS = 12.0
PEER = FakeSigner("one").peer


@dataclass
class Paused(RealTime):
    """Time that passes only in pauses, each told to `pauses`."""

    pauses: list[float] = field(default_factory=list)

    def now(self) -> float:
        return sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


CALLS: dict[str, Callable[[RetryingChain], Any]] = {
    "finalized": lambda chain: chain.finalized(),
    "header": lambda chain: chain.header(25),
    "peers": lambda chain: chain.peers(25),
    "weights": lambda chain: chain.weights(25, 0),  # type: ignore[arg-type]
    "publish": lambda chain: chain.publish((b"a",)),
    "set_weights": lambda chain: chain.set_weights({0: 1.0}),  # type: ignore[dict-item]
}


def patient(
    tell: Callable[[ChainError | None], None] = lambda fault: None, block_seconds: float = BLOCK_SECONDS, **options: Any
) -> tuple[FakeWorld, Paused, RetryingChain]:
    world, time = FakeWorld(**options), Paused()
    world.register(PEER, stake=1, validates=True)
    world.step(30)
    chain = RetryingChain(FakeChain(world, PEER), CLOCK, block_seconds, time, tell)
    chain.finalized()
    return world, time, chain


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_is_made_again_until_its_window_has_ended(name: str) -> None:
    world, time, chain = patient(weights_rate_limit=1)
    world.fail(PEER, 3)
    CALLS[name](chain)
    assert time.pauses == [PAUSE_SECONDS] * 3
    window = (CLOCK.vote_deadline(0) - world.final + 1) * BLOCK_SECONDS
    world.fail(PEER, 10**6)
    with pytest.raises(ChainError):
        CALLS[name](chain)
    assert window - 2 * BLOCK_SECONDS <= time.now() <= window + 2 * BLOCK_SECONDS


def test_a_call_shortly_before_its_window_ends_has_a_reveal_window_more() -> None:
    world, time, chain = patient()
    world.step(CLOCK.vote_deadline(0) - 1 - world.final)
    chain.finalized()
    world.fail(PEER, 10**6)
    with pytest.raises(ChainError):
        chain.finalized()
    window = (CLOCK.reveal - CLOCK.commit) * BLOCK_SECONDS
    assert window <= time.now() <= window + BLOCK_SECONDS


def test_what_the_chain_refuses_is_not_asked_again() -> None:
    world, time, chain = patient(keep_blocks=10, max_space_bytes=100)
    chain.publish((b"a",))
    for call, code in ((CALLS["publish"], "SpaceLimitExceeded"), (lambda chain: chain.peers(1), STATE_PRUNED)):
        with pytest.raises(ChainError) as caught:
            call(chain)
        assert caught.value.code == code
    with pytest.raises(ChainError, match="not final"):
        chain.header(world.final + 1)
    assert time.pauses == []


def test_before_it_has_answered_at_all_a_chain_that_is_down_is_told_at_once() -> None:
    world, time = FakeWorld(), Paused()
    world.down = True
    with pytest.raises(ChainError):
        RetryingChain(FakeChain(world, PEER), CLOCK, BLOCK_SECONDS, time, lambda fault: None).finalized()
    assert time.pauses == []


def test_a_chain_that_fails_for_ten_seconds_is_told_until_it_answers() -> None:
    told: list[str | None] = []
    world, _, chain = patient(lambda fault: told.append(None if fault is None else str(fault)))
    told.clear()
    world.fail(PEER, 9)
    chain.finalized()
    assert told == [None], "a lost connection"
    world.fail(PEER, 13)
    chain.finalized()
    assert told == [None, *["the connection to the chain was lost"] * 3, None]
    chain.publish((b"a",))
    assert told[-1] is None


def test_a_chain_is_told_that_fails_for_ten_seconds_of_calls_that_each_give_up_sooner() -> None:
    told: list[ChainError | None] = []
    world, time, chain = patient(told.append, block_seconds=0.1)
    told.clear()
    world.fail(PEER, 10**6)
    while time.now() < 9.0:
        with pytest.raises(ChainError):
            chain.finalized()
    assert told == []
    while time.now() < 20.0:
        with pytest.raises(ChainError):
            chain.finalized()
    assert told
    assert None not in told


def test_a_refusal_is_not_told_as_a_chain_that_does_not_answer() -> None:
    told: list[ChainError | None] = []
    world, time, chain = patient(told.append, max_space_bytes=100)
    chain.publish((b"a",))
    told.clear()
    for _ in range(20):
        time.sleep(1.0)
        with pytest.raises(ChainError):
            chain.publish((b"a",))
        with pytest.raises(ChainError):
            chain.header(world.final + 1)
    assert told == []


def test_calls_of_another_kind_that_succeed_do_not_mend_those_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain node may show heads and fail to read any state."""
    told: list[str | None] = []
    _, time, chain = patient(lambda fault: told.append(None if fault is None else str(fault)))

    def fails(block: int) -> None:
        raise ChainError("no state")

    with monkeypatch.context() as stopped:
        stopped.setattr(FakeChain, "peers", lambda self, block: fails(block))
        told.clear()
        began = time.now()
        while time.now() < began + 60.0:
            with pytest.raises(ChainError):
                chain.peers(0)
            chain.finalized()
        assert set(told) == {"no state"}
    chain.peers(0)
    assert told[-1] is None
