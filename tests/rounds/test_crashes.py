"""kill -9 at the lines where it could hurt, and a restart on what was left on disk."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from gauntlet.book import from_json
from murmur.data.shards import Shards
from murmur.lab.simulation.clock import Life
from murmur.node.node import Node
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator
from tests.network import FakeNetwork, Killed, saved_state

Networks = Callable[..., FakeNetwork]


def die(node: Node) -> NoReturn:
    """kill -9, in whichever thread."""
    assert isinstance(node.time, Life)
    node.time.kill()
    raise Killed


def killed(program: type[Any], step: str, round: int, *, after: bool = False) -> Callable[[Node, Shards], Any]:
    """The program, dead before (or after) a step of a round."""

    def role(node: Node, shards: Shards) -> Any:
        player = program(node, shards)
        part, _, name = step.rpartition(".")
        owner = getattr(player, part) if part else player
        original = getattr(owner, name)

        def deadly(at: int, *rest: Any) -> Any:
            if getattr(at, "round", at) == round and not after:
                die(node)
            result = original(at, *rest)
            if getattr(at, "round", at) == round:
                die(node)
            return result

        setattr(owner, name, deadly)
        return player

    return role


def dead(network: FakeNetwork, *names: str) -> None:
    network.run_blocks(lambda: not any(network[name].alive for name in names))


def test_a_miner_killed_before_it_has_committed_finishes_the_round_with_the_saved_bytes(networks: Networks) -> None:
    network = networks(miners=3)
    network.start("validator")
    network.start("miner-1", role=killed(Miner, "seal", 1))
    network.start("miner-2", role=killed(Miner, "publish", 1))
    network.start("miner-3", role=killed(Miner, "commit", 1))
    dead(network, "miner-1", "miner-2", "miner-3")

    left: dict[str, bytes] = {}
    for name, round in (("miner-1", 0), ("miner-2", 1), ("miner-3", 1)):
        saved, store = saved_state(network, name)
        assert saved.sealed is not None
        assert saved.sealed.round == round
        left[name] = store.read(saved.sealed.object)
        store.close()
    payload = keys.payload(network.run.id, 1)
    assert payload not in network.store.buckets["miner-2"]
    network.start("miner-1", "miner-2", "miner-3")
    network.run_until(2)
    for name in ("miner-2", "miner-3"):
        assert network.store.buckets[name][payload].data == left[name]
    everyone = [hotkey(network[f"miner-{number}"].peer) for number in (1, 2, 3)]
    assert sorted(network["validator"].contributing(1)) == sorted(everyone)
    network.assert_agreement()


def test_a_miner_killed_after_it_has_committed_still_reveals_its_key(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("validator")
    network.start("miner-1", role=killed(Miner, "commit", 1, after=True))
    network.start("miner-2", role=killed(Miner, "reveal", 1))
    dead(network, "miner-1", "miner-2")
    # Past D: this round's commit window is closed, its keys are still taken.
    network.run_to_block(network.clock.commit_deadline(1) + 1)
    network.start("miner-1", "miner-2")
    reveal = keys.reveal(network.run.id, 1)
    network.wait_for(lambda: all(reveal in network.store.buckets[name] for name in ("miner-1", "miner-2")))
    network.run_until(2)
    assert len(network["validator"].contributing(1)) == 2
    network.assert_agreement()


def test_a_miner_killed_at_any_call_of_the_chain_resumes(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("validator", "miner-1")
    miner = network["miner-2"]
    lives = 0
    for calls in range(1, 48):
        miner.calls_left = calls
        network.start("miner-2")
        network.run_blocks(lambda: not miner.alive)
        lives += 1
        if network["validator"].round >= 3:
            break
    miner.calls_left = None
    network.start("miner-2")
    network.run_until(network["validator"].round + 1)
    assert lives > 5
    assert network["validator"].voids() == []
    network.assert_agreement()
    last = network["miner-2"].round - 1
    assert hotkey(miner.peer) in network["validator"].contributing(last)


@pytest.mark.parametrize(("step", "folded"), [("pay.pay", 1), ("scores.fold", 0)])
def test_a_validator_killed_in_a_round_keeps_every_rating_and_folds_no_round_twice(
    networks: Networks, step: str, folded: int
) -> None:
    network = networks()
    network.start("miner-1", "miner-2")
    network.start("validator", role=killed(Validator, step, 1))
    dead(network, "validator")
    saved, store = saved_state(network, "validator")
    assert saved.book is not None
    assert (saved.round, saved.scored) == (1, folded)
    before = store.read(saved.book)
    store.close()

    books: list[bytes] = []

    class Watched(Validator):
        def __init__(self, node: Node, shards: Shards) -> None:
            super().__init__(node, shards)
            from gauntlet.book import to_json

            books.append(to_json(self.scores.book))

    network.start("validator", role=Watched)
    network.run_until(3)
    assert books == [before]
    network.assert_agreement()
    assert network["validator"].voids() == []
    program = network["validator"].program
    assert isinstance(program, Validator)
    known = {round for round in range(3) if round <= folded or round >= 2}
    for record in program.scores.book.peers.values():
        assert record.evaluations == record.contributed == len(known)
    # The selection of the round that broke off is there for joiners.
    links = [keys.selection(network.run.id, network["miner-1"].node.state.saved.link)]
    assert all(link in network.store.buckets["validator"] for link in links)
    stored = [key for key in network.store.buckets["validator"] if "/selection/" in key]
    assert len(stored) == 3


def test_what_a_dead_validator_saved_parses_as_its_book(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    network.kill("validator")
    saved, store = saved_state(network, "validator")
    assert saved.book is not None
    book = from_json(store.read(saved.book))
    store.close()
    assert book.round == saved.scored == 0
    assert set(book.peers) == {network["miner-1"].peer}


def test_the_only_validator_comes_back_after_an_outage_longer_than_the_chain_remembers(networks: Networks) -> None:
    network = networks(miners=1, keep_blocks=45)
    network.start()
    network.run_until(2)
    network.kill("validator")
    network.run_until(5)
    network.start("validator")
    network.run_until(7)
    thetas = network.assert_agreement()
    assert {2, 3, 4} <= set(network["miner-1"].voids())
    assert 6 not in network["miner-1"].voids()
    assert thetas[6] != thetas[4]


def test_ratings_of_another_release_stop_a_validator_with_advice(networks: Networks) -> None:
    network = networks(miners=1)
    network.start()
    network.run_until(1)
    network.kill("validator")
    saved, store = saved_state(network, "validator")
    assert saved.book is not None
    ours = store.read(saved.book)
    older = re.sub(rb'"version":\d+', b'"version":4', ours)
    assert older != ours
    store.commit(replace(saved, book=store.write(older)))
    store.close()
    network.start("validator")
    dead(network, "validator")
    error, network["validator"].error = network["validator"].error, None
    assert isinstance(error, ConfigError)
    assert "every rating starts afresh" in str(error)
