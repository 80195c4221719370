"""Miners that begin a round from the selection that they expect: right guesses change no byte, wrong ones cost nobody a
round, and nothing of either is saved or said before the chain has agreed."""

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from murmur.data.shards import Shards
from murmur.lab.simulation.clock import Killed
from murmur.lab.simulation.store import Call
from murmur.node.fetch.selected import Brought
from murmur.node.node import Node, _Decision
from murmur.node.state.node_state import NodeState
from murmur.protocol import keys
from murmur.protocol.errors import ObjectMissing
from murmur.protocol.types import Selection
from murmur.rounds.miner import Miner
from tests.network import FakeNetwork, saved_state, waiting

Networks = Callable[..., FakeNetwork]


def guesses(network: FakeNetwork, name: str) -> dict[int, str | None]:
    return {event["round"]: event["guess"] for event in network[name].events("applied")}


def hide_keys(network: FakeNetwork, owner: str, rounds: tuple[int, ...], *readers: str) -> None:
    """These readers do not get the key of `owner` in these rounds."""

    def before(call: Call) -> None:
        is_key = call.verb == "get" and call.bucket == owner and "/reveal/" in call.key
        if is_key and call.reader in readers and int(call.key.rsplit("/", 1)[1]) in rounds:
            raise ObjectMissing("get: there is no such object or bucket")

    network.store.before = before


def test_steps_from_right_guesses_give_the_same_bytes_as_those_of_nodes_that_waited(networks: Networks) -> None:
    found = []
    for role in (Miner, waiting):
        network = networks(miners=3)
        network.start("validator")
        network.start("miner-1", "miner-2", "miner-3", role=role)
        network.run_until(6)
        found.append(network.assert_agreement())
        guessed = guesses(network, "miner-1")
        assert set(guessed.values()) == ({"right"} if role is Miner else {None}), guessed
    assert found[0] == found[1]


def test_a_wrong_guess_is_moved_to_what_was_agreed_and_nobody_is_late(networks: Networks) -> None:
    """The validator cannot read what the miners can."""
    network = networks(miners=3)
    hide_keys(network, "miner-3", (2, 3), "validator")
    network.start()
    network.run_until(8)
    network.assert_agreement()
    found = guesses(network, "miner-1")
    assert found[2] == "wrong"
    assert {found[round] for round in (0, 1, 5, 6)} == {"right"}
    assert len(network["miner-1"].contributing(2)) == 2
    for name in ("miner-1", "miner-2", "miner-3"):
        assert network[name].voids() == network[name].events("interrupted") == []
        assert len(network[name].events("committed")) >= 8


def test_a_void_round_takes_the_guess_back_and_the_error_feedback_gets_its_own_again(networks: Networks) -> None:
    network = networks(miners=3)
    hide_keys(network, "miner-1", (2,), "validator")
    network.start()
    network.run_until(2)
    network.kill("validator")
    network.run_until(3)
    network.start("validator")
    network.run_until(6)
    digests = network.assert_agreement()
    assert network["miner-2"].voids() == [2]
    assert digests[1] == digests[2] != digests[3]
    assert guesses(network, "miner-2")[2] == "wrong"
    assert network["miner-2"].events("interrupted") == []


def test_who_shows_no_key_is_not_expected(networks: Networks) -> None:
    network = networks(miners=3)
    hide_keys(network, "miner-3", (2,), "validator", "miner-1", "miner-2")
    network.start()
    network.run_until(5)
    network.assert_agreement()
    assert guesses(network, "miner-1")[2] == "right"
    assert len(network["miner-1"].contributing(2)) == 2


def test_what_a_wrong_guess_lacks_comes_beside_the_inner_steps(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miner serves validators only. The inner steps stop once its payload is here, and not to wait for it."""
    network, brought = networks(miners=3), list[tuple[str, int, set[str]]]()
    real = Node._bring

    def bring(self: Node, selection: Selection) -> Brought:
        brought.append((self.ports.pointer.bucket, selection.round, {frame.function for frame in inspect.stack()}))
        return real(self, selection)

    def before(call: Call) -> None:
        hidden = call.verb in ("get", "head") and call.bucket == "miner-3" and call.key.endswith(f"{2:08d}")
        if hidden and call.reader in ("miner-1", "miner-2"):
            raise ObjectMissing("get: there is no such object or bucket")

    monkeypatch.setattr(Node, "_bring", bring)
    network.store.before = before
    network.start()
    network.run_until(6)
    network.assert_agreement()
    assert len(network["miner-1"].contributing(2)) == 3
    for name in ("miner-1", "miner-2"):
        assert guesses(network, name)[2] == "wrong"
        assert network[name].events("interrupted") == []
        first, *_ = [frames for bucket, round, frames in brought if (bucket, round) == (name, 2)]
        assert "_decide_in_background" in first, "fetched by the thread that trains"


def test_a_decision_of_a_round_that_a_catch_up_has_passed_is_not_taken_for_another(networks: Networks) -> None:
    def refuse(round: int) -> Any:
        raise AssertionError("another round's decision was taken")

    class Passed(Miner):
        def follow(self, round: int) -> None:
            self.node._decision = _Decision(-1, refuse, self.node.time)
            super().follow(round)

    network = networks(miners=2)
    network.start("validator", "miner-2")
    network.start("miner-1", role=lambda node, shards: Passed(node, shards, speculates=False))
    network.run_until(4)
    network.assert_agreement()
    assert network["miner-1"].events("interrupted") == []


def test_where_nobody_committed_the_round_will_be_void_and_the_next_begins_at_once(networks: Networks) -> None:
    """Else a round whose compute fills it would be late after every void one, for ever."""

    class SkipsRoundTwo(Miner):
        def promise(self, round: int, sealed: Any) -> None:
            if round != 2:
                super().promise(round, sealed)

    network = networks(miners=2)
    network.start("validator")
    network.start("miner-1", "miner-2", role=SkipsRoundTwo)
    network.run_until(6)
    network.assert_agreement()
    assert network["miner-1"].voids() == [2]
    assert set(guesses(network, "miner-1").values()) == {"right"}


def test_nothing_of_a_guess_is_saved_before_the_decision(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = NodeState.save, list[bool]()

    def save(self: NodeState, **changes: Any) -> None:
        seen.append(self.expected is None or self.saved.theta != self.replica.digest())
        before = self.saved
        real(self, **changes)
        if self.expected is not None:
            assert (self.saved.theta, self.saved.link, self.saved.consensus) == (
                before.theta,
                before.link,
                before.consensus,
            )

    monkeypatch.setattr(NodeState, "save", save)
    network = networks(miners=2)
    network.start()
    network.run_until(4)
    assert seen
    assert all(seen)


def dying(owner: type, name: str, round: int, *, after: bool) -> Callable[[Node, Shards], Miner]:
    """A miner that is killed before, or after, a step of `round`, of its node or of what that holds."""

    def role(node: Node, shards: Shards) -> Miner:
        part = node if owner is Node else node.state
        original, victim = getattr(part, name), Miner(node, shards)

        def deadly(at: int, *rest: Any) -> Any:
            if at == round and not after:
                raise Killed
            result = original(at, *rest)
            if at == round:
                raise Killed
            return result

        setattr(part, name, deadly)
        return victim

    return role


@pytest.mark.parametrize("wrong", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (NodeState, "expect", True),
        (Node, "_apply", False),
        (NodeState, "step", False),
        (NodeState, "step", True),
        (NodeState, "apply", True),
    ],
)
def test_killed_around_a_guess_a_miner_comes_back_to_what_is_agreed(
    networks: Networks, owner: type, name: str, after: bool, wrong: bool
) -> None:
    network = networks(miners=3)
    if wrong:
        hide_keys(network, "miner-3", (2,), "validator")
    network.start("validator", "miner-2", "miner-3")
    network.start("miner-1", role=dying(owner, name, 2, after=after))
    network.run_blocks(lambda: not network["miner-1"].alive)
    saved, store = saved_state(network, "miner-1")
    store.close()
    assert saved.round == (3 if (name, after) == ("apply", True) else 2)
    network.start("miner-1")
    network.run_until(6)
    network.assert_agreement()
    assert network["miner-1"].round >= 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_kills_around_guesses(networks: Networks) -> None:
    draw = random.Random(26)
    network = networks(miners=3, validators={"validator-1": 50, "validator-2": 50, "validator-3": 50})
    hide_keys(network, "miner-3", tuple(draw.sample(range(200), 60)), "validator-1", "validator-2")
    network.start()
    network.run_until(2)
    steps = [
        ("expect", True),
        ("step", False),
        ("step", True),
        ("apply", False),
        ("apply", True),
        ("undo_outer_step", False),
    ]
    for _ in range(50):
        (name, after), victim = draw.choice(steps), draw.choice(("miner-1", "miner-2"))
        network.kill(victim)

        def role(node: Node, shards: Shards, name: str = name, after: bool = after) -> Miner:
            original = getattr(node.state, name)

            def deadly(*said: Any) -> Any:
                if not after and node.state.expected is not None:
                    raise Killed
                result = original(*said)
                if after:
                    raise Killed
                return result

            setattr(node.state, name, deadly)
            return Miner(node, shards)

        network.start(victim, role=role)
        until = network.clock.round_at(network.world.head) + draw.randrange(1, 3)
        network.run_blocks(
            lambda victim=victim, until=until: (
                not network[victim].alive or network.clock.round_at(network.world.head) > until
            )
        )
        network.kill(victim)
        network.start(victim)
        network.run_until(network["miner-3"].round + 1)
    digests = network.assert_agreement()
    assert len(digests) > 50
    found = guesses(network, "miner-1")
    assert {"right", "wrong"} <= set(found.values())


def test_weights_are_finite_after_many_corrections(networks: Networks) -> None:
    """What moves them by a difference of two thetas rounds, and must not drift away."""
    network = networks(miners=3)
    hide_keys(network, "miner-3", tuple(range(1, 12, 2)), "validator")
    network.start()
    network.run_until(12)
    network.assert_agreement()
    assert "wrong" in guesses(network, "miner-1").values()
    replica = network["miner-1"].node.state.replica
    assert all(bool(torch.isfinite(tensor).all()) for tensor in replica.theta.values())


def test_who_puts_up_one_payload_and_commits_to_another_is_fetched_again(networks: Networks) -> None:
    """What was fetched before the commit deadline was signed, whole, and not what its owner was held to then."""

    class ChangesItsMind(Miner):
        def seal(self, round: int, update: Any) -> Any:
            self.update = update
            return super().seal(round, update)

        def promise(self, round: int, sealed: Any) -> None:
            if round == 2:
                self.publish(round, sealed)
                self.node.wait_for(self.node.head() + 4, "others to fetch it")
                sealed = self.seal(round, self.update)
            super().promise(round, sealed)

        def reveal(self, round: int, sealed: Any) -> None:
            saved = self.node.state.saved.sealed
            super().reveal(round, saved)

        def counts(self, round: int, sealed: Any) -> bool:
            return super().counts(round, self.node.state.saved.sealed)

    network = networks(miners=3)
    network.start("validator", "miner-1", "miner-2")
    network.start("miner-3", role=ChangesItsMind)
    network.run_until(2)
    early = ("miner-3", "get", keys.payload(network.run.id, 2))
    network.run_until(5)
    network.assert_agreement()
    assert len(network["miner-1"].contributing(2)) == 3
    assert guesses(network, "miner-1")[2] == "right"
    assert sum(call == early for call in network.store.log) > 3, "nobody had fetched it before"
