"""Archives that fail, each in its own way: the next one is asked, and none of them is waited for again and again."""

import time
from typing import Any

import pytest
from bittensor.result import ChainError as Refusal
from bittensor.result import RpcConnectionError

from murmur.chain import archives
from murmur.chain.archives import Archives, StateReader
from murmur.chain.connection import Connection
from murmur.chain.session import Session
from murmur.protocol.errors import STATE_PRUNED, ChainError
from tests.chain.stubs import Stub


class Counting(Stub):
    asked = 0
    fault: Exception | None = None

    async def query(self, *words: Any, **options: Any) -> Any:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return 7


class Pruned(Counting):
    fault = Refusal("State discarded for 0x00. This indicates the block is too old")


class Broken(Counting):
    fault = RpcConnectionError("gone")


class Alien(Counting):
    async def block_hash(self, block: int | None = None) -> str:
        return "0x" + "77" * 32


async def read(session: Session) -> Any:
    return await session.substrate.query("Timestamp", "Now")


def over(own: Stub, *stubs: Stub) -> StateReader:
    def to(name: str, stub: Any, **options: Any) -> Connection:
        return Connection(f"ws://{name}", 5.0, lambda: stub, **options)

    def connect(genesis: bytes) -> list[Connection]:
        return [to(str(number), stub, genesis=genesis) for number, stub in enumerate(stubs)]

    return StateReader(to("own", own), Archives(connect))


def test_a_state_that_is_there_asks_no_archive() -> None:
    archive = Counting()
    assert over(Counting(), archive).read(read, 3) == (7, "ws://own")
    assert archive.asked == 0


def test_the_first_archive_that_can_answers() -> None:
    assert over(Pruned(), Pruned(), Alien(), Broken(), Counting()).read(read, 3) == (7, "ws://3")


def test_no_archive_and_none_that_can_are_both_a_pruned_state() -> None:
    for stubs in ((), (Pruned(), Alien(), Broken())):
        with pytest.raises(ChainError, match="block 3 is below the pruning horizon") as fault:
            over(Pruned(), *stubs).read(read, 3)
        assert fault.value.code == STATE_PRUNED
    assert "another chain" in str(fault.value)
    assert "gone" in str(fault.value)


def test_what_one_archive_refuses_by_name_another_may_have() -> None:
    """Else one that serves the chain without this subnet would hide all others."""
    elsewhere: list[Stub] = [Counting()]

    async def read_subnet(session: Session) -> Any:
        found = await read(session)
        if elsewhere and elsewhere.pop():
            raise ChainError("there is no subnet", "SubnetNotExists")
        return found

    assert over(Pruned(), Counting(), Counting()).read(read_subnet, 3) == (7, "ws://1")
    elsewhere.append(Counting())
    with pytest.raises(ChainError) as fault:
        over(Pruned(), Counting()).read(read_subnet, 3)
    assert fault.value.code == STATE_PRUNED


def test_an_archive_that_failed_rests_and_one_that_lacks_a_block_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, lacking = Broken(), Pruned()
    chain = over(Pruned(), broken, lacking)
    for _ in range(3):
        with pytest.raises(ChainError, match="gone"):
            chain.read(read, 3)
    assert (broken.asked, lacking.asked) == (1, 3)
    later = time.monotonic() + archives.REST_SECONDS
    monkeypatch.setattr(archives.time, "monotonic", lambda: later)
    broken.fault = None
    assert chain.read(read, 3) == (7, "ws://0")


def test_a_fault_of_our_own_node_is_no_reason_to_ask_others() -> None:
    archive = Counting()
    with pytest.raises(ChainError, match="the connection"):
        over(Broken(), archive).read(read, 3)
    assert archive.asked == 0
