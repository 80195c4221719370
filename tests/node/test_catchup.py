"""A node that joins late, from what strangers keep: only what the chain authenticates is believed."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from node import catchup
from protocol import keys
from protocol.errors import ChainError
from protocol.messages import encode_document, encode_link, encode_slot, encode_statement, parse_document
from protocol.types import Commitment, Digest, Record
from tests.fakes.chain import fake_verify
from tests.network import OWNER, FakeNetwork
from training import checkpoint
from training.replica import Replica, genesis_theta

Networks = Callable[..., FakeNetwork]

FORGER = {"validator": 100, "forger": 200}
"""Joiners ask the validator with most stake first; this one never says a true word and does not take part."""


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


def statements(network: FakeNetwork, bucket: str) -> list[str]:
    return sorted(key for key in network.store.buckets[bucket] if "/statement/" in key)


def checkpoints(network: FakeNetwork, bucket: str) -> list[str]:
    return sorted(key for key in network.store.buckets[bucket] if "/checkpoint/" in key)


def silence(network: FakeNetwork) -> None:
    """Forgers do not count before they speak: a validator that mines has to."""
    for name, member in network.members.items():
        if name.startswith("forger"):
            mines = encode_slot(network.store.pointer(name), Commitment(2**31, Digest(bytes(32))))
            network.world.publish(member.peer, mines)


def forge(network: FakeNetwork, round: int, body: dict[str, str], forger: str = "forger") -> None:
    document = encode_document("state", network.run.id, round, body, network[forger].signer)
    key = keys.checkpoint(network.run.id, round)
    network.store.bucket(forger).put(key, document, timeout_seconds=1)


def test_a_joiner_on_a_pruned_chain_starts_from_a_checkpoint(networks: Networks) -> None:
    network = run_four_rounds(networks)
    assert join(network).startswith("the checkpoint of round")


def test_without_checkpoints_a_joiner_replays_the_run_from_its_first_round(networks: Networks) -> None:
    network = run_four_rounds(networks)
    for key in checkpoints(network, "validator"):
        del network.store.buckets["validator"][key]
    # Round 1 is to be had from a miner only, round 2 from the mirror only.
    for key in list(network.store.buckets["validator"]):
        if "/mirror/00000001" in key:
            del network.store.buckets["validator"][key]
    del network.store.buckets["miner-1"][keys.payload(network.run.id, 2)]
    assert join(network) == "our own state"
    assert network["miner-2"].events("caught_up")[-1]["applied"] >= 3


def test_a_forged_checkpoint_is_refused_and_the_true_one_of_the_next_validator_is_used(networks: Networks) -> None:
    network = run_four_rounds(networks, validators=FORGER)
    other = Replica(network.spec, genesis_theta(network.spec.model, 7))
    folder = network.folder / "forged"
    state = checkpoint.save(folder, other.consensus_state())
    forger = network.store.bucket("forger")
    for digest, path in checkpoint.blobs(folder, state):
        forger.put(keys.blob(digest), path, timeout_seconds=1)
    true = network["miner-1"].node.held.saved.link
    forge(network, 6, {"link": true.hex(), "state": state.hex()})
    forge(network, 4, {"link": true.hex(), "state": state.hex()})
    forge(network, 2, {"link": "00" * 32, "state": state.hex()})
    assert join(network).startswith("the checkpoint of round")


def test_malformed_checkpoint_documents_harm_no_joiner(networks: Networks) -> None:
    forgers = {f"forger-{number}": 200 + number for number in range(6)}
    network = networks(miners=2, validators={"validator": 100} | forgers)
    silence(network)
    network.start("validator", "miner-1")
    network.run_until(2)
    link = network["miner-1"].node.held.saved.link.hex()
    network.run_until(4)
    malformed = (
        {},
        {"link": "zz", "state": "00" * 32},
        {"link": link, "state": "ab" * 20_000},
        {"link": link, "state": "00" * 32},
        {"link": "00" * 20_000, "state": "00" * 32},
        {"link": "00", "state": ""},
    )
    for name, body in zip(forgers, malformed, strict=True):
        forge(network, 2, body, name)
    network.start("miner-2")
    network.run_until(5)
    network.assert_agreement()
    assert network["miner-2"].events("caught_up")


def test_a_forged_record_is_refused_and_the_true_one_of_the_next_validator_is_used(networks: Networks) -> None:
    network = run_four_rounds(networks, validators=FORGER)
    forger = network.store.bucket("forger")
    kept = statements(network, "validator")
    assert len(kept) == 4
    for key in kept:
        lie = encode_link(encode_statement(Record(3, 1, Digest(bytes(32)), Digest(bytes(32)))), (), network.run.id)
        forger.put(key, lie, timeout_seconds=1)
    assert join(network).startswith("the checkpoint of round")


def test_a_joiner_whose_chain_node_has_pruned_it_learns_an_amendment_from_the_chain_of_records(
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
    from tests.neurons.test_validators import spoil

    network = networks(miners=2)
    network.start()
    network.run_until(3)
    network.kill("miner-2")
    spoil(network, "miner-2")
    network.store.buckets["owner"].clear()
    for key in checkpoints(network, "validator"):
        del network.store.buckets["validator"][key]
    network.start("miner-2")
    network.run_until(6)
    assert network["miner-2"].events("caught_up")[-1]["origin"].startswith("the checkpoint")
    assert network["miner-2"].thetas()[5] == network["miner-1"].thetas()[5]


def test_a_validator_deletes_the_checkpoints_that_no_joiner_tries_any_more(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(10)
    network.wait_for(lambda: len(checkpoints(network, "validator")) == 4)
    kept = checkpoints(network, "validator")
    assert [int(key[-8:]) for key in kept] == [4, 6, 8, 10]
    named: set[str] = set()
    for key in kept:
        document = network.store.bucket("validator").get(key, max_bytes=1 << 16, timeout_seconds=1)
        peer, round = network["validator"].peer, int(key[-8:])
        named |= set(parse_document(document, "state", network.run.id, round, peer, fake_verify)["files"])
    blobs = {key.removeprefix("blob/") for key in network.store.buckets["validator"] if key.startswith("blob/")}
    assert blobs == named


def test_a_chain_that_fails_in_the_middle_of_a_replay_leaves_our_own_state_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller may go on after a ChainError, and must not do so with another model than its saved round's."""
    in_place: list[str] = []

    def replay(follower: object, held: SimpleNamespace, *_: object) -> None:
        held.load_consensus("theta_0")
        raise ChainError("gone")

    monkeypatch.setattr(catchup, "_newest_decided", lambda node: 5)
    monkeypatch.setattr(catchup, "_newest_claims", lambda *_: (5, [("theta", "previous")]))
    monkeypatch.setattr(catchup, "_starts", lambda *_: iter([SimpleNamespace(origin="genesis")]))
    monkeypatch.setattr(catchup, "_replay", replay)
    monkeypatch.setattr(catchup, "settle", lambda *_: None)
    follower = SimpleNamespace(sources=lambda: None)
    held = SimpleNamespace(saved=SimpleNamespace(round=1, consensus="our own"), load_consensus=in_place.append)
    with pytest.raises(ChainError):
        catchup.catch_up(follower, held)  # type: ignore[arg-type]
    assert in_place[-1] == "our own"
