"""Checkpoints by age, in the background, found under one key; what is kept meanwhile; and whom joiners ask."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from murmur.node.node import Node
from murmur.node.state.saved import Snapshot
from murmur.node.sync import catchup
from murmur.node.sync.checkpoints import (
    RETAINED_INTERVALS,
    RETAINED_ROUNDS,
    STATES_TOLD,
    Checkpoint,
    Shown,
    encode_shown,
    kept_from,
    parse_shown,
    published_by_most,
)
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, InvalidMessage
from murmur.protocol.messages import encode_signed
from murmur.protocol.types import Digest
from murmur.rounds.checkpoints import Checkpoints, ValidatorShelf
from murmur.rounds.retention import Retention
from tests.fakes.bucket import Call, FakeBucket, Faults
from tests.fakes.chain import FakeSigner, fake_verify
from tests.network import FakeNetwork, with_parts
from tests.node.states_documents import MALFORMED, content, head
from tests.node.test_catchup import cast, hide_checkpoints, put_up, show, shown, silence

Networks = Callable[..., FakeNetwork]
DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
CHECKPOINTS = st.builds(
    Checkpoint, st.integers(0, 2**32 - 1), DIGESTS, DIGESTS, st.lists(DIGESTS, max_size=3).map(tuple)
)
SIGNER = FakeSigner("validator")
RUN = Digest(bytes(range(32)))


def blobs(network: FakeNetwork, name: str = "validator") -> set[str]:
    return {key.removeprefix("blob/") for key in network.store.buckets[name] if key.startswith("blob/")}


def payloads(network: FakeNetwork, name: str) -> list[int]:
    """Rounds of which this miner's bucket has the payload."""
    return sorted(int(key[-8:]) for key in network.store.buckets[name] if "/payload/" in key)


def mirrored(network: FakeNetwork, name: str) -> list[int]:
    return sorted({int(key.split("/")[2]) for key in network.store.buckets[name] if "/mirror/" in key})


# --- the document ------------------------------------------------------------------------------------------------


@given(
    st.lists(CHECKPOINTS, max_size=3).map(tuple),
    st.lists(st.tuples(DIGESTS, DIGESTS), max_size=64).map(tuple),
    st.lists(DIGESTS, max_size=5).map(tuple),
)
def test_what_a_validator_shows_is_read_as_it_was_written(
    checkpoints: tuple[Checkpoint, ...], states: tuple[tuple[Digest, Digest], ...], loose: tuple[Digest, ...]
) -> None:
    document = Shown(checkpoints, states, loose)
    assert parse_shown(encode_shown(document, RUN, SIGNER), RUN, SIGNER.peer, fake_verify) == document


@pytest.mark.parametrize("said", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_document_of_states_of_another_form_is_refused(said: bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_shown(encode_signed("states", RUN, 0, said, SIGNER), RUN, SIGNER.peer, fake_verify)
    whole = content(head(2), 2 + 2 * STATES_TOLD, checkpoints=1, states=STATES_TOLD)
    found = parse_shown(encode_signed("states", RUN, 0, whole, SIGNER), RUN, SIGNER.peer, fake_verify)
    assert (len(found.checkpoints[0].files), len(found.states)) == (2, STATES_TOLD)


# --- due by age --------------------------------------------------------------------------------------------------


class MissesEveryRound(Retention):
    """Never completes a round after which the old rule would have made a checkpoint."""

    def keep(self, round: int) -> None:
        if (round + 1) % self.node.run.first.checkpoint_rounds:
            super().keep(round)


def test_a_validator_that_completes_none_of_the_rounds_before_multiples_makes_checkpoints_all_the_same(
    networks: Networks,
) -> None:
    network = networks(miners=1)
    network.start("miner-1")
    network.start("validator", role=with_parts(MissesEveryRound))
    network.run_until(6)
    network.wait_for(lambda: shown(network, "validator").newest >= 4)


def test_validators_put_up_the_same_states(networks: Networks) -> None:
    network = networks(miners=1, validators={"first": 100, "second": 100})
    network.start()
    network.run_until(7)
    network.wait_for(lambda: shown(network, "first").newest >= 4 and shown(network, "second").newest >= 4)
    one, other = shown(network, "first"), shown(network, "second")
    assert set(one.checkpoints) & set(other.checkpoints)
    mine, yours = dict(one.states), dict(other.states)
    assert len(mine.keys() & yours.keys()) >= 2
    assert all(mine[link] == yours[link] for link in mine.keys() & yours.keys())


@pytest.mark.parametrize(("place", "first_due"), [(0, 20), (1, 22), (2, 25)])
def test_of_three_validators_each_begins_to_upload_in_another_third_of_the_interval(place: int, first_due: int) -> None:
    validators = [FakeSigner(name).peer for name in ("one", "two", "three")]
    snapshot = Snapshot(20, Digest(bytes(32)), Digest(bytes([1]) * 32))
    saved = SimpleNamespace(consensus=SimpleNamespace(snapshot=snapshot), round=0)
    first = SimpleNamespace(genesis_checkpoint="00" * 32, checkpoint_rounds=8)
    node = SimpleNamespace(
        me=sorted(validators)[place],
        run=SimpleNamespace(id=Digest(bytes(32)), first=first),
        sources=lambda: SimpleNamespace(validators=lambda: validators),
        state=SimpleNamespace(saved=saved, first=first, store=SimpleNamespace(folder=Path())),
        ports=SimpleNamespace(bucket=None, signer=None, verify=None),
        time=None,
    )
    checkpoints = Checkpoints(ValidatorShelf(node))  # type: ignore[arg-type]
    due = []
    for saved.round in range(20, 30):
        due.append(checkpoints._due())
    assert due.index(True) + 20 == first_due
    checkpoints.shown = Shown((Checkpoint(20, snapshot.link, snapshot.state, ()),))
    assert not checkpoints._due()


def test_a_bucket_that_goes_on_refusing_is_told_of_less_and_less_often() -> None:
    shelf = SimpleNamespace(state=SimpleNamespace(store=SimpleNamespace(folder=Path())))
    checkpoints = Checkpoints(shelf)  # type: ignore[arg-type]

    def fail() -> None:
        raise AccessDenied("put: refused")

    told: list[str] = []
    sink = logger.add(lambda line: told.append(str(line)), format="{message}")
    for _ in range(20):
        checkpoints._in_background(fail)
    checkpoints._in_background(lambda: None)
    checkpoints._in_background(fail)
    logger.remove(sink)
    votes = [line.partition("tried ")[2].partition(", and again")[0] for line in told]
    assert votes == ["once", "2 times", "4 times", "8 times", "16 times", "", "once"]
    assert "published again, after 20 tries" in told[5]


# --- beside the rounds -------------------------------------------------------------------------------------------


def test_an_upload_that_hangs_costs_no_round_and_is_of_the_state_that_it_began_with(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "transfer_seconds", lambda *_: 60.0)  # nothing ends it before we do
    network = networks(miners=1)
    begun, hanging = False, True

    def hang(call: Call) -> None:
        nonlocal begun
        if call.bucket == "validator" and call.verb == "put" and call.key.startswith("blob/"):
            begun = True
            network.hold(lambda: not hanging)

    network.store.before = hang
    network.start()
    network.run_until(7)
    assert begun
    assert network["validator"].voids() == []
    assert shown(network, "validator").checkpoints == ()
    hanging = False
    network.wait_for(lambda: shown(network, "validator").newest == 2)
    (entry,) = shown(network, "validator").checkpoints
    assert {file.hex() for file in entry.files} <= blobs(network)
    network.run_until(9)
    network.wait_for(lambda: shown(network, "validator").newest >= 8)


def test_an_upload_that_fails_is_tried_again_and_sends_no_file_twice(networks: Networks) -> None:
    network = networks(miners=1)
    tries: list[str] = []

    def break_tensors(call: Call) -> None:
        if call.bucket == "validator" and call.verb == "put" and call.key.startswith("blob/"):
            tries.append(call.key)
            if len(tries) == 2:
                network.store.faults["validator"] = Faults(denied=True)

    network.store.before = break_tensors
    network.start()
    network.run_blocks(lambda: "validator" in network.store.faults)
    network.store.faults.clear()
    network.run_blocks(lambda: shown(network, "validator").newest > 0)
    (entry,) = shown(network, "validator").checkpoints
    tensors, manifest = entry.files
    assert tries == [keys.blob(manifest), keys.blob(tensors), keys.blob(tensors)]
    assert network["validator"].voids() == []


def test_a_validator_that_is_killed_in_an_upload_leaves_nothing_for_good(networks: Networks) -> None:
    network = networks(miners=1)
    begun = False

    def die(call: Call) -> None:
        nonlocal begun
        if call.reader == "validator" and begun:
            network["validator"].die()
        if call.bucket == "validator" and call.verb == "put" and call.key.startswith("blob/"):
            begun = True

    network.store.before = die
    network.start()
    network.run_blocks(lambda: not network["validator"].alive)
    network.store.before = lambda call: None
    left = shown(network, "validator")
    assert left.checkpoints == ()
    assert blobs(network) < {file.hex() for file in left.loose}
    # Of another upload, of a state that is gone by now.
    bucket, other = network.store.bucket("validator"), Digest(bytes(32))
    bucket.put(keys.blob(other), b"left over", timeout_seconds=1)
    document = encode_shown(Shown(loose=(*left.loose, other)), network.run.id, network["validator"].signer)
    bucket.put(keys.checkpoints(network.run.id), document, timeout_seconds=1)
    network.start("validator")
    network.run_blocks(lambda: shown(network, "validator").newest > 0)
    named = {file.hex() for entry in shown(network, "validator").checkpoints for file in entry.files}
    network.wait_for(lambda: blobs(network) == named)


# --- what is kept meanwhile --------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 50))
def test_what_a_joiner_applies_to_the_newest_checkpoint_is_kept_within_the_cap(
    round: int, published: int, every: int
) -> None:
    kept = kept_from(every, round, published)
    cap = round - RETAINED_INTERVALS * every - RETAINED_ROUNDS
    assert all(r >= kept for r in range(max(0, min(published, round), cap), round + 1))
    assert kept >= cap
    assert kept <= max(0, round - every - RETAINED_ROUNDS)


class NoCheckpoints(Retention):
    """Its uploads never succeed."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.checkpoints.look = lambda: None  # type: ignore[method-assign]


def test_nothing_that_joiners_need_is_deleted_before_there_is_a_checkpoint(networks: Networks) -> None:
    network = networks(miners=1)
    network.start("miner-1")
    network.start("validator", role=with_parts(NoCheckpoints))
    network.run_until(13)
    assert payloads(network, "miner-1")[0] == 0
    assert mirrored(network, "validator")[0] == 0
    network.kill("validator")
    network.start("validator")
    network.run_until(18)
    network.wait_for(lambda: payloads(network, "miner-1")[0] > 0 < mirrored(network, "validator")[0])
    newest = shown(network, "validator").newest
    assert payloads(network, "miner-1")[0] <= newest - RETAINED_ROUNDS


def test_a_checkpoint_that_only_a_minority_shows_makes_no_miner_delete_anything(networks: Networks) -> None:
    network = networks(miners=1, validators={"validator": 100, "liar": 100})
    network.start("miner-1")
    network.run_until(1)
    nothing = Digest(bytes(32))
    show(network, "liar", Checkpoint(1_000_000, nothing, nothing, ()))
    show(network, "validator", Checkpoint(5, nothing, nothing, ()))
    assert published_by_most(network["miner-1"].node, 0, 2.0) == 5
    hide_checkpoints(network)
    assert published_by_most(network["miner-1"].node, 0, 2.0) == 0


# --- joiners -----------------------------------------------------------------------------------------------------


def test_no_model_is_downloaded_that_more_counted_stake_contradicts(networks: Networks) -> None:
    network = networks(miners=2, keep_blocks=45, validators={"validator": 100, "forger-1": 200, "forger-2": 300})
    silence(network)
    asked: list[Call] = []
    network.store.before = asked.append
    network.start("validator", "miner-1")
    network.run_until(5)
    network.wait_for(lambda: shown(network, "validator").newest == 4)
    steps = network["miner-1"].node.state.saved.consensus.log
    states = dict(shown(network, "validator").states)
    # Of the newest round, of which the validator has put nothing up, and of what it has.
    links = [steps[-1].link, *states]
    for number, forger in enumerate(("forger-1", "forger-2")):
        state, files = put_up(network, forger, number)
        show(network, forger, *(Checkpoint(5 - place, link, state, files) for place, link in enumerate(links[:3])))
    cast(network)
    network.start("miner-2")
    network.run_until(6)
    joined = network["miner-2"].events("caught_up")[-1]
    assert joined["origin"].startswith("the checkpoint of round")
    downloads = [call for call in asked if call.reader == "miner-2" and call.key.startswith("blob/")]
    assert not [call for call in downloads if call.bucket.startswith("forger")]
    assert [call for call in downloads if call.bucket == "validator"]


def test_validators_that_stall_cost_a_joiner_one_deadline_together(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "ASK_SECONDS", 1.5)
    network = networks(miners=2, validators={"validator": 100} | {f"forger-{n}": 200 + n for n in range(6)})
    silence(network)
    network.start("validator", "miner-1")
    network.run_until(4)
    objects = [key for key in network.store.buckets["validator"] if "/selection/" in key or "/checkpoints" in key]
    for number in range(6):
        for key in objects:
            network.store.bucket(f"forger-{number}").put(key, b"for ever", timeout_seconds=1)
        network.store.faults[f"forger-{number}"] = Faults(stalls=True)
    inside = most = 0
    stall = FakeBucket._stall

    def counted(bucket: FakeBucket, timeout_seconds: float) -> None:
        nonlocal inside, most
        if not bucket._faults.stalls:
            return
        inside += 1
        most = max(most, inside)
        try:
            stall(bucket, timeout_seconds)
        finally:
            inside -= 1

    monkeypatch.setattr(FakeBucket, "_stall", counted)
    cast(network)
    network.start("miner-2")
    network.run_until(5, "miner-2")
    assert network["miner-2"].events("caught_up")
    assert most >= 6, "they were not asked beside each other"
    network.assert_agreement()
