"""A node that joins late, from what strangers keep: only what the chain authenticates is believed."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gauntlet.agreement import Tip, mirrors
from murmur.node.sync import catchup
from murmur.node.sync.checkpoints import Checkpoint, Shown, encode_shown, parse_shown
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, InvalidMessage, StorageError
from murmur.protocol.messages import encode_selection, encode_signed, encode_slot
from murmur.protocol.types import Commitment, Digest, Selection, Vote
from murmur.training import checkpoint
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from storage.realtime import REAL
from tests.fakes.bucket import Call
from tests.fakes.chain import fake_verify
from tests.network import FakeNetwork
from tests.node.lies import spoil
from tests.node.states_documents import MALFORMED
from tests.small_run import OWNER

Networks = Callable[..., FakeNetwork]

FORGER = {"validator": 100, "forger": 200}
"""Joiners ask the validator with most stake first; this one never says a true vote and does not take part."""


def run_four_rounds(networks: Networks, **options: object) -> FakeNetwork:
    """Rounds 0 to 3 by a validator and a miner, on a chain that has forgotten the first of them; miner-2 stays away."""
    network = networks(miners=2, keep_blocks=45, **options)
    silence(network)
    network.start("validator", "miner-1")
    network.run_until(4)
    return network


def join(network: FakeNetwork) -> str:
    """miner-2 joins and plays a round; where its state came from."""
    network.start("miner-2")
    network.run_until(5)
    network.assert_agreement()
    assert network["miner-2"].thetas()
    return str(network["miner-2"].events("caught_up")[-1]["origin"])


def selections(network: FakeNetwork, bucket: str) -> list[str]:
    return sorted(key for key in network.store.buckets[bucket] if "/selection/" in key)


def shown(network: FakeNetwork, name: str) -> Shown:
    """What this validator's bucket shows of its states; nothing when there is no such document."""
    found = network.store.buckets[name].get(keys.checkpoints(network.run.id))
    return Shown() if found is None else parse_shown(found.data, network.run.id, network[name].peer, fake_verify)


def show(network: FakeNetwork, name: str, *checkpoints: Checkpoint, told: bool = True) -> None:
    """Let this validator show these checkpoints; `told`: and say that it stood there."""
    states = tuple((entry.link, entry.state) for entry in checkpoints) if told else ()
    document = encode_shown(Shown(checkpoints, states), network.run.id, network[name].signer)
    network.store.bucket(name).put(keys.checkpoints(network.run.id), document, timeout_seconds=1)


def hide_checkpoints(network: FakeNetwork, name: str = "validator") -> None:
    network.store.buckets[name].pop(keys.checkpoints(network.run.id), None)


def put_up(network: FakeNetwork, name: str, seed: int) -> tuple[Digest, tuple[Digest, ...]]:
    """A state that nobody else holds, whole in this bucket: its digest and its files."""
    other = Replica(network.spec, genesis_theta(network.spec.model, seed))
    folder = network.folder / f"forged-{seed}"
    state = checkpoint.save(folder, other.consensus_state())
    files = checkpoint.blobs(folder, state)
    for digest, path in files:
        network.store.bucket(name).put(keys.blob(digest), path, timeout_seconds=1)
    return state, tuple(digest for digest, _ in files)


def silence(network: FakeNetwork) -> None:
    """Forgers do not count before they speak."""
    say(network, Commitment(2**31, Digest(bytes(32))))


def cast(network: FakeNetwork) -> None:
    """The forgers count from now on, so that joiners ask them."""
    say(network, Vote(3, 0, Digest(b"f" * 32), Digest(b"f" * 32)))
    network.world.step(1)
    peers = network.world.state(network.world.final).peers
    forgers = {member.peer for name, member in network.members.items() if name.startswith("forger")}
    assert forgers < set(mirrors(network.run, network.world.final, peers))


def say(network: FakeNetwork, statement: Vote | Commitment) -> None:
    for name, member in network.members.items():
        if name.startswith("forger"):
            network.world.publish(member.peer, encode_slot(network.store.pointer(name), statement))


def test_a_joiner_on_a_pruned_chain_starts_from_a_checkpoint(networks: Networks) -> None:
    network = run_four_rounds(networks)
    assert join(network).startswith("the checkpoint of round")


def test_a_first_start_waits_for_theta_0(networks: Networks) -> None:
    network = networks(miners=1)
    key = keys.blob(Digest(bytes.fromhex(network.spec.genesis_checkpoint)))
    kept = network.store.buckets["owner"].pop(key)
    network.start("validator", "miner-1")
    network.run_blocks(lambda: network.world.head > 2 * network.spec.clock.round_blocks)
    network.store.buckets["owner"][key] = kept
    network.run_until(4)
    network.assert_agreement()
    assert network["miner-1"].thetas()


def test_without_checkpoints_a_joiner_replays_the_run_from_its_first_round(networks: Networks) -> None:
    network = run_four_rounds(networks)
    hide_checkpoints(network)
    # Round 1 is to be had from a miner only, round 2 from the mirror only.
    for key in list(network.store.buckets["validator"]):
        if "/mirror/00000001" in key:
            del network.store.buckets["validator"][key]
    del network.store.buckets["miner-1"][keys.payload(network.run.id, 2)]
    assert join(network) == "our own state"
    assert network["miner-2"].events("caught_up")[-1]["applied"] >= 3


def test_a_forged_checkpoint_is_refused_and_the_true_one_of_the_next_validator_is_used(networks: Networks) -> None:
    network = run_four_rounds(networks, validators=FORGER)
    state, files = put_up(network, "forger", 7)
    true, nowhere = network["miner-1"].node.state.saved.link, Digest(bytes(32))
    show(network, "forger", Checkpoint(6, true, state, files), Checkpoint(2, nowhere, state, files))
    cast(network)
    assert join(network).startswith("the checkpoint of round")


def test_whoever_shows_a_checkpoint_does_not_say_of_which_round_it_is(networks: Networks) -> None:
    """The true states under rounds that are not: one number would cost a joiner its memory, and would then be shown by
    it to all others."""
    network = run_four_rounds(networks, validators=FORGER)
    true = shown(network, "validator").checkpoints
    show(network, "forger", *(replace(entry, round=10**6) for entry in true))
    cast(network)
    assert join(network) in {f"the checkpoint of round {round}" for round in range(1, 6)}
    assert network["miner-2"].node.state.saved.consensus.snapshot.round <= 5


def test_malformed_documents_of_states_harm_no_joiner(networks: Networks) -> None:
    forgers = {f"forger-{number}": 200 + number for number in range(len(MALFORMED))}
    network = networks(miners=2, validators={"validator": 100} | forgers)
    silence(network)
    network.start("validator", "miner-1")
    network.run_until(4)
    for name, content in zip(forgers, MALFORMED.values(), strict=True):
        document = encode_signed("states", network.run.id, 0, content, network[name].signer)
        with pytest.raises(InvalidMessage):
            parse_shown(document, network.run.id, network[name].peer, fake_verify)
        network.store.bucket(name).put(keys.checkpoints(network.run.id), document, timeout_seconds=1)
    cast(network)
    network.start("miner-2")
    network.run_until(5)
    network.assert_agreement()
    assert network["miner-2"].events("caught_up")


def test_a_forged_selection_is_refused_and_the_true_one_of_the_next_validator_is_used(networks: Networks) -> None:
    network = run_four_rounds(networks, validators=FORGER)
    forger = network.store.bucket("forger")
    kept = selections(network, "validator")
    assert kept
    state_ref = (network["miner-1"].peer, Digest(bytes(32)))
    for key in kept:
        lie = encode_selection(Selection(3, Digest(bytes(32)), Digest(bytes(32)), network.run.id, (state_ref,)))
        forger.put(key, lie, timeout_seconds=1)
    cast(network)
    assert join(network).startswith("the checkpoint of round")


def test_a_joiner_whose_chain_node_has_pruned_it_learns_an_amendment_from_the_chain_of_selections(
    networks: Networks,
) -> None:
    network = networks(miners=2, keep_blocks=45)
    network.start("validator", "miner-1")
    network.run_until(1)
    amendment = network.amend(from_round=3, changes={"outer": {"alpha": 0.25}})
    network.run_until(5)
    # Written again, so that the slot itself no longer says since when it names this amendment.
    network._publish(OWNER.peer, "owner", amendment.digest)
    network.world.step(1)
    network.start("miner-2")
    network.run_until(7)
    joiner = network["miner-2"]
    assert joiner.node.run.head == amendment.digest
    assert joiner.events("caught_up")
    assert joiner.thetas()[6] == network["miner-1"].thetas()[6]


@pytest.mark.parametrize("name", ["miner-2", "second"])
def test_who_could_not_have_an_amendment_in_time_is_back_once_it_can(networks: Networks, name: str) -> None:
    network = networks(miners=2, validators={"first": 150, "second": 100})
    network.start()
    network.run_until(1)
    amendment = network.amend(from_round=3, changes={"outer": {"alpha": 0.25}})

    def cut(call: Call) -> None:
        if call.reader == name and call.key == keys.blob(amendment.digest):
            raise StorageError("no connection")

    network.store.before = cut
    network.run_until(5, "first")
    assert network[name].node.run.head != amendment.digest
    network.store.before = lambda call: None
    network.run_until(8)
    assert network[name].node.run.head == amendment.digest
    assert network[name].thetas()[7] == network["first"].thetas()[7]
    assert network["first"].voids() == []


def test_a_joiner_in_a_round_that_nobody_speaks_for_starts_at_the_last_that_somebody_did(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("validator", "miner-1")
    network.run_until(2)
    network.kill("validator")
    network.run_until(4)
    network.start("miner-2")
    network.run_until(5)
    network.assert_agreement()
    assert network["miner-2"].round >= 5


def test_theta_zero_is_found_at_a_validator_when_the_owners_bucket_is_gone(networks: Networks) -> None:
    network = networks(miners=2)
    genesis = dict(network.store.buckets["owner"])
    network.start("validator", "miner-1")
    network.run_until(1)
    network.store.buckets["validator"] |= genesis
    network.store.buckets["owner"].clear()
    network.start("miner-2")
    network.run_until(2)
    network.assert_agreement()


def test_a_node_whose_theta_is_wrong_outlives_that_nobody_can_help_it_for_a_while(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(3)
    spoil(network, "miner-2")
    network.store.buckets["owner"].clear()
    hide_checkpoints(network)
    network.start("miner-2")
    network.run_until(6)
    assert network["miner-2"].events("caught_up")[-1]["origin"].startswith("the checkpoint")
    assert network["miner-2"].thetas()[5] == network["miner-1"].thetas()[5]


def test_a_validator_deletes_the_checkpoints_that_no_joiner_tries_any_more(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(11)
    network.wait_for(lambda: shown(network, "validator").newest == 10)
    kept = shown(network, "validator").checkpoints
    assert [entry.round for entry in kept] == [10, 8, 6]
    named = {file.hex() for entry in kept for file in entry.files}

    def lying() -> set[str]:
        return {key.removeprefix("blob/") for key in network.store.buckets["validator"] if key.startswith("blob/")}

    network.wait_for(lambda: lying() == named)


def test_a_chain_that_fails_in_the_middle_of_a_replay_leaves_our_own_state_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller may go on after a ChainError, and must not do so with another model than its saved round's."""
    in_place: list[str] = []

    def replay(*_: object, **__: object) -> None:
        in_place.append("theta_0")
        raise ChainError("gone")

    monkeypatch.setattr(catchup, "_starts", lambda *_: iter([(SimpleNamespace(origin="genesis"), [])]))
    monkeypatch.setattr(catchup, "_replay", replay)
    monkeypatch.setattr(catchup, "at_commit", lambda *_: ())
    monkeypatch.setattr(catchup, "counted_stakes", lambda *_: {})
    run, agreement = SimpleNamespace(id=bytes(32)), SimpleNamespace(selections={})
    follower = SimpleNamespace(sources=lambda: None, time=REAL, run=run, agreement=agreement)
    held = SimpleNamespace(restore=lambda: in_place.append("our own"))
    with pytest.raises(ChainError):
        catchup.catch_up(follower, held, Tip(6, Digest(b"l" * 32)))  # type: ignore[arg-type]
    assert in_place[-1] == "our own"
