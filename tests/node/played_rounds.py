"""A network that never stopped, and nodes that play its rounds from their disks."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from murmur.node.fetch.opening import Opened
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Snapshot
from murmur.node.state.store import StateStore
from murmur.node.telemetry.events import Events, read_events
from murmur.protocol import keys
from murmur.protocol.spec import OuterSpec
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from sparseloco import ops, wire
from storage.exchange import cached
from storage.realtime import RealTime
from storage.seal import seal
from tests.fakes.chain import FakeSigner
from tests.small_run import MODEL
from tests.specs import toy_spec

RUN = Digest(sha256(b"run").digest())
SPEC = toy_spec({"model": MODEL, "checkpoint_rounds": 3, "compression.k": 64})
AMENDED = SPEC.model_copy(update={"outer": OuterSpec(alpha=0.3, aggregate="filtered_mean")})
VOID = {1, 6}
ROUNDS = 9
FIRST = Digest(bytes(32))


class AtOnce(RealTime):
    """What is begun is done when `start` returns: every write has its place."""

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = super().start(work, name)
        thread.join()
        return thread


@dataclass(frozen=True)
class Round:
    """An agreed round: its payloads, and the theta digest after it."""

    opened: tuple[Opened, ...]
    objects: tuple[bytes, ...]
    theta: Digest

    def link(self, number: int) -> Digest:
        return Digest(sha256(b"link %d" % number).digest())


def spec_at(number: int) -> Any:
    return AMENDED if number >= 4 else SPEC


@cache
def network() -> tuple[Replica, tuple[Round, ...]]:
    """A node that never stopped, and what it applied."""
    torch.set_num_threads(1)
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1))
    signers = [FakeSigner(name) for name in ("one", "two", "three")]
    rounds = []
    for number in range(ROUNDS):
        opened, objects = [], []
        for place, signer in enumerate(sorted(signers, key=lambda signer: signer.peer)):
            generator = torch.Generator().manual_seed(10 * number + place)
            moved = {
                name: value - 1e-2 * torch.randn(value.shape, generator=generator)
                for name, value in replica.theta.items()
            }
            update = ops.compress(replica.theta, moved, None, SPEC.layout, beta=0.95)[0]
            sealed = seal(wire.encode(replica.digest(), update), run=RUN, round=number, signer=signer)
            spoilt = number == 2 and place == 1  # does not parse: it counts with s = 0
            opened.append(
                Opened(signer.peer, sealed.digest, None if spoilt else sealed.key, None if spoilt else update)
            )
            objects.append(sealed.object)
        if number not in VOID:
            outer = spec_at(number).outer
            replica.outer_step([o.update for o in opened], alpha=outer.alpha, aggregate=outer.aggregate)
        rounds.append(Round(tuple(opened), tuple(objects), replica.digest()))
    return replica, tuple(rounds)


@cache
def other() -> Replica:
    """The nodes' own: whatever it held, a start loads it."""
    return Replica(SPEC, genesis_theta(SPEC.model, 2))


def start(home: Path, clock: Any = None) -> NodeState:
    """A process on this home, at the start of the round that it had come to."""
    store = StateStore(home, RUN)
    held = NodeState(SPEC, RUN, other(), store, Events(home / "events.jsonl", "node"), clock or AtOnce())
    if not held.resume():
        theta_0 = Replica(SPEC, genesis_theta(SPEC.model, 1))
        state = checkpoint.save(store.snapshot, theta_0.consensus_state())
        held.load_consensus(Snapshot(0, FIRST, state))
        held.begin()
    return held


def stop(held: NodeState) -> None:
    held.snapshots.hold()
    held.store.close()


def lay_out(held: NodeState, number: int) -> None:
    """The downloads of a round: from owners, and from mirrors."""
    held.cache.mkdir(exist_ok=True)
    for place, (opened, data) in enumerate(zip(network()[1][number].opened, network()[1][number].objects, strict=True)):
        key = keys.mirror(RUN, number, opened.peer) if place else keys.payload(RUN, number)
        cached(held.cache, opened.peer, key).write_bytes(data)


def play(held: NodeState, until: int = ROUNDS) -> None:
    while (number := held.saved.round) < until:
        lay_out(held, number)
        agreed = network()[1][number]
        if number in VOID:
            decision: Any = SimpleNamespace(state_ref=None, selection=None, link=held.saved.link)
        else:
            decision = SimpleNamespace(selection=object(), link=agreed.link(number))
        held.apply(number, spec_at(number), decision, list(agreed.opened))
        stands(held)


def stands(held: NodeState) -> None:
    """Where the network stood at the start of this round."""
    number = held.saved.round
    expected = network()[1][number - 1].theta if number else None
    assert held.replica.digest() == held.saved.theta
    assert expected in (None, held.saved.theta)
    agreed = [n for n in range(number) if n not in VOID]
    assert held.saved.link == (network()[1][0].link(agreed[-1]) if agreed else FIRST)


def read_events_of(home: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(home / "events.jsonl") if event["event"] == kind]
