"""What the chain asks of a node: refused at the start, told while it runs."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from loguru import logger

from murmur.node.chain.subnet_terms import misfits, require_fit
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.run import Run
from murmur.protocol.types import Subnet
from tests.network import FakeNetwork
from tests.specs import toy_spec

RUN = Run(toy_spec())
FITS = Subnet(tempo=200, post_bytes=3100, weights_rate_limit=40, commit_reveal=True, owner=None)
"""A round of the toy run has 40 blocks."""


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is logged."""
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), format="{message}", level="WARNING")
    yield lines
    logger.remove(sink)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tempo": 201}, ("tempo is 201 blocks", "3100 bytes", "5 rounds of 40 blocks", "at most 200", "at least 41")),
        ({"tempo": 50_400}, ("at least 10080 blocks",)),
        ({"tempo": 161, "post_bytes": 2500}, ("2500 bytes", "4 rounds of 40 blocks", "at most 160")),
        ({"post_bytes": 601}, ("601 bytes", "up to 602")),
        ({"weights_rate_limit": 41}, ("once in 41 blocks", "the run pays every 40", "weight_rounds to at least 2")),
        ({"max_uids": 257}, ("257 hotkeys may be registered", "has bits for 256")),
        ({"mechanisms": 2}, ("has 2 mechanisms",)),
    ],
)
def test_a_chain_on_which_the_run_cannot_work_is_refused_with_the_numbers_and_the_remedy(
    changes: dict[str, int], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        require_fit(RUN, 0, replace(FITS, **changes))
    for word in words:
        assert word in str(refusal.value)


def test_a_chain_that_asks_for_no_more_than_the_clock_was_made_for_fits() -> None:
    assert misfits(RUN, 0, FITS) == []
    assert misfits(RUN, 0, replace(FITS, tempo=160, post_bytes=2408, weights_rate_limit=0)) == []


def test_a_node_does_not_start_where_the_quota_is_too_small(networks: Callable[..., FakeNetwork]) -> None:
    network = networks(miners=1)
    network.world._epoch_blocks = 151  # five rounds of 30 blocks are 150
    network.start()
    for error in network.until_dead("validator", "miner-1"):
        assert isinstance(error, ConfigError)
        assert "tempo is 151 blocks" in str(error)


def test_a_change_of_the_subnet_is_told_once_by_everybody(networks: Callable[..., FakeNetwork]) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    network.world._epoch_blocks = 140
    network.run_until(3)
    network.world._epoch_blocks = 360
    network.run_until(6)
    for member in network.members.values():
        told = [(event["tempo"], bool(event["misfits"])) for event in member.events("subnet_changed")]
        assert told == [(140, False), (360, True)]
        assert member.alive


@pytest.mark.parametrize("call", ["publish", "set_weights"])
def test_a_node_whose_owner_cannot_pay_its_fees_says_who_has_to_and_goes_on_once_it_can(
    networks: Callable[..., FakeNetwork], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    network = networks(miners=1)

    def refuse(*_: object) -> int:
        raise ChainError("the fee of this call is paid by coldkey 5C..: not enough", code="Payment")

    network.start()
    network.run_until(1)
    with monkeypatch.context() as poor:
        poor.setattr(network.world, call, refuse)
        network.run_to_block(network.clock.start(5))
        told = network["validator"].events("trouble")
        assert {event["cause"] for event in told} == {"no_money" if call == "publish" else "weights_unpaid"}
        assert "paid by coldkey 5C.." in told[0]["detail"]
    network.run_until(8)
    assert network["validator"].alive
    assert 7 in [event["round"] for event in network["validator"].events("word_posted")]


def test_only_what_has_changed_is_said(networks: Callable[..., FakeNetwork], said: list[str]) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    network.world._epoch_blocks = 140
    network.run_until(3)
    (told, *_) = [line for line in said if "the subnet's settings" in line]
    assert "have changed: tempo" in told
    assert "is now 140." in told
    assert "post_bytes" not in told
