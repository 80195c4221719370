"""Where weights stand from, as a chain node tells it that keeps the state of few blocks only."""

from typing import Any

import pytest
from bittensor.result import ChainError as Refusal

from murmur.protocol.errors import STATE_PRUNED, ChainError
from tests.chain.stubs import ALICE
from tests.chain.test_weights import Revealing, chain_on


class Pruned(Revealing):
    """Blocks before `oldest` are forgotten; weights of block 40, in epoch 0, are revealed in block 150."""

    oldest = 0

    async def query(
        self, module: str, item: str, params: list[Any] | None = None, block_hash: str | None = None
    ) -> Any:
        at = int(block_hash or "0", 16)
        if at < self.oldest:
            raise Refusal("State discarded for 0x00. This indicates the block is too old")
        if item == "TimelockedWeightCommits":
            assert params is not None
            waits = params[1] == 0 and 40 <= at < self.revealed_in
            return [(ALICE.ss58_address, 40, "box", 7)] if waits else []
        return await super().query(module, item, params, block_hash)


@pytest.mark.parametrize("oldest", [0, 40, 41, 120, 149])
def test_a_commit_is_found_by_who_has_forgotten_its_block_but_not_its_reveal(oldest: int) -> None:
    stub = Pruned()
    stub.oldest = oldest
    assert chain_on(stub).stands_from(40) == 150
    stub.revealed_in = 201
    assert chain_on(stub).stands_from(40) is None


@pytest.mark.parametrize("oldest", [150, 170])
def test_who_has_forgotten_the_reveal_too_says_so(oldest: int) -> None:
    stub = Pruned()
    stub.oldest = oldest
    with pytest.raises(ChainError) as fault:
        chain_on(stub).stands_from(40)
    assert fault.value.code == STATE_PRUNED
