"""What a run's spec takes from the chain: how long a block takes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from murmur.cli.run.create import _blocks
from murmur.owner.draft import Place, look
from murmur.protocol.errors import ConfigError
from murmur.protocol.ports import Chain
from murmur.protocol.types import Digest, Header, PeerId

OWNER = PeerId(bytes(32))


def chain(*seconds: float) -> Chain:
    """Blocks that took so long, from block 0 on."""
    times = [sum(seconds[:count]) for count in range(len(seconds) + 1)]

    def header(block: int) -> Header:
        return Header(block, Digest(bytes(32)), times[block])

    return cast(
        Any,
        SimpleNamespace(
            finalized=lambda: header(len(seconds)),
            header=header,
            genesis=lambda: bytes(32),
            subnet=lambda block: None,
        ),
    )


def seconds(*taken: float) -> float:
    return look(chain(*taken), 1, OWNER, local=True).block_seconds


def test_blocks_that_a_local_chain_made_at_once_do_not_count() -> None:
    """`murmur devnet` makes the first few hundred 0.25 s apart, and the others as long after each other as it says."""
    assert seconds(*[0.25] * 400, *[0.5] * 6) == 0.5


def test_a_slot_without_a_block_does_not_count() -> None:
    assert seconds(*[12.0] * 60, 24.0, 12.001, 11.998) == 12.0


def test_a_chain_without_blocks_says_nothing() -> None:
    with pytest.raises(ConfigError, match="too few"):
        seconds(12.0)


def test_what_the_spec_says_is_what_a_block_takes() -> None:
    place = Place(bytes(32), 1, OWNER, cast(Any, None), 0.25, local=True)
    assert _blocks({}, place) == "blocks of 0.25 s"
    assert _blocks({"clock": {"block_seconds": 0.5}}, place) == (
        "blocks of 0.5 s by the spec (the last ones took 0.25 s)"
    )
