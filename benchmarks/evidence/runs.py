"""One run: peers train on pages that are drawn as in the product, exchange what they learned, and the loss is taken.

`train` is the only way in. It reads no clock but for `seconds`, and the same setting on the same corpus gives the same
losses on one kind of machine.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import isfinite
from typing import Any

import torch
from collusion import direction
from collusion import sent as forged
from pay_workers import inner_of
from tiny_spec import word
from torch import Tensor

from benchmarks.evidence.exchange import Exchange, Sent, exchange_of, saved_as
from benchmarks.evidence.settings import Part, Setting, payload_bytes
from murmur.data.shards import Shards, Split
from murmur.protocol.assignment import assigned
from murmur.protocol.spec import TrainingSpec
from murmur.protocol.types import PeerId
from murmur.training.evaluate import held_out_sequences
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks
from murmur.training.replica import Replica
from sparseloco.floats import NonFinite
from sparseloco.update import Update

Point = dict[str, Any]
"""{"round", "tokens": trained on by all together, "sent": bytes that one peer has uploaded, "loss": nats a token, None
where the run has diverged}."""


@dataclass(frozen=True)
class Texts:
    """The corpus: what is trained on, and the two parts on which losses are taken."""

    train: Split
    parts: dict[Part, Shards]
    digest: str


class Peer:
    """One honest peer. `expected`: the updates from which it goes on before it knows the selection, and the selection
    itself, which is known a share of the inner steps later."""

    def __init__(self, place: int, key: PeerId, replica: Replica) -> None:
        self.place, self.key, self.replica = place, key, replica
        self.expected: tuple[list[Update], list[Update]] | None = None

    def train(self, work: Tensor, setting: Setting, steps: int) -> None:
        """Inner steps on `work`, as many as its pace has; the weights become theta_r."""
        replica, spec = self.replica, self.replica.spec
        if self.expected is None:
            inner = inner_of(spec.inner, steps / spec.inner.steps, 1.0, 1.0) if steps != spec.inner.steps else None
            replica.inner_round(work, inner=inner)
            return
        guessed, agreed = self.expected
        step = {"alpha": spec.outer.alpha, "aggregate": spec.outer.aggregate}
        known, done = max(1, round(setting.delay * spec.inner.steps)), count(1)
        replica.outer_step(guessed, **step)
        replica.inner_round(work, stopped=lambda: next(done) >= known)
        replica.undo_outer_step()
        replica.outer_step(agreed, **step)
        replica.inner_round(work, resume=True)
        self.expected = None


class Run:
    """One run under way."""

    def __init__(self, setting: Setting, texts: Texts, device: str = "cpu") -> None:
        self.setting, self.texts = setting, texts
        self.ranks = Ranks(device=device)
        self.spec: TrainingSpec = setting.spec(texts.train.num_tokens)
        theta = genesis_theta(self.spec.model, setting.seed)
        self.judge = Replica(self.spec, theta, ranks=self.ranks)
        self.exchange: Exchange = exchange_of(setting)
        honest = 0 if setting.method == "ddp" else setting.peers - setting.colluders
        self.peers = [
            Peer(place, key_of(setting, place, 0), Replica(self.spec, theta, ranks=self.ranks))
            for place in range(honest)
        ]
        self.tokens = self.sent = 0

    def round(self, number: int) -> None:
        """One round of all peers."""
        if self.setting.method == "ddp":
            self._step_together(number)
        else:
            self._exchange(number)
        self.sent += payload_bytes(self.setting)

    def point(self, number: int) -> Point:
        """After so many rounds."""
        shards = self.texts.parts[self.setting.part]
        loss = self.judge.loss(held_out_sequences(shards, self.setting.evaluated, self.spec.model.context))
        found = round(loss, 5) if isfinite(loss) else None
        return {"round": number, "tokens": self.tokens, "sent": self.sent, "loss": found}

    def pages(self, number: int, peer: PeerId, steps: int) -> Tensor:
        """int64 [steps * sequences, context + 1]: a peer's work of a round."""
        wanted = steps * self.setting.sequences
        pages = assigned(
            word("run", self.setting.seed),
            word("page", self.setting.seed, number),
            peer,
            num_pages=self.spec.num_pages,
            page_tokens=self.spec.page_tokens,
            count=-(-wanted // self.spec.data.page_sequences),
        )
        return sequences(self.texts.train, pages, self.spec.model.context)[:wanted]

    def _step_together(self, number: int) -> None:
        """DDP: in every step the gradient is the mean over the peers' sequences, which are one batch here."""
        setting, steps = self.setting, self.setting.inner_steps
        work = [self.pages(number, key_of(setting, place, 0), steps) for place in range(setting.peers)]
        by_step = torch.cat([part.view(steps, setting.sequences, -1) for part in work], dim=1)
        report = self.judge.inner_round(by_step.flatten(0, 1).contiguous())
        self.tokens += report.num_tokens
        weights = {name: weight.detach().cpu().clone() for name, weight in self.judge.model.named_parameters()}
        self.judge.load_consensus(saved_as(weights, self.judge.outer))

    def _exchange(self, number: int) -> None:
        setting = self.setting
        sent: list[Sent] = []
        for peer in self.peers:
            steps = paced(setting, peer.place)
            work = self.pages(number, peer.key, steps)
            peer.train(work, setting, steps)
            self.tokens += len(work) * self.spec.model.context
            sent.append(self.exchange.send(peer.place, peer.replica))
        if setting.void and number % setting.void == setting.void - 1:
            for peer, update in zip(self.peers, sent, strict=True):
                self.exchange.restore_to_error_feedback(peer.place, peer.replica, update)
            return
        everybody = [*sent, *self._attack(number, sent)]
        saved = self.exchange.settle(self.judge, everybody)
        for peer in self.peers:
            if setting.guess:
                peer.expected = self._guess(number, peer, sent), [u for u in sent if isinstance(u, Update)]
            else:
                peer.replica.load_consensus(saved)
        self._replace(number)

    def _guess(self, number: int, peer: Peer, sent: Sequence[Sent]) -> list[Update]:
        """From what a peer goes on: its own update alone, or all but one of the others'."""
        updates = [update for update in sent if isinstance(update, Update)]
        own = updates[peer.place]
        if self.setting.guess == "own":
            return [own]
        others = [update for update in updates if update is not own]
        lacks = number % len(others)
        return [own, *(update for place, update in enumerate(others) if place != lacks)]

    def _attack(self, number: int, sent: Sequence[Sent]) -> list[Update]:
        """What the colluders send: they know everything, and send the honest norm (benchmarks/collusion.py)."""
        setting = self.setting
        honest = [update for update in sent if isinstance(update, Update)]
        found = []
        for place in range(setting.colluders):
            usual = sorted(update.norms.whole for update in honest)[len(honest) // 2]
            own = setting.seed if setting.attack == "constant" else setting.seed * 1000 + number * 10 + place
            generator = torch.Generator().manual_seed(own)
            found.append(forged(direction(setting.attack, honest, self.judge, generator), usual, self.judge))
        return found

    def _replace(self, number: int) -> None:
        """Who leaves after the round is replaced by a newcomer, which has theta and nothing else."""
        setting = self.setting
        for index, peer in enumerate(self.peers):
            chance = random.Random(f"leave {setting.seed} {number} {peer.place}").random()
            if setting.leave and chance < setting.leave:
                replica = Replica(self.spec, self.judge.theta, self.judge.outer, ranks=self.ranks)
                self.exchange.forget(peer.place)
                self.peers[index] = Peer(peer.place, key_of(setting, peer.place, number + 1), replica)


def key_of(setting: Setting, place: int, since: int) -> PeerId:
    """The hotkey of the peer at this place that joined in this round: whose pages it trains on."""
    return PeerId(word("peer", setting.seed, place, since))


def paced(setting: Setting, place: int) -> int:
    """Inner steps of the peer at this place: evenly between 1 - pace and 1 + pace times H."""
    if not setting.pace or setting.peers == 1:
        return setting.inner_steps
    share = 2.0 * place / (setting.peers - 1) - 1.0
    return max(1, round(setting.inner_steps * (1.0 + setting.pace * share)))


def train(setting: Setting, texts: Texts, device: str = "cpu") -> tuple[list[Point], float]:
    """The points of a run, the first before any training, and the seconds that it took."""
    start = time.perf_counter()
    run = Run(setting, texts, device)
    wanted = {round(setting.rounds * (place + 1) / setting.points) for place in range(setting.points)}
    points = [run.point(0)]
    for number in range(1, setting.rounds + 1):
        try:
            run.round(number - 1)
        except NonFinite:
            points.append(run.point(number) | {"loss": None})
            break
        if number in wanted:
            points.append(run.point(number))
    return points, time.perf_counter() - start
