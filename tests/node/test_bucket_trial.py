"""What a node does with the verdict on its published key: names what to change, or asks a store again that is down."""

import re

import pytest
from loguru import logger

from murmur.lab.simulation.store import Faults
from murmur.node.config import settings as variables
from murmur.node.doctor import bucket_trial
from murmur.node.doctor.bucket_trial import RETRY_SECONDS, require_read_only
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Pointer, PublicPointer
from storage.published import Unfit, Why
from storage.realtime import RealTime
from tests.fakes.bucket import FakeStore


class Repaired(RealTime):
    """Time in which the store comes back after so many pauses."""

    def __init__(self, store: FakeStore, pauses: int) -> None:
        self.store, self.left, self.slept = store, pauses, 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.left -= 1
        if self.left == 0:
            self.store.faults.clear()


READ_KEY, PUBLIC_URL = variables.READ_KEY.split(" and "), variables.PUBLIC_URL


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    made = FakeStore()

    def open_published(pointer: Pointer | PublicPointer, *, local: bool) -> object:
        return made.open(pointer) if isinstance(pointer, Pointer) else None

    monkeypatch.setattr(bucket_trial, "open_published", open_published)
    return made


def test_a_store_that_is_down_is_asked_again_and_nothing_is_decided_before(store: FakeStore) -> None:
    store.bucket("own")
    store.faults["own"] = Faults(down=True)
    time, told = Repaired(store, 3), []
    sink = logger.add(told.append, level="WARNING")
    require_read_only(store.bucket("own"), store.pointer("own"), local=True, time=time)
    logger.remove(sink)
    assert time.slept == 3 * RETRY_SECONDS
    assert len(told) == 3
    assert "nothing goes on chain before" in told[0]


def test_a_key_that_must_not_be_published_ends_the_node_with_the_setting_to_change(store: FakeStore) -> None:
    with pytest.raises(ConfigError, match="MURMUR_BUCKET__NAME"):
        require_read_only(store.bucket("own"), store.pointer("other"), local=True)


@pytest.mark.parametrize("why", Why)
def test_every_verdict_names_a_variable_and_says_that_nothing_was_posted(
    why: Why, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_trial, "try_published", lambda *_, **__: Unfit(why, "put: a refusal"))
    for pointer in (store.pointer("own"), PublicPointer("https://cdn.example")):
        with pytest.raises(ConfigError, match="Nothing was put on chain") as caught:
            require_read_only(store.bucket("own"), pointer, local=True)
        named = set(re.findall(r"MURMUR_BUCKET__[A-Z_]+", str(caught.value)))
        assert named
        assert "(put: a refusal)" in str(caught.value)
        assert not named & ({*READ_KEY} if isinstance(pointer, PublicPointer) else {PUBLIC_URL})
